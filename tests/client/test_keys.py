"""Strict keys: which are refused, and where."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from tests.client.conftest import Connect, Namer
from tests.support.waiting import wait_until
from warrenmq import client
from warrenmq.client import keys
from warrenmq.client.keys import check_binding_key, check_routing_key


def test_docstrings_hold() -> None:
    assert doctest.testmod(keys, optionflags=doctest.IGNORE_EXCEPTION_DETAIL).failed == 0


@pytest.mark.parametrize("key", ["", "a", "aaa.bbb", "Order_1.PAID.2", "a..b", "."])
def test_plain_keys_are_valid_for_both(key: str) -> None:
    check_routing_key(key)
    check_binding_key(key)


@pytest.mark.parametrize("key", ["a-b", "a b", "a/b", "é", "a\n", "*", "a.#", "٣"])
def test_routing_key_with_another_character_is_refused(key: str) -> None:
    with pytest.raises(client.Misuse, match="the routing key"):
        check_routing_key(key)


@pytest.mark.parametrize("key", ["*", "#", "a.*.b", "aaa.*.*.bbb", "#.ccc", "aaa.#.ccc", "#.a.#", "*.a.#"])
def test_wildcards_are_words_of_binding_keys(key: str) -> None:
    check_binding_key(key)


@pytest.mark.parametrize("key", ["a.a#.b", "a*", "**", "##", "a-b", "a.b c", "é"])
def test_binding_key_with_another_character_is_refused(key: str) -> None:
    with pytest.raises(client.Misuse, match="as whole words"):
        check_binding_key(key)


@pytest.mark.parametrize("key", ["a.#.#.b", "a.#.*.b", "a.*.#.b", "#.#"])
def test_wildcard_beside_a_hash_is_refused(key: str) -> None:
    with pytest.raises(client.Misuse, match="next to another wildcard"):
        check_binding_key(key)


def test_strict_connection_refuses_keys_before_it_sends_them(connect: Connect, name: Namer) -> None:
    channel = connect(strict_keys=True).channel()
    queue, exchange = name("strict-queue"), name("strict-topic")
    channel.queue_declare(queue)
    channel.exchange_declare(exchange, "topic")
    channel.queue_bind(queue, exchange, "order.*")
    calls: list[Any] = [
        lambda: channel.publish(exchange, "order-7", b"x"),
        lambda: channel.queue_bind(queue, exchange, "order*"),
        lambda: channel.exchange_bind(exchange, "amq.topic", "#.#"),
    ]
    for call in calls:
        with pytest.raises(client.Misuse, match="strict_keys"):
            call()
    channel.publish(exchange, "order.7", b"x")
    channel.publish("", queue, b"x")
    wait_until(lambda: channel.message_count(queue) == 2, "both have arrived")


def test_strictness_is_true_or_false() -> None:
    with pytest.raises(client.Misuse, match="strict_keys must be"):
        client.ConnectionFactory(strict_keys="no")  # type: ignore[typeddict-item]
    assert not client.ConnectionFactory().strict_keys
