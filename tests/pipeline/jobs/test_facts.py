"""Events to facts, in batch and in streaming: the same facts, whatever the order and the cuts."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.jobs.rows import at, event, event_table, events, message
from warrenmq.pipeline import facts, keyed, legs
from warrenmq.pipeline.history import make_history
from warrenmq.pipeline.settings import Settings

SETTINGS = Settings()


def collected(frame):
    """The facts by their keys; a key comes once."""
    rows = frame.toArrow().to_pylist()
    by_key = {tuple(row[name] for name in facts.FACT_KEYS): row for row in rows}
    assert len(by_key) == len(rows)
    return by_key


def without_part(by_key):
    """Parts of one window added up: how a micro-batch was cut does not matter."""
    merged = {}
    for row in by_key.values():
        key = tuple(row[name] for name in facts.FACT_KEYS if name != "part")
        known = merged.setdefault(key, {"count": 0, "total_us": 0, "longest_us": 0})
        known["count"] += row["count"]
        known["total_us"] += row["total_us"] or 0
        known["longest_us"] = max(known["longest_us"], row["longest_us"] or 0)
    return merged


def steps_of(by_key):
    return {
        (row["window_start"], row["queue"] or row["exchange"], row["kind"]): row
        for row in by_key.values()
        if row["fact"] == "step"
    }


def test_every_kind_of_event_is_counted_also_one_that_is_not_known_yet(spark):
    from warrenmq.events.schema import KIND_NAMES

    rows = [event(number * 0.1, kind, uid=5) for number, kind in enumerate([*KIND_NAMES, 77])]
    rows.append(event(3, "dropped", uid=6, queue="q", reason="duplicate", depth=3))
    rows.append(event(3, "dropped", uid=7, queue="q", reason=99))
    found = collected(facts.facts_of(events(spark, rows), SETTINGS))
    counts = {row["kind"]: row["count"] for row in found.values() if row["fact"] == "step" and not row["queue"]}
    assert counts == dict.fromkeys([*KIND_NAMES.values(), "kind-77"], 1)
    assert {row["reason"] for row in found.values() if row["queue"]} == {"duplicate", "reason-99"}
    assert not any(value is None for key in found for value in key)


def test_facts_of_some_messages_are_what_one_counts_by_hand(spark):
    rows = [*message(1, 0.0, 0.5, 2.0), *message(2, 1.0, 1.25, 11.0), *message(3, 9.0, 12.0, None)]
    found = collected(facts.facts_of(events(spark, rows), SETTINGS))
    steps = steps_of(found)
    assert steps[at(0), "shop", "published"]["count"] == 3
    assert steps[at(0), "shop", "published"]["octets"] == 300
    assert steps[at(0), "q", "delivered"]["count"] == 2
    assert steps[at(10), "q", "delivered"]["count"] == 1
    assert steps[at(10), "q", "acked"]["settled"] == 1
    assert (steps[at(0), "q", "enqueued"]["depth_max"], steps[at(0), "q", "enqueued"]["depth_last"]) == (1, 1)
    assert (steps[at(0), "q", "delivered"]["first_time"], steps[at(0), "q", "delivered"]["last_time"]) == (
        at(0.5),
        at(1.25),
    )
    assert (steps[at(0), "q", "delivered"]["first_uid"], steps[at(0), "q", "delivered"]["last_uid"]) == (1, 2)
    times = {(row["window_start"], row["name"], row["longest_us"]) for row in found.values() if row["fact"] == "time"}
    assert times == {
        (at(0), "waiting", 500_000), (at(0), "waiting", 250_000), (at(10), "waiting", 3_000_000),
        (at(0), "end_to_end", 2_000_000), (at(10), "end_to_end", 10_000_000),
    }  # fmt: skip
    keys = [row for row in found.values() if row["fact"] == "key"]
    assert [(row["exchange"], row["name"], row["messages"]) for row in keys] == [("shop", "k", 3)]


def test_what_the_analysis_itself_reads_and_writes_is_left_out(spark):
    rows = [
        event(0, "published", uid=1, exchange="", routing_key="warren.analysis"),
        event(0, "enqueued", uid=1, exchange="", routing_key="warren.analysis", queue="warren.analysis", depth=9),
        event(0, "delivered", uid=2, exchange="", queue="warren.events"),
        event(0, "published", uid=3, exchange="", routing_key="mine"),
    ]
    found = collected(facts.facts_of(events(spark, rows), SETTINGS))
    assert {row["exchange"] for row in found.values()} == {"amq.default"}
    assert sum(row["count"] for row in found.values() if row["fact"] == "step") == 1


def test_readers_of_streams_have_no_waiting_time_and_redeliveries_neither(spark):
    taken = {"uid": 1, "queue": "q", "enqueue_time": at(0), "publish_time": at(0), "consumer": "c"}
    rows = [
        event(5, "delivered", **taken, attempt=1),
        event(5, "acked", **taken, attempt=1),
        event(6, "delivered", **taken, attempt=2, depth=0),
    ]
    found = collected(facts.facts_of(events(spark, rows), SETTINGS))
    assert {row["fact"] for row in found.values()} == {"step"}
    assert sum(row["redelivered"] for row in found.values()) == 1


def test_one_event_may_tell_of_many_messages_that_a_queue_dropped(spark):
    rows = [
        event(1, "dropped", queue="q", reason="purged", depth=5000),
        event(2, "dropped", uid=7, queue="q", reason="purged", depth=3),
    ]
    [dropped] = [
        row for row in collected(facts.facts_of(events(spark, rows), SETTINGS)).values() if row["fact"] == "step"
    ]
    assert (dropped["count"], dropped["failed"], dropped["depth_max"], dropped["depth_last"]) == (5001, 5001, 3, 3)


def test_only_the_busiest_keys_are_kept_and_everything_else_is(spark):
    rows = []
    for number in range(6):
        rows += [event(1, "published", uid=number, exchange="x", routing_key=f"k{number}") for _ in range(number + 1)]
    kept = facts.bound(facts.facts_of(events(spark, rows), SETTINGS), Settings(kept=2))
    found = collected(kept)
    assert {(row["name"], row["count"]) for row in found.values() if row["fact"] == "key"} == {("k5", 6), ("k4", 5)}
    assert sum(row["count"] for row in found.values() if row["fact"] == "step") == 21


def test_longer_windows_are_the_sum_of_shorter_ones(spark):
    rows = [row for uid in range(40) for row in message(uid + 1, uid * 1.5, uid * 1.5 + 0.1, uid * 1.5 + 0.2)]
    frame = events(spark, rows)
    rolled = facts.roll_up(facts.facts_of(frame, SETTINGS), "1 minute")
    assert collected(rolled) == collected(facts.facts_of(frame, Settings(window="1 minute")))


def mixed(count: int) -> list[int]:
    places = list(range(count))
    random.Random(3).shuffle(places)
    return places


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small history in files, as a stream of them: 12 files, the rows of each in no order."""
    place = tmp_path_factory.mktemp("history")
    history = make_history(1500, seconds=300.0, seed=3)
    table = history.table()
    part = table.num_rows // 12 + 1
    for number in range(12):
        rows = table.slice(number * part, part)
        pq.write_table(rows.take(pa.array(mixed(rows.num_rows))), place / f"{number:02}.parquet")
        os.utime(place / f"{number:02}.parquet", (1e9 + number, 1e9 + number))  # Spark reads them in this order
    return place


def streamed(spark, source: Path, checkpoint: Path, collect, finish, mode="update"):
    """What a streaming query keeps if a later row replaces the one with its keys; each file is a micro-batch."""
    schema = spark.read.parquet(str(source)).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    kept = {}
    query = (
        collect(stream, SETTINGS)
        .writeStream.outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, number: kept.update(collected(finish(batch, number))))
        .start()
    )
    assert query.awaitTermination(100)
    return kept


def test_streaming_gives_exactly_the_facts_of_a_batch(spark, folder, tmp_path):
    def finish(batch, number):
        return facts.bound(batch, SETTINGS)

    in_batch = collected(finish(facts.facts_of(spark.read.parquet(str(folder)), SETTINGS), 0))
    assert streamed(spark, folder, tmp_path, facts.facts_of, finish) == in_batch
    assert (
        sum(row["count"] for row in in_batch.values() if row["fact"] == "step")
        == make_history(1500, seconds=300.0, seed=3).rows
    )


def test_streaming_gives_exactly_the_keyed_facts_of_a_batch(spark, folder, tmp_path):
    in_batch = collected(keyed.keyed_facts_of(spark.read.parquet(str(folder)), SETTINGS))
    assert streamed(spark, folder, tmp_path, keyed.keyed_facts_of, lambda batch, number: batch) == in_batch
    assert {row["fact"] for row in in_batch.values()} == {"message", "session"}


def test_streaming_pairs_deliveries_with_acks_of_later_batches_as_a_batch_does(spark, folder, tmp_path):
    def finish(batch, number):
        return legs.processing_facts(batch, SETTINGS, number)

    in_batch = collected(finish(legs.legs_of(spark.read.parquet(str(folder)), SETTINGS), 0))
    in_stream = streamed(spark, folder, tmp_path, legs.legs_of, finish, mode="append")
    assert without_part(in_stream) == without_part(in_batch)
    assert {row["name"] for row in in_batch.values()} == {"processing"}
    history = make_history(1500, seconds=300.0, seed=3)
    assert sum(row["count"] for row in in_batch.values()) == history.truth.acked + history.truth.poison_failures


def test_what_comes_later_than_the_watermark_is_not_counted_and_what_is_within_it_is(spark, tmp_path):
    source = tmp_path / "events"
    source.mkdir()
    batches = [
        [event(0, "published", uid=1, exchange="x"), event(100, "published", uid=2, exchange="x")],
        [event(101, "published", uid=3, exchange="x")],
        [event(75, "published", uid=4, exchange="x"), event(5, "published", uid=5, exchange="x")],
    ]
    for number, rows in enumerate(batches):
        pq.write_table(event_table(rows), source / f"{number}.parquet")
        os.utime(source / f"{number}.parquet", (1e9 + number, 1e9 + number))  # Spark reads them in this order
    kept = streamed(spark, source, tmp_path / "checkpoint", facts.facts_of, lambda batch, number: batch)
    counts = {row["window_start"]: row["count"] for row in kept.values() if row["fact"] == "step"}
    assert counts == {at(0): 1, at(70): 1, at(100): 2}


def test_legs_are_paired_by_attempt(spark):
    taken = {"uid": 1, "queue": "q", "consumer": "c", "depth": 0}
    rows = [
        event(0, "delivered", **taken, attempt=1),
        event(1, "nacked", **taken, attempt=1),
        event(1, "requeued", **taken, attempt=1, reason="client"),
        event(1, "delivered", **taken, attempt=2),
        event(4, "acked", **taken, attempt=2),
        event(5, "delivered", uid=2, queue="q", depth=0, attempt=1, reason="auto_ack"),
        event(6, "delivered", uid=3, queue="q", depth=0, attempt=1),
    ]
    found = legs.legs_of(events(spark, rows), SETTINGS).toArrow().sort_by("time").to_pylist()
    assert [(row["uid"], row["processing_us"]) for row in found] == [(1, 1_000_000), (1, 3_000_000)]
