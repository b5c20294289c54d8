"""Timestamps, durations and time ranges as users write them. All datetimes here are in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MICROSECOND = timedelta(microseconds=1)
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InvalidTime(ValueError):
    """A text is no time or duration; the message says what would be."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """From `start` up to, but not including, `end`."""

    start: datetime
    end: datetime

    def as_iso(self) -> list[str]:
        return [iso(self.start), iso(self.end)]


def parse_duration(text: str) -> timedelta:
    """`10s`, `1.5h`, `250ms`."""
    found = DURATION.fullmatch(text.strip())
    if not found or float(found[1]) == 0:
        raise InvalidTime(f"'{text}' is not a duration; write 10s, 5m, 1h or 7d")
    return timedelta(seconds=float(found[1]) * UNITS[found[2]])


def parse_timestamp(text: str, now: datetime) -> datetime:
    """`2026-11-16T10:00:00Z`, without a zone in local time; or a duration before now, such as `15m`."""
    if DURATION.fullmatch(text.strip()):
        return now - parse_duration(text)
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidTime(f"'{text}' is not a time; write 2026-11-16T10:00:00Z, or 15m for 15 minutes ago") from None


def time_range(start: str | None, end: str | None, last: str | None, now: datetime) -> TimeRange:
    """Return the range of `--from`, `--to` and `--last`; the last hour by default."""
    if start is not None and last is not None:
        raise InvalidTime("give --from or --last, not both")
    until = now if end is None else parse_timestamp(end, now)
    begin = until - parse_duration(last or "1h") if start is None else parse_timestamp(start, now)
    if begin >= until:
        raise InvalidTime(f"the range is empty: it begins at {iso(begin)} and ends at {iso(until)}")
    return TimeRange(begin, until)


def window_floor(time: datetime, window: timedelta) -> datetime:
    """Return the start of the window that contains this time; windows are aligned to 1970."""
    return time - (time - _EPOCH) % window


def widen(covers: TimeRange, window: timedelta) -> TimeRange:
    """Widen a range to whole windows."""
    end = window_floor(covers.end, window)
    return TimeRange(window_floor(covers.start, window), end if end == covers.end else end + window)


def iso(time: datetime) -> str:
    """ISO 8601 in UTC with microseconds: such texts sort as the times do."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def spark_interval(window: timedelta) -> str:
    """Return a duration as Spark reads it."""
    milliseconds = window // timedelta(milliseconds=1)
    return f"{milliseconds} milliseconds" if milliseconds % 1000 else f"{milliseconds // 1000} seconds"


def window_starts(covers: TimeRange, window: timedelta) -> tuple[str, ...]:
    """Return the starts of all windows that lie completely in a range."""
    count = (covers.end - covers.start) // window
    first = window_floor(covers.start, window)
    if first < covers.start:
        first, count = first + window, max(0, (covers.end - first - window) // window)
    return tuple(iso(first + number * window) for number in range(count))


def from_us(microseconds: int) -> datetime:
    """Return the datetime of microseconds since 1970, exactly."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_us(time: datetime) -> int:
    """Return microseconds since 1970."""
    return (time - _EPOCH) // MICROSECOND
