"""Searching the event log: queries, cursors, and one summary per message, newest first.

A message is listed where its last matching event is. A search runs backwards from the end of the log; a cursor is a
position in the log, with `top`, where the log ended when the search began: later events are ignored. A message that
matches in several positions was listed with the last of them, and later pages leave it out.

Pure: reader.py reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from warrenmq.events.batch import RowFilter
from warrenmq.events.ids import CORRELATION_ID_KEY, TRACE_ID_KEY, key_hash
from warrenmq.events.schema import Event


class TracingUnavailable(OSError):
    """The event log cannot be read now; the text says why in one line."""


class TracingBusy(TracingUnavailable):
    """Too many questions at once; ask again after `retry_seconds`."""

    def __init__(self, text: str, retry_seconds: int) -> None:
        super().__init__(text)
        self.retry_seconds = retry_seconds


@dataclass(frozen=True, slots=True)
class TraceQuery:
    """Which messages to find; None matches any. `vhosts` are those that the user may see, None for all."""

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
    """One page. `next` is the cursor of the next page, None at the end.

    A search that takes long ends with what it has, perhaps nothing, and a cursor.
    """

    traces: Sequence[TraceSummary]
    next: str | None = None


class EventPosition(NamedTuple):
    """Offset of the batch and row of the event."""

    offset: int
    row: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """The search continues with what is before `position`."""

    top: int
    position: EventPosition

    def text(self) -> str:
        return f"{self.top:x}-{self.position.offset:x}-{self.position.row:x}"


def parse_cursor(text: str, next_offset: int) -> Cursor:
    """Parse a cursor. ValueError: it is malformed, or from a log that was longer."""
    parts = re.fullmatch(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})-([0-9a-f]{1,8})", text)
    if parts is None:
        raise ValueError(f"'{text}' is not the cursor of a search")
    top, offset, row = (int(part, 16) for part in parts.groups())
    if top > next_offset or offset > top:
        raise ValueError(f"'{text}' is a cursor of an event log that no longer exists")
    return Cursor(top, EventPosition(offset, row))


def query_keys(query: TraceQuery) -> list[int]:
    """Return the index keys that each matching event has."""
    spaces = ((CORRELATION_ID_KEY, query.correlation_id), (TRACE_ID_KEY, query.trace_id))
    return [key_hash(space, text.encode("utf-8", "replace")) for space, text in spaces if text is not None]


def row_filters(query: TraceQuery) -> list[RowFilter]:
    """Return a filter for each virtual host in which messages may match."""
    vhosts = [query.vhost]
    if query.vhosts is not None:
        vhosts = [name for name in sorted(query.vhosts) if query.vhost in (None, name)]
    wanted = RowFilter(
        time_from=query.start,
        time_to=query.end,
        kinds=None if query.kind is None else frozenset({query.kind}),
        correlation_id=query.correlation_id,
        trace_id=query.trace_id,
        exchange=query.exchange,
        routing_key=query.routing_key,
        queue=query.queue,
    )
    return [replace(wanted, vhost=vhost) for vhost in vhosts]


def summarize(events: Sequence[Event]) -> TraceSummary:
    """Summarize all events of one message, in order."""
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
        # Events that an earlier version of the broker wrote have no priority.
        next((event.priority for event in events if event.priority is not None), None),
    )
