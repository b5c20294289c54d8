"""What queues do to messages by themselves is counted right: expiry, length limits, dead letters, also on disk.

The events are those of a real broker.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.pipeline.jobs.rows import EVENT_SCHEMA, event_table
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
TTL = 1_000
TEN = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
TIMES = tuple(field.name for field in EVENT_SCHEMA if str(field.type).startswith("timestamp"))


@pytest.fixture
def traced():
    return TracedBroker()


@pytest.fixture
def channel(traced):
    return traced.client().channel()


def in_window(events, number):
    """The events as if they had happened in the window with that number, each a millisecond after the one before."""
    start = TEN + timedelta(microseconds=number * OPTIONS.window_us)
    return [asdict(event) | {"time": start + timedelta(milliseconds=at)} for at, event in enumerate(events, 1)]


def facts_of(rows):
    return facts_from_events(event_table([row | dict.fromkeys(TIMES[1:]) for row in rows]), OPTIONS)


def answers(name, facts):
    [job] = jobs.by_name([name])
    return job.answer(facts, OPTIONS, 0).to_pylist()


def events_of(traced):
    return traced.events(resources=True)


def backlog_of(facts):
    """Depth, arrivals and departures of each queue, window by window."""
    found = sorted(answers("backlog", facts), key=lambda row: row["window_start"])
    return {
        queue: [(row["depth"], row["arrived"], row["left"]) for row in found if row["queue"] == queue]
        for queue in {row["queue"] for row in found}
    }


def failures_of(facts):
    return {(row["queue"], row["kind"], row["reason"]): row["count"] for row in answers("failures", facts)}


def dead_lettering(channel, name="q", **arguments):
    found = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    is_durable = arguments.get("queue_type") == "quorum"
    return channel.declare(
        name, durable=is_durable, arguments=found | {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "k"}
    )


def bind_dead(channel):
    channel.declare_exchange("dlx", "fanout")
    channel.bind("dlx", channel.declare("dead"))


def reject(channel, queue, *, requeue=False):
    channel.reject(channel.get(queue, no_ack=False).tag, requeue=requeue)


def test_expired_messages_leave_their_queue_once_and_join_another(traced, channel):
    bind_dead(channel)
    dead_lettering(channel, message_ttl=TTL)
    channel.publish_all("abc", "q")
    advance(traced.broker, 2 * TTL)
    facts = facts_of(in_window(events_of(traced), 0))
    assert backlog_of(facts) == {"q": [(0, 3, 3)], "dead": [(3, 3, 0)]}
    assert failures_of(facts) == {("q", "expired", "expired"): 3, ("q", "dead_lettered", "expired"): 3}
    [key] = [row for row in answers("hot_keys", facts) if row["routing_key"] == "q"]
    assert key["failed"] == 3, "each has failed once"


def test_rejected_messages_left_their_queue_when_they_were_delivered(traced, channel):
    bind_dead(channel)
    queue = dead_lettering(channel)
    channel.publish_all("abc", "q")
    for _ in range(2):
        reject(channel, queue)
    facts = facts_of(in_window(events_of(traced), 0))
    assert backlog_of(facts) == {"q": [(1, 3, 2)], "dead": [(2, 2, 0)]}
    assert failures_of(facts) == {("q", "rejected", ""): 2, ("q", "dead_lettered", "rejected"): 2}


def test_so_did_those_that_came_back_too_often(traced, channel):
    bind_dead(channel)
    queue = dead_lettering(channel, queue_type="quorum", delivery_limit=1)
    channel.publish(b"a", "q")
    for _ in range(2):
        reject(channel, queue, requeue=True)
    facts = facts_of(in_window(events_of(traced), 0))
    assert backlog_of(facts) == {"q": [(0, 2, 2)], "dead": [(1, 1, 0)]}
    assert failures_of(facts)["q", "dead_lettered", "delivery_limit"] == 1


def test_a_length_limit_drops_what_waits_and_refuses_what_never_did(traced, channel):
    channel.declare("short", arguments={"x-max-length": 2})
    channel.declare("full", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    for queue in ("short", "full"):
        channel.publish_all("abcde", queue)
    facts = facts_of(in_window(events_of(traced), 0))
    assert backlog_of(facts) == {"short": [(2, 5, 3)], "full": [(2, 2, 0)]}
    assert failures_of(facts) == {("short", "dropped", "maxlen"): 3, ("full", "dropped", "refused"): 3}


def test_dead_letters_flow_from_their_queue_to_an_exchange_and_on(traced, channel):
    bind_dead(channel)
    queue = dead_lettering(channel)
    channel.publish_all("abc", "q")
    reject(channel, queue)
    reject(channel, queue)
    facts = facts_of(in_window(events_of(traced), 0))
    ways = {
        (row["source_kind"], row["source"], row["target_kind"], row["target"]): row["count"]
        for row in answers("flow", facts)
    }
    assert ways == {
        ("exchange", "amq.default", "queue", "q"): 3,
        ("queue", "q", "consumer", "basic.get"): 2,
        ("queue", "q", "exchange", "dlx"): 2,
        ("exchange", "dlx", "queue", "dead"): 2,
    }


def test_dead_letters_that_no_queue_is_bound_for_are_unroutable(traced, channel):
    channel.declare_exchange("dlx", "fanout")
    queue = dead_lettering(channel)
    channel.publish(b"a", "q")
    reject(channel, queue)
    events = events_of(traced)
    [row] = answers("unroutable", facts_of(in_window(events, 0)))
    assert (row["exchange"], row["routing_key"], row["count"]) == ("dlx", "k", 1)
    assert row["example_uid"] == uid_text(events[-1].uid)


@pytest.mark.parametrize("reason", [schema.R_EXPIRED, schema.R_MAXLEN])
def test_what_is_removed_on_disk_is_counted_and_missing_in_the_depth(traced, channel, reason):
    queue = channel.declare("q")
    channel.publish_all("x" * 9, "q")
    queue.dropped_on_disk(3, reason)
    first = events_of(traced)
    queue.dropped_on_disk(4, reason)
    second = events_of(traced)[len(first) :]
    channel.publish(b"x", "q")
    third = [replace(event, depth=3) for event in events_of(traced)[len(first) + len(second) :]]
    facts = facts_of(in_window(first, 0) + in_window(second, 1) + in_window(third, 2))
    assert backlog_of(facts) == {"q": [(6, 9, 3), (2, 0, 4), (3, 1, 0)]}
    kind = "expired" if reason == schema.R_EXPIRED else "dropped"
    found = [row for row in answers("failures", facts) if row["queue"] == "q"]
    assert [(row["kind"], row["reason"], row["count"], row["example_uid"]) for row in found] == [
        (kind, schema.reason_name(reason), count, None) for count in (3, 4)
    ]
    hot = answers("hot_keys", facts)
    assert [(row["routing_key"], row["published"], row["failed"]) for row in hot] == [("q", 9, 0), ("q", 1, 0)]


def test_a_purge_leaves_nothing(traced, channel):
    queue = channel.declare("q")
    channel.publish_all("abc", "q")
    queue.purge()
    facts = facts_of(in_window(events_of(traced), 0))
    assert backlog_of(facts) == {"q": [(0, 3, 3)]}


def test_a_purge_of_what_is_on_disk_leaves_nothing_either(traced, channel):
    channel.publish(b"a", channel.declare("q").name)
    fields = {"queue": "q", "reason": schema.R_PURGED, "depth": 7}
    traced.broker.events.resource_event(schema.DROPPED, "/", fields)
    facts = facts_of(in_window(events_of(traced), 0))
    assert backlog_of(facts) == {"q": [(0, 1, 7)]}


@pytest.mark.parametrize("is_nacked", [False, True])
def test_a_consumer_no_longer_holds_what_came_back_too_often(traced, channel, is_nacked):
    bind_dead(channel)
    queue = dead_lettering(channel, queue_type="quorum", delivery_limit=0)
    channel.consume(queue, "worker")
    channel.publish_all("ab", "q")
    first, _ = channel.deliveries()
    if is_nacked:
        channel.reject(first.tag, requeue=True)
    else:
        channel.core.recover()
    rows = in_window(events_of(traced), 0)
    [state] = consumer_states(where(facts_of(rows), fact="step"), OPTIONS)
    assert (state.delivered, state.settled, state.outstanding) == ((2, 1, 1) if is_nacked else (2, 2, 0))
    [chunk] = event_arrays_from(event_table(rows).to_batches(), COLUMNS)
    ends = processing_times.delivery_events(chunk)
    _, held = processing_times.match_with_open(ends.slice(0, 0), ends, OPTIONS.window_us)
    assert held.num_rows == state.outstanding


def test_a_retry_that_waits_in_a_queue_is_no_poison(traced, channel):
    queue = channel.declare("work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"})
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": TTL}
    channel.declare("wait", arguments=arguments)
    channel.bind("amq.fanout", queue)
    for _ in range(12):
        channel.publish(b"a", "k", "amq.fanout")
    for _ in range(2):
        for _ in range(12):
            reject(channel, queue)
        advance(traced.broker, 2 * TTL)
    facts = facts_of(in_window(events_of(traced), 0))
    found = {row["routing_key"]: row for row in answers("hot_keys", facts)}
    assert {key: (row["published"], row["failed"]) for key, row in found.items()} == {
        "k": (12, 12), "wait": (0, 24), "work": (0, 12),
    }  # fmt: skip
    assert not any(row["poison"] for row in found.values())
    assert answers("anomalies", facts) == []


def test_of_what_happens_at_the_same_time_the_last_counts(traced, channel):
    """The broker reads its clock once for some events of a burst."""
    channel.declare("q", arguments={"x-message-ttl": TTL})
    channel.declare("short", arguments={"x-max-length": 2})
    for queue in ("q", "short"):
        channel.publish_all("abcd", queue)
    advance(traced.broker, 2 * TTL)
    rows = [row | {"time": TEN + timedelta(milliseconds=row["kind"])} for row in in_window(events_of(traced), 0)]
    assert {queue: depth for queue, [(depth, _, _)] in backlog_of(facts_of(rows)).items()} == {"q": 0, "short": 2}
    rows = [row | {"time": TEN} for row in rows]
    assert {queue: depth for queue, [(depth, _, _)] in backlog_of(facts_of(rows)).items()} == {"q": 0, "short": 2}
