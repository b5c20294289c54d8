"""Timers run once, in order, whatever the clock does."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.timers import RESOLUTION_MS, Timer, Timers

NOW = 1_700_000_000_000


class Noted:
    """Timers whose runs are noted by name."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.ran: list[str] = []

    def at(self, due_ms: int, name: str) -> Timer:
        return self.timers.schedule(NOW + due_ms, lambda: self.ran.append(name))

    def advance(self, ms: int) -> list[str]:
        self.timers.advance(NOW + ms)
        ran, self.ran = self.ran, []
        return ran


@pytest.fixture
def noted() -> Noted:
    return Noted()


def test_nothing_runs_early_and_nothing_twice(noted: Noted) -> None:
    noted.at(100, "a")
    assert noted.advance(99) == []
    assert noted.advance(100 + RESOLUTION_MS) == ["a"]
    assert noted.advance(10_000) == []
    assert noted.timers.next_due_ms() is None


def test_what_is_due_runs_in_order_of_its_time_and_then_of_its_scheduling(noted: Noted) -> None:
    for due, name in [(500, "d"), (3, "b"), (1, "a"), (3, "c"), (100_000, "later")]:
        noted.at(due, name)
    assert noted.advance(1000) == ["a", "b", "c", "d"]


def test_the_next_time_is_that_of_the_earliest_which_was_not_cancelled(noted: Noted) -> None:
    early = noted.at(100, "early")
    noted.at(5000, "late")
    first = noted.timers.next_due_ms()
    assert first is not None
    assert NOW + 100 <= first < NOW + 100 + RESOLUTION_MS
    noted.timers.cancel(early)
    second = noted.timers.next_due_ms()
    assert second is not None
    assert NOW + 5000 <= second < NOW + 5000 + RESOLUTION_MS
    assert noted.advance(10_000) == ["late"]


def test_an_earlier_timer_is_reported(noted: Noted) -> None:
    told: list[int | None] = []
    noted.timers.on_earlier = lambda: told.append(noted.timers.next_due_ms())
    noted.at(5000, "a")
    noted.at(9000, "b")
    noted.at(1000, "c")
    assert len(told) == 2
    assert told[0] is not None
    assert told[1] is not None
    assert told[1] < told[0]


def test_an_action_may_schedule_itself_again_without_end(noted: Noted) -> None:
    def again() -> None:
        noted.ran.append("again")
        noted.timers.schedule(NOW, again)

    noted.timers.schedule(NOW, again)
    assert noted.advance(100) == ["again"]
    assert noted.advance(100) == ["again"]


def test_what_an_action_cancels_does_not_run(noted: Noted) -> None:
    timers: list[Timer] = []

    def cancel_both() -> None:
        for timer in timers:
            noted.timers.cancel(timer)

    noted.timers.schedule(NOW, cancel_both)
    timers += [noted.at(1, "same bucket"), noted.at(100, "next bucket")]
    noted.at(200, "other")
    assert noted.advance(1000) == ["other"]
    assert len(noted.timers) == 0


def test_after_an_action_that_fails_the_others_still_run(noted: Noted) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    noted.timers.schedule(NOW, fail)
    noted.at(1, "a")
    noted.at(100, "b")
    with pytest.raises(ZeroDivisionError):
        noted.advance(1000)
    assert noted.advance(1000) == ["a", "b"]


def test_cancelled_timers_leave_nothing_behind(noted: Noted) -> None:
    """As a consumer's timeout, set anew with each ack: far ahead, and never reached."""
    for ms in range(0, 100_000, 10):
        noted.timers.cancel(noted.at(1_800_000 + ms, "never"))
    noted.at(1, "a")
    assert len(noted.timers) == 1
    assert len(noted.timers._bucket_times) < 200


class Model:
    """The same as a list, searched from one end to the other."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, int]] = []  # due, number

    def advance(self, now_ms: int) -> list[int]:
        due = [each for each in self.waiting if -(-each[0] // RESOLUTION_MS) * RESOLUTION_MS <= now_ms]
        self.waiting = [each for each in self.waiting if each not in due]
        return [number for _, number in sorted(due)]


times = st.one_of(st.integers(0, 200), st.integers(0, 10**6))
steps = st.one_of(
    st.tuples(st.just("schedule"), times),
    st.tuples(st.just("cancel"), st.integers(0, 50)),
    st.tuples(st.just("advance"), times),
)


@given(st.lists(steps, max_size=100))
def test_any_history_is_that_of_a_sorted_list(history: list[tuple[str, int]]) -> None:
    """The clock goes where it likes, also back."""
    timers, model = Timers(), Model()
    made: list[Timer] = []
    ran: list[int] = []
    for step, number in history:
        if step == "schedule":
            made.append(timers.schedule(number, partial(ran.append, len(made))))
            model.waiting.append((number, len(made) - 1))
        elif step == "cancel" and made:
            number %= len(made)
            timers.cancel(made[number])
            model.waiting = [each for each in model.waiting if each[1] != number]
        elif step == "advance":
            timers.advance(number)
            assert ran == model.advance(number)
            ran.clear()
        assert len(timers) == len(model.waiting)
        earliest = min((due for due, _ in model.waiting), default=None)
        found = timers.next_due_ms()
        assert (found is None) == (earliest is None)
        if found is not None and earliest is not None:
            assert earliest <= found < earliest + RESOLUTION_MS
