"""kill -9 while messages expire, are dropped and are rejected: after the restart each is in exactly one queue.

A real process, killed at random moments and at crash points, started again on its folder. Nothing is acked, so whatever
was confirmed must be found, in the queue that it was published to or where its dead letter went.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.batches import BatchPublisher
from tests.adversity.test_kill import SMALL, expect_death
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.wire import EndOfStream, WireChannel

# By name: the arguments that make messages leave the queue, and whether a consumer rejects them.
SOURCES: dict[str, tuple[dict[str, Any], bool]] = {
    "rejected": ({}, True),
    "expired": ({"x-message-ttl": 30}, False),
    "mixed": ({}, False),  # messages with an expiration of their own, and others
    "maxlen": ({"x-max-length": 30}, False),
    "priority": ({"x-max-priority": 5, "x-max-length": 30}, False),
    "quorum": ({"x-queue-type": "quorum", "x-delivery-limit": 1}, True),
}


def declare_all(broker: BrokerProcess) -> None:
    with broker.connect() as connection:
        channel = connection.channel()
        for name, (arguments, _) in SOURCES.items():
            dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead {name}"}
            channel.call("queue.declare", queue=name, durable=True, arguments={**arguments, **dead})
            channel.call("queue.declare", queue=f"dead {name}", durable=True)


class Publisher(BatchPublisher):
    def publish(self, channel: WireChannel, number: int) -> None:
        properties: dict[str, Any] = {"delivery_mode": 2, "priority": number % 7}
        if self.queue == "mixed" and number % 2:
            properties["expiration"] = str(number % 50)
        channel.publish(b"%d" % number + bytes(200), properties, routing_key=self.queue)


class Rejecter:
    """Rejects all that comes from one queue: of a quorum queue until the delivery limit is reached."""

    def __init__(self, queue: str) -> None:
        self.queue = queue

    def run(self, broker: BrokerProcess) -> None:
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("basic.qos", prefetch_count=50)
                channel.call("basic.consume", queue=self.queue)
                while True:
                    tag = channel.content().method["delivery_tag"]
                    channel.send("basic.nack", delivery_tag=tag, requeue=self.queue == "quorum")
        except (OSError, EndOfStream):
            return


def start(broker: BrokerProcess, workers: list[Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=each.run, args=(broker,), daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    return threads


def read_numbers(channel: WireChannel, queue: str) -> list[int]:
    """All that is there: fetched one by one, which leaves them unacked, until there are no more."""
    numbers: list[int] = []
    while (content := channel.get(queue, no_ack=False)) is not None:
        numbers.append(int(content.body.partition(b"\0")[0]))
    return numbers


def require_each_once(folder: Path, publishers: list[Publisher]) -> None:
    with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        for at, publisher in enumerate(publishers, 1):
            channel = connection.channel(at)
            left = read_numbers(channel, publisher.queue)  # from the source first: what expires now is found behind it
            dead = read_numbers(channel, f"dead {publisher.queue}")
            found = Counter(left) + Counter(dead)
            missing = [number for number in range(publisher.confirmed) if not found[number]]
            twice = [number for number, count in found.items() if count > 1]
            assert (missing, twice) == ([], []), publisher.queue
            assert dead, publisher.queue
    assert "Traceback" not in broker.log(), broker.log()


def workers() -> tuple[list[Publisher], list[Any]]:
    publishers = [Publisher(queue) for queue in SOURCES]
    return publishers, [*publishers, *(Rejecter(queue) for queue, (_, rejects) in SOURCES.items() if rejects)]


@pytest.mark.parametrize("seed", range(effort(1)))
def test_each_message_is_in_one_place_after_a_kill(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    publishers, everyone = workers()
    folder = tmp_path / "data"
    with BrokerProcess(folder, SMALL).ready() as broker:
        declare_all(broker)
        threads = start(broker, everyone)
        until = 1000 + choice.randrange(1000)
        while any(each.confirmed < until for each in publishers):
            assert not broker.is_dead, broker.log()
            threads[0].join(choice.random() * 0.05)
        broker.kill()
        for thread in threads:
            thread.join(60)
    require_each_once(folder, publishers)


@pytest.mark.parametrize("point", ["log.after_write:60", "log.after_sync:60", "checkpoint.before_trim:2"])
def test_each_message_is_in_one_place_after_a_crash_point(point: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    publishers, everyone = workers()
    with BrokerProcess(folder, SMALL).ready() as broker:
        declare_all(broker)
        assert broker.stop() == 0
    with BrokerProcess(folder, SMALL | {"WARREN_TEST_CRASH_AT": point}).ready() as broker:
        threads = start(broker, everyone)
        expect_death(broker)
        for thread in threads:
            thread.join(60)
    require_each_once(folder, publishers)
