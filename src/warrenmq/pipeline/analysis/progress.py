"""How far an analysis is: what the progress bar shows and what the job `status` tells on the stream.

`Progress` is a value. `Tracker` gathers it from Spark's reports, which come on threads of their own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from warrenmq.pipeline.publish.answers import Answer, Run
from warrenmq.pipeline.times import iso

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total` steps where there is an end; `lag` is how many events are not read yet, about."""

    what: str
    done: int = 0
    total: int | None = None
    batches: int = 0
    events: int = 0
    lag: int | None = None
    newest: datetime | None = None
    late: int = 0  # events that came too late to be counted


Tell = Callable[[Progress], None]


def status_answer(run: Run, progress: Progress, state: str, window_seconds: float, error: str | None = None) -> Answer:
    """The heartbeat: that somebody analyses, how far it is, and how it ended."""
    row = {
        "run": run.id,
        "mode": run.mode,
        "state": state,
        "started": iso(run.started),
        "batches": progress.batches,
        "events": progress.events,
        "lag": progress.lag,
        "newest_event": None if progress.newest is None else iso(progress.newest),
        "late_events": progress.late,
        "error": error,
        "window_seconds": window_seconds,
    }
    return Answer("status", "Analysis", "status", ("run",), [row])


class Tracker:
    """The progress of a --follow: what its micro-batches brought, and how much is left by Spark's reports."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._progress = Progress("following")
        self._messages = 0  # of the event log that were read

    @property
    def progress(self) -> Progress:
        with self._lock:
            return self._progress

    def say(self, what: str) -> None:
        with self._lock:
            self._progress = replace(self._progress, what=what)
            told = self._progress
        self._tell(told)

    def count(self, events: int, newest: datetime | None, late: int) -> None:
        """A micro-batch with so many events, of which some came too late."""
        with self._lock:
            before = self._progress
            self._progress = replace(
                before,
                batches=before.batches + (events > 0),
                events=before.events + events,
                newest=newest or before.newest,
                late=before.late + late,
            )
            told = self._progress
        self._tell(told)

    def note(self, report: dict[str, Any]) -> None:
        """A report of Spark's about one micro-batch, in the shape of its JSON."""
        found = messages_in(report)
        with self._lock:
            if found is not None:
                self._messages += found[0]
            left = None if found is None else found[1]
            self._progress = replace(self._progress, lag=self._events_in(left))
            told = self._progress
        self._tell(told)

    def _events_in(self, messages: int | None) -> int | None:
        """About, by what those had that were read."""
        if not messages:
            return messages
        return round(messages * self._progress.events / self._messages) if self._messages else None


def messages_in(report: dict[str, Any]) -> tuple[int, int] | None:
    """How many messages of the event log a micro-batch has read, and how many are left. None: unknown."""
    read = left = 0
    for source in report.get("sources") or ():
        start, end, latest = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        if end is None or latest is None:
            return None
        left += sum(max(0, latest.get(name, reached) - reached) for name, reached in end.items())
        read += sum(reached - (start or {}).get(name, reached) for name, reached in end.items())
    return read, left


def _offsets(value: Any) -> dict[str, int] | None:
    """Offsets by stream; Spark hands them on as JSON, or as a text that holds JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or not all(isinstance(offset, int) for offset in value.values()):
        return None
    return value


def listener_for(trackers: Callable[[str], Tracker | None]) -> StreamingQueryListener:
    """Hands Spark's reports on; `trackers` says whose a query is, by the name of the query."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            tracker = trackers(event.progress.name)
            if tracker is not None:
                tracker.note(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    return Listener()
