"""Field tables and strings: every type both ways, what is refused, and agreement with pamqp and pika."""

import decimal
import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pamqp.decode
import pamqp.encode
import pika.data
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.protocol import strategies
from warrenmq.protocol.errors import LocalMisuse, MalformedText, MalformedValue
from warrenmq.protocol.values import (
    MAX_DEPTH,
    LongString,
    Timestamp,
    ValueReader,
    decode_longstr,
    decode_shortstr,
    decode_table,
    decode_timestamp,
    decode_value,
    encode_longstr,
    encode_shortstr,
    encode_table,
    encode_timestamp,
    encode_value,
)


def sized(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def read(data: bytes) -> object:
    value, end = decode_value(data, 0, len(data))
    assert end == len(data)
    return value


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"t\x00", False),
        (b"t\x01", True),
        (b"t\x02", True),
        (b"b\x80", -128),
        (b"B\x80", 128),
        (b"s\x80\x00", -32768),
        (b"u\x80\x00", 32768),
        (b"I\x80\x00\x00\x00", -(2**31)),
        (b"I\x7f\xff\xff\xff", 2**31 - 1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"l\x80" + bytes(7), -(2**63)),
        (b"L" + b"\xff" * 8, -1),
        (b"f\x3f\xc0\x00\x00", 1.5),
        (b"d\x3f\xf8" + bytes(6), 1.5),
        (b"D\x02\x00\x00\x01\x3a", Decimal("3.14")),
        (b"D\x01\xff\xff\xff\xff", Decimal("-0.1")),
        (b"S\x00\x00\x00\x03\xe2\x82\xac", "€"),
        (b"S\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"),
        (b"x\x00\x00\x00\x02\xff\xfe", b"\xff\xfe"),
        (b"A\x00\x00\x00\x03t\x01V", [True, None]),
        (b"F\x00\x00\x00\x04\x01at\x01", {"a": True}),
        (b"T" + bytes(8), datetime(1970, 1, 1, tzinfo=UTC)),
        (b"T" + (253402300799).to_bytes(8, "big"), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (b"T" + b"\xff" * 8, 2**64 - 1),
        (b"V", None),
    ],
)
def test_reads_every_field_type(raw: bytes, value: object) -> None:
    decoded = read(raw)
    assert decoded == value
    assert isinstance(decoded, type(value))


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (True, b"t\x01"),
        (0, b"I" + bytes(4)),
        (-(2**31), b"I\x80\x00\x00\x00"),
        (2**31, b"l\x00\x00\x00\x00\x80\x00\x00\x00"),
        (-(2**63), b"l\x80" + bytes(7)),
        (1.5, b"d\x3f\xf8" + bytes(6)),
        (Decimal("3.14"), b"D\x02\x00\x00\x01\x3a"),
        (Decimal("2E3"), b"D\x00\x00\x00\x07\xd0"),
        (Decimal("-0.1"), b"D\x01\xff\xff\xff\xff"),
        ("€", b"S\x00\x00\x00\x03\xe2\x82\xac"),
        (b"\xff", b"x\x00\x00\x00\x01\xff"),
        (bytearray(b"\xff"), b"x\x00\x00\x00\x01\xff"),
        (LongString(b"\xff"), b"S\x00\x00\x00\x01\xff"),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), b"T" + bytes(7) + b"\x01"),
        (Timestamp(2**64 - 1), b"T" + b"\xff" * 8),
        ([True, None], b"A\x00\x00\x00\x03t\x01V"),
        ((True, None), b"A\x00\x00\x00\x03t\x01V"),
        ({"a": True}, b"F\x00\x00\x00\x04\x01at\x01"),
        (None, b"V"),
    ],
)
def test_writes_each_python_type_as_its_field_type(value: object, raw: bytes) -> None:
    assert encode_value(value) == raw


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        Decimal("1E+10"),
        Decimal("1E+999999999"),
        Decimal("1E-256"),
        Decimal("2147483648"),
        Decimal("0." + "1" * 500),
        Decimal("NaN"),
        Decimal("Infinity"),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-5))),
        Timestamp(2**64),
        Timestamp(-1),
        "\ud800",
        object(),
        {1: "an integer key"},
        {"k" * 256: "a key too long"},
        {"a set": {1}},
    ],
)
def test_refuses_to_write_what_the_wire_cannot_carry(value: object) -> None:
    with pytest.raises(LocalMisuse):
        encode_value(value)
    with pytest.raises(LocalMisuse):
        encode_table({"nested": [value]})


@given(strategies.tables)
def test_a_table_comes_back_as_it_went(table: dict[str, object]) -> None:
    data = encode_table(table)
    padded = b"before" + data + b"after"
    assert decode_table(padded, 6, len(padded)) == (table, 6 + len(data))
    assert list(decode_table(data, 0, len(data))[0]) == list(table)


@given(strategies.tables)
def test_pamqp_reads_what_is_written(table: dict[str, Any]) -> None:
    ours = _without_what_pamqp_reads_otherwise(table)
    consumed, theirs = pamqp.decode.field_table(encode_table(ours))
    assert theirs == ours
    assert consumed == len(encode_table(ours))


_common_scalars = st.one_of(
    st.none(),
    st.booleans(),
    strategies.numbers,
    st.floats(allow_nan=False, width=32),
    st.builds(Decimal, st.integers(0, 2**31 - 1)),
    strategies.texts,
    st.binary().map(bytearray),
    strategies.moments,
)
_common_tables = st.dictionaries(
    strategies.short_texts.filter(lambda text: len(text.encode()) <= 128),
    _common_scalars | st.lists(_common_scalars, max_size=4) | st.dictionaries(st.just("k"), _common_scalars),
    max_size=6,
)


@given(_common_tables)
def test_reads_what_pamqp_writes(table: dict[str, object]) -> None:
    data = pamqp.encode.field_table(table)
    assert decode_table(data, 0, len(data)) == (table, len(data))


@given(_common_tables)
def test_reads_what_pika_writes(table: dict[str, Any]) -> None:
    table = _without_floats(table)  # pika cannot write them
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, table)
    data = b"".join(pieces)
    assert decode_table(data, 0, len(data)) == (table, len(data))


@given(strategies.wire_tables)
def test_passing_over_a_table_and_reading_it_end_in_the_same_place(data: bytes) -> None:
    skipping, reading = ValueReader(data, 0, len(data)), ValueReader(data, 0, len(data))
    skipping.skip_table()
    reading.read_table()
    assert skipping.position == reading.position == len(data)


@given(strategies.wire_tables, st.data())
def test_a_table_cut_anywhere_is_malformed(data: bytes, chosen: st.DataObject) -> None:
    end = chosen.draw(st.integers(0, len(data) - 1))
    for raw in (data, data[:end]):
        with pytest.raises(MalformedValue):
            decode_table(raw, 0, end)
        with pytest.raises(MalformedValue):
            ValueReader(raw, 0, end).skip_table()


@given(st.binary(max_size=60))
@example(b"\xff\xff\xff\xff")
@example(b"\x00\x00\x00\x05\x01kI\x00\x00")
def test_any_bytes_are_read_or_refused_alike_by_reading_and_passing(data: bytes) -> None:
    outcomes = []
    for action in (ValueReader.read_table, ValueReader.skip_table):
        reader = ValueReader(data, 0, len(data))
        try:
            action(reader)
            outcomes.append(reader.position)
        except MalformedValue:
            outcomes.append(-1)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(b"tbBsuIilLfdDSxAFTV")))
def test_an_unknown_type_byte_is_malformed(kind: int) -> None:
    data = sized(b"\x01k" + bytes((kind,)) + bytes(20))
    with pytest.raises(MalformedValue):
        decode_table(data, 0, len(data))
    with pytest.raises(MalformedValue):
        ValueReader(data, 0, len(data)).skip_table()


def test_an_inner_length_cannot_reach_beyond_its_table() -> None:
    data = sized(b"\x01kS" + struct.pack(">I", 3)) + b"abc"
    with pytest.raises(MalformedValue):
        decode_table(data, 0, len(data))


@pytest.mark.parametrize(("position", "end"), [(-1, 2), (3, 2), (0, 5)])
def test_a_reader_stays_inside_its_bytes(position: int, end: int) -> None:
    with pytest.raises(MalformedValue):
        ValueReader(b"abcd", position, end)


def test_a_reader_never_goes_back() -> None:
    with pytest.raises(MalformedValue):
        ValueReader(b"abcd", 2, 4).read_bytes(-1)


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_nesting_is_read_to_the_limit_and_refused_beyond_it(kind: bytes) -> None:
    key = b"\x01k" if kind == b"F" else b""
    deepest_allowed = b"V" if kind == b"A" else b"\x01kV"
    data = sized(deepest_allowed)
    for _ in range(MAX_DEPTH - 2):
        data = sized(key + kind + data)
    outer = sized(b"\x01k" + kind + data)
    decode_table(outer, 0, len(outer))
    ValueReader(outer, 0, len(outer)).skip_table()
    for _ in range(20_000):
        data = sized(key + kind + data)
    outer = sized(b"\x01k" + kind + data)
    with pytest.raises(MalformedValue):
        decode_table(outer, 0, len(outer))
    with pytest.raises(MalformedValue):
        ValueReader(outer, 0, len(outer)).skip_table()


def test_a_table_within_itself_is_refused() -> None:
    table: dict[str, object] = {}
    table["self"] = [table]
    with pytest.raises(LocalMisuse):
        encode_table(table)


def test_the_last_of_two_equal_keys_counts() -> None:
    data = sized(b"\x01kt\x00\x01kt\x01")
    assert decode_table(data, 0, len(data))[0] == {"k": True}


def test_a_key_that_is_not_utf8_is_read_as_escapes() -> None:
    data = sized(b"\x02\xffkt\x01")
    assert decode_table(data, 0, len(data))[0] == {"\\xffk": True}


def test_a_decimal_is_exact_in_any_decimal_context() -> None:
    with decimal.localcontext(decimal.Context(prec=2)):
        assert read(b"D\x03\x7f\xff\xff\xff") == Decimal("2147483.647")
        assert encode_value(Decimal("2147483.647")) == b"D\x03\x7f\xff\xff\xff"


def test_not_a_number_goes_both_ways() -> None:
    value = read(encode_value(math.nan))
    assert isinstance(value, float)
    assert math.isnan(value)


def test_a_datetime_of_any_zone_is_written_in_utc() -> None:
    east = datetime(2020, 1, 1, 2, 0, 0, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert encode_timestamp(east) == encode_timestamp(datetime(2020, 1, 1)) == encode_timestamp(1577836800)


@given(strategies.moments | strategies.late_timestamps)
def test_a_timestamp_comes_back_as_it_went(moment: datetime | Timestamp) -> None:
    data = encode_timestamp(moment)
    decoded, end = decode_timestamp(data, 0, len(data))
    assert (decoded, type(decoded), end) == (moment, type(moment), 8)


@given(strategies.short_texts, st.binary())
def test_strings_round_trip(text: str, raw: bytes) -> None:
    short = encode_shortstr(text)
    assert decode_shortstr(b"." + short + b".", 1, len(short) + 2) == (text, len(short) + 1)
    long = encode_longstr(raw)
    assert decode_longstr(b"." + long + b".", 1, len(long) + 2) == (raw, len(long) + 1)


def test_a_short_string_holds_255_bytes() -> None:
    assert encode_shortstr("a" * 255) == b"\xff" + b"a" * 255
    for text in ("a" * 256, "é" * 128):
        with pytest.raises(LocalMisuse):
            encode_shortstr(text)


def test_a_short_string_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedText) as refused:
        decode_shortstr(b"\x02\xff\xfe", 0, 3)
    assert refused.value.reply_text == "FRAME_ERROR - Malformed UTF-8 in shortstr"


@pytest.mark.parametrize("data", [b"", b"\x03ab"])
def test_a_short_string_cut_short_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedValue):
        decode_shortstr(data, 0, len(data))


def test_a_long_string_cut_short_is_malformed() -> None:
    for data in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x03ab", b"\xff\xff\xff\xffab"):
        with pytest.raises(MalformedValue):
            decode_longstr(data, 0, len(data))


def _without_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_floats(inner) for inner in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return None if isinstance(value, float) else value


def _without_what_pamqp_reads_otherwise(value: Any) -> Any:
    """pamqp takes late timestamps for milliseconds, negative decimals for large ones, and text for UTF-8."""
    if isinstance(value, dict):
        return {key: _without_what_pamqp_reads_otherwise(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_what_pamqp_reads_otherwise(inner) for inner in value]
    if isinstance(value, Decimal):
        return Decimal(abs(int.from_bytes(encode_value(value)[2:], "big", signed=True)) // 2)
    if isinstance(value, datetime) and value.year > 2105:
        return value.replace(year=2104)
    return None if isinstance(value, Timestamp | LongString) else value
