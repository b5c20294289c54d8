"""Facts by window: a batch counts once, rows are replaced by their keys, what is left to answer survives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from warrenmq.pipeline.analysis.facts_store import FactsStore  # noqa: E402 - it needs pyarrow
from warrenmq.pipeline.analysis.failures import StoreInUse  # noqa: E402

KEYS = ("window_start", "queue", "kind")
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema([("window_start", TIME), ("queue", pa.string()), ("kind", pa.int8()), ("count", pa.int64())])


def facts(*rows: tuple[int, str | None, int, int]) -> Any:
    """Rows of window (in seconds), queue, kind, count."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], [], []]
    columns[0] = [datetime.fromtimestamp(second, UTC) for second in columns[0]]
    return pa.table([pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def read(store: FactsStore, first: int = 0, last: int = 10_000) -> list[tuple[int, str | None, int, int]]:
    table = store.facts("facts", first * 1_000_000, last * 1_000_000)
    if table is None:
        return []
    rows = [(int(r["window_start"].timestamp()), r["queue"], r["kind"], r["count"]) for r in table.to_pylist()]
    return sorted(rows, key=str)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FactsStore]:
    opened = FactsStore(tmp_path)
    yield opened
    opened.close()


def test_a_changed_row_replaces_the_one_with_the_same_keys(store: FactsStore) -> None:
    store.put("facts", 0, facts((10, "a", 1, 5), (10, None, 1, 7), (20, "a", 1, 1)), KEYS)
    store.put("facts", 1, facts((10, None, 1, 9), (10, "b", 1, 2)), KEYS)
    assert read(store) == [(10, "a", 1, 5), (10, "b", 1, 2), (10, None, 1, 9), (20, "a", 1, 1)]


def test_a_batch_that_is_played_again_changes_nothing(store: FactsStore) -> None:
    assert store.put("facts", 0, facts((10, "a", 1, 5)), KEYS)
    store.set_answered("facts", store.unanswered("facts"))
    assert not store.put("facts", 0, facts((10, "a", 1, 6)), KEYS)
    assert read(store) == [(10, "a", 1, 5)]
    assert store.unanswered("facts") == {}


def test_kinds_count_their_batches_apart(store: FactsStore) -> None:
    store.put("facts", 3, facts((10, "a", 1, 5)), KEYS)
    assert store.put("keyed", 0, facts((10, "a", 1, 1)), KEYS)
    assert (store.last_batch("facts"), store.last_batch("keyed"), store.last_batch("none")) == (3, 0, -1)
    assert read(store) == [(10, "a", 1, 5)]


def test_a_window_that_changes_while_it_is_answered_stays_to_be_answered(store: FactsStore) -> None:
    store.put("facts", 0, facts((10, "a", 1, 5), (20, "a", 1, 5)), KEYS)
    seen = store.unanswered("facts")
    store.put("facts", 1, facts((20, "a", 1, 6)), KEYS)
    store.set_answered("facts", seen)
    assert list(store.unanswered("facts")) == [20_000_000]


def test_everything_is_there_after_the_end_of_the_process(tmp_path: Path) -> None:
    first = FactsStore(tmp_path)
    first.put("facts", 4, facts((10, "a", 1, 5)), KEYS)
    assert first.setting("run", "first") == "first"
    first.close()
    second = FactsStore(tmp_path)
    assert (read(second), second.last_batch("facts")) == ([(10, "a", 1, 5)], 4)
    assert list(second.unanswered("facts")) == [10_000_000]
    assert second.setting("run", "second") == "first"
    second.close()


def test_a_failed_batch_leaves_nothing(store: FactsStore) -> None:
    with pytest.raises(KeyError):
        store.put("facts", 0, facts((10, "a", 1, 5)).drop_columns(["window_start"]), KEYS)
    assert store.last_batch("facts") == -1
    assert store.put("facts", 0, facts((10, "a", 1, 5)), KEYS)


def test_facts_of_plans_that_differ_in_what_may_be_null_go_together(store: FactsStore) -> None:
    strict = facts((20, "b", 1, 1)).cast(pa.schema([field.with_nullable(field.name == "queue") for field in SCHEMA]))
    store.put("facts", 0, facts((10, "a", 1, 5), (20, "a", 1, 5)), KEYS)
    store.put("facts", 1, strict, KEYS)
    assert read(store) == [(10, "a", 1, 5), (20, "a", 1, 5), (20, "b", 1, 1)]


def test_an_empty_batch_counts(store: FactsStore) -> None:
    assert store.put("facts", 0, facts(), KEYS)
    assert store.last_batch("facts") == 0
    assert store.bounds("facts") is None


def test_old_windows_are_forgotten_once_they_are_answered(store: FactsStore) -> None:
    store.put("facts", 0, facts((10, "a", 1, 5), (20, "a", 1, 5), (30, "a", 1, 5)), KEYS)
    unanswered = store.unanswered("facts")
    store.set_answered("facts", {10_000_000: unanswered[10_000_000]})
    store.forget_before("facts", 30_000_000)
    assert store.bounds("facts") == (20_000_000, 30_000_000)
    assert store.starts("facts", 0, 20_000_000) == [20_000_000]


def test_two_processes_cannot_follow_with_one_checkpoint(store: FactsStore, tmp_path: Path) -> None:
    with pytest.raises(StoreInUse, match="another folder"):
        FactsStore(tmp_path)
