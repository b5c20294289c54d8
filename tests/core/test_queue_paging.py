"""Paging: how much of a queue is in memory, and when the rest is read back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.storage.driver import KIB, Kept, numbers_of

WINDOW = 64 * KIB  # some 200 messages
BUDGET = 3 * WINDOW
PAGE = 2 * KIB
SMALL_WINDOW = WINDOW // 32
MESSAGE = 512  # none of the driver's takes more


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path, window=WINDOW, memory_budget=BUDGET, page=PAGE)


def held(kept: Kept) -> int:
    """Bytes in memory, when nothing is on its way to the disk."""
    kept.settle()
    return int(kept.broker.stats.held_bytes)


def fill(kept: Kept, name: str, size: int) -> int:
    """Publish until the backlog has grown by N bytes of memory, or is paged out. Return the number published."""
    before = held(kept)
    number = 0
    while kept.queue(name).backlog.paged == 0 and held(kept) - before < size:
        kept.publish([number], name)
        number += 1
    return number


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_line_is_not_written_while_there_is_room(kept: Kept, is_durable: bool) -> None:
    kept.declare(durable=is_durable)
    fill(kept, "q", WINDOW - MESSAGE)
    assert (kept.queue().backlog.paged, kept.names()) == (0, [])


def test_a_longer_line_is_paged_out_but_for_its_head(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(2000))
    kept.settle()
    assert len(queue.backlog) == 2000
    assert held(kept) <= WINDOW // 2 + PAGE + 2 * MESSAGE
    assert kept.drain() == list(range(2000))


def test_a_line_leaves_bit_by_bit(kept: Kept) -> None:
    queue = kept.declare()
    bits = []
    for number in range(1000):
        paged = queue.backlog.paged
        kept.publish([number])
        bits.append(queue.backlog.paged - paged)
    kept.settle()
    smallest = held(kept) // (len(queue.backlog) - queue.backlog.paged) // 2
    assert 0 < max(bits) <= 2 * PAGE // smallest
    times = [number for number, bit in enumerate(bits) if bit]
    assert min(later - earlier for earlier, later in pairwise(times)) >= PAGE // MESSAGE
    assert sum(bits) > 900
    assert kept.drain() == list(range(1000))


def test_what_has_not_left_yet_is_delivered_in_its_turn(kept: Kept) -> None:
    queue = kept.declare()
    count = fill(kept, "q", 2 * WINDOW)
    assert 0 < queue.backlog.paged < count // 2
    kept.publish(range(count, count + 10))
    assert kept.drain() == list(range(count + 10))
    assert held(kept) == 0
    assert fill(kept, "q", 2 * WINDOW) == count  # it is as long as the first time when it is paged out again


def test_what_has_not_left_yet_survives_a_restart(kept: Kept) -> None:
    kept.declare()
    count = fill(kept, "q", WINDOW)
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain() == list(range(count))


@pytest.mark.parametrize("is_restarted", [True, False])
def test_what_has_not_left_yet_is_flushed_with_the_log(kept: Kept, is_restarted: bool) -> None:
    kept.declare()
    count = fill(kept, "q", WINDOW)
    kept.checkpoint()
    if is_restarted:
        kept.restart(clean=False)
    assert kept.drain() == list(range(count))


def test_what_has_not_left_yet_is_purged_too(kept: Kept) -> None:
    queue = kept.declare()
    count = fill(kept, "q", WINDOW)
    assert queue.purge() == count
    assert held(kept) == 0
    kept.publish(range(50))
    kept.settle()
    assert (queue.backlog.paged, kept.drain()) == (0, list(range(50)))


def test_lines_together_stay_within_the_budget(kept: Kept) -> None:
    names = [f"q{number}" for number in range(12)]
    for name in names:
        kept.declare(name)
    most = 0
    for first in range(0, 400, 10):
        for name in names:
            kept.publish(range(first, first + 10), name)
            most = max(most, held(kept))
    assert BUDGET // 2 < most <= BUDGET
    for name in names:
        assert kept.drain(name) == list(range(400))
    assert held(kept) == 0


def test_long_lines_leave_room_for_another(kept: Kept) -> None:
    for name in ("a", "b", "c"):
        kept.declare(name)
        fill(kept, name, WINDOW)
    queue = kept.declare("d")
    fill(kept, "d", 8 * SMALL_WINDOW)
    assert queue.backlog.paged == 0


def test_a_short_line_is_paged_out_when_the_budget_is_spent(kept: Kept) -> None:
    kept.declare("unacked")
    for number in range(1000):
        kept.publish([number], "unacked")
        kept.take(1, "unacked")
    assert held(kept) > BUDGET
    queue = kept.declare("short")
    kept.publish(range(10), "short")
    kept.settle()
    assert queue.backlog.paged > 0
    assert kept.drain("short") == list(range(10))


def test_a_line_that_is_short_again_goes_past_the_disk(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(400))
    kept.settle()
    kept.ack(kept.take(280))
    kept.settle()
    for number in range(400, 600):  # it stays as long as it is, which is more than is read ahead of a long line
        kept.publish([number])
        kept.ack(kept.take(1))
        kept.settle()
    assert queue.backlog.paged == 0
    assert held(kept) > WINDOW // 2
    assert kept.names() == []
    assert kept.drain() == list(range(480, 600))


def test_a_line_that_is_short_again_stays_on_disk_while_memory_is_short(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(400))
    kept.declare("unacked")
    for number in range(1000):
        kept.publish([number], "unacked")
        kept.take(1, "unacked")
    kept.ack(kept.take(280))
    kept.settle()
    assert queue.backlog.paged > 0
    assert kept.drain() == list(range(280, 400))


def test_what_was_delivered_before_stays_in_memory_and_the_others_leave(kept: Kept) -> None:
    queue = kept.declare()
    delivered = []
    for number in range(300):
        kept.publish([number])
        delivered += kept.take(1)
    queue.requeue(delivered)
    assert held(kept) > WINDOW
    kept.publish(range(300, 800), transient=True)
    kept.settle()
    assert numbers_of(queue.backlog)[:300] == list(range(300))
    assert queue.backlog.paged > 400
    assert kept.drain() == list(range(800))


@pytest.mark.parametrize("is_durable", [True, False])
def test_messages_that_were_delivered_and_came_back_are_paged_out_again(kept: Kept, is_durable: bool) -> None:
    queue = kept.declare(durable=is_durable)
    kept.publish(range(2000))
    kept.settle()
    taken = kept.take_all()
    assert held(kept) > 4 * WINDOW
    kept.ack(taken[:100])
    queue.requeue(taken[100:1500])
    assert held(kept) > 4 * WINDOW  # some are unacked: no one knows which pages they are in
    queue.requeue(taken[1500:])
    assert held(kept) < WINDOW
    assert (queue.message_count(), queue.backlog.paged > 1000) == (1900, True)
    kept.publish(range(2000, 2100))
    again = kept.take_all()
    assert numbers_of(again) == list(range(100, 2100))
    assert [entry.redelivered for entry in again] == [True] * 1900 + [False] * 100
    kept.ack(again)
    kept.settle()
    assert (held(kept), queue.backlog.body_bytes, kept.names()) == (0, 0, [])


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_was_paged_out_again_survives_a_restart(kept: Kept, is_clean: bool) -> None:
    kept.declare()
    kept.publish(range(1000))
    for _ in range(3):
        taken = kept.take_all()
        kept.ack(taken[:50])
        kept.queue().requeue(taken[50:])
        kept.settle()
    assert kept.queue().backlog.paged > 500
    kept.restart(is_clean)
    assert kept.drain() == list(range(150, 1000))


def test_a_purge_forgets_what_was_paged_out_again(kept: Kept) -> None:
    queue = kept.declare(**{"x-message-deduplication": True})
    for number in range(1000):
        kept.channel.publish(b"." * 100, "q", delivery_mode=2, headers={"x-deduplication-header": str(number)})
    kept.settle()
    taken = kept.take_all()
    assert len(taken) == 1000
    queue.requeue(taken)
    assert queue.backlog.paged > 500
    unacked = kept.take(10)
    assert queue.purge() == 990
    for number in (0, 9, 10, 500, 999):
        kept.channel.publish(b".", "q", delivery_mode=2, headers={"x-deduplication-header": str(number)})
    assert queue.message_count() == 3, "the first two are unacked, so they are duplicates"
    kept.ack(unacked)
    kept.settle()
    kept.restart(clean=False)
    assert len(kept.take_all()) == 3


def test_transient_messages_that_are_on_no_page_stay_in_memory(kept: Kept) -> None:
    queue = kept.declare()
    for number in range(400):
        kept.publish([number], transient=number % 2 == 0)
    kept.settle()
    for _ in range(2):
        taken = kept.take_all()
        assert numbers_of(taken) == list(range(400))
        queue.requeue(taken)
        kept.settle()
    assert kept.drain() == list(range(400))
    assert held(kept) == 0
