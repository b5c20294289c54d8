"""The progress of an analysis: shown by the progress bar, and published as the job `status`.

`AnalysisProgress` is a value. `ProgressTracker` updates it from Spark's reports, which come on threads of their own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from warrenmq.pipeline.jobs.answers import Answer
from warrenmq.pipeline.times import iso

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from warrenmq.pipeline.publish.results import Run

RUNNING, FINISHED, STOPPED, FAILED = "running", "finished", "stopped", "failed"


@dataclass(frozen=True, slots=True)
class AnalysisProgress:
    """`done` of `total` steps if there is an end; `lag` estimates how many events are not read yet."""

    activity: str
    done: int = 0
    total: int | None = None
    batches: int = 0
    events: int = 0
    lag: int | None = None
    newest: datetime | None = None
    late: int = 0  # events that were dropped as too late


ReportProgress = Callable[[AnalysisProgress], None]


def status_answer(
    run: Run, progress: AnalysisProgress, state: str, window_seconds: float, error: str | None = None
) -> Answer:
    """Return the heartbeat: the state of the run and its progress."""
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


class ProgressTracker:
    """The progress of a --follow: what its micro-batches brought, and the lag according to Spark's reports."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._progress = AnalysisProgress("following")
        self._messages = 0  # of the event log, read so far

    @property
    def progress(self) -> AnalysisProgress:
        with self._lock:
            return self._progress

    def set_activity(self, activity: str) -> None:
        with self._lock:
            progress = self._progress = replace(self._progress, activity=activity)
        self._report(progress)

    def add_batch(self, events: int, newest: datetime | None, late: int) -> None:
        """Add a micro-batch: its events, and how many of them were late."""
        with self._lock:
            before = self._progress
            progress = self._progress = replace(
                before,
                batches=before.batches + (events > 0),
                events=before.events + events,
                newest=newest or before.newest,
                late=before.late + late,
            )
        self._report(progress)

    def on_query_progress(self, query_progress: dict[str, Any]) -> None:
        """Take Spark's progress report of a micro-batch, as its JSON."""
        found = messages_in(query_progress)
        with self._lock:
            if found is not None:
                self._messages += found[0]
            left = None if found is None else found[1]
            progress = self._progress = replace(self._progress, lag=self._estimate_events(left))
        self._report(progress)

    def _estimate_events(self, messages: int | None) -> int | None:
        """Estimate the events in these messages from those already read."""
        if not messages:
            return messages
        return round(messages * self._progress.events / self._messages) if self._messages else None


def messages_in(query_progress: dict[str, Any]) -> tuple[int, int] | None:
    """Return how many messages of the event log a micro-batch read, and how many are left; None if unknown."""
    read = left = 0
    for source in query_progress.get("sources") or ():
        start, end, latest = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        if end is None or latest is None:
            return None
        left += sum(max(0, latest.get(name, reached) - reached) for name, reached in end.items())
        read += sum(reached - (start or {}).get(name, reached) for name, reached in end.items())
    return read, left


def _offsets(value: Any) -> dict[str, int] | None:
    """Return offsets by stream; Spark passes them as JSON, or as a string that holds JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or not all(isinstance(offset, int) for offset in value.values()):
        return None
    return value


def listener_for(trackers: Callable[[str], ProgressTracker | None]) -> StreamingQueryListener:
    """Return a listener that passes Spark's reports to the tracker of the query with that name."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            tracker = trackers(event.progress.name)
            if tracker is not None:
                tracker.on_query_progress(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            pass

    return Listener()
