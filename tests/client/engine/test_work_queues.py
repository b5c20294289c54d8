"""When reading pauses because workers are behind, and when it may not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.loops import on_a_loop
from warrenmq.client.engine.consumers import Item, WorkQueue
from warrenmq.client.engine.work_queues import WorkQueues

LIMIT = 10


class Pile(WorkQueue):
    """A work_queue of a given height."""

    def __init__(self, has_task: bool = False) -> None:
        self.height = 0
        self.has_task = has_task
        self.answer = True

    def put(self, items: list[Item]) -> None:
        self.height += len(items)

    def pending(self) -> int:
        return self.height

    async def ended(self) -> bool:
        return self.answer


class Reading:
    """WorkQueues of a connection, and whether it reads."""

    def __init__(self) -> None:
        self.is_reading = True
        self.is_awaited = False
        self.soon: list[Callable[[], None]] = []
        self.work_queues = WorkQueues(LIMIT, lambda: self.is_awaited, self._set, self.soon.append)

    def pile(self, height: int = 0) -> Pile:
        pile = Pile()
        self.work_queues.add(pile)
        pile.height = height
        self.work_queues.check(pile)
        return pile

    def run_soon(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def _set(self, is_reading: bool) -> None:
        self.is_reading = is_reading


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_reading_pauses_above_the_limit_and_goes_on_at_half(reading: Reading) -> None:
    pile = reading.pile(LIMIT)
    assert reading.is_reading
    pile.height = LIMIT + 1
    reading.work_queues.check(pile)
    assert not reading.is_reading
    pile.height = LIMIT // 2 + 1
    pile.on_drained()
    reading.run_soon()
    assert not reading.is_reading
    pile.height = LIMIT // 2
    pile.on_drained()
    reading.run_soon()
    assert reading.is_reading
    assert not pile.is_full


def test_one_full_sink_is_enough(reading: Reading) -> None:
    first, second = reading.pile(LIMIT + 1), reading.pile(LIMIT + 1)
    first.height = 0
    first.on_drained()
    reading.run_soon()
    assert not reading.is_reading
    reading.work_queues.discard(second)
    assert reading.is_reading


def test_reading_goes_on_while_a_call_waits(reading: Reading) -> None:
    reading.work_queues.begin_wait()
    reading.pile(LIMIT + 1)
    assert reading.is_reading
    reading.work_queues.begin_wait()
    reading.work_queues.end_wait()
    assert reading.is_reading
    reading.work_queues.end_wait()
    assert not reading.is_reading


def test_reading_goes_on_while_a_confirm_is_waited_for(reading: Reading) -> None:
    reading.pile(LIMIT + 1)
    assert not reading.is_reading
    reading.is_awaited = True
    reading.work_queues.review_soon()
    reading.run_soon()
    assert reading.is_reading
    reading.is_awaited = False
    reading.work_queues.review()
    assert not reading.is_reading


def test_sink_that_drains_before_it_is_called_full_is_not_waited_for(reading: Reading) -> None:
    pile = reading.pile()
    heights = iter((LIMIT + 1, 0, 0))
    pile.pending = lambda: next(heights)  # type: do_nothing[method-assign]
    reading.work_queues.check(pile)
    assert reading.is_reading


@on_a_loop
async def test_end_waits_for_all_but_for_who_asks() -> None:
    reading = Reading()
    own, other = Pile(has_task=True), Pile(has_task=True)
    for pile in (own, other):
        reading.work_queues.add(pile)
    own.answer = False
    assert not await reading.work_queues.wait_all_ended()
    own.answer = True
    assert await reading.work_queues.wait_all_ended()
    assert await reading.work_queues.wait_all_ended()
