"""ConsumerKey holds messages, and who is stuck."""

from __future__ import annotations

from tests.pipeline.jobs.rows import at, fact, fact_table
from warrenmq.pipeline.jobs.consumers import JOB
from warrenmq.pipeline.jobs.outstanding import consumer_states
from warrenmq.pipeline.jobs.tables import to_time
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()


def work(window, kind, count, consumer="c1", reason="", seconds=None):
    """`seconds`: when it happened, from ten on (both first and last)."""
    when = at(10 * window if seconds is None else seconds)
    return fact(
        "step", window, queue="q", consumer=consumer, connection="conn", channel=1, kind=kind, reason=reason,
        count=count, first_time=when, last_time=when, last_uid=100 + window,
    )  # fmt: skip


def tick(*windows):
    """Something else happens in these windows."""
    return [
        fact("step", window, kind="published", exchange="x", count=1, last_time=at(10 * window + 9))
        for window in windows
    ]


def states(rows, settings=OPTIONS):
    return list(consumer_states(fact_table(rows), settings))


def stuck(rows, settings=OPTIONS):
    return [(state.key.consumer, state.window.start_us) for state in states(rows, settings) if state.is_stuck(settings)]


def test_who_settles_all_holds_nothing():
    rows = [work(0, "delivered", 5), work(0, "acked", 5), *tick(1, 20)]
    assert [(state.outstanding, state.silent_seconds) for state in states(rows)] == [(0, 0.0)]


def test_who_holds_messages_has_a_state_in_each_window_with_events_though_it_says_nothing():
    rows = [work(0, "delivered", 5), work(0, "acked", 3, seconds=4), *tick(1, 2, 7, 8)]
    found = states(rows)
    assert [state.outstanding for state in found] == [2] * 5
    assert [state.is_stuck(OPTIONS) for state in found] == [False, False, False, True, True]
    assert to_time(found[-1].since_us) == at(4)
    assert found[-1].silent_seconds == 85.0


def test_who_was_idle_is_stuck_since_it_got_something_not_since_it_settled_last():
    rows = [work(0, "delivered", 1), work(0, "acked", 1, seconds=1), work(30, "delivered", 2, seconds=303), *tick(40)]
    last = states(rows)[-1]
    assert last.is_stuck(OPTIONS)
    assert to_time(last.since_us) == at(303)


def test_automatic_acks_leave_nothing_to_settle():
    assert stuck([work(0, "delivered", 5, reason="auto_ack"), *tick(20)]) == []


def test_a_nack_with_requeue_settles_once_and_a_requeue_without_a_nack_settles_too():
    given_back = [work(0, "delivered", 4), work(0, "nacked", 2), work(0, "requeued", 2, reason="client")]
    assert states(given_back)[-1].outstanding == 2
    lost = [work(0, "delivered", 4), work(1, "requeued", 4, reason="connection_closed"), *tick(2)]
    assert states(lost)[-1].outstanding == 0


def test_a_closed_consumer_holds_nothing_and_may_come_back():
    closed = [work(0, "delivered", 5), work(3, "consumer_closed", 1), *tick(20)]
    assert stuck(closed) == []
    again = [*closed, work(21, "delivered", 1), *tick(30)]
    assert states(again)[-1].outstanding > 0


def test_only_the_consumer_that_is_stuck_is():
    rows = [work(0, "delivered", 5, consumer="lazy")]
    for window in range(20):
        rows += [work(window, "delivered", 9, consumer="busy"), work(window, "acked", 9, consumer="busy")]
    assert {consumer for consumer, _ in stuck(rows)} == {"lazy"}


def test_how_far_back_deliveries_are_known_is_a_setting():
    rows = [work(0, "delivered", 5), *tick(10, 50)]
    assert len(stuck(rows, AnalysisOptions(consumer_windows=100))) == 2
    assert len(stuck(rows, AnalysisOptions(consumer_windows=20))) == 1


def test_skew_is_one_where_the_work_is_even():
    rows = [work(0, "delivered", 30, consumer="a"), work(0, "delivered", 10, consumer="b")]
    rows += [work(0, "acked", 30, consumer="a"), work(0, "acked", 10, consumer="b")]
    found = {row["consumer"]: row for row in JOB.answer(fact_table(rows), OPTIONS, 0).to_pylist()}
    assert (found["a"]["share_ratio"], found["a"]["skew"]) == (0.75, 1.5)
    assert (found["b"]["share_ratio"], found["b"]["skew"]) == (0.25, 0.5)
    assert found["a"]["stuck"] is False
    assert found["a"]["stuck_since"] is None


def test_without_consumers_there_are_no_states():
    facts = [fact("step", 0, queue="q", kind="delivered", count=3)]
    assert list(consumer_states(fact_table(facts), OPTIONS)) == []
