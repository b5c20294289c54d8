"""kill -9 and clean stops under publishers to exchanges of the x- types: history, bindings and weights are back.

A real process, started again on its folder. The history of a durable exchange is never short of what was confirmed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.adversity.test_kill import SMALL
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import WireChannel

LENGTH = 60
QUEUES = ("a", "b", "c", "d")
SPREADING = ("x-consistent-hash", "x-modulus-hash", "x-random")


def declare_all(channel: WireChannel) -> None:
    arguments = {"x-recent-history-length": LENGTH}
    channel.call("exchange.declare", exchange="h", type="x-recent-history", durable=True, arguments=arguments)
    for type in SPREADING:
        channel.call("exchange.declare", exchange=type, type=type, durable=True)
        for weight, name in enumerate(QUEUES, 1):
            channel.call("queue.declare", queue=f"{type} {name}", durable=True)
            channel.call("queue.bind", queue=f"{type} {name}", exchange=type, routing_key=str(weight))


def publish(channel: WireChannel, number: int) -> None:
    body = b"%d\0" % number + bytes(number * 37 % 3000)
    channel.publish(body, {"delivery_mode": 2}, exchange="h", routing_key="k")


def read_history(channel: WireChannel, name: str, at_least: int) -> list[int]:
    """What a new queue gets when it is bound, up to a message that is published then."""

    def count() -> int:
        return int(channel.call("queue.declare", queue=name, exclusive=True)["message_count"])

    count()
    channel.call("queue.bind", queue=name, exchange="h", routing_key="")
    wait_until(lambda: count() >= at_least)  # it may be read from the disk at this moment
    channel.publish(b"-1\0", {"headers": {"x-recent-history-no-store": True}}, exchange="h", routing_key="end")
    channel.call("basic.consume", queue=name, no_ack=True)
    numbers: list[int] = []
    while -1 not in numbers:
        numbers.append(int(channel.content().body.partition(b"\0")[0]))
    return numbers[:-1]


def spread(channel: WireChannel, type: str) -> dict[str, int]:
    """Publish a hundred keys; where each went."""
    for number in range(100):
        channel.publish(b"%d" % number, {}, exchange=type, routing_key=str(number))
    found: dict[str, int] = {}
    for name in QUEUES:
        while True:
            content = channel.get(f"{type} {name}")
            if content is None:
                break
            found[content.body.decode()] = QUEUES.index(name)
    return found


@pytest.mark.parametrize("seed", range(effort(2)))
def test_the_history_that_was_confirmed_is_back_after_kills_and_stops(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    folder, sent, confirmed = tmp_path / "data", 0, 0
    for life in range(6):
        with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
            if life == 0:
                declare_all(connection.channel(1))
            found = read_history(connection.channel(2), f"reader {life}", min(LENGTH, confirmed))
            end = found[-1] + 1 if found else 0
            assert found == list(range(max(0, end - LENGTH), end))
            assert confirmed <= end <= sent
            sent = confirmed = end
            channel = connection.channel(3)
            channel.call("confirm.select")
            first, awaited = sent, choice.randrange(1, 200)
            for _ in range(awaited):
                publish(channel, sent)
                sent += 1
            while confirmed < first + awaited:
                confirmed = first + channel.expect("basic.ack")["delivery_tag"]
            if choice.random() < 0.7:
                for _ in range(choice.randrange(100)):  # on their way when the end comes
                    publish(channel, sent)
                    sent += 1
                broker.kill()
            else:
                assert broker.stop() == 0, broker.log()
        assert "Traceback" not in broker.log(), broker.log()


def test_keys_go_to_the_same_queues_after_a_kill(tmp_path: Path) -> None:
    places: list[dict[str, dict[str, int]]] = []
    for life in range(2):
        with BrokerProcess(tmp_path / "data", SMALL).ready() as broker, broker.connect() as connection:
            channel = connection.channel(1)
            if life == 0:
                declare_all(channel)
            places.append({type: spread(channel, type) for type in SPREADING})
            broker.kill()
    assert all(len(found) == 100 for place in places for found in place.values())
    for type in SPREADING:
        assert (places[0][type] == places[1][type]) is (type != "x-random")
        assert set(places[1][type].values()) == set(range(len(QUEUES)))
