"""Timers on the loop: one loop timer for the earliest, none when there are none, and each run is a turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.socketless import ManualLoop
from warrenmq.core.broker import Broker
from warrenmq.core.timers import RESOLUTION_MS
from warrenmq.server.ticker import Ticker
from warrenmq.server.timer_driver import MAX_WAIT, TimerDriver
from warrenmq.storage.memory_store import MemoryStorage


class Handle:
    def __init__(self, loop: TimedLoop, due: float, callback: Callable[[], None]) -> None:
        self.loop, self.due, self.callback = loop, due, callback

    def cancel(self) -> None:
        self.loop.later.remove(self)


class TimedLoop(ManualLoop):
    """A loop whose time the test moves; the system's clock (`system_ms`) may be moved by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.system_ms = 1_700_000_000_000
        self.later: list[Handle] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Handle:
        handle = Handle(self, self.now + delay, callback)
        self.later.append(handle)
        return handle

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms):
            self.now += 0.001
            self.system_ms += 1
            for handle in [each for each in self.later if each.due <= self.now + 1e-9]:
                self.later.remove(handle)
                handle.callback()
            self.run()


class Driven:
    def __init__(self) -> None:
        self.loop = TimedLoop()
        self.broker = Broker(MemoryStorage(), now_ms=self.loop.system_ms)
        self.ticker = Ticker(self.loop, self.broker, lambda: self.loop.system_ms)  # type: ignore[arg-type]
        self.driver = TimerDriver(self.loop, self.ticker, self.broker)  # type: ignore[arg-type]
        self.ran: list[tuple[str, int]] = []  # what, and the turn's time

    def after(self, ms: int, name: str) -> None:
        self.broker.timers.schedule(self.loop.system_ms + ms, lambda: self.ran.append((name, self.broker.turn.now_ms)))


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_no_loop_timer_while_there_are_no_timers(driven: Driven) -> None:
    assert driven.loop.later == []
    driven.after(10, "a")
    assert len(driven.loop.later) == 1
    driven.loop.pass_ms(100)
    assert driven.loop.later == []


def test_each_runs_at_its_time_in_a_turn_of_that_time(driven: Driven) -> None:
    begin = driven.loop.system_ms
    driven.after(500, "b")
    driven.after(50, "a")  # the loop timer is set anew
    driven.loop.pass_ms(1000)
    assert [name for name, _ in driven.ran] == ["a", "b"]
    for due, (_, at) in zip((50, 500), driven.ran, strict=True):
        assert begin + due <= at <= begin + due + RESOLUTION_MS


def test_a_timer_waits_for_its_time_when_the_clock_is_set_back(driven: Driven) -> None:
    due = driven.loop.system_ms + 100
    driven.after(100, "a")
    driven.loop.system_ms -= 1000
    driven.loop.pass_ms(1000)
    assert driven.ran == []
    driven.loop.pass_ms(200)
    assert [(name, at >= due) for name, at in driven.ran] == [("a", True)]


def test_a_clock_that_is_set_forward_is_noticed_soon(driven: Driven) -> None:
    driven.after(3_600_000, "a")
    driven.loop.system_ms += 3_600_000
    driven.loop.pass_ms(int(MAX_WAIT * 1000) + 100)
    assert [name for name, _ in driven.ran] == ["a"]


def test_an_action_that_fails_does_not_stop_the_others(driven: Driven) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    driven.broker.timers.schedule(driven.loop.system_ms, fail)
    driven.after(100, "a")
    with pytest.raises(ZeroDivisionError):
        driven.loop.pass_ms(50)
    driven.loop.pass_ms(200)
    assert [name for name, _ in driven.ran] == ["a"]


def test_nothing_runs_after_the_end(driven: Driven) -> None:
    driven.after(10, "a")
    driven.driver.stop()
    driven.after(5, "b")
    assert driven.loop.later == []
