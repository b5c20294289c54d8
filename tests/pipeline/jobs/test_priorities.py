"""Do high priorities wait less? Deliveries and waits by priority, exact however the events are cut into parts."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from tests.events.samples import BEGIN, FIRST_VERSION
from tests.pipeline.jobs.rows import at, event, event_table, message
from warrenmq.events import schema
from warrenmq.events.codec import encode
from warrenmq.events.rows import Rows
from warrenmq.events.schema import Event
from warrenmq.pipeline import jobs
from warrenmq.pipeline.count.count_events import CountSpec, count_events
from warrenmq.pipeline.count.partials import TOTALS, Partial, partials_from_rows
from warrenmq.pipeline.facts import ALL, PRIORITY, TIME
from warrenmq.pipeline.merge.facts import facts_from_events, facts_from_partials
from warrenmq.pipeline.options import AnalysisOptions
from warrenmq.pipeline.source.arrow_body import batches_in

OPTIONS = AnalysisOptions()
[JOB] = jobs.by_name(["priorities"])
Row = dict[str, Any]


def answers(events: list[Row]) -> dict[tuple[Any, ...], Row]:
    found = JOB.answer(facts_from_events(event_table(events), OPTIONS, JOB.needs), OPTIONS, 0)  # type: ignore[misc]
    return {tuple(row[key] for key in JOB.keys): row for row in found.to_pylist()}


def test_each_priority_of_a_queue_has_its_waits() -> None:
    events = [row for uid in range(1, 101) for row in message(uid, 0.0, uid / 1000, 1.0, queue="q", priority=9)]
    events += [row for uid in range(201, 301) for row in message(uid, 0.0, 5.0, None, queue="q")]
    events += message(400, 0.0, 3.0, None, queue="q", priority=1)
    found = answers(events)
    assert sorted(found) == [(at(0), "/", "q", 0), (at(0), "/", "q", 1), (at(0), "/", "q", 9)]
    high = found[at(0), "/", "q", 9]
    assert (high["delivered"], high["waiting_mean_us"], high["waiting_max_us"]) == (100, 50_500.0, 100_000)
    assert high["waiting_p50_us"] == pytest.approx(50_000, rel=0.02)
    assert high["waiting_p99_us"] == pytest.approx(99_000, rel=0.02)
    low = found[at(0), "/", "q", 0]
    assert (low["delivered"], low["waiting_mean_us"], low["waiting_max_us"]) == (100, 5_000_000.0, 5_000_000)
    assert found[at(0), "/", "q", 1]["delivered"] == 1


def test_queues_and_windows_without_priorities_are_left_out() -> None:
    events = message(1, 0.0, 1.0, None, queue="plain") + message(2, 11.0, 12.0, None, queue="q")
    assert answers(events) == {}
    events += message(3, 0.0, 1.0, None, queue="q", priority=3) + message(4, 0.0, 1.5, None, queue="other", priority=3)
    events += message(5, -30.0, -25.0, None, queue="q")
    assert set(answers(events)) == {(at(0), "/", "q", 3), (at(10), "/", "q", 0), (at(0), "/", "other", 3)}


def test_what_is_left_when_all_urgent_messages_are_delivered_has_rows_for_a_while() -> None:
    events = message(1, 0.0, 1.0, None, queue="q", priority=9)
    events += message(2, 0.0, 25.0, None, queue="q") + message(3, 0.0, 45.0, None, queue="q")
    table = facts_from_events(event_table(events), OPTIONS, JOB.needs)
    assert JOB.answer is not None
    for windows, wanted in ((4, [(0, 9), (20, 0), (40, 0)]), (2, [(0, 9), (20, 0)]), (1, [(0, 9)])):
        found = in_order(JOB.answer(table, AnalysisOptions(consumer_windows=windows), 0))
        assert [(row["window_start"], row["priority"]) for row in found] == [
            (at(when), level) for when, level in wanted
        ]


def test_only_first_deliveries_of_classic_queues_count() -> None:
    taken = {"queue": "q", "enqueue_time": at(0), "priority": 4}
    events = [
        event(1, "delivered", 1, attempt=1, depth=0, **taken),
        event(2, "delivered", 1, attempt=2, depth=0, **taken),
        event(2, "delivered", 2, attempt=1, **taken),  # of a stream: no depth
        event(2, "expired", 3, depth=0, **taken),
    ]
    assert [row["delivered"] for row in answers(events).values()] == [1]


@pytest.mark.parametrize(("others", "exact"), [(1, True), (4, False)])
def test_the_longest_wait_without_a_priority_where_one_with_waited_as_long(others: int, exact: bool) -> None:
    """A bucket tells the longest wait of all its messages, and here that is one with a priority."""
    events = message(1, 0.0, 2.0, None, queue="q", priority=4)
    for uid in range(others):
        events += message(2 + uid, 0.0, 1.94 + uid / 1000, None, queue="q")
    longest = answers(events)[at(0), "/", "q", 0]["waiting_max_us"]
    wanted = 1_940_000 + 1000 * (others - 1)
    assert longest == (wanted if exact else pytest.approx(wanted, rel=0.02))
    assert longest < 2_000_000


def lives(seed: int) -> list[Row]:
    draw = random.Random(seed)
    found: list[Row] = []
    for uid in range(1, 400):
        begin = draw.uniform(0, 40)
        priority = draw.choice((None, 1, 5, 255))
        queue = draw.choice(("q", "r"))
        found += message(uid, begin, begin + draw.expovariate(1), begin + 30, queue=queue, priority=priority)
    return sorted(found, key=lambda row: row["time"])


def facts_in_parts(events: list[Row], draw: random.Random) -> pa.Table:
    """The facts of events that are counted in several parts, each cut into batches."""
    places: dict[tuple[str, int], list[Partial]] = {}
    cuts = sorted(draw.sample(range(len(events)), 7))
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        batches = event_table(events[start:end]).to_batches(max_chunksize=draw.choice((3, 50, 1000)))
        for rows in count_events(batches, CountSpec.of(OPTIONS, JOB.needs)):
            for piece in partials_from_rows(rows):
                places.setdefault((piece.kind, piece.key), []).append(piece)
    return pa.concat_tables(
        [facts_from_partials(found, OPTIONS) for (kind, _), found in places.items() if kind != TOTALS]
    )


def in_order(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.sort_by([(key, "ascending") for key in JOB.keys]).to_pylist()
    return rows


@pytest.mark.parametrize("seed", range(5))
def test_the_answer_is_the_same_however_the_events_are_cut(seed: int) -> None:
    events = lives(seed)
    assert JOB.answer is not None
    whole = JOB.answer(facts_from_events(event_table(events), OPTIONS, JOB.needs), OPTIONS, 0)
    assert whole.num_rows > 20
    parts = JOB.answer(facts_in_parts(events, random.Random(seed)), OPTIONS, 0)
    assert in_order(parts) == in_order(whole)


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_what_the_events_say(seed: int) -> None:
    events = lives(seed)
    waits: dict[tuple[Any, ...], list[int]] = {}
    ranked = set()
    for row in events:
        if row["kind"] == schema.DELIVERED:
            window = at((row["time"] - at(0)).total_seconds() // 10 * 10)
            waited = round((row["time"] - row["enqueue_time"]).total_seconds() * 1e6)
            waits.setdefault((window, "/", row["queue"], row["priority"] or 0), []).append(waited)
            if row["priority"]:
                ranked.add((window, row["queue"]))
    first = {queue: min(window for window, name in ranked if name == queue) for queue in ("q", "r")}
    expected = {key: found for key, found in waits.items() if key[0] >= first[key[2]]}
    found = answers(events)
    assert set(found) == set(expected)
    for key, waited in expected.items():
        row = found[key]
        assert (row["delivered"], row["waiting_mean_us"]) == (len(waited), pytest.approx(sum(waited) / len(waited)))
        assert row["waiting_p50_us"] == pytest.approx(sorted(waited)[-(-len(waited) // 2) - 1], rel=0.021, abs=1)
        assert row["waiting_max_us"] == (max(waited) if key[3] else pytest.approx(max(waited), rel=0.021))


def test_other_facts_do_not_depend_on_priorities() -> None:
    events = lives(7)
    plain = [row | {"priority": None} for row in events]
    with_them, without = (facts_from_events(event_table(rows), OPTIONS, ALL) for rows in (events, plain))
    kept = [row for row in with_them.to_pylist() if row["fact"] != PRIORITY]
    assert len(kept) < with_them.num_rows
    order = lambda row: str(sorted(row.items()))  # noqa: E731
    assert sorted(kept, key=order) == sorted(without.to_pylist(), key=order)


def test_batches_of_both_versions_are_counted_together() -> None:
    first_version = (FIRST_VERSION / "batch.arrow").read_bytes()  # one delivery from q, after 900 us
    rows = Rows()
    place = {"vhost": "/", "queue": "q", "attempt": 1, "depth": 0}
    rows.add_row(Event(BEGIN + 2000, schema.DELIVERED, 1, **place, enqueue_time=BEGIN + 1000, priority=2))
    batches = [batch for body in (first_version, encode(rows)) for batch in batches_in(body, 0, "warren.events")]
    counting = CountSpec.of(OPTIONS, {TIME, PRIORITY})
    counted = [piece for found in count_events(batches, counting) for piece in partials_from_rows(found)]
    table = pa.concat_tables([facts_from_partials([piece], OPTIONS) for piece in counted if piece.kind != TOTALS])
    assert [row["name"] for row in table.to_pylist() if row["fact"] == PRIORITY] == ["2"]
    assert JOB.answer is not None
    found = in_order(JOB.answer(table, OPTIONS, 0))
    assert [(row["queue"], row["priority"], row["delivered"], row["waiting_max_us"]) for row in found] == [
        ("q", 0, 1, 900), ("q", 2, 1, 1000),
    ]  # fmt: skip
