"""Delays between attempts: they grow, they have a limit, and they are spread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.client.backoff import Backoff


def test_delays_grow_by_the_factor_up_to_the_longest() -> None:
    backoff = Backoff(initial=1, factor=3, longest=20, jitter=0)
    assert [backoff.next() for _ in range(5)] == [1, 3, 9, 20, 20]
    assert backoff.attempt == 5


def test_reset_begins_anew() -> None:
    backoff = Backoff(initial=1, jitter=0)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert (backoff.attempt, backoff.next()) == (0, 1)


def test_jitter_takes_up_to_its_part_away() -> None:
    assert Backoff(initial=8, jitter=0.25, random=lambda: 0.0).next() == 8
    assert Backoff(initial=8, jitter=0.25, random=lambda: 1.0).next() == 6


@given(
    initial=st.floats(0, 100),
    factor=st.floats(1, 10),
    longest=st.floats(0, 100),
    jitter=st.floats(0, 1),
    spread=st.floats(0, 1, exclude_max=True),
)
def test_no_delay_leaves_the_bounds(
    initial: float, factor: float, longest: float, jitter: float, spread: float
) -> None:
    backoff = Backoff(initial, factor, longest, jitter, random=lambda: spread)
    assert all(0 <= backoff.next() <= longest for _ in range(400))
