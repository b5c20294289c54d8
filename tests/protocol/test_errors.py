"""The words of an error, as RabbitMQ writes them."""

import pytest

from warrenmq.protocol.errors import (
    ChannelError,
    InternalError,
    LocalMisuse,
    ProtocolError,
    clip_reply_text,
    describe_payload,
)


def test_reply_text_has_name_and_text_of_the_error() -> None:
    error = ChannelError("expected 'channel.open'", 50, 10)
    assert error.reply_text == "CHANNEL_ERROR - expected 'channel.open'"
    assert (error.reply_code, error.class_id, error.method_id) == (504, 50, 10)
    assert str(error) == "expected 'channel.open'"


def test_reply_text_without_a_text_is_the_name() -> None:
    assert InternalError().reply_text == "INTERNAL_ERROR"


def test_our_own_misuse_is_never_the_peers_fault() -> None:
    assert not issubclass(LocalMisuse, ProtocolError)
    assert not issubclass(ProtocolError, LocalMisuse | ValueError)


@pytest.mark.parametrize(
    ("text", "clipped"),
    [
        ("a" * 255, "a" * 255),
        ("a" * 256, "a" * 252 + "..."),
        ("é" * 128, "é" * 126 + "..."),
        ("a" + "é" * 128, "a" + "é" * 125 + "..."),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_reply_text_fits_a_short_string(text: str, clipped: str) -> None:
    assert clip_reply_text(text) == clipped
    assert len(clipped.encode()) <= 255


@pytest.mark.parametrize(
    ("payload", "description"),
    [
        (b"", "type 9, all octets = <<>>"),
        (b"abc", 'type 9, all octets = <<"abc">>'),
        (b"a\x00", "type 9, all octets = <<97,0>>"),
        (b'a"b\\c\n', 'type 9, all octets = <<"a\\"b\\\\c\\n">>'),
        (b"a\t\r\v\b\f\x1b", 'type 9, all octets = <<"a\\t\\r\\v\\b\\f\\e">>'),
        (b"abcdefghijklmnopqrstuvwxyz", 'type 9, first 16 octets = <<"abcdefghijklmnop">>'),
    ],
)
def test_a_frame_at_fault_is_described_as_rabbitmq_does(payload: bytes, description: str) -> None:
    assert describe_payload(9, payload) == description
