"""kill -9 while messages are retried, scheduled and reported: after the restart each is in exactly one place.

A real process with small files, killed at random moments and at crash points, started again on its folder. Nothing that
was confirmed is lost or there twice; attempts do not go back; no scheduled message is early; each message with reports
is either still in its queue or has one report.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.batches import BatchPublisher
from tests.adversity.test_kill import SMALL, expect_death
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import Content, EndOfStream, WireChannel

RETRY = {"x-retry-max": 2, "x-retry-delay": 20, "x-retry-max-delay": 50, "x-retry-jitter": 0.5}
# By name: the arguments of the queue, and how its consumer settles a delivery; None: it has no consumer.
QUEUES: dict[str, tuple[dict[str, Any], str | None]] = {
    "retried": (RETRY, "nack"),
    "retried quorum": ({**RETRY, "x-queue-type": "quorum"}, "nack"),
    "scheduled": ({}, None),
    "reported": ({}, "ack or reject"),
}
PLACES = {"retried": ["retried", "retried.dead"], "retried quorum": ["retried quorum", "retried quorum.dead"]}


def declare_all(broker: BrokerProcess) -> None:
    with broker.connect() as connection:
        channel = connection.channel()
        for name, (arguments, _) in QUEUES.items():
            channel.call("queue.declare", queue=name, durable=True, arguments=arguments)
        channel.call("queue.declare", queue="reports", durable=True)


class Publisher(BatchPublisher):
    def publish(self, channel: WireChannel, number: int) -> None:
        properties: dict[str, Any] = {"delivery_mode": 2, "message_id": str(number)}
        due_ms = 0
        if self.queue == "scheduled":
            delay = number * 37 % 1500
            due_ms = int(time.time() * 1000) + delay
            properties["headers"] = {"x-delay": delay}
        elif self.queue == "reported":
            properties["headers"] = {"x-report-to": "reports", "x-report": "all"}
        channel.publish(b"%d:%d:" % (number, due_ms) + bytes(200), properties, routing_key=self.queue)


class Worker:
    """Settles all that comes from one queue; `seen` has the highest delivery count of each message."""

    def __init__(self, queue: str, how: str) -> None:
        self.queue = queue
        self.how = how
        self.seen: dict[int, int] = {}

    def run(self, broker: BrokerProcess) -> None:
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("basic.qos", prefetch_count=50)
                channel.call("basic.consume", queue=self.queue)
                while True:
                    content = channel.content()
                    number, tag = number_of(content), content.method["delivery_tag"]
                    self.seen[number] = max(self.seen.get(number, 0), delivery_count(content))
                    if self.how == "ack or reject" and number % 2:
                        channel.send("basic.ack", delivery_tag=tag)
                    else:
                        channel.send("basic.nack", delivery_tag=tag, requeue=False)
        except (OSError, EndOfStream):
            return


def number_of(content: Content) -> int:
    return int(content.body.partition(b":")[0])


def delivery_count(content: Content) -> int:
    return int((content.properties.get("headers") or {}).get("x-delivery-count", 0))


def take_all(channel: WireChannel, queue: str) -> list[Content]:
    """Fetch everything that waits; it stays unacked."""
    taken = []
    while (content := channel.get(queue, no_ack=False)) is not None:
        taken.append(content)
    return taken


def require_each_once(channel: WireChannel, publisher: Publisher, worker: Worker | None) -> None:
    """Each confirmed message is in its queue, once the delays are over, or in the queue of dead letters."""
    found: list[Content] = []
    for place in PLACES.get(publisher.queue, []):
        if place != publisher.queue:  # not there yet if no message had its last attempt
            channel.call("queue.declare", queue=place, durable=True)

    def all_are_back() -> bool:
        for place in PLACES.get(publisher.queue, [publisher.queue]):
            for content in take_all(channel, place):
                now_ms = time.time() * 1000
                assert now_ms >= int(content.body.split(b":")[1]) - 1, "before its time"
                if worker is not None and place == publisher.queue:
                    assert delivery_count(content) >= worker.seen.get(number_of(content), 0) - 1
                found.append(content)
        return {number_of(content) for content in found} >= set(range(publisher.confirmed))

    wait_until(all_are_back, f"{publisher.confirmed} messages of {publisher.queue}")
    counts = Counter(number_of(content) for content in found)
    assert [number for number, count in counts.items() if count > 1] == []


def require_one_report_each(channel: WireChannel, publisher: Publisher) -> None:
    left = {number_of(content) for content in take_all(channel, "reported")}
    reports = [json.loads(content.body) for content in take_all(channel, "reports")]
    counts = Counter(int(report["message_id"]) for report in reports)
    missing = [number for number in range(publisher.confirmed) if (number in left) + counts[number] != 1]
    assert missing == []
    for report in reports:
        assert report["outcome"] == ("acked" if int(report["message_id"]) % 2 else "dropped")


def check(folder: Path, publishers: list[Publisher], workers: list[Worker]) -> None:
    by_queue = {worker.queue: worker for worker in workers}
    with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        for at, publisher in enumerate(publishers, 1):
            channel = connection.channel(at)
            if publisher.queue == "reported":
                require_one_report_each(channel, publisher)
            else:
                require_each_once(channel, publisher, by_queue.get(publisher.queue))
    assert "Traceback" not in broker.log(), broker.log()


def make_clients() -> tuple[list[Publisher], list[Worker]]:
    publishers = [Publisher(queue) for queue in QUEUES]
    return publishers, [Worker(queue, how) for queue, (_, how) in QUEUES.items() if how is not None]


def start(broker: BrokerProcess, clients: list[Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=each.run, args=(broker,), daemon=True) for each in clients]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize("seed", range(effort(1)))
def test_each_message_is_in_one_place_after_a_kill(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    folder = tmp_path / "data"
    publishers, workers = make_clients()
    with BrokerProcess(folder, SMALL).ready() as broker:
        declare_all(broker)
        threads = start(broker, [*publishers, *workers])
        until = 1000 + choice.randrange(1000)
        wait_until(lambda: broker.is_dead or all(each.confirmed >= until for each in publishers), "confirms")
        assert not broker.is_dead, broker.log()
        broker.kill()
        for thread in threads:
            thread.join(60)
    check(folder, publishers, workers)


@pytest.mark.parametrize("point", ["log.after_write:60", "log.after_sync:60", "checkpoint.before_trim:2"])
def test_each_message_is_in_one_place_after_a_crash_point(point: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    publishers, workers = make_clients()
    with BrokerProcess(folder, SMALL).ready() as broker:
        declare_all(broker)
        assert broker.stop() == 0
    with BrokerProcess(folder, SMALL | {"WARREN_TEST_CRASH_AT": point}).ready() as broker:
        threads = start(broker, [*publishers, *workers])
        expect_death(broker)
        for thread in threads:
            thread.join(60)
    check(folder, publishers, workers)
