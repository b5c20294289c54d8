"""Pieces: packed and unpacked, added up, bounded."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warrenmq[spark]'")

import pyarrow as pa

from warrenmq.pipeline import facts
from warrenmq.pipeline.count import partials
from warrenmq.pipeline.count.partials import COUNT_SCHEMA, ID_SCHEMA, Partial
from warrenmq.pipeline.merge import facts as merge_facts
from warrenmq.pipeline.merge.facts import FACT_SCHEMA

US = 1_000_000


def count_row(**values: Any) -> dict[str, Any]:
    """Counts of which only this is known."""
    empty = {field.name: "" if field.type == pa.string() else 0 for field in COUNT_SCHEMA}
    unknown = dict.fromkeys(("depth_max", "depth_at", "total_us", "longest_us"))
    return empty | unknown | {"fact": "step"} | values


def counts(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([count_row(**row) for row in rows], COUNT_SCHEMA)


def ids(*rows: dict[str, Any]) -> pa.Table:
    empty = {field.name: "" if field.type == pa.string() else 0 for field in ID_SCHEMA}
    return pa.Table.from_pylist([empty | {"vhost": "/"} | row for row in rows], ID_SCHEMA)


def test_the_schema_is_that_of_the_facts() -> None:
    assert FACT_SCHEMA.names == facts.SCHEMA.fieldNames()


def test_pieces_come_back_from_rows_as_they_were() -> None:
    some = [Partial("seen", 0, b"", 12, 99), Partial("counts", 7, partials.pack(counts({"count": 3})))]
    rows = pa.Table.from_batches([partials.partials_to_rows(some)])
    assert partials.partials_from_rows(rows) == some
    assert partials.partials_from_rows(rows)[1].table().column("count").to_pylist() == [3]
    assert partials.partials_from_rows(pa.Table.from_batches([partials.partials_to_rows([])])) == []


def test_counts_of_the_same_keys_are_added_up() -> None:
    first = counts(
        {"queue": "q", "count": 2, "depth_max": 5, "depth_at": 11, "first_uid": 3, "last_uid": 4, "last_time": 50},
        {"queue": "p", "count": 1},
    )
    second = counts(
        {"queue": "q", "count": 5, "depth_max": 4, "first_uid": 2, "last_uid": 3, "last_time": 40},
    )
    found = {row["queue"]: row for row in partials.merge_counts([first, second]).to_pylist()}
    assert len(found) == 2
    row = found["q"]
    assert (row["count"], row["depth_max"], row["depth_at"], row["first_uid"], row["last_uid"]) == (7, 5, 11, 2, 4)
    assert row["last_time"].microsecond == 50
    assert (row["total_us"], found["p"]["depth_max"]) == (None, None)


def test_nothing_added_up_is_nothing() -> None:
    assert partials.merge_counts([]).num_rows == 0
    assert list(partials.split_by_window(partials.merge_counts([]))) == []


def test_rows_are_parted_by_window_in_the_order_of_time() -> None:
    table = counts(
        {"window_start": 20 * US, "count": 1},
        {"window_start": 0, "count": 2},
        {"window_start": 20 * US, "count": 3},
        {"window_start": 10 * US, "count": 4},
    )
    parts = [(start, part.column("count").to_pylist()) for start, part in partials.split_by_window(table)]
    assert parts == [(0, [2]), (10 * US, [4]), (20 * US, [1, 3])]


def test_the_depth_at_the_end_is_that_of_the_last_event() -> None:
    at = (9 << facts.DEPTH_BITS) + 4, (3 << facts.DEPTH_BITS) + 70
    table = partials.merge_counts([counts({"depth_at": at[0], "depth_max": 4}), counts({"depth_at": at[1]})])
    [row] = merge_facts.facts_from_counts(table, 10 * US, max_keys=9).to_pylist()
    assert (row["depth_last"], row["part"], (row["window_end"] - row["window_start"]).seconds) == (4, 0, 10)


def test_of_each_group_the_busiest_keys_are_kept_and_ties_go_by_name() -> None:
    rows = [{"fact": "key", "queue": "q", "name": name, "count": 5} for name in "edcba"]
    rows += [{"fact": "key", "queue": "q", "name": "z", "count": 6}, {"fact": "key", "queue": "p", "name": "x"}]
    rows += [{"queue": "q", "kind": str(number)} for number in range(9)]
    kept = merge_facts.top_routing_keys(counts(*rows), 3).to_pylist()
    assert sorted((row["queue"], row["name"]) for row in kept if row["fact"] == "key") == [
        ("p", "x"), ("q", "a"), ("q", "b"), ("q", "z"),
    ]  # fmt: skip
    assert sum(row["fact"] == "step" for row in kept) == 9
    few = counts(*rows)
    assert merge_facts.top_routing_keys(few, 6) is few


def test_sessions_are_ranked_by_failures_then_by_length_then_by_name() -> None:
    rows = [{"name": name, "last_time": 10} for name in "dcab"]
    rows += [{"name": "long", "last_time": 20}, {"name": "failed", "failed": 1}]
    found = merge_facts.facts_from_ids("session", ids(*rows), 0, 60 * US, max_sessions=4).to_pylist()
    assert {row["name"] for row in found} == {"failed", "long", "a", "b"}
    assert {(row["fact"], row["vhost"], row["depth_last"]) for row in found} == {("session", "/", None)}
