"""kill -9 under a publisher that sends again whatever was not confirmed: everything arrives, and nothing twice.

A real process, killed at random moments and where ids go to their files, started again on its folder.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.adversity.test_kill import SMALL, expect_death
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.wire import EndOfStream, WireChannel

ON = {"x-message-deduplication": True}
PLACES = ("window", "stream", "exchange")
BATCH = 20


def declare_all(broker: BrokerProcess) -> None:
    with broker.connect() as connection:
        channel = connection.channel()
        window = {**ON, "x-cache-size": 5000}
        channel.call("queue.declare", queue="window", durable=True, arguments=window)
        channel.call("queue.declare", queue="stream", durable=True, arguments={**window, "x-queue-type": "stream"})
        channel.call("queue.declare", queue="behind", durable=True)
        channel.call("exchange.declare", exchange="x", type="fanout", durable=True, arguments=window)
        channel.call("queue.bind", queue="behind", exchange="x")


class Publisher:
    """Sends numbered messages to one place, in batches, and a batch again until it was confirmed."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.first = 0  # of the batch that is not confirmed yet

    def run(self, broker: BrokerProcess, until: int) -> None:
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("confirm.select")
                confirmed = 0
                while self.first < until:
                    for number in range(self.first, self.first + BATCH):
                        self._publish(channel, number)
                    confirmed += BATCH
                    while channel.expect("basic.ack")["delivery_tag"] < confirmed:
                        pass
                    self.first += BATCH
        except (OSError, EndOfStream):
            return  # the broker is gone

    def _publish(self, channel: WireChannel, number: int) -> None:
        properties = {"delivery_mode": 2, "headers": {"x-deduplication-header": f"{self.place} {number}"}}
        exchange, key = ("x", "") if self.place == "exchange" else ("", self.place)
        channel.publish(b"%d" % number + bytes(200), properties, exchange=exchange, routing_key=key)


def publish_until(broker: BrokerProcess, publishers: list[Publisher], until: int) -> list[threading.Thread]:
    threads = [threading.Thread(target=each.run, args=(broker, until), daemon=True) for each in publishers]
    for thread in threads:
        thread.start()
    return threads


def read_numbers(channel: WireChannel, queue: str, count: int) -> list[int]:
    """All that is there, and a message at the end that says so."""
    channel.publish(b"-1\0", {"delivery_mode": 2}, routing_key=queue)
    channel.call("basic.qos", prefetch_count=1000)
    arguments = {"x-stream-offset": "first"} if queue == "stream" else {}
    channel.call("basic.consume", queue=queue, arguments=arguments)
    numbers: list[int] = []
    while len(numbers) <= 2 * count:
        content = channel.content()
        channel.send("basic.ack", delivery_tag=content.method["delivery_tag"])
        number = int(content.body.partition(b"\0")[0])
        if number < 0:
            break
        numbers.append(number)
    return numbers


def require_all_once(folder: Path, publishers: list[Publisher], count: int) -> None:
    with BrokerProcess(folder, SMALL).ready() as broker:
        for each in publish_until(broker, publishers, count):
            each.join(60)
        with broker.connect() as connection:
            for at, queue in enumerate(("window", "stream", "behind"), 1):
                assert read_numbers(connection.channel(at), queue, count) == list(range(count)), queue
        assert broker.stop() == 0, broker.log()
    assert "Traceback" not in broker.log(), broker.log()


@pytest.mark.parametrize("seed", range(effort(1)))
def test_a_batch_that_is_sent_again_after_a_kill_does_not_double(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    publishers = [Publisher(place) for place in PLACES]
    folder, until = tmp_path / "data", 0
    for life in range(3):
        with BrokerProcess(folder, SMALL).ready() as broker:
            if life == 0:
                declare_all(broker)
            until += 200 + choice.randrange(600)
            threads = publish_until(broker, publishers, 10**6)
            while all(each.first < until for each in publishers):
                assert not broker.is_dead, broker.log()
                threads[0].join(choice.random() * 0.05)
            broker.kill()
            for thread in threads:
                thread.join(60)
    # In the middle of a batch, somewhere: what was sent again is known, what was not kept is taken.
    require_all_once(folder, publishers, BATCH * (max(each.first for each in publishers) // BATCH + 2))


@pytest.mark.parametrize(
    "point", ["log.after_write:40", "log.after_sync:40", "checkpoint.after_sync:2", "checkpoint.before_trim:2"]
)
def test_a_batch_that_is_sent_again_does_not_double_at_crash_points(point: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    publishers = [Publisher(place) for place in PLACES]
    with BrokerProcess(folder, SMALL).ready() as broker:
        declare_all(broker)
        assert broker.stop() == 0
    with BrokerProcess(folder, SMALL | {"WARREN_TEST_CRASH_AT": point}).ready() as broker:
        threads = publish_until(broker, publishers, 10**6)
        expect_death(broker)
        for thread in threads:
            thread.join(60)
    require_all_once(folder, publishers, BATCH * (max(each.first for each in publishers) // BATCH + 2))
