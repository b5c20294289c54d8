"""Deliveries paired with their settlements, in whatever parts they come."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warrenmq[spark]'")

import pyarrow as pa

from warrenmq.events import schema
from warrenmq.pipeline.count import processing_times
from warrenmq.pipeline.count.processing_times import DELIVERY_SCHEMA

D, A, N, R = schema.DELIVERED, schema.ACKED, schema.NACKED, schema.REQUEUED
US = 1_000_000
NOTHING = DELIVERY_SCHEMA.empty_table()

End = tuple[int, int, int, int]  # kind, when, uid, attempt


def ends(*some: End, queue: str = "q") -> pa.Table:
    rows = [dict(zip(("kind", "at", "uid", "attempt"), end, strict=True)) for end in some]
    return pa.Table.from_pylist([row | {"vhost": "/", "queue": queue} for row in rows], DELIVERY_SCHEMA)


def lengths(counts: pa.Table) -> list[int]:
    """Of legs that are all in buckets of their own."""
    return sorted(counts.column("total_us").to_pylist())


def left(table: pa.Table) -> list[End]:
    return [(row["kind"], row["at"], row["uid"], row["attempt"]) for row in table.to_pylist()]


@pytest.mark.parametrize(
    ("some", "found", "handed_on"),
    [
        ([], [], []),
        ([(D, 1, 7, 1), (A, 5, 7, 1)], [4], []),
        ([(A, 5, 7, 1), (D, 1, 7, 1)], [4], []),  # the order of rows says nothing
        ([(A, 5, 7, 1), (D, 5, 7, 1)], [0], []),
        ([(D, 1, 7, 1), (A, 5, 8, 1)], [], [(D, 1, 7, 1), (A, 5, 8, 1)]),
        ([(D, 1, 7, 1), (A, 5, 7, 2)], [], [(D, 1, 7, 1), (A, 5, 7, 2)]),
        ([(D, 1, 7, 1), (N, 5, 7, 1), (R, 5, 7, 1)], [4], []),
        ([(D, 1, 7, 1), (R, 5, 7, 1)], [], [(D, 1, 7, 1), (R, 5, 7, 1)]),  # the nack may be in another part
        ([(A, 1, 7, 1), (D, 2, 7, 1), (A, 9, 7, 1)], [7], [(A, 1, 7, 1)]),
        ([(D, 1, 7, 1), (D, 4, 7, 1), (A, 9, 7, 1), (A, 11, 7, 1)], [5], []),  # the last delivery before it
    ],
)
def test_deliveries_are_paired_with_their_settlements(some: list[End], found: list[int], handed_on: list[End]) -> None:
    counts, others = processing_times.match_deliveries(ends(*some), 10 * US)
    assert lengths(counts) == found
    assert left(others) == handed_on


def test_the_same_message_in_two_queues_has_two_legs() -> None:
    both = pa.concat_tables([ends((D, 1, 7, 1), (A, 11, 7, 1)), ends((D, 2, 7, 1), (A, 103, 7, 1), queue="p")])
    counts, others = processing_times.match_deliveries(both, 10 * US)
    rows = {row["queue"]: row for row in counts.to_pylist()}
    assert {name: row["total_us"] for name, row in rows.items()} == {"q": 10, "p": 101}
    assert (rows["q"]["fact"], rows["q"]["name"], rows["q"]["vhost"]) == ("time", "processing", "/")
    assert others.num_rows == 0


def test_the_window_is_that_of_the_settlement() -> None:
    counts, _ = processing_times.match_deliveries(ends((D, 9 * US, 7, 1), (A, 31 * US, 7, 1)), 10 * US)
    [row] = counts.to_pylist()
    assert (row["window_start"].second, row["first_time"].second, row["count"]) == (30, 31, 1)


def test_partitions_hold_all_rows_and_those_of_a_message_together() -> None:
    some = ends(*((kind, 1, uid << 6, 1) for uid in range(50) for kind in (D, A)))
    partitions = dict(processing_times.partition_by_message(some, 4))
    assert set(partitions) == {0, 1, 2, 3}
    assert sum(part.num_rows for part in partitions.values()) == 100
    places = [set(part.column("uid").to_pylist()) for part in partitions.values()]
    assert sum(len(place) for place in places) == 50
    assert [number for number, _ in processing_times.partition_by_message(some, 1)] == [0]


def test_what_is_held_is_paired_later_and_what_came_back_is_held_no_longer() -> None:
    counts, held = processing_times.match_with_open(
        NOTHING, ends((D, 1, 7, 1), (D, 2, 8, 1), (D, 3, 9, 1), (A, 1, 5, 1)), US
    )
    assert (lengths(counts), left(held)) == ([], [(D, 1, 7, 1), (D, 2, 8, 1), (D, 3, 9, 1)])
    counts, held = processing_times.match_with_open(held, ends((A, 6, 7, 1), (R, 7, 8, 1)), US)
    assert (lengths(counts), left(held)) == ([5], [(D, 3, 9, 1)])


def test_held_deliveries_are_bounded_by_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing_times, "MAX_OPEN", 2)
    some = pa.concat_tables([ends(*((D, at, at, 1) for at in (3, 1, 2))), ends((D, 0, 9, 1), queue="p")])
    _, held = processing_times.match_with_open(NOTHING, some, US)
    assert sorted(left(held)) == [(D, 0, 9, 1), (D, 2, 2, 1), (D, 3, 3, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_the_legs_are_the_same_however_the_events_are_cut(seed: int) -> None:
    """At once, in partitions, and part by part with open deliveries."""
    chance = random.Random(seed)
    story = made_up(chance)
    whole, _ = processing_times.match_deliveries(ends(*story), US)
    cuts = sorted(chance.sample(range(len(story)), 5))
    parts = [ends(*story[first:end]) for first, end in zip([0, *cuts], [*cuts, len(story)], strict=True)]
    in_parts = [processing_times.match_deliveries(part, US) for part in parts]

    partitions: dict[int, list[pa.Table]] = {}
    for _, others in in_parts:
        for partition, some in processing_times.partition_by_message(others, 3):
            partitions.setdefault(partition, []).append(some)
    matched = [processing_times.match_deliveries(pa.concat_tables(some), US)[0] for some in partitions.values()]
    assert total([*(counts for counts, _ in in_parts), *matched]) == total([whole])

    held, counted = NOTHING, [counts for counts, _ in in_parts]
    for _, others in in_parts:
        counts, held = processing_times.match_with_open(held, others, US)
        counted.append(counts)
    assert total(counted) == total([whole])


def made_up(chance: random.Random) -> list[End]:
    """Messages that are acked, given back, lost with their connection, or never settled; in the order of time."""
    story: list[End] = []
    for uid in range(1, 60):
        at = chance.randint(0, 500)
        for attempt in range(1, chance.randint(2, 5)):
            end = at + chance.randint(0, 90)
            story.append((D, at, uid << 6, attempt))
            fate = chance.choice([(A,), (N, R), (R,), ()])
            story += [(kind, end, uid << 6, attempt) for kind in fate]
            at = end
            if R not in fate:
                break
    return sorted(story, key=lambda end: end[1])


def total(tables: list[pa.Table]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for row in pa.concat_tables(tables).to_pylist():
        key = (row["window_start"], row["bucket"])
        count, length = found.get(key, (0, 0))
        found[key] = (count + row["count"], length + row["total_us"])
    return found
