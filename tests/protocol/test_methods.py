"""Every method both ways, what RabbitMQ answers to malformed ones, and agreement with pamqp."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from tests.protocol import strategies
from warrenmq.protocol import spec
from warrenmq.protocol.errors import FrameError, LocalMisuse, MalformedArguments, ProtocolError, Scope, UnknownMethod
from warrenmq.protocol.methods import Method, decode, encode

ARGUMENTS: dict[spec.FieldType, st.SearchStrategy[Any]] = {
    "bit": st.booleans(),
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": strategies.short_texts,
    "longstr": st.binary(),
    "table": strategies.tables,
}


def methods_of(method: type[Method]) -> st.SearchStrategy[Method]:
    return st.builds(
        method, **{name: ARGUMENTS[kind] for name, kind in method.fields if not name.startswith("reserved")}
    )


any_method = st.sampled_from(list(spec.METHODS.values())).flatmap(methods_of)


@given(any_method)
def test_a_method_comes_back_as_it_went(method: Method) -> None:
    assert decode(encode(method)) == method


@pytest.mark.parametrize("method", spec.METHODS.values(), ids=lambda method: method.name)
def test_every_method_comes_back_with_its_defaults(method: type[Method]) -> None:
    assert decode(encode(method())) == method()


@given(any_method.filter(lambda method: method.index in commands.INDEX_MAPPING))
def test_pamqp_reads_the_same_arguments(method: Method) -> None:
    theirs = commands.INDEX_MAPPING[method.index]()
    theirs.unmarshal(encode(_without_tables(method))[4:])
    for (name, kind), their_name in zip(method.fields, theirs.__slots__, strict=True):
        if not name.startswith("reserved"):
            their_value = getattr(theirs, their_name)
            if kind == "longstr" and isinstance(their_value, str):
                their_value = their_value.encode()
            if kind == "longlong":
                their_value %= 1 << 64  # pamqp reads it signed
            assert their_value == getattr(method, name), name


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        (spec.ChannelOpen(), b"\0\x14\0\x0a\0"),
        (spec.ChannelOpenOk(), b"\0\x14\0\x0b\0\0\0\0"),
        (spec.ConnectionOpen("/"), b"\0\x0a\0\x28\x01/\0\0"),
        (
            spec.QueueDeclare("q", durable=True, auto_delete=True),
            b"\0\x32\0\x0a" + b"\0\0" + b"\x01q" + b"\x0a" + b"\0\0\0\0",
        ),
        (
            spec.ExchangeDeclare("e", "topic", passive=True, no_wait=True),
            b"\0\x28\0\x0a" + b"\0\0" + b"\x01e" + b"\x05topic" + b"\x11" + b"\0\0\0\0",
        ),
        (spec.BasicDeliver("c", 7, True, "e", "k"), b"\0\x3c\0\x3c" + b"\x01c" + bytes(7) + b"\x07\x01\x01e\x01k"),
        (spec.BasicNack(1, multiple=True, requeue=False), b"\0\x3c\0\x78" + bytes(7) + b"\x01\x01"),
        (spec.TxSelect(), b"\0\x5a\0\x0a"),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_methods_have_their_bytes(method: Method, payload: bytes) -> None:
    assert encode(method) == payload
    assert decode(payload) == method


def test_bits_that_mean_nothing_are_ignored() -> None:
    assert decode(b"\0\x3c\0\x50" + bytes(8) + b"\xfe") == spec.BasicAck(0, multiple=False)


def test_reserved_arguments_of_any_value_are_passed_over() -> None:
    assert decode(b"\0\x3c\0\x46" + b"\xab\xcd" + b"\x01q" + b"\x01") == spec.BasicGet("q", no_ack=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (b"\0\0\x05ab", "FRAME_ERROR - cannot decode <<0,0,5,97,98>>"),
        (b"", "FRAME_ERROR - cannot decode <<>>"),
        (b"\0\0\0\x08\0\0\0\0zz", "FRAME_ERROR - cannot decode <<0,0,0,8,0,0,0,0,122,122>>"),
        (b"\0\0\0\x08\0\0\xff\xffabc", "FRAME_ERROR - cannot decode <<0,0,0,8,0,0,255,255,97,98,99>>"),
        (b"\0\0\0\x08\0\0\0\x03\x01k?", "FRAME_ERROR - cannot decode <<0,0,0,8,0,0,0,3,1,107,63>>"),
        (b"\xff" * 300, "FRAME_ERROR - cannot decode <<" + "255," * 55 + "25..."),
    ],
)
def test_malformed_arguments_are_refused_with_rabbitmqs_text(arguments: bytes, text: str) -> None:
    with pytest.raises(MalformedArguments) as refused:
        decode(b"\0\x32\0\x0a" + arguments)
    error = refused.value
    assert (error.reply_code, error.reply_text, error.scope) == (501, text, Scope.CONNECTION)
    assert (error.class_id, error.method_id) == (50, 10)


def test_name_that_is_not_utf8_is_refused_with_rabbitmqs_text() -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(b"\0\x32\0\x0a" + b"\0\0" + b"\x02\xff\xfe" + b"\0" + bytes(4))
    error = refused.value
    assert (error.reply_code, error.reply_text) == (501, "FRAME_ERROR - Malformed UTF-8 in shortstr")
    assert (error.class_id, error.method_id) == (0, 0)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"\0\x32", "FRAME_ERROR - type 1, all octets = <<0,50>>: unknown_frame"),
        (b"", "FRAME_ERROR - type 1, all octets = <<>>: unknown_frame"),
    ],
)
def test_payload_without_ids_is_refused_with_rabbitmqs_text(payload: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        decode(payload)
    assert (refused.value.reply_code, refused.value.reply_text) == (501, text)


@pytest.mark.parametrize(("class_id", "method_id"), [(99, 10), (50, 99), (0, 0), (65535, 65535)])
def test_an_unknown_method_is_not_implemented(class_id: int, method_id: int) -> None:
    with pytest.raises(UnknownMethod) as refused:
        decode(class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big"))
    error = refused.value
    assert (error.reply_code, error.class_id, error.method_id) == (540, class_id, method_id)


@given(st.sampled_from(list(spec.METHODS)), st.binary(max_size=80))
def test_any_arguments_are_read_or_refused(index: int, arguments: bytes) -> None:
    try:
        method = decode(index.to_bytes(4, "big") + arguments)
    except FrameError:
        return
    assert method.index == index


@given(any_method, st.data())
def test_arguments_cut_anywhere_are_refused(method: Method, chosen: st.DataObject) -> None:
    payload = encode(method)
    with pytest.raises(ProtocolError):
        decode(payload[: chosen.draw(st.integers(0, len(payload) - 1))])


@pytest.mark.parametrize(
    "method",
    [
        spec.QueueDeclare("q" * 256),
        spec.ConnectionTune(channel_max=65536),
        spec.ConnectionTune(frame_max=-1),
        spec.BasicAck(2**64),
        spec.QueueDeclare(None),  # type: ignore[arg-type]
        spec.ConnectionSecure("text"),  # type: ignore[arg-type]
        spec.QueueDeclare(arguments={"k": object()}),
        spec.QueueDeclare(arguments=[]),  # type: ignore[arg-type]
    ],
)
def test_refuses_to_write_what_the_wire_cannot_carry(method: Method) -> None:
    with pytest.raises(LocalMisuse, match=method.name):
        encode(method)


def test_methods_are_equal_by_class_and_arguments() -> None:
    assert spec.BasicAck(1) == spec.BasicAck(1, multiple=False)
    assert spec.BasicAck(1) != spec.BasicAck(2)
    assert spec.TxSelect() != spec.TxCommit()
    assert spec.TxSelect() != "tx.select"
    assert repr(spec.BasicAck(1)) == "BasicAck(delivery_tag=1, multiple=False)"


def test_a_table_left_out_is_empty_and_belongs_to_its_method() -> None:
    first, second = spec.QueueDeclare(), spec.QueueDeclare()
    first.arguments["x-max-length"] = 1
    assert second.arguments == {}


def _without_tables(method: Method) -> Method:
    """pamqp reads some tables otherwise (see test_values.py); here the arguments around them matter."""
    for name, kind in method.fields:
        if kind == "table":
            setattr(method, name, {"k": "v"})
    return method
