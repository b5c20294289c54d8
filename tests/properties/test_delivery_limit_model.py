"""A quorum queue on disk against a list of numbers with their counts: whatever is taken, given back and restarted.

Everything is so small that messages are paged out and in, flushed, carried and compacted within a few hundred of them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept, body_of
from tests.support.client import PERSISTENT, Client, ClientChannel
from tests.support.crash import effort
from tests.support.outbox import Delivered
from warrenmq.core.message import ended_attempts

SIZES: list[dict[str, Any]] = [
    {"window": 6000, "page": 1500, "log_limit": 40_000, "log_file_size": 10_000, "relog_below": 3000},
    {"window": 30_000, "page": 4000, "log_limit": 12_000, "log_file_size": 3000, "relog_below": 0},
    {"window": 60_000, "page": 2000, "log_limit": 60_000, "log_file_size": 6000, "relog_below": 50_000},
]
STEPS = {"publish": 6, "consume": 10, "commit": 3, "get": 3, "checkpoint": 1, "restart": 2}


class World:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        tiny = {"segment_size": 6000, "page_size": 900, "read_size": 1500, "dead_allowance": 1000}
        self.kept = Kept(folder, **tiny, **SIZES[seed % len(SIZES)])
        self.limit = self.random.choice((0, 2, 3, 4))
        self.kept.declare(**{"x-queue-type": "quorum", "x-delivery-limit": self.limit})
        self.waiting: dict[int, int] = {}  # how often each number came back
        self.transient: set[int] = set()
        self.next_number = 0

    def step(self) -> None:
        names, weights = zip(*STEPS.items(), strict=True)
        (step,) = self.random.choices(names, weights)
        getattr(self, step)()
        self.kept.settle()
        assert self.kept.queue().message_count() == len(self.waiting)
        assert self.kept.failures == []

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 60)):
            number, self.next_number = self.next_number, self.next_number + 1
            mode = PERSISTENT
            if self.random.random() < 0.2:
                self.transient.add(number)
                mode = 1
            self.kept.channel.publish(body_of(number), "q", delivery_mode=mode)
            self.waiting[number] = 0

    def take(self, channel: ClientChannel) -> list[tuple[int, int]]:
        """Some of the first messages, which must be as the model says: their tags and numbers."""
        count = min(len(self.waiting), self.random.randint(1, 80))
        channel.consume(self.kept.queue(), "one", prefetch=count)
        delivered: list[Delivered] = []
        for _ in range(200):
            self.kept.settle()
            delivered += channel.deliveries()
            if len(delivered) >= count:
                break
        channel.core.cancel("one")
        expected = list(self.waiting.items())[:count]
        for each, (number, count) in zip(delivered, expected, strict=True):
            assert each.body == body_of(number)
            assert ((each.message.properties.headers or {}).get("x-delivery-count") or 0) == count
        return [(each.tag, number) for each, (number, _) in zip(delivered, expected, strict=True)]

    def gone(self, number: int) -> None:
        del self.waiting[number]

    def came_back(self, number: int) -> None:
        self.waiting[number] += 1
        if self.waiting[number] > self.limit:
            self.gone(number)

    def consume(self) -> None:
        if not self.waiting:
            return
        client = Client(self.kept.broker)
        channel = client.channel()
        held = self.take(channel)
        self.random.shuffle(held)
        while held and self.random.random() < 0.97:
            tag, number = held.pop()
            if self.random.random() < 0.4:
                channel.ack(tag)
                self.gone(number)
            else:
                channel.reject(tag)
                self.came_back(number)
        client.close()
        for _, number in held:
            self.came_back(number)

    def commit(self) -> None:
        """The same in a transaction, which may be rolled back; then its channel ends."""
        if not self.waiting:
            return
        client = Client(self.kept.broker)
        channel = client.channel()
        channel.core.select_transactions()
        held = self.take(channel)
        is_committed = self.random.random() < 0.6
        for tag, number in held:
            is_acked = self.random.random() < 0.5
            if is_acked:
                channel.ack(tag)
            else:
                channel.reject(tag)
            if is_committed and is_acked:
                self.gone(number)
            else:
                self.came_back(number)
        if is_committed:
            channel.core.commit()
        elif self.random.random() < 0.5:
            channel.core.rollback()
        client.close()

    def get(self) -> None:
        entry = self.kept.get()
        if entry is None:
            assert not self.waiting
            return
        number = next(iter(self.waiting))
        assert (entry.message.body, ended_attempts(entry)) == (body_of(number), self.waiting[number])
        self.kept.ack([entry])
        self.gone(number)

    def checkpoint(self) -> None:
        self.kept.checkpoint(carry=self.random.random() < 0.5)

    def restart(self) -> None:
        self.kept.settle()
        self.kept.restart(clean=self.random.random() < 0.5)
        assert self.kept.storage.report == []
        for number in self.transient & self.waiting.keys():
            self.gone(number)


@pytest.mark.parametrize("seed", range(effort(12)))
def test_a_quorum_queue_on_disk_counts_as_a_list_does(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(60):
        world.step()
