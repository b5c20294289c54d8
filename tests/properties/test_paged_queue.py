"""Queues on disk against plain lists: whatever is published, taken, given back, purged and restarted, in any order.

Everything is so small that pages, segments, log files, checkpoints and compactions come and go within a few hundred
messages. The threads' work is done in pieces between the steps, so each step meets files in every state. A restart is
clean, or abrupt: then the log is all that was finished.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept, body_of
from tests.support.client import Client
from tests.support.crash import effort
from tests.support.outbox import Delivered
from warrenmq.core.message import QueuedMessage

KIB = 1024
DURABLE = ("a", "b", "c")
TRANSIENT = "t"  # a queue that is not durable
EVERYWHERE = "everywhere"
SIZES: list[dict[str, Any]] = [
    # Much is paged out; the log is trimmed now and then, small queues are carried.
    {"window": 6000, "page": 1500, "log_limit": 40_000, "log_file_size": 10_000, "relog_below": 3000},
    # The log is trimmed all the time, and nearly everything is flushed.
    {"window": 30_000, "page": 4000, "log_limit": 12_000, "log_file_size": 3000, "relog_below": 0},
    # Memory is short, so that all queues together page out more than each would.
    {"window": 60_000, "page": 2000, "log_limit": 100_000, "log_file_size": 20_000, "memory_budget": 20_000},
    # Nearly everything is carried.
    {"window": 60_000, "page": 2000, "log_limit": 60_000, "log_file_size": 6000, "relog_below": 50_000},
]


@dataclass
class Model:
    """One queue. A message is its number; what was delivered once comes as redelivered."""

    waiting: list[int] = field(default_factory=list)
    unacked: dict[int, QueuedMessage] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def put_back(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.unacked[number]
        self.seen.update(numbers)
        self.waiting = sorted([*self.waiting, *numbers])


class World:
    def __init__(self, folder: Path, seed: int, **sizes: Any) -> None:
        self.random = random.Random(seed)
        tiny = {"segment_size": 6000, "page_size": 900, "read_size": 1500, "dead_allowance": 1000}
        self.kept = Kept(folder, **{**tiny, **SIZES[seed % len(SIZES)], **sizes})
        self.models: dict[str, Model] = {}
        self.transient: set[int] = set()
        self.next_number = 0
        self.kept.channel.declare_exchange(EVERYWHERE, "fanout", durable=True)
        for name in (*DURABLE, TRANSIENT):
            self.declare(name)

    def declare(self, name: str) -> None:
        queue = self.kept.declare(name, durable=name != TRANSIENT)
        self.kept.channel.bind(EVERYWHERE, queue)
        self.models[name] = Model()

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        names, weights = zip(*STEPS.items(), strict=True)
        (step,) = self.random.choices(names, weights)
        getattr(self, step)()
        for _ in range(self.random.choice((0, 0, 1, 3, 10))):
            self.work_a_little()
        if self.random.random() < 0.3:
            self.kept.settle()
        self.compare()

    def work_a_little(self) -> None:
        do = self.random.choice((self.kept.turn, self.kept.storage.committer.run_one, self.kept.storage.pager.run_one))
        do()

    def compare(self) -> None:
        stats = self.kept.broker.stats
        for name, model in self.models.items():
            backlog = self.kept.queue(name).backlog
            assert backlog.waiting == len(model.waiting), name
            assert backlog.body_bytes == sum(len(body_of(number)) for number in model.waiting), name
        assert stats.ready == sum(len(model.waiting) for model in self.models.values())
        assert stats.unacked == sum(len(model.unacked) for model in self.models.values())
        assert self.kept.failures == []

    def some_queue(self) -> tuple[str, Model]:
        name = self.random.choice(list(self.models))
        return name, self.models[name]

    def some_unacked(self, model: Model) -> list[int]:
        numbers = list(model.unacked)
        self.random.shuffle(numbers)
        return numbers[: self.random.randint(0, len(numbers))]

    def publish(self) -> None:
        self.publish_through(self.kept.channel)

    def publish_through(self, channel: Any) -> None:
        name = self.random.choice((*DURABLE, TRANSIENT, EVERYWHERE))
        share = self.random.choice((0.0, 0.0, 0.5, 1.0))
        for _ in range(self.random.randint(1, 40)):
            number, self.next_number = self.next_number, self.next_number + 1
            is_transient = self.random.random() < share
            if is_transient:
                self.transient.add(number)
            exchange, key = (EVERYWHERE, "") if name == EVERYWHERE else ("", name)
            channel.publish(body_of(number), key, exchange, delivery_mode=1 if is_transient else 2)
            for reached in self.models if name == EVERYWHERE else [name]:
                self.models[reached].waiting.append(number)

    def expect(self, entry: QueuedMessage, model: Model) -> int:
        number = model.waiting.pop(0)
        assert entry.message.body == body_of(number)
        assert entry.redelivered is (number in model.seen)
        return number

    def get(self) -> None:
        name, model = self.some_queue()
        for _ in range(self.random.randint(1, 60)):
            entry = self.kept.get(name)
            if entry is None:
                assert not model.waiting
                return
            model.unacked[self.expect(entry, model)] = entry

    def get_and_settle(self) -> None:
        name, model = self.some_queue()
        for _ in range(self.random.randint(1, 60)):
            entry = self.kept.get(name)
            if entry is None:
                assert not model.waiting
                return
            self.expect(entry, model)
            self.kept.ack([entry])

    def settle(self) -> None:
        _, model = self.some_queue()
        self.kept.ack(model.unacked.pop(number) for number in self.some_unacked(model))

    def give_back(self) -> None:
        name, model = self.some_queue()
        numbers = self.some_unacked(model)
        self.kept.queue(name).requeue([model.unacked[number] for number in numbers])
        model.put_back(numbers)

    def consume(self) -> None:
        """A consumer comes, takes what it may, acks some of it, and goes."""
        name, model = self.some_queue()
        limit = self.random.randint(1, 50)
        client = Client(self.kept.broker)
        channel = client.channel()
        channel.consume(self.kept.queue(name), prefetch=limit)
        for _ in range(30):
            self.kept.settle()
        delivered = client.outbox.take(Delivered, channel.number)
        expected = model.waiting[:limit]
        assert [each.body for each in delivered] == [body_of(number) for number in expected]
        assert [each.redelivered for each in delivered] == [number in model.seen for number in expected]
        del model.waiting[:limit]
        returned = []
        channel.core.cancel("consumer")
        for each, number in zip(delivered, expected, strict=True):
            if self.random.random() < 0.5:
                channel.ack(each.tag)
            else:
                returned.append(number)
        client.close()
        model.unacked.update(dict.fromkeys(returned))  # type: ignore[arg-type]
        model.put_back(returned)

    def transaction(self) -> None:
        """Publishes to queues and acks of another, all or nothing."""
        channel = Client(self.kept.broker).channel()
        channel.core.select_transactions()
        name, model = self.some_queue()
        taken = []
        for _ in range(self.random.randint(0, 10)):
            entry = self.kept.get(name)
            if entry is None:
                break
            taken.append(self.expect(entry, model))
            channel.core.ledger.add(entry)
        before = {name: list(model.waiting) for name, model in self.models.items()}
        self.publish_through(channel)
        for tag in range(1, len(taken) + 1):
            channel.ack(tag)
        if self.random.random() < 0.7:
            channel.core.commit()
            return
        for each, waiting in before.items():
            self.models[each].waiting = waiting
        channel.core.rollback()
        channel.close()
        model.unacked.update(dict.fromkeys(taken))  # type: ignore[arg-type]
        model.put_back(taken)

    def purge(self) -> None:
        name, model = self.some_queue()
        assert self.kept.queue(name).purge() == len(model.waiting)
        model.waiting.clear()

    def delete(self) -> None:
        name, model = self.some_queue()
        assert self.kept.channel.delete(self.kept.queue(name)) == len(model.waiting)
        for entry in model.unacked.values():
            queue: Any = entry.queue
            queue.settle(entry)
        self.declare(name)

    def restart(self) -> None:
        self._restart(is_clean=self.random.random() < 0.5)

    def crash(self) -> None:
        self._restart(is_clean=False)

    def _restart(self, is_clean: bool) -> None:
        if not is_clean:
            self.kept.write_log(self.random.randint(0, 10))
        self.kept.restart(is_clean)
        assert self.kept.storage.report == []
        if is_clean:
            assert self.kept.storage.replayed_epochs <= 1  # with the positions
        del self.models[TRANSIENT]
        for model in self.models.values():
            kept = [number for number in (*model.waiting, *model.unacked) if number not in self.transient]
            model.waiting = sorted(kept)
            model.unacked.clear()
            model.seen.update(kept)
        self.declare(TRANSIENT)

    def finish(self) -> None:
        """All that should be there is there, and then nothing is left anywhere."""
        for name, model in self.models.items():
            self.kept.queue(name).requeue(list(model.unacked.values()))
            model.put_back(list(model.unacked))
            assert self.kept.drain(name) == model.waiting
        self.kept.checkpoint()
        stats = self.kept.broker.stats
        assert (stats.ready, stats.unacked, stats.held_bytes) == (0, 0, 0)
        assert [self.kept.names(name) for name in self.models] == [[]] * len(self.models)
        context = self.kept.storage.context
        assert (len(context.unflushed), len(context.marked_stores), self.kept.storage.pager.pending_bytes) == (0, 0, 0)
        assert self.kept.storage.committer.size <= 2 * self.kept.options.log_limit


STEPS = {
    "publish": 30,
    "get": 12,
    "get_and_settle": 12,
    "settle": 12,
    "give_back": 8,
    "consume": 4,
    "transaction": 6,
    "purge": 2,
    "delete": 1,
    "restart": 3,
}


@pytest.mark.parametrize("seed", range(effort(16)))
def test_queues_on_disk_are_lists(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, seed)
    for _ in range(120):
        world.step()
    world.finish()
