"""Clients that keep books: who was promised what, while their broker may be killed at any moment.

Publishers wait for confirms, consumers ack, a mover moves messages by transactions. `Books` survive the broker's
crashes; at the end `Books.check` holds them against what the queues hold:

- what was confirmed and never acked is there, once, in order per publisher and queue;
- what was acked is gone, if the ack is known to be synced: the same connection published afterwards and was confirmed;
- a transaction is there as a whole or not at all, and what was committed is there.

Anything else may be there or not, but once at most. Every worker owns its connection and its own part of the books.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field

from tests.support.wire import Address, EndOfStream, Refused, WireChannel, WireConnection
from tests.support.wire_format import METHOD, Frame, read_method

PERSISTENT = {"delivery_mode": 2}
TRANSIENT = {"delivery_mode": 1}
QUEUES = ("a", "b", "in", "out-1", "out-2", "fences")
BOTH = "both"  # an exchange that leads to a and b

Name = tuple[str, int]  # the publisher and its number of the message


@dataclass
class Sent:
    """What one publisher sent, by number: where to, and whether it was confirmed."""

    queues: dict[int, tuple[str, ...]] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)


@dataclass
class Move:
    """One transaction: these were taken from `in` and published to both outs."""

    names: list[Name]
    outcome: str = "unknown"  # or "committed", "rolled back"


@dataclass
class Books:
    sent: dict[str, Sent] = field(default_factory=dict)
    acked: dict[str, set[Name]] = field(default_factory=lambda: {queue: set() for queue in QUEUES})
    settled: dict[str, set[Name]] = field(default_factory=lambda: {queue: set() for queue in QUEUES})
    moves: dict[int, Move] = field(default_factory=dict)

    def confirmed_count(self) -> int:
        return sum(len(sent.confirmed) for sent in list(self.sent.values()))

    def check(self, found: dict[str, list[bytes]]) -> None:
        """Compare with all that the queues hold."""
        for queue in ("a", "b", "in", "fences"):
            self._check_queue(queue, [_name_of(body) for body in found[queue]])
        self._check_moves(found)

    def _check_queue(self, queue: str, names: list[Name]) -> None:
        twice = [name for name, count in Counter(names).items() if count > 1]
        assert not twice, f"{queue}: twice there: {twice[:10]}"
        for publisher, sent in self.sent.items():
            numbers = [number for name, number in names if name == publisher]
            assert numbers == sorted(numbers), f"{queue}: out of order: {publisher} {numbers[:50]}"
            unknown = [number for number in numbers if queue not in sent.queues.get(number, ())]
            assert not unknown, f"{queue}: never sent here: {publisher} {unknown[:10]}"
            promised = {(publisher, number) for number in sent.confirmed if queue in sent.queues[number]}
            gone = self.acked[queue]
            if queue == "in":
                gone = {name for move in self.moves.values() if move.outcome != "rolled back" for name in move.names}
            lost = promised - set(names) - gone
            assert not lost, f"{queue}: confirmed and lost: {sorted(lost)[:10]} ({len(lost)} of {len(promised)})"
        back = self.settled[queue] & set(names)
        assert not back, f"{queue}: acked, synced, and back again: {sorted(back)[:10]}"

    def _check_moves(self, found: dict[str, list[bytes]]) -> None:
        outs = [[_move_of(body) for body in found[queue]] for queue in ("out-1", "out-2")]
        assert outs[0] == outs[1], "a transaction reached one queue and not the other"
        waiting = {_name_of(body) for body in found["in"]}
        arrived = [name for _, name in outs[0]]
        assert len(set(arrived)) == len(arrived), "a message was moved twice"
        assert not waiting & set(arrived), "a message was moved and is still where it was"
        for number, move in self.moves.items():
            there = [name for out, name in outs[0] if out == number]
            if move.outcome == "committed":
                assert there == move.names, f"transaction {number} was committed and is not there as a whole: {there}"
            elif move.outcome == "rolled back":
                assert there == [], f"transaction {number} was rolled back and is there"
            else:
                assert there in ([], move.names), f"transaction {number} is there in part: {there}"
        for publisher, sent in self.sent.items():
            promised = {(publisher, number) for number in sent.confirmed if "in" in sent.queues[number]}
            lost = promised - waiting - set(arrived)
            assert not lost, f"confirmed, and neither moved nor waiting: {sorted(lost)[:10]}"


class PatientConnection(WireConnection):
    """Frames that were read too early can be read again."""

    def put_back(self, channel_number: int, frames: list[Frame]) -> None:
        self._set_aside[channel_number].extendleft(reversed(frames))


class Worker(threading.Thread):
    """One client. It ends when told to, or when its connection does; anything else is raised by `finish`."""

    def __init__(self, address: Address, books: Books, seed: int) -> None:
        super().__init__(daemon=True)
        self.books = books
        self.choice = random.Random(seed)
        self.told_to_stop = threading.Event()
        self._address = address
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            with PatientConnection(self._address).open() as connection:
                self.work(connection)
        except (EndOfStream, Refused, ConnectionError):
            pass  # the broker is gone, or says that it goes
        except BaseException as failure:  # noqa: BLE001 - raised by the thread that owns this one
            self._failure = failure

    def work(self, connection: WireConnection) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.told_to_stop.set()
        self.join(60)
        assert not self.is_alive(), f"{type(self).__name__} did not end"
        if self._failure is not None:
            raise self._failure


class ConfirmedPublisher:
    """Publishes on a channel of its own, and notes what is confirmed."""

    def __init__(self, connection: WireConnection, number: int, name: str, books: Books) -> None:
        self._channel = connection.channel(number)
        self._channel.call("confirm.select")
        self._name = name
        self._sent = books.sent.setdefault(name, Sent())
        self._in_flight: dict[int, int] = {}  # delivery tag -> number of the message
        self._last_tag = 0

    def publish(self, queues: tuple[str, ...], size: int, properties: dict[str, int]) -> None:
        number = len(self._sent.queues) + 1
        self._last_tag += 1
        self._sent.queues[number] = queues
        if properties is PERSISTENT:
            self._in_flight[self._last_tag] = number
        exchange, key = (BOTH, "") if len(queues) > 1 else ("", queues[0])
        body = f"{self._name} {number} ".encode() + bytes(size)
        self._channel.publish(body, properties, exchange=exchange, routing_key=key)

    def wait(self, at_most: int) -> None:
        """Wait until at most N are unconfirmed."""
        while len(self._in_flight) > at_most:
            answer = self._channel.expect("basic.ack")
            tag = answer["delivery_tag"]
            tags = [known for known in self._in_flight if known == tag or (answer["multiple"] and known < tag)]
            for known in tags:
                self._sent.confirmed.add(self._in_flight.pop(known))


class Publisher(Worker):
    """Publishes in bursts. Transient messages in between must not disturb, and may be lost."""

    def __init__(
        self, address: Address, books: Books, seed: int, name: str, queues: tuple[str, ...], size: int
    ) -> None:
        super().__init__(address, books, seed)
        self._publisher_name, self._queues, self._size = name, queues, size

    def work(self, connection: WireConnection) -> None:
        publisher = ConfirmedPublisher(connection, 1, self._publisher_name, self.books)
        while not self.told_to_stop.is_set():
            for _ in range(self.choice.choice((1, 1, 5, 40))):
                size = self.choice.choice((0, self._size, self._size, 4 * self._size))
                publisher.publish(self._queues, size, TRANSIENT if self.choice.random() < 0.1 else PERSISTENT)
            publisher.wait(self.choice.choice((0, 10, 100)))


class Consumer(Worker):
    """Acks most, requeues some, keeps some; now and then it makes sure that its acks are synced."""

    def __init__(self, address: Address, books: Books, seed: int, queue: str) -> None:
        super().__init__(address, books, seed)
        self._queue = queue

    def work(self, connection: WireConnection) -> None:
        channel = connection.channel(1)
        fence = ConfirmedPublisher(connection, 2, f"consumer-of-{self._queue}", self.books)
        channel.call("basic.qos", prefetch_count=110)
        channel.call("basic.consume", queue=self._queue)
        acked, settled = self.books.acked[self._queue], self.books.settled[self._queue]
        since_fence: set[Name] = set()
        kept = 0
        while not self.told_to_stop.is_set():
            content = channel.content()
            name = _name_of(content.body)
            assert name not in settled, f"{self._queue}: {name} was acked, synced, and is delivered again"
            tag, fate = content["delivery_tag"], self.choice.random()
            if fate < 0.05 and kept < 50:
                kept += 1
            elif fate > 0.9:
                channel.send("basic.nack", delivery_tag=tag, requeue=True)
            else:
                acked.add(name)
                since_fence.add(name)
                channel.send("basic.ack", delivery_tag=tag)
            if len(since_fence) >= 25:
                fence.publish(("fences",), 0, PERSISTENT)
                fence.wait(0)
                settled |= since_fence
                since_fence.clear()


class Thinner(Worker):
    """Fills `b` with more than stays in memory, takes it and acks most of it, again and again."""

    def work(self, connection: WireConnection) -> None:
        publisher = ConfirmedPublisher(connection, 1, "thinner", self.books)
        channel = connection.channel(2)
        acked, settled = self.books.acked["b"], self.books.settled["b"]
        while not self.told_to_stop.is_set():
            for _ in range(400):
                publisher.publish(("b",), self.choice.choice((100, 400)), PERSISTENT)
            publisher.wait(0)
            channel.call("basic.consume", queue="b", consumer_tag="thinner")
            contents = [channel.content() for _ in range(400)]
            channel.call("basic.cancel", consumer_tag="thinner")
            taken: set[Name] = set()
            for content in contents:
                if self.choice.random() < 0.97:
                    taken.add(_name_of(content.body))
                    acked.add(_name_of(content.body))
                    channel.send("basic.ack", delivery_tag=content["delivery_tag"])
            channel.call("queue.declare", queue="b", passive=True)  # all acks have arrived
            publisher.publish(("fences",), 0, PERSISTENT)
            publisher.wait(0)
            settled |= taken


class Mover(Worker):
    """Takes messages from `in`, publishes each to both outs, acks them, and commits, or now and then rolls back."""

    def work(self, connection: WireConnection) -> None:
        channel = connection.channel(1)
        channel.call("basic.qos", prefetch_count=20)
        channel.call("tx.select")
        channel.call("basic.consume", queue="in")
        while not self.told_to_stop.is_set():
            contents = [channel.content() for _ in range(self.choice.randint(1, 5))]
            number = len(self.books.moves) + 1
            move = self.books.moves[number] = Move([_name_of(content.body) for content in contents])
            for content in contents:
                for queue in ("out-1", "out-2"):
                    channel.publish(b"%d " % number + content.body, PERSISTENT, routing_key=queue)
            last = contents[-1]["delivery_tag"]
            channel.send("basic.ack", delivery_tag=last, multiple=True)
            if self.choice.random() < 0.2:
                _call_among_deliveries(channel, "tx.rollback")
                move.outcome = "rolled back"
                channel.send("basic.nack", delivery_tag=last, multiple=True, requeue=True)
                _call_among_deliveries(channel, "tx.commit")
            else:
                _call_among_deliveries(channel, "tx.commit")
                move.outcome = "committed"


def declare_everything(connection: WireConnection) -> None:
    channel = connection.channel(1)
    for queue in QUEUES:
        channel.call("queue.declare", queue=queue, durable=True)
    channel.call("exchange.declare", exchange=BOTH, type="fanout", durable=True)
    for queue in ("a", "b"):
        channel.call("queue.bind", queue=queue, exchange=BOTH)
    channel.close()


def start_workers(address: Address, books: Books, seed: int, size: int = 100, thins: bool = False) -> list[Worker]:
    """The usual company; with `thins` the segments of `b` get many dead messages, so that they are compacted."""
    workers: list[Worker] = [
        Publisher(address, books, seed + 1, "one", ("a",), size),
        Publisher(address, books, seed + 2, "two", ("a",) if thins else ("a", "b"), size),
        Publisher(address, books, seed + 3, "three", ("in",), size),
        Consumer(address, books, seed + 4, "a"),
        Mover(address, books, seed + 5),
    ]
    if thins:
        workers.append(Thinner(address, books, seed + 6))
    for worker in workers:
        worker.start()
    return workers


def take_everything(connection: WireConnection) -> dict[str, list[bytes]]:
    """What the queues hold, in order. Bindings must be there too: a message through the exchange must arrive."""
    channel = connection.channel(1)
    found = {queue: _take_all(channel, queue) for queue in QUEUES}
    channel.publish(b"", PERSISTENT, exchange=BOTH)
    for queue in ("a", "b"):
        assert channel.get(queue) is not None, f"the binding of {queue} is gone"
    return found


def _take_all(channel: WireChannel, queue: str) -> list[bytes]:
    count = channel.call("queue.declare", queue=queue, passive=True)["message_count"]
    channel.call("basic.consume", queue=queue, consumer_tag=queue, no_ack=True)
    bodies = [channel.content().body for _ in range(count)]
    channel.call("basic.cancel", consumer_tag=queue)
    assert channel.get(queue) is None, f"{queue} held more than it said"
    return bodies


def _call_among_deliveries(channel: WireChannel, method: str) -> None:
    """Call a method while deliveries may come before its answer: they are put back for later."""
    channel.send(method)
    connection = channel.connection
    assert isinstance(connection, PatientConnection)
    seen: list[Frame] = []
    while True:
        frame = connection.read_frame(channel.number)
        if frame.kind == METHOD and read_method(frame).name == f"{method}-ok":
            connection.put_back(channel.number, seen)
            return
        seen.append(frame)


def _name_of(body: bytes) -> Name:
    publisher, number, _ = body.split(b" ", 2)
    return publisher.decode(), int(number)


def _move_of(body: bytes) -> tuple[int, Name]:
    number, rest = body.split(b" ", 1)
    return int(number), _name_of(rest)
