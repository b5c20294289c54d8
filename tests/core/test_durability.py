"""`x-durability`: valid values, and redeclaration."""

from __future__ import annotations

import pytest

from tests.support.client import ClientChannel
from warrenmq.core.arguments import find_ignored_arguments
from warrenmq.core.durability import Durability, parse_durability
from warrenmq.core.errors import PreconditionFailed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fsync", Durability("fsync")),
        ("os", Durability("os")),
        ("interval=1", Durability("interval", 1)),
        ("interval=60000", Durability("interval", 60_000)),
    ],
)
def test_the_three_modes_are_read(text: str, expected: Durability) -> None:
    assert parse_durability(text) == expected


@pytest.mark.parametrize("text", ["", "none", "FSYNC", "interval", "interval=", "interval=0", "interval=60001", "os=1"])
def test_anything_else_is_refused_with_what_fits(text: str) -> None:
    with pytest.raises(ValueError, match="interval=MS"):
        parse_durability(text)


def test_the_default_is_the_disk() -> None:
    assert Durability() == parse_durability("fsync")


@pytest.mark.parametrize("text", ["fsync", "os", "interval=250"])
def test_a_queue_can_ask_for_its_own(channel: ClientChannel, text: str) -> None:
    arguments = {"x-durability": text}
    assert channel.declare("q", durable=True, arguments=arguments).arguments == arguments
    assert find_ignored_arguments(arguments) == []


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("sometimes", "\"expected fsync, interval=MS or os, got 'sometimes'\""),
        (5, "{unacceptable_type,signedint}"),
        (True, "{unacceptable_type,bool}"),
    ],
)
def test_invalid_durability_is_refused(channel: ClientChannel, value: object, fault: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        channel.declare("q", durable=True, arguments={"x-durability": value})
    assert refused.value.text == f"invalid arg 'x-durability' for queue 'q' in vhost '/': {fault}"


def test_declaring_again_must_ask_for_the_same(channel: ClientChannel) -> None:
    channel.declare("q", durable=True, arguments={"x-durability": "os"})
    channel.declare("q", durable=True, arguments={"x-durability": "os"})
    for arguments in ({}, {"x-durability": "fsync"}):
        with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-durability'"):
            channel.declare("q", durable=True, arguments=arguments)
