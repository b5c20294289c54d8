"""What a --follow has counted: a batch counts once, pieces add up, what is late is left out, all of it survives."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa

from tests.pipeline.analysis.support import START, event, pieces_of, publishes
from tests.support.history import History, make_history
from warrenmq.events import schema
from warrenmq.pipeline import facts
from warrenmq.pipeline.count import processing_times
from warrenmq.pipeline.count.count_events import CountSpec, count_events
from warrenmq.pipeline.count.partials import Partial, pack, partials_from_rows
from warrenmq.pipeline.errors import CheckpointInUse, CheckpointMismatch
from warrenmq.pipeline.merge.facts import facts_from_events
from warrenmq.pipeline.merge.facts_store import FactsStore
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.times import to_us

OPTIONS = AnalysisOptions()
FOREVER = 2**62
Key = tuple[Any, ...]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FactsStore]:
    opened = FactsStore(tmp_path, OPTIONS)
    yield opened
    opened.close()


def us(second: float) -> int:
    return to_us(START + timedelta(seconds=second))


def brought(*rows: dict[str, Any]) -> list[Partial]:
    return pieces_of(rows, OPTIONS)


def all_facts(store: FactsStore) -> dict[Key, dict[str, Any]]:
    """By their keys, each of which is there once."""
    tables = [table for kind in ("facts", "ids") if (table := store.facts(kind, 0, FOREVER)) is not None]
    return by_key(pa.concat_tables(tables))


def by_key(table: pa.Table) -> dict[Key, dict[str, Any]]:
    found = {tuple(row[name] for name in facts.FACT_KEYS): row for row in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


def counts(store: FactsStore) -> dict[int, int]:
    """How many events each window has, by its begin in seconds."""
    found: dict[int, int] = {}
    for row in all_facts(store).values():
        if row["fact"] == "step":
            second = int((row["window_start"] - START).total_seconds())
            found[second] = found.get(second, 0) + row["count"]
    return found


def named(store: FactsStore, fact: str) -> dict[str, int]:
    return {row["name"]: row["count"] for row in all_facts(store).values() if row["fact"] == fact}


def processing(store: FactsStore) -> list[tuple[int, int]]:
    """The window (seconds) and length (us) of each leg."""
    rows = [row for row in all_facts(store).values() if row["name"] == "processing"]
    return sorted((int((row["window_start"] - START).total_seconds()), row["total_us"]) for row in rows)


# -- what batches bring ------------------------------------------------------------------------------------------------


def test_what_batches_bring_to_a_window_adds_up(store: FactsStore) -> None:
    store.add_batch(0, brought(*publishes(1, 5), *publishes(11, 1)))
    store.add_batch(1, brought(*publishes(9, 4), *publishes(3, 1, key="others")))
    assert counts(store) == {0: 10, 10: 1}
    keys = [(row["name"], row["count"]) for row in all_facts(store).values() if row["fact"] == "key"]
    assert sorted(keys) == [("orders.eu", 1), ("orders.eu", 9), ("others", 1)]


def test_a_batch_that_is_played_again_changes_nothing(store: FactsStore) -> None:
    added = store.add_batch(0, brought(*publishes(1, 5)))
    assert added is not None
    assert (added.events, added.newest, added.late) == (5, us(1), 0)
    store.set_answered("facts", store.unanswered("facts"))
    assert store.add_batch(0, brought(*publishes(1, 6))) is None
    assert counts(store) == {0: 5}
    assert store.unanswered("facts") == {}


def test_a_batch_without_events_counts(store: FactsStore) -> None:
    added = store.add_batch(0, brought())
    assert added is not None
    assert (added.events, added.newest) == (0, 0)
    assert store.last_batch() == 0
    assert store.bounds("facts") is None
    assert store.facts("facts", 0, FOREVER) is None


def test_a_failed_batch_leaves_nothing(store: FactsStore) -> None:
    message = event(1, schema.PUBLISHED, message_id="m", uid=1)
    store.add_batch(0, brought(message))
    [whole] = [piece for piece in brought(message | {"correlation_id": "c"}) if piece.kind == "session"]
    broken = Partial("session", us(0), pack(whole.table().drop_columns(["name"])))  # its turn comes last
    with pytest.raises(KeyError):
        store.add_batch(1, [*brought(message | {"uid": 2}, taken(1, schema.DELIVERED)), broken])
    assert store.last_batch() == 0
    assert counts(store) == {0: 1}
    assert named(store, "message") == {}
    store.add_batch(1, brought(message | {"uid": 3}, taken(2, schema.ACKED)))
    assert named(store, "message") == {"m": 2}
    assert processing(store) == []  # the delivery was in what failed


def test_a_missing_batch_is_reported(store: FactsStore) -> None:
    store.add_batch(0, brought(*publishes(1, 1)))
    with pytest.raises(CheckpointMismatch, match="delete the whole folder"):
        store.add_batch(2, brought(*publishes(1, 1)))


# -- what is late ------------------------------------------------------------------------------------------------------


def test_what_comes_late_is_counted_until_its_window_is_behind_the_lateness(store: FactsStore) -> None:
    store.add_batch(0, brought(*publishes(100, 1)))
    added = store.add_batch(1, brought(*publishes(99, 2), *publishes(71, 3), *publishes(69.9, 4), *publishes(5, 5)))
    assert added is not None
    assert counts(store) == {70: 3, 90: 2, 100: 1}  # the line is 30 s behind the newest: at 70
    assert (added.events, added.late) == (14, 9)
    assert added.newest == us(100)
    added = store.add_batch(2, brought(*publishes(69, 1)))  # the line stays, also when what came last is older
    assert added is not None
    assert added.late == 1
    # What is newest in a batch counts for those behind it: how it was cut into tasks must not matter.
    added = store.add_batch(3, brought(*publishes(300, 1), *publishes(71, 1)))
    assert added is not None
    assert added.late == 0
    assert counts(store)[70] == 4


def test_ids_have_windows_of_their_own_length(store: FactsStore) -> None:
    message = event(41, schema.PUBLISHED, message_id="m", uid=1)
    store.add_batch(0, brought(message, *publishes(85, 1)))
    # The line is at 55: the window of ten seconds is over, that of a minute is not.
    added = store.add_batch(1, brought(message | {"uid": 2}))
    assert added is not None
    assert (added.late, named(store, "message")) == (1, {"m": 2})
    store.add_batch(2, brought(*publishes(90, 1)))
    store.add_batch(3, brought(message | {"uid": 3}))
    assert named(store, "message") == {"m": 2}


def rows_of_ids(store: FactsStore) -> int:
    [count] = store._database.execute("SELECT count(*) FROM ids").fetchone()
    return int(count)


def test_ids_go_when_their_window_is_over_and_their_facts_stay(store: FactsStore) -> None:
    message = event(10, schema.PUBLISHED, message_id="m", uid=1, correlation_id="c")
    store.add_batch(0, brought(message, message | {"uid": 2}, event(11, schema.PUBLISHED, message_id="once", uid=9)))
    before = all_facts(store)
    assert rows_of_ids(store) == 2  # messages and sessions
    store.add_batch(1, brought(event(200, schema.CONNECTION_OPENED, exchange=None)))
    assert rows_of_ids(store) == 0
    after = {key: row for key, row in all_facts(store).items() if row["fact"] in ("message", "session")}
    assert after == {key: row for key, row in before.items() if row["fact"] in ("message", "session")}
    assert named(store, "message") == {"m": 2}


# -- legs --------------------------------------------------------------------------------------------------------------


def taken(second: float, kind: int, uid: int = 7, **more: Any) -> dict[str, Any]:
    return event(second, kind, uid=uid, queue="q", consumer="c", attempt=1, depth=0, **more)


def test_an_ack_is_paired_with_a_delivery_of_an_earlier_batch(tmp_path: Path) -> None:
    store = FactsStore(tmp_path, OPTIONS)
    store.add_batch(0, brought(taken(1, schema.DELIVERED)))
    store.add_batch(1, brought(*publishes(500, 1)))  # however long it takes
    store.close()
    store = FactsStore(tmp_path, OPTIONS)
    store.add_batch(2, brought(taken(501, schema.ACKED)))
    store.add_batch(3, brought(taken(501, schema.ACKED)))  # nothing is held any more
    assert processing(store) == [(500, 500_000_000)]
    store.close()


def test_a_delivery_that_came_back_by_itself_is_not_held(store: FactsStore) -> None:
    store.add_batch(0, brought(taken(1, schema.DELIVERED)))
    store.add_batch(1, brought(taken(2, schema.REQUEUED)))
    store.add_batch(2, brought(taken(3, schema.ACKED)))
    assert processing(store) == []


def test_of_too_many_deliveries_the_oldest_of_the_queue_are_given_up(
    store: FactsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing_times, "MAX_OPEN", 2)
    store.add_batch(0, brought(*(taken(uid, schema.DELIVERED, uid) for uid in (1, 2, 3))))
    store.add_batch(1, brought(event(0, schema.DELIVERED, uid=4, queue="other", attempt=1, depth=0)))
    acks = [taken(9, schema.ACKED, uid) for uid in (1, 2, 3)]
    store.add_batch(2, brought(*acks, event(9, schema.ACKED, uid=4, queue="other", attempt=1, depth=0)))
    assert processing(store) == [(0, 6_000_000), (0, 7_000_000), (0, 9_000_000)]


# -- it is what a batch finds ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def history() -> History:
    return make_history(1500, seconds=300.0, seed=3)


@pytest.mark.parametrize("seed", range(3))
def test_the_facts_are_those_of_a_batch_however_events_are_cut_and_mixed(
    history: History, tmp_path: Path, seed: int
) -> None:
    """Batches of any size, tasks of any order, rows of a task in no order, and a new process now and then."""
    chance = random.Random(seed)
    table, counting = history.table(), CountSpec.of(OPTIONS, facts.ALL)
    store, batch, first = FactsStore(tmp_path, OPTIONS), 0, 0
    while first < table.num_rows:
        rows = chance.randint(1, 900)
        tasks = cut(table.slice(first, rows), chance)
        store.add_batch(batch, [piece for task in tasks for piece in counted(task, counting)])
        first, batch = first + rows, batch + 1
        if chance.random() < 0.3:
            store.facts("ids", 0, FOREVER)
        if chance.random() < 0.2:
            store.close()
            store = FactsStore(tmp_path, OPTIONS)
    assert all_facts(store) == by_key(facts_from_events(table, OPTIONS))
    store.close()


def cut(table: pa.Table, chance: random.Random) -> list[pa.Table]:
    """A micro-batch as tasks; the order of rows within one is not that of time."""
    place = chance.randint(0, table.num_rows)
    tasks = [mixed(part, chance) for part in (table.slice(0, place), table.slice(place))]
    chance.shuffle(tasks)
    return tasks


def mixed(table: pa.Table, chance: random.Random) -> pa.Table:
    places = list(range(table.num_rows))
    chance.shuffle(places)
    return table.take(pa.array(places, pa.int64()))


def counted(table: pa.Table, counting: CountSpec) -> Sequence[Partial]:
    return partials_from_rows(pa.Table.from_batches(count_events(table.to_batches(), counting)))


# -- answers, and the file ---------------------------------------------------------------------------------------------


def test_a_window_that_changes_while_it_is_answered_stays_to_be_answered(store: FactsStore) -> None:
    store.add_batch(0, brought(*publishes(1, 1), *publishes(11, 1)))
    seen = store.unanswered("facts")
    assert list(seen) == [us(0), us(10)]
    store.add_batch(1, brought(*publishes(11, 1)))
    store.set_answered("facts", seen)
    assert list(store.unanswered("facts")) == [us(10)]


def test_everything_is_there_after_the_end_of_the_process(tmp_path: Path) -> None:
    message = event(1, schema.PUBLISHED, message_id="m", uid=1)
    first = FactsStore(tmp_path, OPTIONS)
    first.add_batch(0, brought(message))
    assert first.option("run", "first") == "first"
    first.close()
    second = FactsStore(tmp_path, OPTIONS)
    assert (counts(second), second.last_batch()) == ({0: 1}, 0)
    assert list(second.unanswered("facts")) == [us(0)]
    assert second.option("run", "second") == "first"
    second.add_batch(1, brought(message | {"uid": 2}))
    assert named(second, "message") == {"m": 2}
    second.close()


def test_old_windows_are_forgotten_once_they_are_over_and_answered(store: FactsStore) -> None:
    store.add_batch(0, brought(*publishes(1, 1), *publishes(11, 1), *publishes(21, 1), *publishes(52, 1)))
    unanswered = store.unanswered("facts")
    store.set_answered("facts", {start: stamp for start, stamp in unanswered.items() if start != us(10)})
    store.drop_before("facts", us(50))
    # That of 0 is over and answered, that of 10 not answered, that of 20 not over (the line is at 22).
    assert list(counts(store)) == [10, 20, 50]
    assert store.bounds("facts") == (us(10), us(50))


def test_two_processes_cannot_follow_with_one_checkpoint(store: FactsStore, tmp_path: Path) -> None:
    with pytest.raises(CheckpointInUse, match="another folder"):
        FactsStore(tmp_path, OPTIONS)


def test_a_store_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "facts.sqlite") as old:
        old.execute("CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    old.close()
    with pytest.raises(CheckpointMismatch, match="delete the folder"):
        FactsStore(tmp_path, OPTIONS)
    FactsStore(tmp_path / "new", OPTIONS).close()
