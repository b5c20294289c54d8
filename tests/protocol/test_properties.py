"""Properties whole and one at a time, changes that touch nothing else, and agreement with pamqp."""

import copy
import pickle
import struct
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from tests.protocol import strategies
from warrenmq.protocol import properties
from warrenmq.protocol.errors import LocalMisuse, MalformedProperties, Scope
from warrenmq.protocol.properties import BasicProperties, content_header

FULL = BasicProperties(
    content_type="application/json",
    content_encoding="utf-8",
    headers={"a": 1, "BCC": ["x"], "z": "last"},
    delivery_mode=2,
    priority=5,
    correlation_id="c1",
    reply_to="answers",
    expiration="60000",
    message_id="m1",
    timestamp=datetime(2024, 2, 29, 12, 0, 0, tzinfo=UTC),
    type="order",
    user_id="guest",
    app_id="shop",
    cluster_id="old",
)
NAMES = BasicProperties.__slots__


def header_of(flags: int, content: bytes, body_size: int = 0) -> bytes:
    return struct.pack(">HHQH", 60, 0, body_size, flags) + content


def table_of(entries: list[tuple[bytes, bytes]]) -> bytes:
    content = b"".join(key + value for key, value in entries)
    return struct.pack(">I", len(content)) + content


@given(strategies.properties, st.integers(0, 2**64 - 1))
def test_properties_round_trip(written: BasicProperties, body_size: int) -> None:
    header = content_header(body_size, written)
    assert header[:12] == struct.pack(">HHQ", 60, 0, body_size)
    assert properties.decode(header, 12) == written
    assert properties.decode(written.encode()) == written
    properties.validate(header)


@given(strategies.properties)
def test_each_question_is_answered_as_decoding_all_would(written: BasicProperties) -> None:
    header = content_header(0, written)
    assert properties.delivery_mode(header) == (0 if written.delivery_mode is None else written.delivery_mode)
    assert properties.priority(header) == (-1 if written.priority is None else written.priority)
    assert properties.headers(header) == written.headers
    assert properties.correlation_id(header) == written.correlation_id
    assert properties.reply_to(header) == written.reply_to
    assert properties.expiration(header) == written.expiration
    assert properties.message_id(header) == written.message_id
    assert properties.user_id(header) == written.user_id
    assert properties.property_flags(header) == int.from_bytes(written.encode()[:2], "big")


@given(strategies.properties)
def test_the_headers_span_is_the_table_with_its_length(written: BasicProperties) -> None:
    header = content_header(0, written)
    start, end = properties.headers_span(header)
    if written.headers is None:
        assert (start, end) == (0, 0)
    else:
        alone = BasicProperties(headers=written.headers).encode()[2:]
        assert header[start:end] == alone


@given(strategies.properties)
def test_a_string_among_the_headers_is_found_as_decoding_all_would(written: BasicProperties) -> None:
    header = content_header(0, written)
    for key, value in (properties.headers(header) or {}).items():
        entry = bytes((len(key.encode()),)) + key.encode()
        expected = value.encode() if isinstance(value, str) else None
        if not isinstance(value, bytes):  # which may be a string that is not UTF-8
            assert properties.text_header(header, entry) == expected
    assert properties.text_header(header, b"\x0bnot a header") is None


def test_pamqp_reads_what_is_written() -> None:
    theirs = commands.Basic.Properties()
    encoded = FULL.encode()
    theirs.unmarshal(int.from_bytes(encoded[:2], "big"), encoded[2:])
    for name in NAMES:
        their_name = {"type": "message_type"}.get(name, name)
        assert getattr(theirs, their_name) == getattr(FULL, name), name


def test_reads_what_pamqp_writes() -> None:
    values = {name: getattr(FULL, name) for name in NAMES if name not in ("type", "cluster_id")}
    theirs = commands.Basic.Properties(**values, message_type=FULL.type)
    ours = properties.decode(theirs.marshal())
    for name in NAMES:
        assert getattr(ours, name) == (getattr(FULL, name) if name != "cluster_id" else None)


def test_properties_that_are_not_there_are_none_and_cost_nothing() -> None:
    assert BasicProperties().encode() == b"\0\0"
    assert properties.decode(b"\0\0") == BasicProperties()
    assert repr(BasicProperties(priority=3)) == "BasicProperties(priority=3)"
    assert BasicProperties() != b"\0\0"


def test_an_empty_string_is_not_a_property_left_out() -> None:
    assert properties.reply_to(content_header(0, BasicProperties(reply_to=""))) == ""


def test_a_property_that_is_not_utf8_is_read_as_escapes() -> None:
    assert properties.expiration(header_of(properties.EXPIRATION, b"\x02\xff1")) == "\\xff1"
    properties.validate(header_of(properties.EXPIRATION, b"\x02\xff1"))


@pytest.mark.parametrize("wrong", [BasicProperties(priority=256), BasicProperties(delivery_mode=-1)])
def test_refuses_to_write_a_number_that_is_no_byte(wrong: BasicProperties) -> None:
    with pytest.raises(LocalMisuse):
        wrong.encode()


def test_the_unused_flag_bit_is_ignored_as_rabbitmq_does() -> None:
    header = header_of(properties.DELIVERY_MODE | 0x0002, b"\x02")
    properties.validate(header)
    assert properties.delivery_mode(header) == 2
    assert properties.decode(header, 12) == BasicProperties(delivery_mode=2)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        header_of(0, b"")[:-1],
        header_of(0, b"")[:-2],
        header_of(0, b"left over"),
        header_of(0x0001, b""),
        header_of(0x0001, b"\0\0"),
        header_of(properties.CONTENT_TYPE, b""),
        header_of(properties.CONTENT_TYPE, b"\x05ab"),
        header_of(properties.HEADERS, b"\0\0"),
        header_of(properties.HEADERS, b"\0\0\xff\xffab"),
        header_of(properties.HEADERS, b"\xff\xff\xff\xffab"),
        header_of(properties.HEADERS, b"\0\0\0\x03\x01k?"),
        header_of(properties.DELIVERY_MODE, b""),
        header_of(properties.TIMESTAMP, b"1234567"),
    ],
)
def test_malformed_property_list_is_refused_with_rabbitmqs_text(header: bytes) -> None:
    for action in (properties.validate, lambda header: properties.decode(header, 12)):
        with pytest.raises(MalformedProperties) as refused:
            action(header)
        error = refused.value
        assert (error.reply_code, error.reply_text, error.scope) == (541, "INTERNAL_ERROR", Scope.CONNECTION)
        assert (error.class_id, error.method_id) == (0, 0)


@pytest.mark.parametrize("offset", [-1, -14, 13, 1000])
def test_decoding_stays_inside_its_bytes(offset: int) -> None:
    with pytest.raises(MalformedProperties):
        properties.decode(header_of(0, b""), offset)


@given(strategies.properties, st.data())
def test_a_list_cut_anywhere_is_malformed(written: BasicProperties, chosen: st.DataObject) -> None:
    header = content_header(0, written)
    cut = header[: chosen.draw(st.integers(0, len(header) - 1))]
    with pytest.raises(MalformedProperties):
        properties.validate(cut)


@given(st.integers(0, 0xFFFF), st.binary(max_size=60))
def test_any_bytes_are_answered_or_refused(flags: int, content: bytes) -> None:
    header = header_of(flags, content)
    try:
        properties.validate(header)
        is_valid = True
    except MalformedProperties:
        is_valid = False
    questions = (
        properties.property_flags, properties.delivery_mode, properties.priority, properties.expiration,
        properties.user_id, properties.reply_to, properties.message_id, properties.correlation_id,
        properties.headers, properties.headers_span, properties.without_expiration,
        lambda header: properties.without_header(header, "BCC"),
        lambda header: properties.with_header(header, "CC", 1),
        lambda header: properties.text_header(header, b"\x01a"),
        lambda header: properties.with_reply_to(header, "me"),
    )  # fmt: skip
    for question in questions:
        try:
            question(header)
        except MalformedProperties:
            assert not is_valid
    try:
        properties.decode(header, 12)
        assert is_valid
    except MalformedProperties:
        assert not is_valid


@given(st.lists(strategies.wire_entries, max_size=5), strategies.properties, st.data())
def test_taking_out_a_header_touches_no_other_byte(
    entries: list[tuple[bytes, bytes]], others: BasicProperties, chosen: st.DataObject
) -> None:
    bcc = (b"\x03BCC", b"A\0\0\0\x02t\x01")
    place = chosen.draw(st.integers(0, len(entries)))
    others.headers = None
    before = header_with_table(others, [*entries[:place], bcc, *entries[place:]])
    assert properties.without_header(before, "BCC") == header_with_table(others, entries)


@given(st.lists(strategies.wire_entries, max_size=5), strategies.properties)
def test_adding_a_header_touches_no_other_byte(entries: list[tuple[bytes, bytes]], others: BasicProperties) -> None:
    others.headers = None
    added = (b"\x05count", b"I\0\0\0\x07")
    wanted = header_with_table(others, [*entries, added])
    assert properties.with_header(header_with_table(others, entries), "count", 7) == wanted
    assert properties.with_header(wanted, "count", 7) == wanted


def test_adding_a_header_makes_the_table_where_there_is_none() -> None:
    header = content_header(3, BasicProperties(content_type="text/plain", priority=1))
    changed = properties.with_header(header, "k", "v")
    assert changed == content_header(3, BasicProperties(content_type="text/plain", priority=1, headers={"k": "v"}))


def test_taking_out_a_header_takes_every_one_of_that_key() -> None:
    entries = [(b"\x01k", b"t\x00"), (b"\x01a", b"V"), (b"\x01k", b"V")]
    header = header_of(properties.HEADERS, table_of(entries))
    assert properties.without_header(header, "k") == header_of(properties.HEADERS, table_of([entries[1]]))


def test_removing_an_absent_header_changes_nothing() -> None:
    for header in (content_header(0, FULL), content_header(0, BasicProperties())):
        assert properties.without_header(header, "not there") is header


def test_taking_out_the_only_header_leaves_an_empty_table() -> None:
    header = content_header(0, BasicProperties(headers={"BCC": ["x"]}))
    assert properties.without_header(header, "BCC") == content_header(0, BasicProperties(headers={}))


@given(strategies.properties, strategies.short_texts)
def test_setting_reply_to_changes_nothing_else(written: BasicProperties, address: str) -> None:
    header = content_header(9, written)
    changed = properties.with_reply_to(header, address)
    before = written.reply_to
    written.reply_to = address
    assert changed == content_header(9, written)
    if before is not None:
        assert properties.with_reply_to(changed, before) == header


@given(strategies.properties)
def test_taking_out_the_expiration_changes_nothing_else(written: BasicProperties) -> None:
    header = content_header(9, written)
    written.expiration = None
    assert properties.without_expiration(header) == content_header(9, written)


def header_with_table(others: BasicProperties, entries: list[tuple[bytes, bytes]]) -> bytes:
    """A header whose table has exactly those entries, made without the functions under test."""
    encoded = others.encode()
    flags = int.from_bytes(encoded[:2], "big") | properties.HEADERS
    before = sum(1 + len(text.encode()) for text in (others.content_type, others.content_encoding) if text is not None)
    return header_of(flags, encoded[2 : 2 + before] + table_of(entries) + encoded[2 + before :])


def test_properties_can_be_pickled_and_copied() -> None:
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert copy.copy(FULL) == FULL
    assert copy.deepcopy(FULL) == FULL
