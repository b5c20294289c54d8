"""Positions in streams as users write them, and the offset ranges that tasks read. Pure.

Offsets are {stream: offset of the next record}, which is also what Spark keeps in the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TypeAlias

from warrenmq.pipeline.errors import BadOption

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Timestamp:
    """Milliseconds since 1970 UTC."""

    ms: int


StreamPosition: TypeAlias = str | int | Timestamp


@dataclass(frozen=True, slots=True)
class StreamPositions:
    """Where to begin or end: by stream, and for all other streams."""

    default: StreamPosition
    by_stream: Mapping[str, StreamPosition] = field(default_factory=dict)

    def of(self, stream: str) -> StreamPosition:
        return self.by_stream.get(stream, self.default)

    @property
    def is_fixed(self) -> bool:
        """Return True if these resolve to the same offsets at any time."""
        return all(
            isinstance(position, int) or position == EARLIEST for position in (self.default, *self.by_stream.values())
        )


def parse_positions(name: str, text: str) -> StreamPositions:
    """earliest, latest, JSON {"stream": offset | "earliest" | "latest" | time}, or a time."""
    text = text.strip()
    if not text.startswith("{"):
        return StreamPositions(_parse_position(name, text))
    try:
        table = json.loads(text)
    except ValueError as error:
        raise BadOption(f"the option {name} is not valid JSON: {error}") from None
    positions = {stream: _parse_json_position(name, stream, value) for stream, value in table.items()}
    # Streams that are not named get the default.
    return StreamPositions(EARLIEST if name.startswith("starting") else LATEST, positions)


def parse_time(name: str, text: str) -> Timestamp:
    """ISO 8601 (UTC by default), or milliseconds since 1970."""
    text = text.strip()
    if text.isdecimal():
        return Timestamp(int(text))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"the option {name} is a time like 2026-11-16T10:00:00Z or in milliseconds since 1970, not {text!r}"
        ) from None
    return Timestamp(int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))


def _parse_position(name: str, text: str) -> StreamPosition:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return parse_time(name, text)
    except BadOption:
        raise BadOption(
            f'the option {name} is earliest, latest, a time, or JSON like {{"orders": 120}}, not {text!r}'
        ) from None


def _parse_json_position(name: str, stream: str, value: object) -> StreamPosition:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        return _parse_position(name, value)
    raise BadOption(f"the option {name} has {value!r} for {stream!r}: write an offset, earliest, latest or a time")


Offsets: TypeAlias = dict[str, int]


# Ranges are not split below this many records: a task costs some ten milliseconds, as long as reading these takes.
MIN_MESSAGES = 10_000


MIN_BATCHES = 8  # Arrow messages, with thousands of rows each


DEFAULT_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one stream, from `start` up to, but not including, `end`."""

    stream: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def batch_end(start: Mapping[str, int], latest: Mapping[str, int], max_records: int | None) -> Offsets:
    """Return the end of a batch of at most `max_records`, shared among the streams in proportion to their lag."""
    lag = {stream: max(0, latest.get(stream, 0) - offset) for stream, offset in start.items()}
    taken = lag if max_records is None or sum(lag.values()) <= max_records else _share(lag, max_records)
    return {stream: offset + taken[stream] for stream, offset in start.items()}


def _share(lag: Mapping[str, int], records: int) -> dict[str, int]:
    """Share `records` in proportion to the lag; the rest from rounding goes to the streams with the largest lag."""
    total = sum(lag.values())
    taken = {stream: count * records // total for stream, count in lag.items()}
    left = records - sum(taken.values())
    for stream in sorted(lag, key=lambda name: (taken[name] - lag[name], name)):
        more = min(left, lag[stream] - taken[stream])
        taken[stream] += more
        left -= more
    return taken


def ranges_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[OffsetRange]:
    """Return the ranges to read; a stream that only `end` has is new, and is read from there on."""
    return [
        OffsetRange(stream, position, end[stream])
        for stream, position in start.items()
        if end.get(stream, 0) > position
    ]


def split(ranges: Sequence[OffsetRange], partitions: int | None, min_records: int) -> list[OffsetRange]:
    """Split ranges into about `partitions` ranges of about the same length.

    By default, into as many as have `min_records` each. A range never spans two streams.
    """
    total = sum(len(each) for each in ranges)
    if total == 0:
        return []
    if partitions is None:
        partitions = min(DEFAULT_PARTITIONS, -(-total // min_records))
    parts: list[OffsetRange] = []
    for each in ranges:
        count = min(len(each), max(1, round(partitions * len(each) / total)))
        bounds = [each.start + len(each) * number // count for number in range(count + 1)]
        parts += [OffsetRange(each.stream, first, last) for first, last in pairwise(bounds)]
    return parts
