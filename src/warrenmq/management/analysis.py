"""What the analysis has found: messages of the stream `warren.analysis`, kept as the newest rows of each job.

A message is one JSON object (docs/analysis-pages.md). Its rows take the place of those with the same keys; where it
says that it answers whole windows, of everything that was known about them. Rows are kept as the JSON that they will
be shown as, with what they are looked up by beside it. Memory is bounded whatever is published: the rows that were
written longest ago go first.

`read_answer` is pure, and may be done in a thread; a Board belongs to the loop.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from warrenmq.management.paging import in_microseconds

VERSION = 1
# What is kept: of one job, so many rows and bytes of JSON; and so many jobs.
MOST_ROWS = 10_000
MOST_BYTES = 4 * 1024 * 1024
MOST_JOBS = 32
LONGEST_NAME = 64
MOST_COLUMNS = 64
# The job that is none: how the analysis itself is doing.
STATUS = "status"

# Start and length in microseconds; None for rows that are of no window.
Window = tuple[int, int] | None


_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class NoAnswer(ValueError):
    """A message of the stream that is no answer of the analysis."""


@dataclass(frozen=True, slots=True)
class Row:
    """`bytes` is the row as JSON, `key` what tells it from others of its window."""

    key: str
    octets: bytes
    window: Window
    vhost: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One message. `source` is the run and batch that found it, `whole` the starts of windows that it answers whole."""

    job: str
    title: str
    chart: str
    mode: str
    source: tuple[str, int]
    written: int
    keys: tuple[str, ...]
    window_length: int | None
    whole: frozenset[int]
    rows: tuple[Row, ...]
    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Windows that touch this time, in microseconds, of this length, and changed after this revision."""

    start: int | None = None
    end: int | None = None
    length: int | None = None
    limit: int = MOST_ROWS
    after: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows that were asked for, the oldest window first; not `is_complete`: older ones were left out.

    `windows` are the starts of all windows that fit, `changed` of those whose rows are here.
    """

    rows: list[bytes]
    window_length: int | None
    is_complete: bool
    windows: list[int]
    changed: list[int]


# -- a message becomes an answer ---------------------------------------------------------------------------------------


def read_answer(body: bytes) -> Answer:
    """NoAnswer for what is none: anybody may have published anything there."""
    try:
        found = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise NoAnswer("it is no JSON") from None
    if not isinstance(found, dict):
        raise NoAnswer("it is no JSON object")
    if found.get("version") != VERSION:
        raise NoAnswer(f"it is of version {found.get('version')!r}, and {VERSION} is known")
    job = _text(found, "job")
    if not job or len(job) > LONGEST_NAME:
        raise NoAnswer(f"the name of a job has 1 to {LONGEST_NAME} characters")
    values, keys = _rows(found.get("rows")), _texts(found.get("keys", []), "keys")
    rows = tuple(_row(row, keys) for row in values)
    return Answer(
        job=job,
        title=_text(found, "title") or job,
        chart=_text(found, "chart") or "table",
        mode=_text(found, "mode"),
        source=(_text(found, "run"), found["batch"] if isinstance(found.get("batch"), int) else 0),
        written=_moment(found.get("written"), "written"),
        keys=keys,
        window_length=_window_length(found.get("window_seconds"), rows),
        whole=frozenset(_moment(start, "windows") for start in _texts(found.get("windows", []), "windows")),
        rows=rows,
        status=values[-1] if job == STATUS and values else None,
    )


def _row(values: dict[str, Any], keys: tuple[str, ...]) -> Row:
    window: Window = None
    if values.get("window_start") is not None:
        start = _moment(values["window_start"], "window_start")
        end = values.get("window_end")
        window = start, (_moment(end, "window_end") - start if end is not None else 0)
    # Without keys every row is told from others by all that it says.
    octets = _COMPACT.encode(values)
    key = _COMPACT.encode([values.get(name) for name in keys]) if keys else octets
    vhost = values.get("vhost")
    return Row(key, octets.encode("ascii"), window, vhost if isinstance(vhost, str) else None)


def _rows(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(row, dict) and len(row) <= MOST_COLUMNS for row in found):
        raise NoAnswer(f"'rows' must be a list of objects with at most {MOST_COLUMNS} columns")
    for row in found:
        for name, value in row.items():
            if isinstance(value, float | list | dict):
                row[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """A value as it can be shown: what is infinite or no number is nothing."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        if any(isinstance(each, list | dict) for each in value):
            raise NoAnswer("a list in a row may hold only plain values")
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        raise NoAnswer("a row may hold only plain values and lists of them")
    return value


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise NoAnswer(f"'{name}' must be a text")
    return value


def _texts(found: Any, name: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise NoAnswer(f"'{name}' must be a list of texts")
    return tuple(found)


def _moment(found: Any, name: str) -> int:
    try:
        return _microseconds(found)
    except (ValueError, TypeError, OverflowError):
        raise NoAnswer(f"'{name}' must hold times such as 2026-11-16T04:30:00.000000Z") from None


@lru_cache(maxsize=4096)  # the same few windows come in all rows of all jobs
def _microseconds(text: str) -> int:
    when = datetime.fromisoformat(text)
    return in_microseconds(when if when.tzinfo is not None else when.replace(tzinfo=UTC))


def _window_length(seconds: Any, rows: tuple[Row, ...]) -> int | None:
    """As the message says, or as its rows have it."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e9:
        return int(seconds * 1_000_000)
    return min((row.window[1] for row in rows if row.window is not None), default=None)


# -- answers become what is known --------------------------------------------------------------------------------------


class _Group:
    """The rows of one window, who found them last, and the revision that this was."""

    __slots__ = ("revision", "rows", "source")

    def __init__(self) -> None:
        self.rows: OrderedDict[str, Row] = OrderedDict()
        self.source: tuple[str, int] | None = None
        self.revision = 0


class Findings:
    """The newest rows of one job. `revision` grows with each message."""

    def __init__(self) -> None:
        self.last: Answer | None = None
        self.revision = 0
        self.row_count = 0
        self.octets = 0
        self._groups: OrderedDict[Window, _Group] = OrderedDict()  # the one written longest ago first

    def add(self, answer: Answer) -> None:
        self.last = answer
        self.revision += 1
        self._drop_answered(answer)
        for row in answer.rows:
            self._put(row, answer)
        while self.row_count > MOST_ROWS or self.octets > MOST_BYTES:
            self._drop_oldest()

    def _put(self, row: Row, answer: Answer) -> None:
        group = self._groups.get(row.window)
        if group is None:
            group = self._groups[row.window] = _Group()
        if row.window is not None and group.source != answer.source:
            self._groups.move_to_end(row.window)
        group.source = answer.source
        group.revision = self.revision
        self._forget(group.rows.pop(row.key, None))
        group.rows[row.key] = row
        self.row_count += 1
        self.octets += len(row.octets)

    def _forget(self, row: Row | None) -> None:
        if row is not None:
            self.row_count -= 1
            self.octets -= len(row.octets)

    def _drop_answered(self, answer: Answer) -> None:
        """What an earlier run or batch said of windows that this one answers whole; a message may be a part of many."""
        if answer.window_length is None:
            return
        for start in answer.whole:
            window = start, answer.window_length
            group = self._groups.get(window)
            if group is not None and group.source != answer.source:
                del self._groups[window]
                for row in group.rows.values():
                    self._forget(row)

    def _drop_oldest(self) -> None:
        window, group = next(iter(self._groups.items()))
        self._forget(group.rows.popitem(last=False)[1])
        if not group.rows:
            del self._groups[window]

    def window_lengths(self) -> list[int]:
        """Which there are, the shortest first."""
        return sorted({window[1] for window in self._groups if window is not None})

    def select(self, wanted: Wanted, visible: frozenset[str] | None) -> Selection:
        """The newest rows that fit; windows of one length only, that of the newest answer if none is asked for."""
        length = wanted.length if wanted.length is not None else self._usual_length()
        fitting = [window for window in self._groups if _fits(window, wanted.start, wanted.end, length)]
        room = wanted.limit
        told: list[tuple[Window, list[bytes]]] = []
        for window in sorted(fitting, key=lambda window: window or (0, 0), reverse=True):
            if room <= 0:
                break
            rows = [row.octets for row in self._groups[window].rows.values() if _may_see(row, visible)]
            told.append((window, rows[-room:]))
            room -= len(rows)
        told.reverse()
        is_new = [window is None or self._groups[window].revision > wanted.after for window, _ in told]
        return Selection(
            rows=[row for (_, rows), new in zip(told, is_new, strict=True) if new for row in rows],
            window_length=length,
            is_complete=room >= 0 and len(told) == len(fitting),
            windows=[window[0] for window, _ in told if window is not None],
            changed=[window[0] for (window, _), new in zip(told, is_new, strict=True) if new and window is not None],
        )

    def _usual_length(self) -> int | None:
        """Of the windows of the newest answer, or of any."""
        kept = self.window_lengths()
        if self.last is not None and self.last.window_length in kept:
            return self.last.window_length
        return kept[0] if kept else None


class Board:
    """All jobs. What is published by anybody cannot make it grow without bounds."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)  # revisions of one board say nothing about another
        self.jobs: OrderedDict[str, Findings] = OrderedDict()  # the one written longest ago first
        self.status: Answer | None = None

    def add(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer.job == STATUS:
                self.status = answer
                continue
            findings = self.jobs.get(answer.job)
            if findings is None:
                findings = self.jobs[answer.job] = Findings()
            findings.add(answer)
            self.jobs.move_to_end(answer.job)
            if len(self.jobs) > MOST_JOBS:
                self.jobs.popitem(last=False)


def _fits(window: Window, start: int | None, end: int | None, length: int | None) -> bool:
    if window is None:
        return True
    if length is not None and window[1] != length:
        return False
    return (start is None or window[0] + window[1] > start) and (end is None or window[0] <= end)


def _may_see(row: Row, visible: frozenset[str] | None) -> bool:
    """Who may not enter all virtual hosts sees what is said of those that are theirs, and nothing else."""
    return visible is None or row.vhost in visible
