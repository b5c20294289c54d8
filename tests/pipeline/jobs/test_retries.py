"""Retry storms and the causes of dead letters: of counts written by hand, and of the events of a real broker."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from tests.pipeline.jobs.rows import at, event_table, fact, fact_table
from tests.support.client import advance
from tests.support.tracing import TracedBroker
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.pipeline import jobs
from warrenmq.pipeline.count import processing_times
from warrenmq.pipeline.count.count_events import COLUMNS
from warrenmq.pipeline.count.event_arrays import event_arrays_from
from warrenmq.pipeline.jobs.outstanding import consumer_states
from warrenmq.pipeline.jobs.tables import where
from warrenmq.pipeline.merge.facts import facts_from_events
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()
RETRY = {"x-retry-max": 2, "x-retry-delay": 1000, "x-retry-backoff": "fixed"}


def answers(name, facts, options=OPTIONS):
    """The rows of a job by their keys, without the first two: window and virtual host."""
    [job] = jobs.by_name([name])
    found = job.answer(facts, options, 0).to_pylist()
    by_key = {(row["window_start"], *(row[key] for key in job.keys[2:])): row for row in found}
    assert len(by_key) == len(found)
    return by_key


def window(number, delivered, returned, redelivered=0, queue="q", reason="client"):
    place = {"exchange": "x", "queue": queue}
    return [
        fact("step", number, **place, kind="delivered", consumer="c", count=delivered, redelivered=redelivered),
        fact("step", number, **place, kind="requeued", reason=reason, count=returned, last_uid=64 * number + 1),
    ]


def storms(facts, options=OPTIONS):
    found = answers("retries", fact_table(facts), options)
    return sorted(key for key, row in found.items() if row["storm"])


def test_more_retries_than_usual_are_a_storm():
    """Also of a queue that has always had some, as long as that is what it had."""
    rows = [row for number in range(12) for row in window(number, 1000, 3)]
    rows += window(12, 1000, 120) + [row for number in range(13, 16) for row in window(number, 1000, 3)]
    assert storms(rows) == [(at(120), "queue", "q", "q")]
    storm = answers("retries", fact_table(rows))[at(120), "queue", "q", "q"]
    assert (storm["returned"], storm["per_second"], storm["usual_per_second"]) == (120, 12.0, 0.3)
    assert (storm["reason"], storm["reason_count"], storm["example_uid"]) == ("client", 120, uid_text(769))


def test_windows_without_retries_count_for_what_is_usual():
    rows = [row for number in range(12) for row in window(number, 1000, 0)] + window(12, 1000, 40)
    assert storms(rows) == [(at(120), "queue", "q", "q")]
    assert answers("retries", fact_table(rows))[at(120), "queue", "q", "q"]["usual_per_second"] == 0.0


def test_without_a_history_nothing_is_unusual():
    rows = [row for number in range(5) for row in window(number, 1000, 1)] + window(5, 1000, 120)
    assert storms(rows) == []
    assert answers("retries", fact_table(rows))[at(50), "queue", "q", "q"]["usual_per_second"] is None


def test_mostly_redeliveries_are_a_storm_from_the_first_window_on():
    rows = window(0, 30, 20, 16) + window(0, 30, 20, 15, "half") + window(0, 9, 9, 9, "few")
    assert storms(rows) == [(at(0), "queue", "q", "q")]
    ratios = {key[2]: row["redelivered_ratio"] for key, row in answers("retries", fact_table(rows)).items()}
    assert ratios == {"q": 16 / 30, "half": 0.5, "few": 1.0}


def test_the_reason_is_the_most_frequent_one():
    rows = [
        fact("step", 0, queue="q", kind=kind, reason=reason, count=count)
        for kind, reason, count in (
            ("requeued", "client", 4),
            ("retried", "consumer_timeout", 5),
            ("requeued", "channel_closed", 4),
            ("requeued", "consumer_timeout", 2),
            ("nacked", "", 50),
            ("dead_lettered", "delivery_limit", 60),
        )
    ]
    [row] = answers("retries", fact_table(rows)).values()
    assert (row["returned"], row["exhausted"], row["reason"], row["reason_count"]) == (15, 60, "consumer_timeout", 7)


def test_a_routing_key_that_comes_back_far_more_often_than_it_is_published_is_a_storm():
    rows = window(0, 5000, 90, 90)
    rows += [
        fact("key", 0, exchange="x", name=key, kind="published", count=published)
        for key, published in (("bad", 5), ("busy", 4000))
    ]
    rows += [
        fact("key", 0, exchange="x", queue="q", name=key, kind="retried", reason="rejected", count=45)
        for key in ("bad", "busy")
    ]
    assert storms(rows) == [(at(0), "key", "q", "bad")]
    assert answers("retries", fact_table(rows))[at(0), "key", "q", "bad"]["redelivered_ratio"] is None


def test_the_routing_keys_that_came_back_most_are_kept():
    rows = [
        fact("key", 0, exchange="x", queue="q", name=f"k{number}", kind="retried", reason="client", count=number)
        for number in range(1, 6)
    ]
    found = answers("retries", fact_table(rows), AnalysisOptions(top=2))
    assert [key[3] for key in sorted(found)] == ["k4", "k5"]


def test_dead_letters_are_counted_by_cause_with_the_first_and_the_last_as_examples():
    def dead(count, first, last, **cause):
        return fact("key", 0, **cause, kind="dead_lettered", count=count, first_uid=first, last_uid=last)

    here = {"exchange": "x", "queue": "q", "name": "k"}
    rows = [
        dead(3, 65, 193, **here, reason="rejected"),
        dead(2, 257, 321, **here, reason="rejected"),
        dead(1, 385, 385, **here, reason="expired"),
        dead(4, None, None, **here | {"name": "other"}, reason="rejected"),
        fact("key", 0, **here, kind="dropped", reason="rejected", count=9),
    ]
    found = answers("dead_letters", fact_table(rows))
    assert {key[1:]: (row["count"], row["per_second"], row["example_uids"]) for key, row in found.items()} == {
        ("q", "rejected", "x", "k"): (5, 0.5, [uid_text(65), uid_text(321)]),
        ("q", "expired", "x", "k"): (1, 0.1, [uid_text(385)]),
        ("q", "rejected", "x", "other"): (4, 0.4, []),
    }
    most = answers("dead_letters", fact_table(rows), AnalysisOptions(top=1))
    assert [key[1:] for key in most] == [("q", "rejected", "x", "k")]


# -- the events of a broker --------------------------------------------------------------------------------------------


@pytest.fixture
def traced():
    return TracedBroker()


def event_rows(traced):
    """All events in one window, as if each had happened a millisecond after the one before."""
    times = dict.fromkeys(("publish_time", "enqueue_time"))
    events = traced.events(resources=True)
    return [asdict(event) | times | {"time": at(0) + timedelta(milliseconds=n)} for n, event in enumerate(events, 1)]


def test_automatic_retries_are_reported_with_their_reasons_up_to_the_dead_letter(traced):
    channel = traced.client().channel()
    queue = channel.declare("work", arguments=RETRY)
    channel.publish(b"a", "work")
    channel.consume(queue, "worker")
    for _ in range(3):
        channel.reject(channel.deliveries()[-1].tag, requeue=False)
        advance(traced.broker, 1500)
    facts = facts_from_events(event_table(event_rows(traced)), OPTIONS)
    found = answers("retries", facts)
    assert {key[1:]: (row["returned"], row["redelivered"], row["exhausted"]) for key, row in found.items()} == {
        ("queue", "work", "work"): (2, 2, 1),
        ("key", "work", "work"): (2, 0, 1),
    }
    assert {row["reason"] for row in found.values()} == {"rejected"}
    [(cause, row)] = answers("dead_letters", facts).items()
    assert cause[1:] == ("work", "delivery_limit", "amq.default", "work")
    [uid] = {event.uid for event in traced.events()}
    assert row["example_uids"] == [uid_text(uid)]


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_rejected_delivery_that_is_retried_is_settled_once(traced, is_ordered, requeue):
    channel = traced.client().channel()
    queue = channel.declare("work", arguments=RETRY | {"x-retry-ordered": is_ordered})
    channel.consume(queue, "worker")
    channel.publish_all("ab", "work")
    first, _ = channel.deliveries()
    channel.reject(first.tag, requeue=requeue)
    facts = facts_from_events(event_table(event_rows(traced)), OPTIONS)
    [state] = consumer_states(where(facts, fact="step"), OPTIONS)
    assert (state.delivered, state.settled, state.outstanding) == (2, 1, 1)


@pytest.mark.parametrize("reason", [schema.R_CONNECTION_CLOSED, schema.R_CONSUMER_TIMEOUT], ids=schema.reason_name)
def test_a_consumer_holds_nothing_that_is_retried_because_it_was_lost(traced, reason):
    channel = traced.client().channel()
    channel.consume(channel.declare("work", arguments=RETRY), "worker")
    channel.publish_all("ab", "work")
    assert len(channel.deliveries()) == 2
    channel.core.close(reason)
    rows = event_rows(traced)
    facts = facts_from_events(event_table(rows), OPTIONS)
    found = answers("retries", facts)[at(0), "queue", "work", "work"]
    assert (found["returned"], found["reason"]) == (2, schema.reason_name(reason))
    [state] = consumer_states(where(facts, fact="step"), OPTIONS)
    assert (state.delivered, state.settled, state.outstanding) == (2, 2, 0)
    [events] = event_arrays_from(event_table(rows).to_batches(), COLUMNS)
    ends = processing_times.delivery_events(events)
    _, held = processing_times.match_with_open(ends.slice(0, 0), ends, OPTIONS.window_us)
    assert held.num_rows == 0
