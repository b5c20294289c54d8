"""Events to facts: what one counts by hand, and the same facts from Spark, whatever the cuts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.jobs.rows import at, event, event_table, events, message
from tests.support.history import make_history
from warrenmq.events import schema
from warrenmq.pipeline import facts
from warrenmq.pipeline.count import count_events, event_arrays
from warrenmq.pipeline.merge.facts import facts_from_events
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()
STEPS = {facts.STEP, facts.KEY, facts.TIME}


def collected(table):
    """The facts by their keys; a key comes once."""
    rows = table.to_pylist()
    by_key = {tuple(row[name] for name in facts.FACT_KEYS): row for row in rows}
    assert len(by_key) == len(rows)
    return by_key


def facts_of(rows, wanted=facts.ALL, settings=OPTIONS):
    return collected(facts_from_events(event_table(rows), settings, wanted))


def steps_of(by_key):
    return {
        (row["window_start"], row["queue"] or row["exchange"], row["kind"]): row
        for row in by_key.values()
        if row["fact"] == "step"
    }


def test_every_kind_of_event_is_counted_also_one_that_is_not_known_yet():
    rows = [event(number * 0.1, kind, uid=5) for number, kind in enumerate([*schema.KIND_NAMES, 77])]
    rows.append(event(3, "dropped", uid=6, queue="q", reason="duplicate", depth=3))
    rows.append(event(3, "dropped", uid=7, queue="q", reason=99))
    found = facts_of(rows, STEPS)
    counts = {row["kind"]: row["count"] for row in found.values() if row["fact"] == "step" and not row["queue"]}
    assert counts == dict.fromkeys([*schema.KIND_NAMES.values(), "kind-77"], 1)
    assert {row["reason"] for row in found.values() if row["queue"]} == {"duplicate", "reason-99"}
    assert not any(value is None for key in found for value in key)


def test_facts_of_some_messages_are_what_one_counts_by_hand():
    rows = [*message(1, 0.0, 0.5, 2.0), *message(2, 1.0, 1.25, 11.0), *message(3, 9.0, 12.0, None)]
    found = facts_of(rows, STEPS)
    steps = steps_of(found)
    assert steps[at(0), "shop", "published"]["count"] == 3
    assert steps[at(0), "shop", "published"]["bytes"] == 300
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
        (at(0), "processing", 1_500_000), (at(10), "processing", 9_750_000),
    }  # fmt: skip
    keys = [row for row in found.values() if row["fact"] == "key"]
    assert [(row["exchange"], row["name"], row["messages"]) for row in keys] == [("shop", "k", 3)]


def test_what_the_analysis_itself_reads_and_writes_is_left_out():
    rows = [
        event(0, "published", uid=1, exchange="", routing_key="warren.analysis"),
        event(0, "enqueued", uid=1, exchange="", routing_key="warren.analysis", queue="warren.analysis", depth=9),
        event(0, "delivered", uid=2, exchange="", queue="warren.events"),
        event(0, "published", uid=3, exchange="", routing_key="mine"),
        event(0, "published", uid=4, exchange="x", routing_key="warren.analysis"),  # that is somebody else's
    ]
    found = facts_of(rows, STEPS)
    steps = {row["exchange"]: row["count"] for row in found.values() if row["fact"] == "step"}
    assert steps == {"amq.default": 1, "x": 1}


def test_publishers_are_not_distinguished_and_consumers_are():
    rows = [event(0, "published", exchange="x", connection=name, channel=1) for name in ("a", "b")]
    rows += [event(0, "delivered", queue="q", consumer="c", connection=name, channel=1) for name in ("a", "b")]
    steps = [row for row in facts_of(rows, STEPS).values() if row["fact"] == "step"]
    told = sorted((row["kind"], row["connection"], row["channel"], row["count"]) for row in steps)
    assert told == [("delivered", "a", 1, 1), ("delivered", "b", 1, 1), ("published", "", 0, 2)]


def test_readers_of_streams_have_no_waiting_time_and_redeliveries_neither():
    taken = {"uid": 1, "queue": "q", "enqueue_time": at(0), "publish_time": at(0), "consumer": "c"}
    rows = [
        event(5, "delivered", **taken, attempt=1),
        event(5, "acked", **taken, attempt=1),
        event(6, "delivered", **taken, attempt=2, depth=0),
    ]
    found = facts_of(rows, STEPS)
    assert {row["fact"] for row in found.values()} == {"step"}
    assert sum(row["redelivered"] for row in found.values()) == 1


def test_one_event_may_tell_of_many_messages_that_a_queue_dropped():
    rows = [
        event(1, "dropped", queue="q", reason="purged", depth=5000),
        event(2, "dropped", uid=7, queue="q", reason="purged", depth=3),
    ]
    [dropped] = [row for row in facts_of(rows, STEPS).values() if row["fact"] == "step"]
    assert (dropped["count"], dropped["failed"], dropped["depth_max"], dropped["depth_last"]) == (5001, 5001, 3, 3)


def test_only_the_busiest_keys_are_kept_and_everything_else_is():
    rows = []
    for number in range(6):
        rows += [event(1, "published", uid=number, exchange="x", routing_key=f"k{number}") for _ in range(number + 1)]
    rows += [event(1, "published", uid=9, exchange="y", routing_key=f"k{number}") for number in range(3)]
    found = facts_of(rows, STEPS, AnalysisOptions(max_per_group=2))
    keys = {(row["exchange"], row["name"], row["count"]) for row in found.values() if row["fact"] == "key"}
    assert keys == {("x", "k5", 6), ("x", "k4", 5), ("y", "k0", 1), ("y", "k1", 1)}
    assert sum(row["count"] for row in found.values() if row["fact"] == "step") == 24


def test_only_what_is_wanted_is_counted():
    rows = message(1, 0.0, 0.5, 2.0, message_id="m", correlation_id="c", priority=3)
    rows += message(2, 0.0, 0.5, 2.0, message_id="m")
    assert {row["fact"] for row in facts_of(rows).values()} == facts.ALL
    for kind in facts.ALL:
        assert {row["fact"] for row in facts_of(rows, {kind}).values()} == {kind}


def test_repeated_ids_are_reported_with_their_first_and_last_time():
    rows = [
        event(1, "published", uid=5, message_id="twice", size=10),
        event(2, "published", uid=6, message_id="once"),
        event(3, "republished", uid=7, message_id="once"),  # by the broker: no duplicate
        event(4, "published", uid=8, message_id="twice", size=20),
        event(61, "published", uid=9, message_id="twice"),  # in another minute
        event(5, "published", uid=10, message_id="twice", vhost="other"),
    ]
    [row] = facts_of(rows, {facts.MESSAGE}).values()
    assert (row["name"], row["vhost"], row["count"], row["bytes"]) == ("twice", "/", 2, 30)
    assert (row["first_uid"], row["last_uid"], row["first_time"], row["last_time"]) == (5, 8, at(1), at(4))
    assert (row["window_start"], row["window_end"]) == (at(0), at(60))


def test_a_session_is_what_happened_to_the_messages_of_one_correlation_id():
    rows = [
        event(1, "published", uid=5, correlation_id="c", size=10),
        event(2, "enqueued", uid=5, correlation_id="c", queue="q", size=10),  # says nothing of a session
        event(3, "delivered", uid=5, correlation_id="c", queue="q", attempt=2),
        event(4, "nacked", uid=5, correlation_id="c", queue="q"),
        event(5, "acked", uid=5, correlation_id="c", queue="q"),
    ]
    [row] = facts_of(rows, {facts.SESSION}).values()
    counts = [row[name] for name in ("count", "messages", "settled", "failed", "redelivered", "bytes")]
    assert counts == [4, 1, 1, 1, 1, 10]
    assert (row["first_time"], row["last_time"]) == (at(1), at(5))


def test_the_worst_sessions_are_kept():
    rows = [event(1, "published", uid=9, correlation_id=name) for name in "abcdef"]
    rows += [event(2, "nacked", uid=9, correlation_id="b"), event(9, "acked", uid=9, correlation_id="d")]
    rows += [event(1, "published", uid=9, correlation_id="z", vhost="other")]
    found = facts_of(rows, {facts.SESSION}, AnalysisOptions(max_per_group=3))
    assert {row["name"] for row in found.values()} == {"a", "b", "d", "z"}  # failed, longest, by name; by vhost


def test_legs_are_paired_by_attempt():
    taken = {"uid": 1, "queue": "q", "consumer": "c", "depth": 0}
    rows = [
        event(0, "delivered", **taken, attempt=1),
        event(1, "nacked", **taken, attempt=1),
        event(1, "requeued", **taken, attempt=1, reason="client"),
        event(1, "delivered", **taken, attempt=2),
        event(4, "acked", **taken, attempt=2),
        event(5, "delivered", uid=2, queue="q", depth=0, attempt=1, reason="auto_ack"),
        event(6, "delivered", uid=3, queue="q", depth=0, attempt=1),
        event(7, "acked", uid=4, queue="q", depth=0, attempt=1),
        event(8, "delivered", uid=5, queue="q", attempt=1),  # of a stream
        event(9, "acked", uid=5, queue="q", attempt=1),
    ]
    found = [row for row in facts_of(rows, {facts.TIME}).values() if row["name"] == "processing"]
    assert sorted(row["longest_us"] for row in found) == [1_000_000, 3_000_000]
    assert {(row["window_start"], row["queue"], row["first_uid"], row["count"]) for row in found} == {
        (at(0), "q", 1, 1)
    }


def test_it_does_not_matter_in_which_chunks_events_are_counted(monkeypatch):
    history = make_history(600, seconds=100.0, seed=5)
    whole = collected(facts_from_events(history.table(), OPTIONS))
    monkeypatch.setattr(event_arrays, "BATCH_ROWS", 100)
    monkeypatch.setattr(count_events, "MAX_EVENTS", 700)
    assert history.rows > 1400
    batches = pa.Table.from_batches(history.table().combine_chunks().to_batches(max_chunksize=30))
    in_parts = collected(facts_from_events(batches, OPTIONS))
    assert in_parts.keys() >= whole.keys()
    assert merged(in_parts) == merged(whole)


def merged(by_key):
    """Parts of one window added up."""
    found = {}
    for row in by_key.values():
        key = tuple(row[name] for name in facts.FACT_KEYS if name != "part")
        count, total, longest = found.get(key, (0, 0, 0))
        found[key] = (count + row["count"], total + (row["total_us"] or 0), max(longest, row["longest_us"] or 0))
    return found


@pytest.fixture(scope="module")
def in_a_file(spark, tmp_path_factory):
    """A small history as a DataFrame of several partitions."""
    history = make_history(1500, seconds=300.0, seed=3)
    folder = tmp_path_factory.mktemp("history")
    table = history.table()
    part = table.num_rows // 4 + 1
    for number in range(4):
        pq.write_table(table.slice(number * part, part), folder / f"{number}.parquet")
    return spark.read.parquet(str(folder)).repartition(3), history


def test_spark_counts_the_same_facts(in_a_file):
    frame, history = in_a_file
    found = collected(facts.facts_of(frame, OPTIONS).toArrow())
    expected = collected(facts_from_events(history.table(), OPTIONS))
    assert merged(found) == merged(expected)
    steps = [row for row in found.values() if row["fact"] == "step"]
    assert sum(row["count"] for row in steps) == history.rows
    legs = [row for row in found.values() if row["name"] == "processing"]
    assert sum(row["count"] for row in legs) == history.truth.acked + history.truth.poison_failures


def test_longer_windows_are_the_sum_of_shorter_ones(spark):
    rows = [row for uid in range(40) for row in message(uid + 1, uid * 1.5, uid * 1.5 + 0.1, uid * 1.5 + 0.2)]
    frame = events(spark, rows)
    rolled = facts.roll_up(facts.facts_of(frame, OPTIONS, STEPS), "1 minute")
    minutes = facts.facts_of(frame, AnalysisOptions(window="1 minute"), STEPS)
    assert merged(collected(rolled.toArrow())) == merged(collected(minutes.toArrow()))
    assert depths(rolled) == depths(minutes)


def depths(frame):
    rows = [row for row in frame.toArrow().to_pylist() if row["fact"] == "step"]
    return {(row["window_start"], row["queue"], row["kind"]): (row["depth_max"], row["depth_last"]) for row in rows}
