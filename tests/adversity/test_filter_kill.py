"""kill -9 while consumers with filters take messages from the middle of queues on disk.

After the restart every confirmed message is in its queue once, unless a consumer has acked it.
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
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import EndOfStream, WireChannel

QUEUES: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "priority": {"x-max-priority": 3},
}


class Publisher(BatchPublisher):
    def publish(self, channel: WireChannel, number: int) -> None:
        properties = {"delivery_mode": 2, "priority": number % 4, "headers": {"kind": number % 5}}
        channel.publish(b"%d:" % number + bytes(200), properties, routing_key=self.queue)


class Consumer:
    """Consumes one kind of five: acks most, and nacks some, which come back. `acked` may or may not be gone."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.acked: set[int] = set()
        self.wrong: list[int] = []

    def run(self, broker: BrokerProcess) -> None:
        choice = random.Random(self.queue)
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("basic.qos", prefetch_count=30)
                channel.call("basic.consume", queue=self.queue, arguments={"x-filter": "kind = 3"})
                while True:
                    content = channel.content()
                    number, tag = int(content.body.partition(b":")[0]), content.method["delivery_tag"]
                    if number % 5 != 3:
                        self.wrong.append(number)
                    if choice.random() < 0.3:
                        channel.send("basic.nack", delivery_tag=tag, requeue=True)
                    else:
                        self.acked.add(number)
                        channel.send("basic.ack", delivery_tag=tag)
        except (OSError, EndOfStream):
            return


def require_each_once(channel: WireChannel, publisher: Publisher, consumer: Consumer) -> None:
    found: Counter[int] = Counter()
    while (content := channel.get(publisher.queue, no_ack=False)) is not None:
        found[int(content.body.partition(b":")[0])] += 1
    assert consumer.wrong == []
    assert consumer.acked or publisher.confirmed < 500, "the filter matched nothing"
    assert [number for number, count in found.items() if count > 1] == []
    missing = [number for number in range(publisher.confirmed) if not found[number] and number not in consumer.acked]
    assert missing == []


@pytest.mark.parametrize("point", [None, "log.after_write:60", "checkpoint.before_trim:2"])
def test_messages_taken_from_the_middle_survive_a_kill(point: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    publishers, consumers = [Publisher(name) for name in QUEUES], [Consumer(name) for name in QUEUES]
    with BrokerProcess(folder, SMALL).ready() as broker:
        with broker.connect() as connection:
            channel = connection.channel()
            for name, arguments in QUEUES.items():
                channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
        assert broker.stop() == 0
    with BrokerProcess(folder, SMALL | ({} if point is None else {"WARREN_TEST_CRASH_AT": point})).ready() as broker:
        threads = [threading.Thread(target=each.run, args=(broker,)) for each in [*publishers, *consumers]]
        for thread in threads:
            thread.start()
        if point is None:
            wait_until(lambda: broker.is_dead or all(each.confirmed >= 2000 for each in publishers), "confirms")
            broker.kill()
        else:
            expect_death(broker)
        for thread in threads:
            thread.join(60)
    with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        for at, (publisher, consumer) in enumerate(zip(publishers, consumers, strict=True), 1):
            require_each_once(connection.channel(at), publisher, consumer)
    assert "Traceback" not in broker.log(), broker.log()
