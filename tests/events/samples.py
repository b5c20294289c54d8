"""Events for tests: a strategy for any event, and the few in the fixture of each version.

`python -m tests.events.samples` writes the fixture of the current version. A released version does not change: a
different format is a new version with a folder of its own, and these files stay readable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import strategies as st

from tests.events.row_format import events_of
from warrenmq.events import schema
from warrenmq.events.codec import encode
from warrenmq.events.ids import EPOCH_MS
from warrenmq.events.message_ids import pack_message_ids
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event

FOLDERS = Path(__file__).resolve().parents[1] / "fixtures" / "events"
FOLDER = FOLDERS / "v3"
SECOND_VERSION = FOLDERS / "v2"
FIRST_VERSION = FOLDERS / "v1"

names = st.none() | st.sampled_from(["", "/", "orders", "aufträge", "注文"]) | st.text(max_size=20)
ids = st.none() | st.text(max_size=40)
codes = st.integers(1, schema.MAX_CODE)
times = st.integers(1, 253_402_300_799_999_999)  # until the year 9999, where Python's datetime ends
uids = st.integers(0, (1 << 63) - 1)
numbers = st.integers(0, (1 << 31) - 1)
positive = st.integers(1, (1 << 31) - 1)
priorities = st.none() | st.integers(1, 255)


def events() -> st.SearchStrategy[Event]:
    """Any event that rows can hold."""
    return st.builds(
        Event,
        time=times,
        kind=codes,
        uid=uids,
        message_id=ids,
        publish_time=st.none() | times,
        enqueue_time=st.none() | times,
        vhost=names,
        exchange=names,
        routing_key=names,
        queue=names,
        consumer=names,
        connection=names,
        channel=st.none() | positive,
        size=st.none() | numbers,
        attempt=st.none() | positive,
        reason=st.none() | codes,
        correlation_id=ids,
        trace_id=ids,
        span_id=ids,
        source_uid=st.none() | st.integers(1, (1 << 63) - 1),
        depth=st.none() | numbers,
        priority=priorities,
        note=st.none() | st.text(max_size=1000),
        due_time=st.none() | times,
        retry_max=st.none() | positive,
    )


def rows_of(events: list[Event]) -> Rows:
    rows = Rows()
    for event in events:
        rows.add_row(event)
    return rows


def rows_from(raw: bytes) -> Rows:
    rows = Rows()
    rows.extend(raw)
    return rows


BEGIN = (EPOCH_MS + 31_556_926_000) * 1000
UID = 31_556_926_000 << 22
IDS = (b"order-17", b"basket-4", b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7")
PRIORITY = 7


@dataclass(frozen=True)
class TracedMessage:
    """What all rows of one message share."""

    uid: int
    publish_time: int
    message_ids: bytes | None
    priority: int = 0


TRACE = TracedMessage(UID, BEGIN, pack_message_ids(0, *IDS), PRIORITY)
ADDRESS = b"\x04logs\x04info"


def add(
    rows: Rows, kind: int, time: int, context: int, message: TracedMessage | None, enqueue_time: int = 0,
    size: int = -1, attempt: int = 0, depth: int = -1, reason: int = 0,
) -> None:  # fmt: skip
    message = message or TracedMessage(0, 0, None)
    uid, publish_time, ids, priority = message.uid, message.publish_time, message.message_ids, message.priority
    rows.put(kind, reason, False, context, time, uid, publish_time, ids, enqueue_time, size, depth, attempt, priority)


def fixture_rows() -> Rows:
    """A message from its publisher to its ack, with a retry and a note, and a connection that is lost."""
    rows = Rows()
    publisher, consumer = "127.0.0.1:50001 -> 127.0.0.1:5672", "127.0.0.1:50002 -> 127.0.0.1:5672"
    sent = rows.context_of(ADDRESS, "/", None, None, publisher, 1)
    rows.put(schema.PUBLISHED, 0, True, sent, BEGIN, UID, BEGIN, TRACE.message_ids, 0, 200, -1, 0, PRIORITY)
    rows.put_short(schema.ENQUEUED, 0, rows.context_of(ADDRESS, "/", "q", None, None, 0), 1, 0)
    delivery = rows.context_of(ADDRESS, "/", "q", "c1", consumer, 2)
    add(rows, schema.DELIVERED, BEGIN + 900, delivery, TRACE, BEGIN, 200, 1, 0)
    rows.add_event(
        schema.CONNECTION_CLOSED, BEGIN + 1000, vhost="/", connection=publisher, reason=schema.R_CONNECTION_CLOSED
    )
    add(rows, schema.ACKED, BEGIN + 70_000, delivery, TRACE, BEGIN, 200, 1)
    add(rows, schema.RETRIED, BEGIN + 80_000, delivery, TRACE, BEGIN, 200, 1, 0, schema.R_CLIENT)
    rows.put_details(BEGIN + 1_080_000, 16, None)
    add(rows, schema.NOTED, BEGIN + 90_000, delivery, TRACE, BEGIN, 200, 1)
    rows.put_details(0, 0, b"charged the card")
    return rows


FIXTURE_EVENTS = events_of(fixture_rows())
# Version 2 had no details, and version 1 no priorities.
SECOND_VERSION_EVENTS = FIXTURE_EVENTS[:6]
FIRST_VERSION_EVENTS = [replace(event, priority=None) for event in SECOND_VERSION_EVENTS]
FILES = {"rows.raw": lambda: fixture_rows().to_bytes(), "batch.arrow": lambda: encode(fixture_rows())}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (FOLDER / name).write_bytes(content())
