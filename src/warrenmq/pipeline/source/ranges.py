"""Offsets as plain numbers: what a micro-batch takes, and how it is split among tasks. Pure.

Positions are {stream: offset of the next record}, which is also what Spark keeps in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

Positions: TypeAlias = dict[str, int]

# Ranges are not split below so many records: a task costs some ten milliseconds (spark.md), which is what these take.
LEAST_MESSAGES = 10_000
LEAST_BATCHES = 8  # of Arrow, with thousands of rows each
DEFAULT_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one stream, from `start` up to and without `end`."""

    stream: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def limit_end(start: Mapping[str, int], tails: Mapping[str, int], most: int | None) -> Positions:
    """Where a batch from `start` ends that takes at most so many records, of each stream as its share of what waits."""
    waiting = {stream: max(0, tails.get(stream, 0) - position) for stream, position in start.items()}
    taken = waiting if most is None or sum(waiting.values()) <= most else _share(waiting, most)
    return {stream: position + taken[stream] for stream, position in start.items()}


def _share(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """`most` records of these, in proportion; what rounding leaves over goes to those who have more, largest first."""
    total = sum(waiting.values())
    taken = {stream: count * most // total for stream, count in waiting.items()}
    left = most - sum(taken.values())
    for stream in sorted(waiting, key=lambda name: (taken[name] - waiting[name], name)):
        more = min(left, waiting[stream] - taken[stream])
        taken[stream] += more
        left -= more
    return taken


def ranges_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[Range]:
    """What has to be read. A stream that is in `end` only has joined there: it is read from then on."""
    return [Range(stream, position, end[stream]) for stream, position in start.items() if end.get(stream, 0) > position]


def split(ranges: Sequence[Range], partitions: int | None, least: int) -> list[Range]:
    """The same records in about so many ranges of about the same length.

    `partitions` None: as many as are worth it, of `least` records or more. Never two streams in a range.
    """
    total = sum(len(each) for each in ranges)
    if total == 0:
        return []
    if partitions is None:
        partitions = min(DEFAULT_PARTITIONS, -(-total // least))
    pieces: list[Range] = []
    for each in ranges:
        count = min(len(each), max(1, round(partitions * len(each) / total)))
        bounds = [each.start + len(each) * number // count for number in range(count + 1)]
        pieces += [Range(each.stream, first, last) for first, last in pairwise(bounds)]
    return pieces
