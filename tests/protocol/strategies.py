"""What a wire value can be, for randomised tests."""

import struct
from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import strategies as st

from warrenmq.protocol.properties import BasicProperties
from warrenmq.protocol.values import LongString, Timestamp

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
short_texts = texts.filter(lambda text: len(text.encode()) <= 255)
moments = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
late_timestamps = st.integers(253402300800, 2**64 - 1).map(Timestamp)
decimals = st.builds(
    lambda unscaled, scale: Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale)),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
)
broken_texts = st.binary(min_size=1, max_size=10).map(lambda raw: LongString(raw + b"\xff"))
numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)

scalars = st.one_of(
    st.none(), st.booleans(), numbers, floats, decimals, texts, broken_texts, st.binary(), moments, late_timestamps
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_texts, inner, max_size=4), max_leaves=12
)
tables = st.dictionaries(short_texts, values, max_size=6)

byte_values = st.integers(0, 255)
properties = st.builds(
    BasicProperties,
    content_type=st.none() | short_texts,
    content_encoding=st.none() | short_texts,
    headers=st.none() | tables,
    delivery_mode=st.none() | byte_values,
    priority=st.none() | byte_values,
    correlation_id=st.none() | short_texts,
    reply_to=st.none() | short_texts,
    expiration=st.none() | short_texts,
    message_id=st.none() | short_texts,
    timestamp=st.none() | moments | late_timestamps,
    type=st.none() | short_texts,
    user_id=st.none() | short_texts,
    app_id=st.none() | short_texts,
    cluster_id=st.none() | short_texts,
)


def _sized(parts: list[bytes]) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I", len(content)) + content


def _short(content: bytes) -> bytes:
    return bytes((len(content),)) + content


_wire_scalars = st.one_of(
    *(
        st.binary(min_size=width, max_size=width).map(kind.__add__)
        for kind, width in (
            (b"t", 1), (b"b", 1), (b"B", 1), (b"s", 2), (b"u", 2), (b"I", 4), (b"i", 4), (b"l", 8), (b"L", 8),
            (b"f", 4), (b"d", 8), (b"D", 5), (b"T", 8), (b"V", 0),
        )
    ),
    st.binary(max_size=20).map(lambda content: b"S" + _sized([content])),
    st.binary(max_size=20).map(lambda content: b"x" + _sized([content])),
)  # fmt: skip
_wire_keys = st.binary(max_size=12).map(_short)

# Values and table entries as bytes, of every type there is: more than our own encoder would ever write.
wire_values = st.recursive(
    _wire_scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: b"A" + _sized(parts))
        | st.lists(st.builds(bytes.__add__, _wire_keys, inner), max_size=3).map(lambda parts: b"F" + _sized(parts))
    ),
    max_leaves=8,
)
wire_entries = st.tuples(_wire_keys, wire_values)
wire_tables = st.lists(wire_entries.map(b"".join), max_size=5).map(_sized)
