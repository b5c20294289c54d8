"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from warrenmq.pipeline.times import (
    InvalidTime,
    TimeRange,
    iso,
    parse_duration,
    parse_timestamp,
    spark_interval,
    time_range,
    widen,
    window_floor,
    window_starts,
)

NOW = datetime(2026, 11, 16, 10, 0, 7, 123456, tzinfo=UTC)
TEN = timedelta(seconds=10)


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10), ("1.5h", 5400), ("250ms", 0.25), (" 7d ", 604_800), ("2w", 1_209_600)]
)
def test_lengths(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "10", "s", "-1h", "1h30m", "0s", "ten seconds"])
def test_what_is_no_length_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidTime, match="10s"):
        parse_duration(text)


def test_moments() -> None:
    assert parse_timestamp("2026-11-16T12:00:00+02:00", NOW) == datetime(2026, 11, 16, 10, tzinfo=UTC)
    assert parse_timestamp("15m", NOW) == NOW - timedelta(minutes=15)
    with pytest.raises(InvalidTime, match="2026-11-16T10:00:00Z"):
        parse_timestamp("yesterday", NOW)


def test_the_range_is_the_last_hour_if_nothing_is_said() -> None:
    assert time_range(None, None, None, NOW) == TimeRange(NOW - timedelta(hours=1), NOW)
    assert time_range(None, None, "10m", NOW) == TimeRange(NOW - timedelta(minutes=10), NOW)
    until = datetime(2026, 11, 16, 9, tzinfo=UTC)
    assert time_range(None, "2026-11-16T09:00:00Z", "10m", NOW) == TimeRange(until - timedelta(minutes=10), until)
    with pytest.raises(InvalidTime, match="not both"):
        time_range("1h", None, "2h", NOW)
    with pytest.raises(InvalidTime, match="empty"):
        time_range("1h", "2h", None, NOW)


def test_windows_of_a_range_are_whole() -> None:
    assert window_floor(NOW, TEN) == datetime(2026, 11, 16, 10, 0, 0, tzinfo=UTC)
    covers = widen(TimeRange(NOW, NOW + TEN), TEN)
    assert window_starts(covers, TEN) == ("2026-11-16T10:00:00.000000Z", "2026-11-16T10:00:10.000000Z")
    assert widen(covers, TEN) == covers
    assert window_starts(TimeRange(NOW, NOW + 3 * TEN), TEN) == (
        "2026-11-16T10:00:10.000000Z",
        "2026-11-16T10:00:20.000000Z",
    )
    assert window_starts(TimeRange(NOW, NOW + timedelta(seconds=1)), TEN) == ()


def test_texts_of_times_have_microseconds_and_sort() -> None:
    assert iso(NOW) == "2026-11-16T10:00:07.123456Z"
    assert spark_interval(TEN) == "10 seconds"
    assert spark_interval(timedelta(milliseconds=1500)) == "1500 milliseconds"
