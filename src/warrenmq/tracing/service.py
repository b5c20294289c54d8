"""Tracing of one broker, put together: rules, recorder, event log, what reads it, and the firehose.

The recorder is made before the broker, which tells it everything; the rest is made on the broker. Owned by the loop
thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.ports import Storage
from warrenmq.core.stream import Stream
from warrenmq.events import schema
from warrenmq.events.ids import EPOCH_MS, UidClock
from warrenmq.events.rows import Rows
from warrenmq.tracing.export_otlp import OtlpExporter, OtlpOptions
from warrenmq.tracing.firehose import Firehose
from warrenmq.tracing.log import EventLog, EventLogOptions, parse_logged_rows, rows_without_batch
from warrenmq.tracing.reader import Traces
from warrenmq.tracing.recorder import Recorder
from warrenmq.tracing.rules import RuleBook, TraceRule

_UID_BITS = 22  # of a uid, below its milliseconds


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """`rules` are those of the settings, which cannot be changed while the broker runs.

    `index_folder` None: the index is in memory. `otlp` None: nothing is exported.
    """

    rules: Sequence[TraceRule] = ()
    log: EventLogOptions = field(default_factory=EventLogOptions)
    index_folder: str | None = None
    otlp: OtlpOptions | None = None


class Tracing:
    """`recorder` is what the broker is made with; `attach` makes the rest."""

    def __init__(self, storage: Storage, options: TracingOptions | None = None) -> None:
        self._options = options or TracingOptions()
        self._in_log = storage.recovered_events()
        self._recovered = Rows()
        self._recovered_from = 0  # the number of their first
        self.recorder = Recorder()
        self.rules: RuleBook
        self.firehose: Firehose
        self.log: EventLog
        self.traces: Traces
        self._exporter: OtlpExporter | None = None
        self._is_started = False

    def attach(self, broker: Broker) -> None:
        """The broker is there, with all that it restored, and this hears of everything from now on."""
        self.rules = RuleBook(broker, self._options.rules)
        self.firehose = Firehose(broker)
        self.log = EventLog(broker, self.recorder, self._options.log)
        self.traces = Traces(self.log.reader(), self.log.flush, self._options.index_folder)
        stream = broker.stream(schema.STREAM_NAME)
        last_batched = self._recover(stream)
        last_append_ms = max(_newest_ms(stream), self._recovered.last_time // 1000)
        uids = UidClock(max(0, last_append_ms + 1 - EPOCH_MS) << _UID_BITS)
        self.recorder.connect(self.rules, self.firehose, self.log, broker.storage.log, uids, last_batched)
        self.rules.on_change = self.firehose.on_change = self.recorder.rules_changed
        broker.storage.log.on_epoch_end = self.recorder.end_epoch
        broker.storage.log.on_trim = self.log.relog

    def _recover(self, stream: Stream | None) -> int:
        """Take what the commit log alone has. Gives the highest number of a row so far."""
        in_log, found = self._in_log
        in_batches, found = rows_without_batch(found, stream)
        self._recovered = parse_logged_rows([rows for _, _, rows in found])
        self._recovered_from = min([first for first, _, _ in found], default=0)
        self._in_log = 0, []
        return max(in_log, in_batches)

    async def start(
        self,
        loop: asyncio.AbstractEventLoop,
        schedule_turn: Callable[[], None],
        overloaded: Callable[[bool], None],
        is_disk_short: Callable[[], bool],
    ) -> None:
        """Begin to write, and to read along."""
        self._is_started = True
        self.rules.schedule_turn = schedule_turn
        self.log.overloaded = overloaded
        self.log.is_disk_short = is_disk_short
        self.log.start(loop, schedule_turn)
        self.log.on_batch.append(self.traces.batch_added)
        if self._options.otlp is not None:
            self._exporter = OtlpExporter(self._options.otlp)
            self.log.on_batch.append(self._exporter.batch_added)
            self._exporter.start()
        await self.traces.start()
        self.batch_recovered()

    def batch_recovered(self) -> None:
        """Make a batch of what only the commit log had."""
        self.log.take(self._recovered.take(), self._recovered_from, self.recorder.last_batched)

    async def stop(self) -> None:
        """Write what is there; nothing is heard any more."""
        if not self._is_started:
            return
        self._is_started = False
        await self.log.stop()
        self.recorder.is_watching = False
        await self.traces.stop()
        if self._exporter is not None:
            await self._exporter.stop()

    def state(self) -> dict[str, Any]:
        """For people."""
        state = {"enabled": self.rules.is_keeping, **self.log.state()}
        if self._exporter is not None:
            state["otlp"] = self._exporter.state()
        return state


def _newest_ms(stream: Stream | None) -> int:
    """When the last batch was appended: no uid in it is younger, also if the clock was set back since."""
    if stream is None:
        return 0
    return stream.store.last_append_ms()
