"""Offsets as numbers: what a batch takes, and how it is split."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.pipeline.source.offsets import DEFAULT_PARTITIONS, OffsetRange, batch_end, ranges_between, split

positions = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10_000), max_size=6)


@given(start=positions, tails=positions, most=st.none() | st.integers(1, 20_000))
def test_a_batch_takes_what_it_may_and_nothing_else(
    start: dict[str, int], tails: dict[str, int], most: int | None
) -> None:
    end = batch_end(start, tails, most)
    assert end.keys() == start.keys()
    waiting = {stream: max(0, tails.get(stream, 0) - start[stream]) for stream in start}
    taken = {stream: end[stream] - start[stream] for stream in start}
    assert all(0 <= taken[stream] <= waiting[stream] for stream in start)
    assert sum(taken.values()) == (sum(waiting.values()) if most is None else min(most, sum(waiting.values())))


def test_a_limit_is_shared_by_what_waits() -> None:
    assert batch_end({"a": 0, "b": 10}, {"a": 900, "b": 110}, 100) == {"a": 90, "b": 20}
    assert batch_end({"a": 0, "b": 0}, {"a": 5, "b": 1000}, 100) == {"a": 0, "b": 100}


def test_repeated_batches_come_to_the_end() -> None:
    start = {"a": 0, "b": 0}
    tails = {"a": 3, "b": 1000}
    for _ in range(200):
        start = batch_end(start, tails, 7)
    assert start == tails


@given(
    lengths=st.lists(st.integers(1, 50_000), max_size=5),
    partitions=st.none() | st.integers(1, 40),
    least=st.integers(1, 20_000),
)
def test_pieces_are_the_same_records_in_order(lengths: list[int], partitions: int | None, least: int) -> None:
    ranges = [OffsetRange(f"s{number}", 7, 7 + length) for number, length in enumerate(lengths)]
    pieces = split(ranges, partitions, least)
    assert all(len(piece) > 0 for piece in pieces)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.stream == whole.stream]
        assert mine[0].start == whole.start
        assert mine[-1].end == whole.end
        assert all(left.end == right.start for left, right in pairwise(mine))
    if partitions is None:
        assert len(pieces) <= DEFAULT_PARTITIONS + len(ranges)


def test_few_records_are_one_task_and_many_are_several() -> None:
    assert split([OffsetRange("a", 0, 9_999)], None, 10_000) == [OffsetRange("a", 0, 9_999)]
    assert len(split([OffsetRange("a", 0, 1_000_000)], None, 10_000)) == DEFAULT_PARTITIONS
    assert len(split([OffsetRange("a", 0, 10)], 4, 10_000)) == 4
    assert split([], 4, 1) == []


def test_a_stream_that_joins_is_read_from_the_next_batch_on() -> None:
    assert ranges_between({"a": 3}, {"a": 5, "b": 100}) == [OffsetRange("a", 3, 5)]
    assert ranges_between({"a": 5, "b": 100}, {"a": 5, "b": 120}) == [OffsetRange("b", 100, 120)]
    assert ranges_between({"a": 5}, {"a": 0}) == []
