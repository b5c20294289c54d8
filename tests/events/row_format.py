"""A reader of the row format that is independent of the one in the package, written from docs/formats/events.md."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from warrenmq.events import schema
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event

IDS, SAME_IDS, ROUTED_FOLLOWS, SHORT, DELIVERED_FOLLOWS, PUBLISHED, DETAILS = (1 << bit for bit in range(7))
NAMES = ("vhost", "exchange", "routing_key", "queue", "consumer", "connection", "channel")
NO_DETAILS: dict[str, Any] = {"note": None, "due_time": None, "retry_max": None}
ID_NAMES = ("message_id", "correlation_id", "trace_id", "span_id")


class Cursor:
    """Reads numbers and texts one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return value

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take("B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def text(self, size: int) -> str:
        text: str = self.take(f"{size}s").decode()
        return text

    def number(self) -> int | None:
        """A number that is stored plus 1."""
        value: int = self.take("I")
        return value - 1 if value else None

    def sized_text(self) -> str | None:
        size = self.number()
        return None if size is None else self.text(size)


def events_of(rows: Rows | bytes) -> list[Event]:
    """The rows, collected or encoded, as events."""
    cursor = Cursor(rows if isinstance(rows, bytes) else rows.to_bytes())
    _, count, number_of_names, number_of_contexts = (cursor.take(form) for form in "BIII")
    names: dict[int, str | None] = {0: None}
    for _ in range(number_of_names):
        number, size = cursor.varint(), cursor.varint()
        names[number] = cursor.text(size)
    contexts: dict[int, dict[str, Any]] = {}
    for _ in range(number_of_contexts):
        number, *parts = (cursor.varint() for _ in range(8))
        contexts[number] = dict(zip(NAMES, [*(names[part] for part in parts[:6]), parts[6] or None], strict=True))
    found: list[Event] = []
    while cursor.at < len(cursor.data):
        kind, reason, flags, number = (cursor.take("B") for _ in range(4))
        context = contexts[cursor.take("I")]
        if flags & SHORT:
            time = found[-1].time
            fields: dict[str, Any] = {"depth": cursor.number(), "attempt": number or None, "enqueue_time": time}
            row = replace(found[-1], kind=kind, reason=reason or None, **NO_DETAILS, **context, **fields)
        else:
            row = full_row(cursor, kind, reason, flags, number, context, found)
        found.append(row)
        if flags & ROUTED_FOLLOWS:
            found.append(replace(row, kind=schema.ROUTED, **NO_DETAILS))
        if flags & DELIVERED_FOLLOWS:
            context = contexts[cursor.take("I")]
            fields = {"kind": schema.DELIVERED, "reason": schema.R_AUTO_ACK, "attempt": 1, "depth": 0}
            found.append(replace(row, **context, **fields))
    assert len(found) == count
    return found


def full_row(
    cursor: Cursor, kind: int, reason: int, flags: int, priority: int, context: dict[str, Any], before: list[Event]
) -> Event:
    fields: dict[str, Any] = {"time": cursor.take("q"), "uid": cursor.take("q")}
    if flags & PUBLISHED:
        fields |= {"publish_time": fields["time"] or None, "size": cursor.number()}
    else:
        fields |= {"publish_time": cursor.take("q") or None, "enqueue_time": cursor.take("q") or None}
        fields |= {"size": cursor.number(), "depth": cursor.number(), "attempt": cursor.take("I") or None}
    if flags & IDS:
        fields["source_uid"] = cursor.take("q") or None
        fields |= {name: cursor.sized_text() for name in ID_NAMES}
    elif flags & SAME_IDS:
        fields |= {name: getattr(before[-1], name) for name in ("source_uid", *ID_NAMES)}
    if flags & DETAILS:
        fields |= {"due_time": cursor.take("q") or None, "retry_max": cursor.take("I") or None}
        fields["note"] = cursor.sized_text()
    return Event(kind=kind, reason=reason or None, priority=priority or None, **context, **fields)
