"""Peeking: what waits in a queue, in the order of delivery, without consuming or changing anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept, body_of
from tests.support.client import ClientChannel, advance, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.peek import Peeked, Start, peek
from warrenmq.core.queue import Queue

WHOLE = 1 << 20


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def ask(queue: Queue, start: Start | None = None, count: int = 100, truncate: int = WHOLE) -> list[Peeked]:
    """The answer, once it is there."""
    answers: list[Peeked] = []
    peek(queue, start, count, truncate, answers.append)
    return answers


def peek_all(queue: Queue, count: int = 100, kept: Kept | None = None) -> list[bytes]:
    """The bodies of all messages."""
    found: list[bytes] = []
    start: Start | None = None
    for _ in range(10_000):
        answers = ask(queue, start, count)
        if kept is not None:
            kept.storage.run_all()
        (answer,) = answers
        assert len(answer.messages) <= count
        found += [message.body for message in answer.messages]
        start = answer.next
        if start is None:
            return found
    raise AssertionError("a peek never ends")


def state(broker: Broker) -> dict[str, Any]:
    """Everything that consumers, limits and metrics depend on."""
    stats = {name: getattr(broker.stats, name) for name in broker.stats.__slots__}
    queues = [queue for queue in broker.vhosts["/"].queues.values() if isinstance(queue, ClassicQueue)]
    names = ("delivered", "redelivered", "requeued", "unacked_count", "queued", "is_due")
    counters = {queue.name: [getattr(queue, name) for name in names] for queue in queues}
    backlogs = {
        queue.name: [
            (part.waiting, part.paged, part.last_delivered, part.next_position, part.bytes_in_memory())
            for part in queue.backlog.parts()
        ]
        for queue in queues
    }
    entries = {
        queue.name: [(each.position, each.redelivered, each.attempts) for each in queue.backlog] for queue in queues
    }
    return {"stats": stats, "counters": counters, "backlogs": backlogs, "entries": entries}


def test_a_peek_shows_the_messages_in_the_order_of_delivery(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish(b"first", "q", priority=3, headers={"color": "red"})
    channel.publish(b"second", "q", expiration="5000")
    (answer,) = ask(queue)
    first, second = answer.messages
    assert (first.start, first.body, first.exchange, first.routing_key) == (Start(0), b"first", "", "q")
    assert (second.start, second.body, second.expires_ms) == (Start(1), b"second", 5000)
    assert (answer.next, answer.unreadable) == (None, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_a_peek_continues_where_the_last_one_ended(channel: ClientChannel, count: int) -> None:
    queue = channel.declare("q")
    channel.publish_all("abcdefg", "q")
    channel.get(queue)
    assert b"".join(peek_all(queue, count)) == b"bcdefg"
    (answer,) = ask(queue, Start(4), 2)
    assert [message.body for message in answer.messages] == [b"e", b"f"]
    assert ask(queue, Start(100))[0] == Peeked([], None)


def test_bodies_are_truncated(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish(b"0123456789", "q")
    (answer,) = ask(queue, truncate=4)
    assert (answer.messages[0].body, answer.messages[0].size) == (b"0123", 10)


def test_unacked_messages_are_not_shown_and_requeued_ones_in_their_place(channel: ClientChannel) -> None:
    queue = channel.declare("q")
    channel.publish_all("abcd", "q")
    channel.get(queue, no_ack=False)
    channel.get(queue, no_ack=False)
    assert peek_all(queue) == [b"c", b"d"]
    channel.reject(2)
    (answer,) = ask(queue)
    shown = [(message.body, message.is_redelivered, message.attempts) for message in answer.messages]
    assert shown == [(b"b", True, 1), (b"c", False, 0), (b"d", False, 0)]


def test_removed_messages_are_left_out(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    for letter, expiration in (("a", None), ("b", "10"), ("c", None)):
        channel.publish(letter.encode(), "q", expiration=expiration)
    advance(broker, 50)
    assert peek_all(queue) == [b"a", b"c"]


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_priorities_are_shown_highest_first(channel: ClientChannel, count: int) -> None:
    queue = channel.declare("q", arguments={"x-max-priority": 5})
    for letter, priority in zip("abcdef", (0, 5, 2, 9, 0, 2), strict=True):
        channel.publish(letter.encode(), "q", priority=priority)
    assert b"".join(peek_all(queue, count)) == b"bdcfae"
    (answer,) = ask(queue, Start(3, 2))
    assert [message.start for message in answer.messages] == [Start(5, 2)]


def test_a_stream_is_read_from_an_offset(channel: ClientChannel, broker: Broker) -> None:
    stream = channel.declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.publish_all("abcd", "s")
    broker.end_turn()
    assert b"".join(peek_all(stream, 3)) == b"abcd"
    (answer,) = ask(stream, Start(2))
    assert [(message.start.position, message.body) for message in answer.messages] == [(2, b"c"), (3, b"d")]
    assert ask(stream, Start(9))[0] == Peeked([], None)


def test_an_empty_queue_has_nothing_to_show(channel: ClientChannel) -> None:
    assert ask(channel.declare("q")) == [Peeked([], None)]


@pytest.mark.parametrize("priorities", [False, True])
@pytest.mark.parametrize("count", [1, 7, 1000])
def test_messages_on_disk_are_read_without_paging_them_in(kept: Kept, count: int, priorities: bool) -> None:
    arguments: dict[str, Any] = {"x-max-priority": 3} if priorities else {}
    queue = kept.declare(**arguments)
    numbers = list(range(300 if count == 1 else 600))
    kept.publish(numbers)
    kept.settle()
    assert isinstance(queue, ClassicQueue)
    assert queue.backlog.paged > 0
    before = state(kept.broker)
    assert peek_all(queue, count, kept) == [body_of(number) for number in numbers]
    assert state(kept.broker) == before
    assert kept.drain() == numbers


def test_a_peek_in_the_middle_reads_one_page(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(2000))
    kept.settle()
    reads: list[str] = []
    open_read = kept.files.open_read
    kept.files.open_read = lambda path: reads.append(path) or open_read(path)  # type: ignore[method-assign,func-returns-value]
    answers = ask(queue, Start(1000), 5)
    kept.storage.run_all()
    (answer,) = answers
    assert [message.body for message in answer.messages] == [body_of(number) for number in range(1000, 1005)]
    assert len(reads) == 1


def test_messages_that_leave_the_disk_during_a_peek_are_shown_once(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(600))
    kept.settle()
    first = next(number for number in range(600) if number > kept.store().last_read)
    answers = ask(queue, Start(first), 5)
    kept.take(first + 3)  # reads their page before the answer
    kept.storage.run_all()
    (answer,) = answers
    shown = [message.start.position for message in answer.messages]
    assert shown == sorted(set(shown))
    assert set(range(first + 3, first + 5)) <= set(shown)


def test_messages_that_are_paged_out_during_a_peek_are_shown(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(600))
    kept.settle()
    on_disk = kept.store().last_position + 1
    assert on_disk < 600
    answers = ask(queue, Start(on_disk), 5)  # in memory, behind those on disk
    kept.publish(range(600, 900))
    assert kept.store().last_position > on_disk
    kept.settle()
    assert [message.start.position for message in answers[0].messages] == list(range(on_disk, on_disk + 5))


def test_a_message_that_was_delivered_and_paged_out_again_is_shown_as_redelivered(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(400))
    queue.requeue(kept.take(300))
    kept.settle()
    answers = ask(queue, Start(200), 1)
    kept.storage.run_all()
    assert kept.store().last_read < 200
    assert [message.is_redelivered for message in answers[0].messages] == [True]


def test_a_damaged_page_is_skipped_and_nothing_is_given_up(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(600))
    kept.settle()
    before = state(kept.broker)
    segment = kept.store().segments.find(200)
    assert segment is not None
    file = Path(kept.store().folder) / segment.name
    data = bytearray(file.read_bytes())
    at = data.index(body_of(200))
    data[at] ^= 1
    file.write_bytes(data)
    answers = ask(queue, Start(200), 50)
    kept.storage.run_all()
    (answer,) = answers
    assert answer.messages == []
    assert answer.unreadable > 0
    assert answer.next is not None
    assert answer.next.position > 200
    assert state(kept.broker) == before
    data[at] ^= 1
    file.write_bytes(data)
    assert kept.drain() == list(range(600))


def test_a_deleted_queue_answers_nothing(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(600))
    kept.settle()
    answers = ask(queue, Start(300))
    kept.channel.delete(queue)
    kept.settle()
    assert answers == []


def test_a_peek_leaves_the_queue_as_it_is(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish_all("abcdef", "q")
    channel.get(queue, no_ack=False)
    channel.reject(1)
    before = state(broker)
    peek_all(queue, 2)
    assert state(broker) == before
    assert waiting(queue) == "abcdef"
    got = [channel.get(queue) for _ in range(6)]
    assert [each.redelivered for each in got if each] == [True, False, False, False, False, False]
