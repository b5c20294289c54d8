"""Times and lengths of time as people write them, and ranges of time. All moments here are in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MICROSECOND = timedelta(microseconds=1)
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LENGTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|w)")


class Unreadable(ValueError):
    """What was written is no time; the text says what would be."""


@dataclass(frozen=True, slots=True)
class Range:
    """From `start` on, up to and without `end`."""

    start: datetime
    end: datetime

    def as_iso(self) -> list[str]:
        return [iso(self.start), iso(self.end)]


def parse_length(text: str) -> timedelta:
    """`10s`, `1.5h`, `250ms`."""
    found = LENGTH.fullmatch(text.strip())
    if not found or float(found[1]) == 0:
        raise Unreadable(f"'{text}' is no length of time; it looks like 10s, 5m, 1h or 7d")
    return timedelta(seconds=float(found[1]) * UNITS[found[2]])


def parse_moment(text: str, now: datetime) -> datetime:
    """`2026-11-16T10:00:00Z`, without a zone in that of this machine; `15m`: so long ago."""
    if LENGTH.fullmatch(text.strip()):
        return now - parse_length(text)
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise Unreadable(
            f"'{text}' is no time; it looks like 2026-11-16T10:00:00Z, or 15m for a quarter of an hour ago"
        ) from None


def range_of(start: str | None, end: str | None, last: str | None, now: datetime) -> Range:
    """What `--from`, `--to` and `--last` say: the last hour if nothing is said."""
    if start is not None and last is not None:
        raise Unreadable("give --from or --last, not both")
    until = now if end is None else parse_moment(end, now)
    begin = until - parse_length(last or "1h") if start is None else parse_moment(start, now)
    if begin >= until:
        raise Unreadable(f"the range is empty: it begins at {iso(begin)} and ends at {iso(until)}")
    return Range(begin, until)


def floor(moment: datetime, window: timedelta) -> datetime:
    """The begin of the window that a moment is in; windows count from 1970."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return moment - (moment - epoch) % window


def widened(covers: Range, window: timedelta) -> Range:
    """The same in whole windows."""
    end = floor(covers.end, window)
    return Range(floor(covers.start, window), end if end == covers.end else end + window)


def iso(moment: datetime) -> str:
    """ISO 8601, UTC, with microseconds: texts sort as times do."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def interval(window: timedelta) -> str:
    """A length of time as Spark takes it."""
    milliseconds = window // timedelta(milliseconds=1)
    return f"{milliseconds} milliseconds" if milliseconds % 1000 else f"{milliseconds // 1000} seconds"


def starts_between(covers: Range, window: timedelta) -> tuple[str, ...]:
    """The begins of all windows that lie in a range in whole."""
    count = (covers.end - covers.start) // window
    first = floor(covers.start, window)
    if first < covers.start:
        first, count = first + window, max(0, (covers.end - first - window) // window)
    return tuple(iso(first + number * window) for number in range(count))


def moment_of(microseconds: int) -> datetime:
    """From microseconds since 1970, exactly."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def microseconds_of(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // MICROSECOND
