"""Turns at the event log: a few at a time, the others in order, and not too many of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.tracing.stories import MemoryLog
from warrenmq.tracing.reader import ReadLimits, Traces
from warrenmq.tracing.search import TracingBusy


def run(question: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(question(), 60)

    asyncio.run(limited())


class Reader:
    """Takes a turn and keeps it until `end` is set."""

    def __init__(self, traces: Traces, began: list[int], number: int) -> None:
        self._traces = traces
        self._began = began
        self._number = number
        self.end = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._traces._turn():
            self._began.append(self._number)
            await self.end.wait()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_limited_number_runs_and_the_others_follow_in_order() -> None:
    async def question() -> None:
        traces, began = Traces(MemoryLog(), limits=ReadLimits(readers=2, waiting=10)), list[int]()
        readers = [Reader(traces, began, number) for number in range(6)]
        await settle()
        assert began == [0, 1]
        for number, reader in enumerate(readers):
            reader.end.set()
            await reader.task
            await settle()
            assert began == list(range(min(6, number + 3)))

    run(question)


def test_one_too_many_is_refused_with_a_time_to_retry() -> None:
    async def question() -> None:
        traces, began = Traces(MemoryLog(), limits=ReadLimits(readers=1, waiting=1)), list[int]()
        readers = [Reader(traces, began, number) for number in range(2)]
        await settle()
        with pytest.raises(TracingBusy, match="1 searches are running and 1 are waiting") as busy:
            async with traces._turn():
                pass
        assert busy.value.retry_seconds >= 1
        for reader in readers:
            reader.end.set()
            await reader.task
        async with traces._turn():
            pass

    run(question)


def test_who_waited_too_long_is_refused() -> None:
    async def question() -> None:
        traces, began = Traces(MemoryLog(), limits=ReadLimits(readers=1, waiting_seconds=0)), list[int]()
        reader = Reader(traces, began, 0)
        await settle()
        with pytest.raises(TracingBusy):
            async with traces._turn():
                pass
        reader.end.set()
        await reader.task
        async with traces._turn():
            pass

    run(question)


@pytest.mark.parametrize("is_at_once", [False, True])
def test_who_goes_away_leaves_its_turn_to_the_next(is_at_once: bool) -> None:
    """Also where the turn came in the same moment."""

    async def question() -> None:
        traces, began = Traces(MemoryLog(), limits=ReadLimits(readers=1)), list[int]()
        first, second, third = (Reader(traces, began, number) for number in range(3))
        await settle()
        if is_at_once:
            first.end.set()
            await first.task
        second.task.cancel()
        await asyncio.gather(second.task, return_exceptions=True)
        first.end.set()
        await first.task
        await settle()
        assert began[-1] == 2
        third.end.set()
        await third.task
        async with traces._turn():
            pass

    run(question)
