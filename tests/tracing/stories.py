"""Events as a broker would record them, and an event log in memory to keep them in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import count
from typing import Any

from warrenmq.events import schema
from warrenmq.events.codec import encode
from warrenmq.events.ids import GROUP_BITS, UidClock
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event
from warrenmq.tracing.index import IndexEntry, entry_of

BEGIN = 1_794_804_600_000_000  # 2026-11-16 04:50 UTC
UIDS = count(UidClock().next(BEGIN), 1 << GROUP_BITS)  # as of a quiet broker: no two share a key
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"


class EventBuilder:
    """Builds the events of one message; times are microseconds since BEGIN."""

    def __init__(self, at: int = 0, message_id: str | None = None, **common: Any) -> None:
        self.uid = next(UIDS)
        self._common = {
            "message_id": message_id,
            "publish_time": BEGIN + at,
            "vhost": "/",
            "exchange": "orders",
        } | common
        self._common.setdefault("routing_key", "order.created")
        self.events: list[Event] = []
        self.add(schema.PUBLISHED, at, connection="c0", channel=1, size=100)

    def add(self, kind: int, at: int, **fields: Any) -> EventBuilder:
        self.events.append(Event(BEGIN + at, kind, self.uid, **(self._common | fields)))
        return self

    def enqueued(self, at: int, queue: str, **fields: Any) -> EventBuilder:
        return self.add(schema.ENQUEUED, at, queue=queue, depth=1, **fields)

    def delivered(self, at: int, queue: str, consumer: str, attempt: int = 1, **fields: Any) -> EventBuilder:
        who = {"connection": f"c-{consumer}", "channel": 1, "depth": 0} | fields
        return self.add(schema.DELIVERED, at, queue=queue, consumer=consumer, attempt=attempt, **who)

    def settled(self, kind: int, at: int, queue: str, consumer: str, attempt: int = 1, **fields: Any) -> EventBuilder:
        who = {"connection": f"c-{consumer}", "channel": 1, "depth": 0} | fields
        return self.add(kind, at, queue=queue, consumer=consumer, attempt=attempt, **who)

    def acked(self, at: int, queue: str, consumer: str, attempt: int = 1, **fields: Any) -> EventBuilder:
        return self.settled(schema.ACKED, at, queue, consumer, attempt, **fields)


def simple_life(at: int, queue: str = "work", message_id: str | None = None, **common: Any) -> list[Event]:
    """Published, waits 100 us, is processed for 50."""
    told = EventBuilder(at, message_id, **common)
    return told.enqueued(at + 1, queue).delivered(at + 101, queue, "worker").acked(at + 151, queue, "worker").events


def bytes_of(events: Iterable[Event]) -> bytes:
    """One batch."""
    rows = Rows()
    for event in events:
        fields = {name: value for name, value in asdict(event).items() if value is not None}
        rows.add_event(fields.pop("kind"), fields.pop("time"), **fields)
    return encode(rows)


class MemoryLog:
    """An event log: batches in a list. `reads` are the offsets that were asked for."""

    def __init__(self, *batches: Iterable[Event]) -> None:
        self.identity: object = object()
        self.first_offset = 0
        self.batches: list[bytes] = []
        self.reads: list[int] = []
        for batch in batches:
            self.append(batch)

    @property
    def next_offset(self) -> int:
        return len(self.batches)

    def append(self, events: Iterable[Event]) -> tuple[int, bytes, IndexEntry]:
        self.batches.append(bytes_of(events))
        return len(self.batches) - 1, self.batches[-1], entry_of(self.batches[-1])

    def delete(self) -> None:
        """And make it anew."""
        self.identity = object()
        self.first_offset = 0
        self.batches.clear()

    async def read(self, offset: int) -> dict[int, bytes]:
        self.reads.append(offset)
        start = max(offset, self.first_offset)
        return {at: self.batches[at] for at in range(start, min(start + 3, len(self.batches)))}

    async def flush(self) -> None:
        """Everything is in batches."""
