"""What can be looked for in the event log, and how what is found is shown: one line for each message, the newest first.

A message stands where the last of its events is that fits the query. So a search goes through the log from its end,
and a cursor is a place in the log; `top` is where the log ended when the search began, and what came later is not
looked at. A message that fits in several places was shown with the last of them: later pages leave it out.

Pure: reading is up to reader.py.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warrenmq.events.batch import EventBatch, RowFilter
from warrenmq.events.ids import CORRELATION_ID_KEY, TRACE_ID_KEY, key_hash
from warrenmq.events.schema import Event
from warrenmq.tracing.index_entry import EXCHANGE, QUEUE, IndexQuery


class TracingUnavailable(OSError):
    """The event log cannot be read just now; the text says why in one line."""


class TracingBusy(TracingUnavailable):
    """Too many are reading the event log; ask again after `retry_seconds`."""

    def __init__(self, text: str, retry_seconds: int) -> None:
        super().__init__(text)
        self.retry_seconds = retry_seconds


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """Which messages are looked for; None is any. `vhosts` are those the asker may see, None for all of them."""

    correlation_id: str | None = None
    trace_id: str | None = None
    start: int | None = None
    end: int | None = None
    vhost: str | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    kind: int | None = None
    limit: int = 50
    cursor: str | None = None
    vhosts: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """One message that was found."""

    message_id: str | None
    uid: int
    first_time: int
    last_time: int
    last_kind: int
    vhost: str
    exchange: str | None
    routing_key: str | None
    queues: Sequence[str]
    size: int | None
    events: int
    correlation_id: str | None
    trace_id: str | None
    priority: int | None


@dataclass(frozen=True, slots=True)
class TracePage:
    """Some of what was found. `next` is the cursor of the rest; None: that was all.

    A search that takes long stops with what it has, which may be nothing, and a cursor.
    """

    traces: Sequence[TraceSummary]
    next: str | None = None


class Place(NamedTuple):
    """Where in the log an event is."""

    offset: int
    row: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """A search goes on with what is before `place`."""

    top: int
    place: Place

    def text(self) -> str:
        return f"{self.top:x}-{self.place.offset:x}-{self.place.row:x}"


def parse_cursor(text: str, next_offset: int) -> Cursor:
    """ValueError if it is none, or of a log that was longer than this."""
    parts = re.fullmatch(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,8})", text)
    if parts is None:
        raise ValueError(f"'{text}' is no cursor of a search")
    top, offset, row = (int(part, 16) for part in parts.groups())
    if top > next_offset or offset > top:
        raise ValueError(f"'{text}' is a cursor of an event log that is no more")
    return Cursor(top, Place(offset, row))


def wanted_batches(query: TraceQuery) -> IndexQuery:
    """What the index can say about batches that fit."""
    names = [prefix + name for prefix, name in ((QUEUE, query.queue), (EXCHANGE, query.exchange)) if name is not None]
    return IndexQuery(query.start, query.end, query.kind, frozenset(names))


def wanted_keys(query: TraceQuery) -> list[int]:
    """The keys of ids of which each event that fits has all."""
    spaces = ((CORRELATION_ID_KEY, query.correlation_id), (TRACE_ID_KEY, query.trace_id))
    return [key_hash(space, text.encode("utf-8", "replace")) for space, text in spaces if text is not None]


def fitting_rows(
    batch: EventBatch, query: TraceQuery, before: int | None = None, uids: frozenset[int] | None = None
) -> list[int]:
    """The rows that fit, in order; only those before this one, and of these messages."""
    rows = _select(batch, query, uids)
    return rows if before is None else rows[: bisect_left(rows, before)]


def _select(batch: EventBatch, query: TraceQuery, uids: frozenset[int] | None) -> list[int]:
    vhosts = [query.vhost] if query.vhosts is None else sorted(query.vhosts)
    if query.vhosts is not None and query.vhost is not None:
        vhosts = [query.vhost] if query.vhost in query.vhosts else []
    kinds = None if query.kind is None else frozenset({query.kind})
    rows: list[int] = []
    for vhost in vhosts:
        selection = RowFilter(
            time_from=query.start,
            time_to=query.end,
            kinds=kinds,
            uids=uids,
            correlation_id=query.correlation_id,
            trace_id=query.trace_id,
            vhost=vhost,
            exchange=query.exchange,
            routing_key=query.routing_key,
            queue=query.queue,
        )
        rows += batch.select(selection)
    return sorted(rows) if len(vhosts) > 1 else rows


def summarize(events: Sequence[Event]) -> TraceSummary:
    """All events of one message, in order, on a line."""
    first, last = events[0], events[-1]
    queues = dict.fromkeys(event.queue for event in events if event.queue is not None)
    return TraceSummary(
        first.message_id,
        first.uid,
        first.time,
        last.time,
        last.kind,
        first.vhost or "",
        first.exchange,
        first.routing_key,
        tuple(queues),
        first.size,
        len(events),
        first.correlation_id,
        first.trace_id,
        # An earlier version of the broker, which kept no priorities, may have written the first events.
        next((event.priority for event in events if event.priority is not None), None),
    )
