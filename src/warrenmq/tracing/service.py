"""Tracing of one broker: creates and connects the rules, recorder, event log, its readers, and the firehose.

The recorder is made before the broker, which reports all events to it; the rest is made on the broker. Owned by the
loop thread.
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
    """`rules` are those of the settings, which are fixed while the broker runs.

    Without `index_folder` the index is in memory; without `otlp` nothing is exported.
    """

    rules: Sequence[TraceRule] = ()
    log: EventLogOptions = field(default_factory=EventLogOptions)
    index_folder: str | None = None
    otlp: OtlpOptions | None = None


class Tracing:
    """`recorder` is passed to the broker; `attach` makes the rest."""

    def __init__(self, storage: Storage, options: TracingOptions | None = None) -> None:
        self._options = options or TracingOptions()
        self._in_log = storage.recovered_events()
        self._recovered = Rows()
        self._recovered_from = 0  # the number of the first of these rows
        self.recorder = Recorder()
        self.rules: RuleBook
        self.firehose: Firehose
        self.log: EventLog
        self.traces: Traces
        self._exporter: OtlpExporter | None = None
        self._is_started = False

    def attach(self, broker: Broker) -> None:
        """Begin to record the events of a broker that has restored its definitions."""
        self.rules = RuleBook(broker, self._options.rules)
        self.firehose = Firehose(broker)
        self.log = EventLog(broker, self.recorder, self._options.log)
        self.traces = Traces(self.log, self._options.index_folder)
        stream = broker.stream(schema.STREAM_NAME)
        last_batched = self._recover(stream)
        # New uids come after those in the log, even if the clock was set back.
        last_append_ms = 0 if stream is None else stream.store.last_append_ms()
        last_append_ms = max(last_append_ms, self._recovered.last_time // 1000)
        uids = UidClock(max(0, last_append_ms + 1 - EPOCH_MS) << _UID_BITS)
        self.recorder.connect(self.rules, self.firehose, self.log, broker.storage.log, uids, last_batched)
        self.rules.on_change = self.firehose.on_change = self.recorder.rules_changed
        broker.storage.log.on_epoch_end = self.recorder.end_epoch
        broker.storage.log.on_trim = self.log.relog

    def _recover(self, stream: Stream | None) -> int:
        """Take the rows that only the commit log has; return the highest row number so far."""
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
        """Start the event log and its readers."""
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
        """Make a batch of the rows that only the commit log had."""
        recovered, self._recovered = self._recovered, Rows()
        self.log.take(recovered, self._recovered_from, self.recorder.last_batched)

    async def stop(self) -> None:
        """Write all rows and stop recording."""
        if not self._is_started:
            return
        self._is_started = False
        await self.log.stop()
        self.recorder.is_watching = False
        await self.traces.stop()
        if self._exporter is not None:
            await self._exporter.stop()

    def state(self) -> dict[str, Any]:
        """Return figures for people."""
        state = {"enabled": self.rules.is_keeping, **self.log.state()}
        if self._exporter is not None:
            state["otlp"] = self._exporter.state()
        return state
