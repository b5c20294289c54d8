"""Ids of a window in memory: added part by part they give what all of them together give."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warrenmq[spark]'")

import pyarrow as pa

from warrenmq.pipeline.count.partials import ID_SCHEMA, merge_ids
from warrenmq.pipeline.merge import open_ids
from warrenmq.pipeline.merge.facts import facts_from_ids
from warrenmq.pipeline.merge.open_ids import OpenIds

MINUTE = 60_000_000


def some_ids(chance: random.Random, rows: int) -> pa.Table:
    """Each once; times within a minute, some of them the same."""
    names = {(chance.choice(["/", "/", "other"]), f"id-{chance.randrange(400)}") for _ in range(rows)}
    found = []
    for vhost, name in names:
        first = chance.randrange(MINUTE // 2)
        counts = {measure: chance.randrange(3) for measure in ("messages", "settled", "failed", "redelivered")}
        uid = chance.randrange(1, 1000)
        times = {"first_time": first, "last_time": first + chance.randrange(5) * 1000}
        found.append({"vhost": vhost, "name": name, "count": 1, "bytes": uid} | counts | times)
        found[-1] |= {"first_uid": uid, "last_uid": uid + chance.randrange(3)}
    return pa.Table.from_pylist(found, ID_SCHEMA)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["vhost"], row["name"]))


@pytest.mark.parametrize("kind", ["message", "session"])
@pytest.mark.parametrize("seed", range(3))
def test_parts_give_the_facts_of_the_whole(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_ids, "INITIAL_CAPACITY", 4)  # so that it has to be made larger
    chance = random.Random(seed)
    window, parts = OpenIds(kind, 0), []
    for number in range(12):
        parts.append(some_ids(chance, chance.randrange(1, 120)))
        window.add(parts[-1])
        whole = facts_from_ids(kind, merge_ids(parts), 0, MINUTE, max_sessions=30)
        assert rows(window.facts(MINUTE, 30)) == rows(whole), number
    assert whole.num_rows > 30


def test_a_window_without_ids_has_no_facts() -> None:
    assert OpenIds("session", 0).facts(MINUTE, 30).num_rows == 0
    nothing = OpenIds("message", 0)
    nothing.add(ID_SCHEMA.empty_table())
    assert nothing.facts(MINUTE, 30).num_rows == 0
