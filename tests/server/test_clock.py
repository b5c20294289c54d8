"""The broker's clock: never goes back, never stops, and comes back to the system's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.server.clock import SteadyClock


class System:
    """A clock that can be set."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


def test_clock_follows_the_system_time() -> None:
    system = System()
    clock = SteadyClock(system)
    for passed in (0, 1, 1000, 86_400_000):
        system.ms += passed
        assert clock() == system.ms


def test_it_follows_a_system_that_is_set_forward() -> None:
    system = System()
    clock = SteadyClock(system)
    system.ms += 3_600_000
    assert clock() == system.ms


def test_clock_runs_at_half_speed_after_the_system_is_set_back() -> None:
    system = System()
    clock = SteadyClock(system)
    before = clock()
    system.ms -= 10_000
    assert clock() == before
    system.ms += 1000
    assert clock() == before + 500
    system.ms += 100_000
    clock()
    system.ms += 1000
    assert clock() == system.ms


@given(st.lists(st.integers(-10_000, 10_000), max_size=60))
def test_it_never_goes_back_and_is_never_behind(steps: list[int]) -> None:
    system = System()
    clock = SteadyClock(system)
    last = clock()
    for step in steps:
        system.ms += step
        now = clock()
        assert now >= max(last, system.ms)
        last = now
    system.ms += 2_000_000
    clock()
    assert clock() == system.ms
