"""Results of the analysis: messages of the stream `warren.analysis`, kept as the newest rows of each job.

A message is one JSON object (docs/analysis-pages.md). Its rows replace earlier ones with the same keys, and
all earlier ones of windows that it lists as complete. Rows are kept as rendered JSON, with the values that they are
selected by. Memory is bounded whatever is published: the rows written longest ago are dropped first.

`parse_result` is pure and may run in a thread; a ResultBoard belongs to the loop.
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
# Limits: rows and bytes of JSON per job, and jobs.
MAX_ROWS = 10_000
MAX_BYTES = 4 * 1024 * 1024
MAX_JOBS = 32
MAX_NAME_LENGTH = 64
MAX_COLUMNS = 64
# Not a job: the state of the analysis itself.
STATUS = "status"

# Start and length in microseconds; None for rows without a window.
Window = tuple[int, int] | None


_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class InvalidResult(ValueError):
    """A message of the stream is not a result of the analysis."""


@dataclass(frozen=True, slots=True)
class Row:
    """`json` is the rendered row; `key` identifies it within its window."""

    key: str
    json: bytes
    window: Window
    vhost: str | None


@dataclass(frozen=True, slots=True)
class ResultMessage:
    """One message. `source` is its run and batch, `complete` the starts of windows whose earlier rows it replaces."""

    job: str
    title: str
    chart: str
    mode: str
    source: tuple[str, int]
    written: int
    keys: tuple[str, ...]
    window_length: int | None
    complete: frozenset[int]
    rows: tuple[Row, ...]
    status: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ResultQuery:
    """Windows that overlap this time range (microseconds), have this length, and changed after this revision."""

    start: int | None = None
    end: int | None = None
    length: int | None = None
    limit: int = MAX_ROWS
    after: int = 0


@dataclass(frozen=True, slots=True)
class ResultSelection:
    """Rows of a query, the oldest window first; if not `is_complete`, older ones were left out.

    `windows` are the starts of all matching windows, `changed` of those whose rows are included.
    """

    rows: list[bytes]
    window_length: int | None
    is_complete: bool
    windows: list[int]
    changed: list[int]


# -- parsing a message -------------------------------------------------------------------------------------------------


def parse_result(body: bytes) -> ResultMessage:
    """Parse a message; raise InvalidResult if it is not one, as any client may publish to the stream."""
    try:
        found = json.loads(body, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        raise InvalidResult("it is not JSON") from None
    if not isinstance(found, dict):
        raise InvalidResult("it is not a JSON object")
    if found.get("version") != VERSION:
        raise InvalidResult(f"its version is {found.get('version')!r}, this broker knows {VERSION}")
    job = _text(found, "job")
    if not job or len(job) > MAX_NAME_LENGTH:
        raise InvalidResult(f"'job' must have 1 to {MAX_NAME_LENGTH} characters")
    values, keys = _rows(found.get("rows")), _texts(found.get("keys", []), "keys")
    rows = tuple(_row(row, keys) for row in values)
    return ResultMessage(
        job=job,
        title=_text(found, "title") or job,
        chart=_text(found, "chart") or "table",
        mode=_text(found, "mode"),
        source=(_text(found, "run"), found["batch"] if isinstance(found.get("batch"), int) else 0),
        written=_moment(found.get("written"), "written"),
        keys=keys,
        window_length=_window_length(found.get("window_seconds"), rows),
        complete=frozenset(_moment(start, "windows") for start in _texts(found.get("windows", []), "windows")),
        rows=rows,
        status=values[-1] if job == STATUS and values else None,
    )


def _row(values: dict[str, Any], keys: tuple[str, ...]) -> Row:
    window: Window = None
    if values.get("window_start") is not None:
        start = _moment(values["window_start"], "window_start")
        end = values.get("window_end")
        window = start, (_moment(end, "window_end") - start if end is not None else 0)
    # Without keys, all values of a row identify it.
    rendered = _COMPACT.encode(values)
    key = _COMPACT.encode([values.get(name) for name in keys]) if keys else rendered
    vhost = values.get("vhost")
    return Row(key, rendered.encode("ascii"), window, vhost if isinstance(vhost, str) else None)


def _rows(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(row, dict) and len(row) <= MAX_COLUMNS for row in found):
        raise InvalidResult(f"'rows' must be a list of objects with at most {MAX_COLUMNS} columns")
    for row in found:
        for name, value in row.items():
            if isinstance(value, float | list | dict):
                row[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinite numbers and NaN become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        if any(isinstance(each, list | dict) for each in value):
            raise InvalidResult("a list in a row may hold only plain values")
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        raise InvalidResult("a row may hold only plain values and lists of them")
    return value


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name, "")
    if not isinstance(value, str):
        raise InvalidResult(f"'{name}' must be a string")
    return value


def _texts(found: Any, name: str) -> tuple[str, ...]:
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidResult(f"'{name}' must be a list of strings")
    return tuple(found)


def _moment(found: Any, name: str) -> int:
    try:
        return _microseconds(found)
    except (ValueError, TypeError, OverflowError):
        raise InvalidResult(f"'{name}' must hold times such as 2026-11-16T04:30:00.000000Z") from None


@lru_cache(maxsize=4096)  # few windows, in all rows of all jobs
def _microseconds(text: str) -> int:
    when = datetime.fromisoformat(text)
    return in_microseconds(when if when.tzinfo is not None else when.replace(tzinfo=UTC))


def _window_length(seconds: Any, rows: tuple[Row, ...]) -> int | None:
    """Return the window length that the message states, or else that of its rows."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 < seconds < 1e9:
        return int(seconds * 1_000_000)
    return min((row.window[1] for row in rows if row.window is not None), default=None)


# -- the newest rows ---------------------------------------------------------------------------------------------------


class _WindowRows:
    """The rows of one window, their latest source, and the revision of the latest change."""

    __slots__ = ("revision", "rows", "source")

    def __init__(self) -> None:
        self.rows: OrderedDict[str, Row] = OrderedDict()
        self.source: tuple[str, int] | None = None
        self.revision = 0


class JobResults:
    """The newest rows of one job. `revision` grows with each message."""

    def __init__(self) -> None:
        self.last: ResultMessage | None = None
        self.revision = 0
        self.row_count = 0
        self.size = 0
        self._groups: OrderedDict[Window, _WindowRows] = OrderedDict()  # the least recently written first

    def add(self, message: ResultMessage) -> None:
        self.last = message
        self.revision += 1
        self._drop_replaced(message)
        for row in message.rows:
            self._put(row, message)
        while self.row_count > MAX_ROWS or self.size > MAX_BYTES:
            self._drop_oldest()

    def _put(self, row: Row, message: ResultMessage) -> None:
        group = self._groups.get(row.window)
        if group is None:
            group = self._groups[row.window] = _WindowRows()
        if row.window is not None and group.source != message.source:
            self._groups.move_to_end(row.window)
        group.source = message.source
        group.revision = self.revision
        self._uncount(group.rows.pop(row.key, None))
        group.rows[row.key] = row
        self.row_count += 1
        self.size += len(row.json)

    def _uncount(self, row: Row | None) -> None:
        if row is not None:
            self.row_count -= 1
            self.size -= len(row.json)

    def _drop_replaced(self, message: ResultMessage) -> None:
        """Drop rows that other runs and batches had for complete windows; a batch may have several messages."""
        if message.window_length is None:
            return
        for start in message.complete:
            window = start, message.window_length
            group = self._groups.get(window)
            if group is not None and group.source != message.source:
                del self._groups[window]
                for row in group.rows.values():
                    self._uncount(row)

    def _drop_oldest(self) -> None:
        window, group = next(iter(self._groups.items()))
        self._uncount(group.rows.popitem(last=False)[1])
        if not group.rows:
            del self._groups[window]

    def window_lengths(self) -> list[int]:
        """Return the lengths of the kept windows, the shortest first."""
        return sorted({window[1] for window in self._groups if window is not None})

    def select(self, query: ResultQuery, visible: frozenset[str] | None) -> ResultSelection:
        """Return the newest matching rows, of windows of one length: by default that of the newest message."""
        length = query.length if query.length is not None else self._default_length()
        matching = [window for window in self._groups if _matches(window, query.start, query.end, length)]
        room = query.limit
        found: list[tuple[Window, list[bytes]]] = []
        for window in sorted(matching, key=lambda window: window or (0, 0), reverse=True):
            if room <= 0:
                break
            rows = [row.json for row in self._groups[window].rows.values() if _may_see(row, visible)]
            found.append((window, rows[-room:]))
            room -= len(rows)
        found.reverse()
        is_changed = [window is None or self._groups[window].revision > query.after for window, _ in found]
        return ResultSelection(
            rows=[row for (_, rows), is_new in zip(found, is_changed, strict=True) if is_new for row in rows],
            window_length=length,
            is_complete=room >= 0 and len(found) == len(matching),
            windows=[window[0] for window, _ in found if window is not None],
            changed=[
                window[0]
                for (window, _), is_new in zip(found, is_changed, strict=True)
                if is_new and window is not None
            ],
        )

    def _default_length(self) -> int | None:
        """Return the window length of the newest message, if kept, else the shortest."""
        kept = self.window_lengths()
        if self.last is not None and self.last.window_length in kept:
            return self.last.window_length
        return kept[0] if kept else None


class ResultBoard:
    """The results of all jobs. Bounded, as any client may publish to the stream."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)  # revisions of different boards are not comparable
        self.jobs: OrderedDict[str, JobResults] = OrderedDict()  # the least recently written first
        self.status: ResultMessage | None = None

    def add(self, messages: Iterable[ResultMessage]) -> None:
        for message in messages:
            if message.job == STATUS:
                self.status = message
                continue
            results = self.jobs.get(message.job)
            if results is None:
                results = self.jobs[message.job] = JobResults()
            results.add(message)
            self.jobs.move_to_end(message.job)
            if len(self.jobs) > MAX_JOBS:
                self.jobs.popitem(last=False)


def _matches(window: Window, start: int | None, end: int | None, length: int | None) -> bool:
    if window is None:
        return True
    if length is not None and window[1] != length:
        return False
    return (start is None or window[0] + window[1] > start) and (end is None or window[0] <= end)


def _may_see(row: Row, visible: frozenset[str] | None) -> bool:
    """Return True for rows of visible virtual hosts; rows without one need access to all (None)."""
    return visible is None or row.vhost in visible
