"""Biographies: the story of the issue, what may happen in a queue, and random lives against a plain reference."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracing.stories import BEGIN, EventBuilder, simple_life
from warrenmq.events import schema
from warrenmq.events.schema import Event
from warrenmq.tracing.biography import LOST, Biography, Leg, Span, build_biography


def told(events: list[Event]) -> Biography:
    biography = build_biography(events)
    assert biography is not None
    return biography


def spans_of(leg: Leg) -> list[tuple[str, int, int | None, int | None, str | None, str | None]]:
    return [
        (each.kind, each.begin - BEGIN, each.end and each.end - BEGIN, each.attempt, each.consumer, each.outcome)
        for each in leg.spans
    ]


def fanned_out() -> list[Event]:
    """To three queues; in one of them it comes back once; then it is published again."""
    first = EventBuilder(0, "order-17").add(schema.ROUTED, 5)
    for queue in ("shipping", "billing", "audit"):
        first.enqueued(10, queue)
    first.add(schema.CONFIRMED, 300)
    first.delivered(1_000, "audit", "auditor", reason=schema.R_AUTO_ACK)
    first.delivered(2_000, "shipping", "packer-1")
    first.delivered(2_500, "billing", "clerk")
    first.settled(schema.NACKED, 7_000, "shipping", "packer-1")
    first.settled(schema.REQUEUED, 7_001, "shipping", "packer-1", reason=schema.R_CLIENT)
    first.delivered(9_000, "shipping", "packer-2", 2)
    first.acked(12_000, "billing", "clerk")
    first.acked(14_000, "shipping", "packer-2", 2)
    again = EventBuilder(16_000, "order-17", source_uid=first.uid).add(schema.REPUBLISHED, 16_000)
    again.enqueued(16_010, "billing").delivered(17_000, "billing", "clerk").acked(18_500, "billing", "clerk")
    return first.events + again.events


def test_the_story_of_a_fanout_a_requeue_a_second_consumer_an_ack_and_a_republish() -> None:
    events = fanned_out()
    biography = told(events)
    assert list(biography.events) == events
    assert (biography.message_id, biography.uid, biography.is_complete) == ("order-17", events[0].uid, True)
    assert [(leg.queue, leg.outcome, leg.waiting_us, leg.processing_us) for leg in biography.legs] == [
        ("shipping", "acked", 1_990 + 1_999, 5_000 + 5_000),
        ("billing", "acked", 2_490, 9_500),
        ("audit", "delivered", 990, None),
        ("billing", "acked", 990, 1_500),
    ]
    assert biography.legs[3].uid == events[-1].uid != events[0].uid
    assert spans_of(biography.legs[0]) == [
        ("waiting", 10, 2_000, 1, None, "delivered"),
        ("processing", 2_000, 7_000, 1, "packer-1", "nacked"),
        ("waiting", 7_001, 9_000, 2, None, "delivered"),
        ("processing", 9_000, 14_000, 2, "packer-2", "acked"),
    ]


def test_an_event_that_the_log_has_twice_counts_once() -> None:
    events = fanned_out()
    assert build_biography(events + events[3:9] + events[-2:]) == build_biography(events)


def test_the_order_of_the_log_counts_and_not_the_clock() -> None:
    set_back = EventBuilder(1_000).enqueued(1_010, "work").delivered(500, "work", "worker").acked(600, "work", "worker")
    biography = told(set_back.events)
    assert [event.kind for event in biography.events][-2:] == [schema.DELIVERED, schema.ACKED]
    assert (biography.legs[0].waiting_us, biography.legs[0].processing_us) == (0, 100)


def test_nothing_is_no_biography() -> None:
    assert build_biography([]) is None


def test_a_message_that_still_waits_is_not_complete() -> None:
    biography = told(EventBuilder().enqueued(10, "work").events)
    (leg,) = biography.legs
    assert (leg.outcome, leg.waiting_us, leg.processing_us) == ("waiting", None, None)
    assert leg.spans == (Span("waiting", BEGIN + 10),)
    assert not biography.is_complete


def test_a_message_with_a_consumer_is_not_complete() -> None:
    biography = told(EventBuilder().enqueued(10, "work").delivered(30, "work", "worker").events)
    (leg,) = biography.legs
    assert (leg.outcome, leg.waiting_us, leg.processing_us) == ("processing", 20, None)
    assert not biography.is_complete


def test_one_that_no_queue_takes_is_complete_without_legs() -> None:
    biography = told(EventBuilder().add(schema.UNROUTABLE, 1, reason=schema.R_NO_ROUTE).add(schema.RETURNED, 2).events)
    assert (biography.legs, biography.is_complete) == ([], True)


def test_one_that_was_rolled_back_is_complete() -> None:
    assert told(EventBuilder().add(schema.TX_ROLLED_BACK, 50).events).is_complete


def test_one_whose_beginning_is_gone_is_not_complete_but_has_its_waiting_time() -> None:
    life = simple_life(0)
    late = [
        Event(**{**{name: getattr(each, name) for name in each.__slots__}, "enqueue_time": BEGIN + 1}) for each in life
    ]
    biography = told(late[2:])
    assert not biography.is_complete
    assert (biography.legs[0].waiting_us, biography.legs[0].processing_us) == (100, 50)


def test_what_is_rejected_and_dropped_ends_as_dropped() -> None:
    life = (
        EventBuilder().enqueued(1, "work").delivered(2, "work", "worker").settled(schema.REJECTED, 9, "work", "worker")
    )
    life.settled(schema.DROPPED, 10, "work", "worker", reason=schema.R_REJECTED)
    biography = told(life.events)
    assert [(leg.outcome, leg.processing_us) for leg in biography.legs] == [("dropped", 7)]
    assert biography.legs[0].spans[-1].outcome == "rejected"
    assert biography.is_complete


def test_what_expires_or_is_purged_ends_while_it_waits() -> None:
    for kind, name in (
        (schema.EXPIRED, "expired"),
        (schema.DROPPED, "dropped"),
        (schema.DEAD_LETTERED, "dead_lettered"),
    ):
        biography = told(EventBuilder().enqueued(1, "work").add(kind, 51, queue="work").events)
        assert [(leg.outcome, leg.waiting_us) for leg in biography.legs] == [(name, 50)]
        assert biography.is_complete


def test_a_retry_waits_again_in_the_same_leg() -> None:
    life = (
        EventBuilder().enqueued(0, "work").delivered(10, "work", "worker").settled(schema.RETRIED, 30, "work", "worker")
    )
    life.enqueued(1_000, "work").delivered(1_030, "work", "worker", 2).acked(1_040, "work", "worker", 2)
    (leg,) = told(life.events).legs
    assert (leg.waiting_us, leg.processing_us, leg.outcome) == (10 + 1_000, 20 + 10, "acked")


def test_a_dead_letter_goes_on_in_another_queue() -> None:
    life = (
        EventBuilder()
        .enqueued(0, "work")
        .delivered(10, "work", "worker")
        .settled(schema.REJECTED, 20, "work", "worker")
    )
    life.add(schema.DEAD_LETTERED, 21, queue="work", reason=schema.R_REJECTED)
    life.enqueued(22, "dead").delivered(40, "dead", "undertaker").acked(45, "dead", "undertaker")
    biography = told(life.events)
    assert [(leg.queue, leg.outcome) for leg in biography.legs] == [("work", "dead_lettered"), ("dead", "acked")]
    assert biography.is_complete


def test_a_consumer_that_had_it_when_the_broker_was_killed_is_not_counted() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "worker")
    life.delivered(9_000, "work", "worker", 2).acked(9_005, "work", "worker", 2)
    (leg,) = told(life.events).legs
    assert [span.outcome for span in leg.spans] == ["delivered", LOST, "acked"]
    assert leg.processing_us == 5


def test_deliveries_are_counted_on_where_the_broker_began_to_count_anew() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "worker")
    life.settled(schema.REQUEUED, 20, "work", "worker", 1, reason=schema.R_CLIENT).delivered(30, "work", "worker", 2)
    life.delivered(9_000, "work", "worker", 1).settled(schema.REQUEUED, 9_001, "work", "worker", 1)  # killed, started
    life.delivered(9_005, "work", "worker", 2)
    life.delivered(20_000, "work", "worker", 1).acked(20_005, "work", "worker", 1)  # and again
    biography = told(life.events)
    attempts = [event.attempt for event in biography.events if event.attempt is not None]
    assert attempts == [1, 1, 2, 3, 3, 4, 5, 5]
    (leg,) = biography.legs
    assert [span.attempt for span in leg.spans if span.kind == "processing"] == [1, 2, 3, 4, 5]
    assert (leg.deliveries, leg.outcome) == (5, "acked")


def test_deliveries_are_counted_for_each_queue_alone() -> None:
    life = EventBuilder().enqueued(0, "a").enqueued(0, "b").delivered(10, "a", "x").delivered(11, "b", "y")
    life.delivered(9_000, "b", "y").acked(9_010, "b", "y")
    attempts = [(event.queue, event.attempt) for event in told(life.events).events if event.attempt is not None]
    assert attempts == [("a", 1), ("b", 1), ("b", 2), ("b", 2)]


def test_what_a_consumer_had_when_the_broker_began_is_lost() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "worker")
    (leg,) = biography_since(life.events, 5_000).legs
    assert spans_of(leg)[-1] == ("processing", 10, 5_000, 1, "worker", LOST)
    assert (leg.outcome, leg.is_over, leg.processing_us) == (LOST, False, None)
    (leg,) = biography_since(life.events, 10).legs
    assert leg.outcome == "processing"  # delivered by this life of the broker
    (leg,) = biography_since([*life.events, *life.acked(6_000, "work", "worker").events[-1:]], 5_000).legs
    assert leg.outcome == "acked"


def test_readers_of_a_stream_are_lost_with_the_broker_too() -> None:
    life = (
        EventBuilder()
        .enqueued(0, "log")
        .delivered(10, "log", "one", depth=None)
        .delivered(12, "log", "two", depth=None)
    )
    life.delivered(9_000, "log", "one", depth=None)
    (leg,) = biography_since(life.events, 5_000).legs
    assert [(span.consumer, span.outcome) for span in leg.spans[1:]] == [("one", LOST), ("two", LOST), ("one", None)]
    assert leg.outcome == "processing"


def biography_since(events: list[Event], began: int) -> Biography:
    biography = build_biography(events, began=BEGIN + began)
    assert biography is not None
    return biography


def test_a_leg_knows_who_had_it_also_without_acks() -> None:
    life = EventBuilder().enqueued(0, "work").delivered(10, "work", "one").settled(schema.REQUEUED, 20, "work", "one")
    life.delivered(30, "work", "two", 2).settled(schema.REQUEUED, 40, "work", "two", 2)
    life.delivered(50, "work", "one", 3, reason=schema.R_AUTO_ACK)
    (leg,) = told(life.events).legs
    assert (leg.deliveries, leg.consumers) == (3, ("one", "two"))


# -- one event for all that were on disk -------------------------------------------------------------------------------


def purge(at: int, queue: str = "work", vhost: str = "/") -> Event:
    return Event(BEGIN + at, schema.DROPPED, 0, vhost=vhost, queue=queue, reason=schema.R_PURGED, depth=12_000)


def test_a_purge_ends_what_waits_in_its_queue() -> None:
    biography = told([*EventBuilder().enqueued(1, "work").enqueued(1, "other").events, purge(51)])
    assert [(leg.queue, leg.outcome, leg.waiting_us) for leg in biography.legs] == [
        ("work", "dropped", 50),
        ("other", "waiting", None),
    ]
    assert biography.events[-1] == purge(51)
    assert not biography.is_complete  # in the other queue it waits
    assert told([*EventBuilder().enqueued(1, "work").events, purge(51)]).is_complete


def test_an_unrelated_purge_is_left_out() -> None:
    waiting = EventBuilder().enqueued(1, "work").events
    processing = EventBuilder().enqueued(1, "work").delivered(2, "work", "worker").events
    over = simple_life(0)
    cases = {
        "before it came": [purge(0), *waiting],
        "of another queue": [*waiting, purge(9, "other")],
        "of another virtual host": [*waiting, purge(9, vhost="b")],
        "a consumer had it": [*processing, purge(9)],
        "it was gone": [*over, purge(9_000)],
        "it tells of no messages": [*waiting, Event(BEGIN + 9, schema.QUEUE_DECLARED, 0, vhost="/", queue="work")],
    }
    for case, events in cases.items():
        assert [event.uid for event in told(events).events if event.uid == 0] == [], case
    assert build_biography([purge(1)]) is None


def test_a_stream_delivers_a_message_to_many_at_once() -> None:
    life = EventBuilder().enqueued(0, "log")
    life.delivered(10, "log", "one", depth=None).delivered(12, "log", "two", depth=None)
    life.acked(20, "log", "two", depth=None).acked(40, "log", "one", depth=None)
    life.delivered(100, "log", "three", depth=None).acked(101, "log", "three", depth=None)
    (leg,) = told(life.events).legs
    assert [(span.consumer, span.length, span.outcome) for span in leg.spans] == [
        (None, 10, "delivered"),
        ("one", 30, "acked"),
        ("two", 8, "acked"),
        ("three", 1, "acked"),
    ]
    assert leg.is_over


def test_what_was_left_out_makes_it_incomplete() -> None:
    biography = build_biography(simple_life(0), is_truncated=True)
    assert biography is not None
    assert not biography.is_complete


# -- random lives ------------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.sampled_from(["deliver", "back", "end"]), st.integers(1, 1_000)), max_size=12)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), STEPS, min_size=1))
def test_random_lives_have_the_times_that_a_plain_clock_counts(plans: dict[str, list[tuple[str, int]]]) -> None:
    """A reference that keeps one state and two sums per queue; their events come one after the other, and mixed."""
    life = EventBuilder()
    expected: dict[str, tuple[int | None, int | None, bool]] = {}
    for queue, steps in plans.items():
        life.enqueued(1, queue)
        now, state, attempt = 1, "waiting", 1
        sums: dict[str, int | None] = {"waiting": None, "processing": None}
        for step, later in steps:
            if state == "over" or (step == "deliver") != (state == "waiting"):
                continue
            now += later
            sums[state] = (sums[state] or 0) + later
            if step == "deliver":
                life.delivered(now, queue, f"consumer-{queue}", attempt)
                state = "processing"
            elif step == "back":
                life.settled(schema.REQUEUED, now, queue, f"consumer-{queue}", attempt)
                state, attempt = "waiting", attempt + 1
            else:
                life.acked(now, queue, f"consumer-{queue}", attempt)
                state = "over"
        expected[queue] = (sums["waiting"], sums["processing"], state == "over")
    for order in (life.events, sorted(life.events, key=lambda event: event.time)):
        biography = told(order)
        found = {leg.queue: (leg.waiting_us, leg.processing_us, leg.is_over) for leg in biography.legs}
        assert found == expected
        assert biography.is_complete == all(is_over for _, _, is_over in expected.values())
