"""Bodies to values: JSON of a schema, and Arrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from tests.events.samples import FIRST_VERSION
from warrenmq.events import schema as events
from warrenmq.events.codec import encode
from warrenmq.events.rows import Rows
from warrenmq.pipeline.errors import BadPayload
from warrenmq.pipeline.source.filters import parse_filter

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'warrenmq[spark]'")

from warrenmq.pipeline.source.arrow_body import BATCH_ROWS, ArrowBatches  # noqa: E402
from warrenmq.pipeline.source.json_body import JsonBody  # noqa: E402

UTC_TIME = pa.timestamp("us", tz="UTC")
ORDER = pa.struct([("id", pa.int64()), ("price", pa.float64()), ("at", UTC_TIME), ("tags", pa.list_(pa.string()))])


def take(body: object, kind: Any = ORDER, mode: str = "PERMISSIVE") -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader = JsonBody(kind, mode, "orders")
    return reader.value if reader.parse(7, SimpleNamespace(body=content)) else "left out"


def test_json_becomes_the_types_of_the_schema() -> None:
    assert take({"id": 1, "price": 2, "at": "2026-11-16T10:00:00+01:00", "tags": ["a", None, 3], "more": {}}) == {
        "id": 1,
        "price": 2.0,
        "at": datetime(2026, 11, 16, 9, tzinfo=UTC),
        "tags": ["a", None, "3"],
    }


def test_what_does_not_fit_is_null_field_by_field() -> None:
    assert take({"id": "1", "price": True, "at": "noon", "tags": {}}) == {
        "id": None,
        "price": None,
        "at": None,
        "tags": None,
    }
    assert take({"id": 1 << 63}) == {"id": None, "price": None, "at": None, "tags": None}


def test_modes_of_bodies_that_are_no_json() -> None:
    for body in (b"\xff", b"{", b"[1]", b"3", b"[" * 100_000):
        assert take(body) is None
        assert take(body, mode="DROPMALFORMED") == "left out"
        with pytest.raises(BadPayload, match="offset 7 of 'orders'"):
            take(body, mode="FAILFAST")
    with pytest.raises(BadPayload, match="id"):
        take({"id": "x"}, mode="FAILFAST")


def test_types_of_json() -> None:
    kind = pa.struct(
        [
            ("decimal", pa.decimal128(6, 2)),
            ("bytes", pa.binary()),
            ("day", pa.date32()),
            ("local", pa.timestamp("us")),
            ("truth", pa.bool_()),
            ("small", pa.int8()),
            ("map", pa.map_(pa.string(), pa.int32())),
            ("inner", pa.struct([("x", pa.int32())])),
            ("text", pa.string()),
        ]
    )
    made = take(
        {
            "decimal": 12.345,
            "bytes": "AAE=",
            "day": "2026-11-16",
            "local": "2026-11-16T10:00:00",
            "truth": True,
            "small": 127,
            "map": {"a": 1},
            "inner": {"x": 5},
            "text": {"b": [1]},
        },
        kind,
    )
    assert made == {
        "decimal": Decimal("12.34"),
        "bytes": b"\x00\x01",
        "day": date(2026, 11, 16),
        "local": datetime(2026, 11, 16, 10),
        "truth": True,
        "small": 127,
        "map": [("a", 1)],
        "inner": {"x": 5},
        "text": '{"b": [1]}',
    }
    assert pa.array([made], kind).to_pylist()[0]["inner"] == {"x": 5}
    assert take({"small": 128, "decimal": 123456, "bytes": "?"}, kind)["small"] is None


def event(number: int, **more: Any) -> events.Event:
    return events.Event(
        time=1_794_823_200_000_000 + number, kind=events.ACKED, uid=number, queue=f"q{number % 3}", **more
    )


def encode_batch(rows: list[events.Event]) -> bytes:
    gathered = Rows()
    for row in rows:
        gathered.add_row(row)
    return encode(gathered)


def records(*bodies: bytes) -> Iterator[tuple[int, Any]]:
    return ((offset, SimpleNamespace(body=body)) for offset, body in enumerate(bodies, 100))


def test_events_are_decoded_and_named() -> None:
    schema = pa.schema([("time", UTC_TIME), ("kind", pa.int8()), ("queue", pa.string()), ("kind_name", pa.string())])
    schema = schema.append(pa.field("reason_name", pa.string())).append(pa.field("offset", pa.int64()))
    body = encode_batch([event(1), event(2, reason=events.R_CLIENT)])
    (batch,) = ArrowBatches(schema, "warren.events", is_event_log=True).decode(records(body))
    assert batch.schema.equals(schema)
    assert batch.to_pylist()[1] == {
        "time": datetime(2026, 11, 16, 10, 0, 0, 2, tzinfo=UTC),
        "kind": events.ACKED,
        "queue": "q2",
        "kind_name": "acked",
        "reason_name": "client",
        "offset": 100,
    }
    assert batch.column("reason_name").to_pylist() == [None, "client"]


def test_a_filter_over_columns_that_are_not_selected() -> None:
    schema = pa.schema([("uid", pa.int64())])
    batches = ArrowBatches(schema, "s", parse_filter("queue = 'q1' and kind_name = 'acked'"), is_event_log=True)
    body = encode_batch([event(number) for number in range(7)])
    assert [batch.column("uid").to_pylist() for batch in batches.decode(records(body))] == [[1, 4]]
    none = ArrowBatches(schema, "s", parse_filter("queue = 'nothing'"), is_event_log=True)
    assert list(none.decode(records(body))) == []


def test_events_of_the_first_version_have_no_priority() -> None:
    schema = pa.schema([("message_id", pa.string()), ("priority", pa.int32())])
    old = (FIRST_VERSION / "batch.arrow").read_bytes()
    new = encode_batch([event(1, message_id="new", priority=7), event(2, message_id="plain")])
    (batch,) = ArrowBatches(schema, "warren.events", is_event_log=True).decode(records(old, new, old))
    assert batch.schema.equals(schema)
    found = [(row["message_id"], row["priority"]) for row in batch.to_pylist()]
    assert found[6:8] == [("new", 7), ("plain", None)]
    assert {row for row in found[:6] + found[8:] if row[0]} == {("order-17", None)}
    for condition, taken in (
        ("priority >= 5", 1),
        ("priority != 5", 1),
        ("priority in (7, 8)", 1),
        ("priority < 5", 0),
    ):
        chosen = ArrowBatches(schema, "warren.events", parse_filter(condition), is_event_log=True)
        assert sum(batch.num_rows for batch in chosen.decode(records(old, new))) == taken, condition


def test_small_batches_are_joined_and_large_ones_pass() -> None:
    schema = pa.schema([("uid", pa.int64())])
    small = encode_batch([event(1), event(2)])
    large = encode_batch([event(number) for number in range(BATCH_ROWS)])
    batches = ArrowBatches(schema, "s", is_event_log=True).decode(records(small, small, large, small))
    assert [batch.num_rows for batch in batches] == [4, BATCH_ROWS, 2]


def arrow(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_any_arrow_is_made_the_types_that_spark_takes() -> None:
    table = pa.table({"id": pa.array([1, 2], pa.uint16()), "name": pa.array(["a", None], pa.large_string())})
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("offset", pa.int64()), ("stream", pa.string())])
    (batch,) = ArrowBatches(schema, "s").decode(records(arrow(table)))
    assert batch.schema.equals(schema)
    assert batch.to_pylist() == [
        {"id": 1, "name": "a", "offset": 100, "stream": "s"},
        {"id": 2, "name": None, "offset": 100, "stream": "s"},
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"garbage", "offset 100 of 's' is not an Arrow"),
        (arrow(pa.table({"other": [1]})), "no column 'id'"),
        (arrow(pa.table({"id": ["x"]})), "cannot be cast to int64"),
    ],
)
def test_other_bodies_are_reported_with_their_offset(body: bytes, words: str) -> None:
    with pytest.raises(BadPayload, match=words):
        list(ArrowBatches(pa.schema([("id", pa.int64())]), "s").decode(records(body)))
