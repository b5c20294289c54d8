"""Queues with random filtered consumers, in memory and on disk: each gets what it wants, in order, and nothing else.

Everything is so small that pages come and go within a few hundred messages. The threads' work is done in pieces between
the steps. When all work is done, no message may wait that a consumer with credit wants.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept
from tests.support.client import Client, ClientChannel
from tests.support.crash import effort
from tests.support.outbox import Delivered
from warrenmq.core import filtered

KINDS = 7
FILTERS: list[tuple[Any, set[int]]] = [
    (None, set(range(KINDS))),
    ("kind = 1", {1}),
    ("kind IN (0, 2)", {0, 2}),
    ({"kind": 3}, {3}),
    ("kind > 3 AND app_id IS NULL", {4, 5, 6}),
    ("kind = 6 OR kind = 1", {1, 6}),
    ("kind > 100", set()),
]
PRIORITIES = 3
TINY = {"segment_size": 6000, "page_size": 900, "read_size": 1500, "dead_allowance": 1000, "window": 6000, "page": 1500}


@dataclass(eq=False)
class ModelConsumer:
    channel: ClientChannel
    wanted: set[int]
    prefetch: int
    no_ack: bool
    is_active: bool = True
    unacked: dict[int, int] = field(default_factory=dict)  # tag -> number

    def has_credit(self) -> bool:
        return self.is_active and (self.no_ack or self.prefetch == 0 or len(self.unacked) < self.prefetch)


class World:
    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        sizes = TINY if seed % 4 else {"window": 1 << 20}
        self.kept = Kept(folder, **sizes, relog_below=self.random.choice((0, 5000)))
        kind = ("classic", "classic", "quorum", "priorities", "transient", "single")[seed % 6]
        self.arguments: dict[str, Any] = {}
        self.is_durable = kind != "transient"
        self.priorities = PRIORITIES if kind == "priorities" else 0
        if kind == "quorum":
            self.arguments["x-queue-type"] = "quorum"
            self.arguments["x-delivery-limit"] = 1 << 20
        if kind == "priorities":
            self.arguments["x-max-priority"] = PRIORITIES
        if kind == "single":
            self.arguments["x-single-active-consumer"] = True
        self.is_single = kind == "single"
        self.waiting: set[int] = set()
        self.transient: set[int] = set()
        self.seen: set[int] = set()
        self.priority_of: dict[int, int] = {}
        self.consumers: list[ModelConsumer] = []
        self.next_number = 0
        self.declare()

    def declare(self) -> None:
        self.client = Client(self.kept.broker)
        self.kept.declare("q", durable=self.is_durable, **self.arguments)

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        names, weights = zip(*STEPS.items(), strict=True)
        (step,) = self.random.choices(names, weights)
        getattr(self, step)()
        self.hear()
        for _ in range(self.random.choice((0, 0, 1, 3, 10))):
            storage = self.kept.storage
            self.random.choice((self.kept.turn, storage.committer.run_one, storage.pager.run_one))()
            self.hear()
        if self.random.random() < 0.3:
            self.rest()

    def rest(self) -> None:
        """Everything that was begun is done: no consumer waits for a message that waits in the queue."""
        queue = self.kept.queue()
        self.kept.advance()
        turn = self.kept.broker.turn
        while turn.due or turn.deferred or (queue.filters is not None and queue.filters.reading):
            self.kept.advance()
        self.hear()
        assert queue.message_count() == len(self.waiting)
        assert self.kept.failures == []
        if self.is_single:
            return
        for consumer in self.consumers:
            assert not (consumer.has_credit() and self.wanted_by(consumer)), "a message waits, and a consumer for it"

    def wanted_by(self, consumer: ModelConsumer) -> list[int]:
        return [number for number in self.waiting if number % KINDS in consumer.wanted]

    def place(self, number: int) -> tuple[int, int]:
        return -self.priority_of[number], number

    def hear(self) -> None:
        """The consumer wanted it, had credit, and nothing that it wants more was there."""
        by_channel = {consumer.channel.number: consumer for consumer in self.consumers}
        said, self.client.outbox.said = self.client.outbox.said, []
        for each in said:
            if not isinstance(each, Delivered):
                continue
            consumer = by_channel[each.channel]
            number = int(each.body.split(b":")[0])
            assert consumer.has_credit()
            assert number == min(self.wanted_by(consumer), key=self.place)
            assert each.redelivered or number not in self.seen
            self.waiting.remove(number)
            self.seen.add(number)
            if not consumer.no_ack:
                consumer.unacked[each.tag] = number

    def publish(self) -> None:
        share = self.random.choice((0.0, 0.0, 0.5, 1.0))
        for _ in range(self.random.randint(1, 40)):
            number, self.next_number = self.next_number, self.next_number + 1
            is_transient = self.random.random() < share
            if is_transient:
                self.transient.add(number)
            priority = self.random.randint(0, self.priorities)
            self.priority_of[number] = priority
            self.waiting.add(number)
            self.kept.channel.publish(
                b"%d:" % number + b"x" * (number % 50),
                "q",
                delivery_mode=1 if is_transient else 2,
                headers={"kind": number % KINDS},
                priority=priority,
            )
            self.hear()

    def consume(self) -> None:
        if sum(consumer.is_active for consumer in self.consumers) > 5:
            return
        asked, wanted = self.random.choice(FILTERS if self.random.random() < 0.3 else FILTERS[1:])
        no_ack = self.random.random() < 0.1
        prefetch = self.random.choice((0, 1, 2, 5, 30))
        channel = self.client.channel()
        self.consumers.append(ModelConsumer(channel, wanted, prefetch, no_ack))
        arguments = {} if asked is None else {"x-filter": asked}
        channel.consume(
            self.kept.queue(),
            prefetch=prefetch,
            no_ack=no_ack,
            priority=self.random.choice((0, 0, 1)),
            arguments=arguments,
        )

    def cancel(self) -> None:
        if self.consumers:
            consumer = self.random.choice(self.consumers)
            consumer.channel.core.cancel("consumer")
            consumer.is_active = False

    def close(self) -> None:
        if self.consumers:
            consumer = self.random.choice(self.consumers)
            self.consumers.remove(consumer)
            consumer.channel.close()
            self.waiting.update(consumer.unacked.values())

    def settle(self) -> None:
        for consumer in self.consumers:
            how = self.random.choice(("ack", "ack", "nack", "reject", "nothing"))
            for tag in self.random.sample(list(consumer.unacked), self.random.randint(0, len(consumer.unacked))):
                number = consumer.unacked.pop(tag, None)
                assert number is not None
                if how == "nothing":
                    consumer.unacked[tag] = number
                elif how == "ack":
                    consumer.channel.ack(tag)
                else:
                    if how == "nack":
                        self.waiting.add(number)
                    consumer.channel.reject(tag, requeue=how == "nack")
                self.hear()

    def get(self) -> None:
        for _ in range(self.random.randint(1, 20)):
            entry = self.kept.get()
            self.hear()
            if entry is None:
                assert not self.waiting
                return
            number = int(entry.message.body.split(b":")[0])
            assert number == min(self.waiting, key=self.place)
            self.waiting.remove(number)
            self.seen.add(number)
            self.kept.ack([entry])

    def purge(self) -> None:
        assert self.kept.queue().purge() == len(self.waiting)
        self.waiting.clear()

    def checkpoint(self) -> None:
        self.kept.checkpoint()

    def restart(self) -> None:
        is_clean = self.random.random() < 0.5
        self.rest()
        self.kept.settle()
        self.kept.restart(is_clean)
        assert self.kept.storage.report == []
        unacked = {number for consumer in self.consumers for number in consumer.unacked.values()}
        self.consumers.clear()
        self.declare()
        self.waiting = (self.waiting | unacked) - self.transient if self.is_durable else set()
        self.seen |= self.waiting

    def finish(self) -> None:
        """What nobody wanted is all there, and then nothing is left anywhere."""
        self.rest()
        self.client.close()
        for consumer in self.consumers:
            self.waiting.update(consumer.unacked.values())
        self.consumers.clear()
        taken = self.kept.take_all()
        numbers = [int(entry.message.body.split(b":")[0]) for entry in taken]
        assert numbers == sorted(self.waiting, key=self.place)
        assert all(entry.redelivered or number not in self.seen for entry, number in zip(taken, numbers, strict=True))
        self.kept.ack(taken)
        self.kept.checkpoint()
        stats = self.kept.broker.stats
        assert (stats.ready, stats.unacked, stats.held_bytes, stats.shared_bytes) == (0, 0, 0, 0)
        assert self.kept.names("q") == []
        if not self.priorities:
            assert self.kept.store().held == set()


STEPS = {
    "publish": 30,
    "consume": 10,
    "cancel": 2,
    "close": 3,
    "settle": 25,
    "get": 4,
    "purge": 1,
    "checkpoint": 3,
    "restart": 2,
}


@pytest.mark.parametrize("seed", range(effort(48)))
def test_each_consumer_gets_what_it_wants_in_order(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered, "SCAN_LIMIT", (30, 200, 2048)[seed % 3])
    monkeypatch.setattr(filtered, "MAX_RETURNED", (3, 1000)[seed % 2])
    world = World(tmp_path, seed)
    for _ in range(150):
        world.step()
    world.finish()
