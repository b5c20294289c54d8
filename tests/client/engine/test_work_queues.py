"""Backpressure: reading pauses while a worker is behind, unless a caller waits for the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.loops import on_a_loop
from warrenmq.client.engine.consumers import Item, WorkQueue
from warrenmq.client.engine.work_queues import WorkQueues

LIMIT = 10


class FakeQueue(WorkQueue):
    """A work queue of a given length."""

    def __init__(self, has_task: bool = False) -> None:
        self.length = 0
        self.has_task = has_task
        self.has_ended = True

    def put(self, items: list[Item]) -> None:
        self.length += len(items)

    def pending(self) -> int:
        return self.length

    async def ended(self) -> bool:
        return self.has_ended


class Reading:
    """The work queues of a connection, and whether it reads."""

    def __init__(self) -> None:
        self.is_reading = True
        self.is_awaited = False
        self.soon: list[Callable[[], None]] = []
        self.work_queues = WorkQueues(LIMIT, lambda: self.is_awaited, self._set, self.soon.append)

    def queue(self, length: int = 0) -> FakeQueue:
        queue = FakeQueue()
        self.work_queues.add(queue)
        queue.length = length
        self.work_queues.check(queue)
        return queue

    def run_soon(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def _set(self, is_reading: bool) -> None:
        self.is_reading = is_reading


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_reading_pauses_above_the_limit_and_resumes_at_half(reading: Reading) -> None:
    queue = reading.queue(LIMIT)
    assert reading.is_reading
    queue.length = LIMIT + 1
    reading.work_queues.check(queue)
    assert not reading.is_reading
    queue.length = LIMIT // 2 + 1
    queue.on_drained()
    reading.run_soon()
    assert not reading.is_reading
    queue.length = LIMIT // 2
    queue.on_drained()
    reading.run_soon()
    assert reading.is_reading
    assert not queue.is_full


def test_one_full_queue_pauses_reading(reading: Reading) -> None:
    first, second = reading.queue(LIMIT + 1), reading.queue(LIMIT + 1)
    first.length = 0
    first.on_drained()
    reading.run_soon()
    assert not reading.is_reading
    reading.work_queues.discard(second)
    assert reading.is_reading


def test_reading_continues_while_a_call_waits(reading: Reading) -> None:
    reading.work_queues.begin_call()
    reading.queue(LIMIT + 1)
    assert reading.is_reading
    reading.work_queues.begin_call()
    reading.work_queues.end_call()
    assert reading.is_reading
    reading.work_queues.end_call()
    assert not reading.is_reading


def test_reading_continues_while_a_caller_waits_for_a_confirm(reading: Reading) -> None:
    reading.queue(LIMIT + 1)
    assert not reading.is_reading
    reading.is_awaited = True
    reading.work_queues.review_soon()
    reading.run_soon()
    assert reading.is_reading
    reading.is_awaited = False
    reading.work_queues.review()
    assert not reading.is_reading


def test_queue_that_drains_before_it_is_marked_full_does_not_pause_reading(reading: Reading) -> None:
    queue = reading.queue()
    lengths = iter((LIMIT + 1, 0, 0))
    queue.pending = lambda: next(lengths)  # type: ignore[method-assign]
    reading.work_queues.check(queue)
    assert reading.is_reading


@on_a_loop
async def test_wait_all_ended_returns_false_to_the_queues_own_code() -> None:
    reading = Reading()
    own, other = FakeQueue(has_task=True), FakeQueue(has_task=True)
    for queue in (own, other):
        reading.work_queues.add(queue)
    own.has_ended = False
    assert not await reading.work_queues.wait_all_ended()
    own.has_ended = True
    assert await reading.work_queues.wait_all_ended()
    assert await reading.work_queues.wait_all_ended()
