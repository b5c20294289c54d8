"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from warrenmq.pipeline.times import (
    Range,
    Unreadable,
    floor,
    interval,
    iso,
    parse_length,
    parse_moment,
    range_of,
    starts_between,
    widened,
)

NOW = datetime(2026, 11, 16, 10, 0, 7, 123456, tzinfo=UTC)
TEN = timedelta(seconds=10)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("1.5h", 5400), ("250ms", 0.25), (" 7d ", 604_800), ("2w", 1_209_600)]
)
def test_lengths(text: str, seconds: float) -> None:
    assert parse_length(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-1h", "1h30m", "0s", "ten seconds"])
def test_what_is_no_length_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Unreadable, match="10s"):
        parse_length(text)


def test_moments() -> None:
    assert parse_moment("2026-11-16T12:00:00+02:00", NOW) == datetime(2026, 11, 16, 10, tzinfo=UTC)
    assert parse_moment("15m", NOW) == NOW - timedelta(minutes=15)
    with pytest.raises(Unreadable, match="2026-11-16T10:00:00Z"):
        parse_moment("yesterday", NOW)


def test_the_range_is_the_last_hour_if_nothing_is_said() -> None:
    assert range_of(None, None, None, NOW) == Range(NOW - timedelta(hours=1), NOW)
    assert range_of(None, None, "10m", NOW) == Range(NOW - timedelta(minutes=10), NOW)
    until = datetime(2026, 11, 16, 9, tzinfo=UTC)
    assert range_of(None, "2026-11-16T09:00:00Z", "10m", NOW) == Range(until - timedelta(minutes=10), until)
    with pytest.raises(Unreadable, match="not both"):
        range_of("1h", None, "2h", NOW)
    with pytest.raises(Unreadable, match="empty"):
        range_of("1h", "2h", None, NOW)


def test_windows_of_a_range_are_whole() -> None:
    assert floor(NOW, TEN) == datetime(2026, 11, 16, 10, 0, 0, tzinfo=UTC)
    covers = widened(Range(NOW, NOW + TEN), TEN)
    assert starts_between(covers, TEN) == ("2026-11-16T10:00:00.000000Z", "2026-11-16T10:00:10.000000Z")
    assert widened(covers, TEN) == covers
    assert starts_between(Range(NOW, NOW + 3 * TEN), TEN) == (
        "2026-11-16T10:00:10.000000Z",
        "2026-11-16T10:00:20.000000Z",
    )
    assert starts_between(Range(NOW, NOW + timedelta(seconds=1)), TEN) == ()


def test_texts_of_times_have_microseconds_and_sort() -> None:
    assert iso(NOW) == "2026-11-16T10:00:07.123456Z"
    assert interval(TEN) == "10 seconds"
    assert interval(timedelta(milliseconds=1500)) == "1500 milliseconds"
