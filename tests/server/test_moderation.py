"""When the loop pauses after its turns: while that brings input in faster, and not for sparse traffic."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.socketless import ManualLoop
from warrenmq.core.broker import Broker
from warrenmq.server.clock import system_time_ms
from warrenmq.server.moderation import FREQUENT, SMALL, TURNS, Moderation
from warrenmq.server.ticker import Ticker
from warrenmq.storage.memory_store import MemoryStorage

MAX_PAUSE = 400e-6
MESSAGE = 80


class Traffic:
    """Simulates the loop: `next_input` returns after how many seconds of waiting how many messages are read."""

    def __init__(self, next_input: Callable[[float], tuple[float, int]], turn: float = 4e-6) -> None:
        self.now = 0.0
        self.received = 0
        self.next_input = next_input
        self.turn = turn
        self.moderation = Moderation(MAX_PAUSE, lambda: self.now)

    def run(self, seconds: float) -> float:
        """Return the share of the time that the loop paused."""
        begin, paused = self.now, 0.0
        gap = self.turn
        while self.now < begin + seconds:
            wait, count = self.next_input(gap)
            self.now += wait + self.turn + 0.1e-6 * count
            self.received += count * MESSAGE
            pause = self.moderation.end_turn(self.received)
            self.now += pause
            paused += pause
            gap = self.turn + 0.1e-6 * count + pause
        return paused / seconds


def small_writes(gap: float) -> tuple[float, int]:
    """A publisher that does not wait: a message each 5 us while each wakes the broker, each 1 us while it pauses."""
    return (0.0, 1) if gap < 20e-6 else (0.0, int(gap / 1e-6))


def in_flight(count: int) -> Callable[[float], tuple[float, int]]:
    """Clients that have this many messages in flight: the next ones come 10 us after the turn."""
    return lambda gap: (max(0.0, 10e-6 - gap), count)


def fixed_rate(per_second: float) -> Callable[[float], tuple[float, int]]:
    """A publisher with a rate of its own, whatever the broker does."""

    def next_input(gap: float) -> tuple[float, int]:
        count = int(gap * per_second)
        return (0.0, count) if count else (1 / per_second - gap, 1)

    return next_input


def test_small_writes_without_end_are_gathered_by_pauses() -> None:
    traffic = Traffic(small_writes)
    traffic.run(0.1)
    assert traffic.run(1.0) > 0.5
    assert traffic.moderation.pause > 0.0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_clients_that_wait_for_replies_are_hardly_delayed(count: int) -> None:
    traffic = Traffic(in_flight(count))
    traffic.run(1.0)
    assert traffic.run(10.0) < 0.01


@pytest.mark.parametrize("per_second", [20_000, 100_000])
def test_a_rate_that_pauses_do_not_raise_is_hardly_delayed(per_second: int) -> None:
    traffic = Traffic(fixed_rate(per_second))
    traffic.run(1.0)
    assert traffic.run(10.0) < 0.01


@pytest.mark.parametrize("per_second", [10, 1_000, 10_000])
def test_sparse_traffic_is_never_delayed(per_second: int) -> None:
    assert Traffic(fixed_rate(per_second)).run(10.0) == 0.0


def test_large_turns_are_never_followed_by_a_pause() -> None:
    assert Traffic(lambda gap: (0.0, SMALL // MESSAGE + 1)).run(1.0) == 0.0


def test_pauses_end_soon_when_clients_begin_to_wait_for_replies() -> None:
    traffic = Traffic(small_writes)
    traffic.run(0.5)
    traffic.next_input = in_flight(1)
    traffic.run(0.01)
    assert traffic.moderation.pause == 0.0


def test_pauses_end_when_they_bring_no_more_input() -> None:
    """The publisher goes on as fast, but now it would be as fast without pauses."""
    traffic = Traffic(small_writes)
    traffic.run(0.5)
    traffic.next_input = fixed_rate(500_000)
    traffic.run(2.0)
    assert traffic.run(10.0) < 0.02


@pytest.mark.parametrize("turn", [1, TURNS - 1, TURNS + 1, 2 * TURNS - 1, 2 * TURNS + 1])
def test_one_slow_window_does_not_bring_a_pause(turn: int) -> None:
    """The machine is busy with something else for a moment."""
    traffic = Traffic(fixed_rate(100_000))
    turns = 0

    def next_input(gap: float) -> tuple[float, int]:
        nonlocal turns
        turns += 1
        wait, count = fixed_rate(100_000)(gap)
        return (wait + 0.002, count) if turns == turn else (wait, count)

    traffic.next_input = next_input
    traffic.run(0.01)
    assert traffic.run(0.2) < 0.05


@given(st.lists(st.tuples(st.floats(0, 3 * FREQUENT), st.integers(0, 3 * SMALL)), min_size=200, max_size=2000))
def test_a_pause_is_never_longer_than_the_limit(turns: list[tuple[float, int]]) -> None:
    now, received = 0.0, 0
    moderation = Moderation(MAX_PAUSE, lambda: now)
    for seconds, size in turns:
        now += seconds
        received += size
        assert 0.0 <= moderation.end_turn(received) <= MAX_PAUSE


class Outbox:
    """Something to be flushed, after which a part of the output may remain."""

    def __init__(self, log: list[object]) -> None:
        self.log = log
        self.remains: Callable[[], None] = lambda: None

    def flush(self) -> None:
        self.log.append("written")
        self.remains()


class PausingTicker:
    """A ticker with a loop that has nothing but small turns, until it pauses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[object] = []
        self.loop, self.broker = ManualLoop(), Broker(MemoryStorage())
        self.ticker = Ticker(
            self.loop,  # type: ignore[arg-type]
            self.broker,
            system_time_ms,
            max_pause=MAX_PAUSE,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.log.append(seconds)
        self.now += seconds

    def turn(self, outbox: Outbox) -> None:
        self.now += 5e-6
        self.broker.stats.bytes_in += MESSAGE
        self.log.clear()
        self.ticker.mark_dirty(outbox)
        self.loop.run()


def test_output_is_written_before_the_pause() -> None:
    paused = PausingTicker()
    outbox = Outbox(paused.log)
    for _ in range(TURNS):
        paused.turn(outbox)
    assert paused.log == ["written", MAX_PAUSE / 4]


def test_output_that_remains_for_the_next_turn_does_not_wait_for_a_pause() -> None:
    paused = PausingTicker()
    outbox = Outbox(paused.log)
    for _ in range(TURNS - 1):
        paused.turn(outbox)
    remaining = Outbox(paused.log)
    remaining.remains = lambda: paused.ticker.mark_dirty(outbox)
    paused.turn(remaining)
    assert paused.log == ["written", "written", MAX_PAUSE / 4]
