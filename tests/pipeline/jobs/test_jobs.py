"""Each job on a few facts, with the answer worked out by hand."""

from __future__ import annotations

import pytest

from tests.pipeline.jobs.rows import at, event_table, fact, fact_table, message
from warrenmq.events.ids import uid_text
from warrenmq.pipeline import jobs
from warrenmq.pipeline.merge.facts import facts_from_events
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()


def answers(name, rows, settings=OPTIONS):
    """The answer of a job by its keys."""
    [job] = jobs.by_name([name])
    found = job.answer(fact_table(rows), settings, 0).to_pylist()
    by_key = {tuple(row[key] for key in job.keys): row for row in found}
    assert len(by_key) == len(found)
    return by_key


def test_throughput_is_reported_by_exchange_queue_and_key():
    rows = [
        fact("step", 0, exchange="x", kind="published", count=30, bytes=3000),
        fact("step", 0, exchange="x", kind="republished", count=10, bytes=500),
        fact("step", 0, exchange="x", queue="q", kind="enqueued", count=40, bytes=3500),
        fact("step", 0, exchange="x", queue="q", consumer="a", kind="delivered", count=15),
        fact("step", 0, exchange="x", queue="q", consumer="b", kind="delivered", count=5),
        fact("step", 0, exchange="x", queue="q", consumer="b", kind="acked", count=5),
        fact("step", 0, kind="connection_opened", count=1),
        fact("key", 0, exchange="x", name="k1", kind="published", count=25, messages=25, bytes=2500),
        fact("key", 0, exchange="x", name="k2", kind="published", count=15, messages=15, bytes=1000),
        fact("key", 0, exchange="x", name="k3", kind="published", count=1, messages=1, bytes=1),
        fact("key", 0, exchange="x", name="k1", queue="q", kind="nacked", count=99),
    ]
    found = answers("throughput", rows, AnalysisOptions(top=2))
    assert set(found) == {
        (at(0), "/", "exchange", "x", "x"), (at(0), "/", "queue", "", "q"),
        (at(0), "/", "key", "x", "k1"), (at(0), "/", "key", "x", "k2"),
    }  # fmt: skip
    exchange = found[at(0), "/", "exchange", "x", "x"]
    assert (exchange["published"], exchange["bytes"], exchange["published_per_second"]) == (40, 3500, 4.0)
    queue = found[at(0), "/", "queue", "", "q"]
    assert (queue["enqueued"], queue["delivered"], queue["acked"], queue["bytes"]) == (40, 20, 5, 3500)
    assert queue["delivered_per_second"] == 2.0
    assert found[at(0), "/", "key", "x", "k1"]["published"] == 25


def test_latency_has_the_percentiles_of_each_queue():
    rows = [row for uid in range(1, 101) for row in message(uid, 0.0, uid / 1000, 1.0, queue="q")]
    [row] = answers("latency", facts_from_events(event_table(rows), OPTIONS, {"time"}).to_pylist()).values()
    assert (row["waiting_count"], row["end_to_end_count"], row["processing_count"]) == (100, 100, 100)
    assert row["waiting_max_us"] == 100_000
    assert row["waiting_mean_us"] == 50_500.0
    for percent, exact in ((50, 50_000), (90, 90_000), (95, 95_000), (99, 99_000)):
        assert abs(row[f"waiting_p{percent}_us"] - exact) <= 0.02 * exact
    assert row["end_to_end_p50_us"] == pytest.approx(1_000_000, rel=0.02)
    assert row["processing_max_us"] == 999_000


def test_latency_has_no_percentiles_of_what_did_not_happen():
    rows = message(1, 0.0, 1.0, None, queue="q")
    [row] = answers("latency", facts_from_events(event_table(rows), OPTIONS, {"time"}).to_pylist()).values()
    assert (row["waiting_count"], row["end_to_end_count"], row["processing_count"]) == (1, 0, 0)
    assert row["end_to_end_p50_us"] is None


def test_backlog_forecasts_when_a_queue_is_full_or_empty():
    rows = []
    for window in range(6):
        grows, shrinks = 100 * window, 1000 - 100 * window
        rows += [
            fact("step", window, queue="grows", kind="enqueued", count=100, depth_last=grows, depth_max=grows + 3),
            fact("step", window, queue="shrinks", kind="delivered", count=100, depth_last=shrinks, depth_max=1000),
        ]
    rows.append(fact("step", 5, queue="stream", kind="delivered", count=9))
    found = answers("backlog", rows, AnalysisOptions(depth_limit=2000))
    full = found[at(50), "/", "grows"]
    assert (full["depth"], full["depth_max"], full["arrived"], full["left"]) == (500, 503, 100, 0)
    assert full["slope_per_second"] == pytest.approx(10)
    assert full["full_in_seconds"] == pytest.approx(150)
    assert full["empty_in_seconds"] is None
    empty = found[at(50), "/", "shrinks"]
    assert empty["empty_in_seconds"] == pytest.approx(50)
    assert empty["full_in_seconds"] is None
    assert found[at(10), "/", "grows"]["slope_per_second"] is None, "two points are always a line"
    assert {key[2] for key in found} == {"grows", "shrinks"}
    short = answers("backlog", rows, AnalysisOptions(forecast_windows=3))
    assert short[at(50), "/", "grows"]["slope_per_second"] == pytest.approx(10)
    assert short[at(50), "/", "grows"]["full_in_seconds"] is None, "there is no limit"


def test_the_last_depth_is_that_of_the_last_event():
    rows = [
        fact("step", 0, queue="q", kind="enqueued", count=5, depth_last=7, depth_max=9, last_time=at(4)),
        fact("step", 0, queue="q", kind="delivered", count=5, depth_last=3, depth_max=8, last_time=at(6)),
    ]
    [row] = answers("backlog", rows).values()
    assert (row["depth"], row["depth_max"]) == (3, 9)


def test_failures_have_reasons_ratios_and_the_key_that_failed_most():
    rows = [
        fact("step", 0, queue="q", kind="delivered", consumer="a", count=50, redelivered=10, last_uid=7),
        fact("step", 0, queue="q", kind="delivered", consumer="b", count=50, redelivered=5, last_uid=9),
        fact("step", 0, queue="q", kind="requeued", reason="client", count=20, last_uid=8),
        fact("key", 0, exchange="x", queue="q", name="good", kind="requeued", reason="client", count=4),
        fact("key", 0, exchange="y", queue="q", name="good", kind="requeued", reason="client", count=4),
        fact("key", 0, exchange="x", queue="q", name="bad", kind="requeued", reason="client", count=12),
        fact("step", 0, queue="idle", kind="enqueued", count=10),
        fact("step", 0, queue="idle", kind="expired", reason="expired", count=5),
        fact("step", 0, queue="idle", kind="dead_lettered", reason="expired", count=5),
    ]
    found = answers("failures", rows)
    requeued = found[at(0), "/", "q", "requeued", "client"]
    assert (requeued["count"], requeued["per_second"], requeued["failure_ratio"]) == (20, 2.0, 0.2)
    assert (requeued["top_key"], requeued["top_key_count"]) == ("bad", 12)
    assert requeued["example_uid"] == uid_text(8)
    again = found[at(0), "/", "q", "redelivered", ""]
    assert (again["count"], again["failure_ratio"], again["top_key"]) == (15, 0.15, None)
    assert found[at(0), "/", "idle", "expired", "expired"]["failure_ratio"] == 0.5
    assert len(found) == 4


def test_hot_keys_are_ranked_and_poison_is_named():
    rows = [
        fact("step", 0, exchange="x", kind="published", count=100),
        fact("key", 0, exchange="x", name="hot", kind="published", count=60, bytes=600),
        fact("key", 0, exchange="x", name="warm", kind="published", count=30),
        fact("key", 0, exchange="x", name="cold", kind="published", count=8),
        fact("key", 0, exchange="x", name="bad", kind="published", count=2),
        fact("key", 0, exchange="x", queue="q", name="bad", kind="nacked", count=90),
        fact("key", 0, exchange="x", queue="q", name="bad", kind="requeued", reason="client", count=88),
        fact("key", 0, exchange="x", queue="q", name="bad", kind="dropped", reason="delivery_limit", count=2),
        fact("key", 0, exchange="x", queue="q", name="hot", kind="requeued", reason="client", count=61),
    ]
    found = answers("hot_keys", rows, AnalysisOptions(top=2))
    assert {key[3]: (row["rank"], row["failed"], row["poison"]) for key, row in found.items()} == {
        "hot": (1, 61, False), "warm": (2, 0, False), "bad": (4, 90, True),
    }  # fmt: skip
    assert found[at(0), "/", "x", "hot"]["share_ratio"] == 0.6
    assert found[at(0), "/", "x", "hot"]["bytes"] == 600


def test_flow_goes_from_exchanges_over_queues_to_consumers():
    rows = [
        fact("step", 0, exchange="x", queue="q", kind="enqueued", count=40, bytes=400),
        fact("step", 0, exchange="x", queue="q", consumer="a", connection="1", kind="delivered", count=25),
        fact("step", 0, exchange="x", queue="q", consumer="a", connection="2", kind="delivered", count=5),
        fact("step", 0, exchange="x", queue="q", kind="delivered", reason="auto_ack", count=10),
        fact("step", 0, exchange="x", queue="q", consumer="a", kind="acked", count=30),
    ]
    found = answers("flow", rows)
    assert {key[2:]: (row["count"], row["per_second"]) for key, row in found.items()} == {
        ("exchange", "x", "queue", "q"): (40, 4.0),
        ("queue", "q", "consumer", "a"): (30, 3.0),
        ("queue", "q", "consumer", "basic.get"): (10, 1.0),
    }


def test_duplicates_are_reported_by_message_id_and_by_where_they_were_dropped():
    rows = [
        fact("message", 0, name="order-1", count=2, first_uid=5, last_uid=9, first_time=at(1), last_time=at(3)),
        fact("step", 0, exchange="x", queue="q", kind="dropped", reason="duplicate", count=4, first_uid=1, last_uid=2),
        fact("step", 0, exchange="x", kind="dropped", reason="duplicate", count=3, first_uid=1, last_uid=2),
        fact("step", 0, queue="q", kind="dropped", reason="maxlen", count=50),
    ]
    found = answers("duplicates", rows)
    published = found[at(0), "/", "published", "order-1"]
    assert (published["times"], published["apart_us"]) == (2, 2_000_000)
    assert (published["first_uid"], published["last_uid"]) == (uid_text(5), uid_text(9))
    assert {key[2:]: row["times"] for key, row in found.items() if key[2] == "dropped"} == {
        ("dropped", "q"): 4, ("dropped", "x"): 3,
    }  # fmt: skip


def test_unroutable_messages_are_reported_by_exchange_and_key():
    rows = [
        fact("key", 0, exchange="x", name="lost", kind="unroutable", reason="no_route", count=7, last_uid=77),
        fact("key", 0, exchange="x", name="lost", kind="returned", reason="no_route", count=2, last_uid=70),
        fact("key", 0, exchange="x", name="rare", kind="unroutable", reason="no_route", count=1, last_uid=1),
        fact("key", 0, exchange="x", name="fine", kind="published", count=500),
    ]
    found = answers("unroutable", rows, AnalysisOptions(top=1))
    [(key, row)] = found.items()
    assert key == (at(0), "/", "x", "lost")
    assert (row["count"], row["returned"], row["per_second"], row["example_uid"]) == (7, 2, 0.7, uid_text(77))


def test_sessions_go_on_over_the_ends_of_windows_until_they_are_silent():
    def part(window, name, first, last, **counts):
        return fact("session", window, name=name, first_time=at(first), last_time=at(last), **counts)

    rows = [
        part(0, "a", 1, 9, messages=2, settled=1),
        part(1, "a", 12, 15, messages=1, settled=2, failed=1),
        part(6, "a", 60, 61, messages=1, settled=1),
        part(0, "b", 3, 4, messages=5, settled=5),
    ]
    found = answers("sessions", rows, AnalysisOptions(id_window="10 seconds"))
    second = found[at(10), "/", "a"]
    assert (second["started"], second["ended"], second["duration_us"]) == (at(1), at(15), 14_000_000)
    assert (second["messages"], second["settled"], second["failed"]) == (3, 3, 1)
    third = found[at(60), "/", "a"]
    assert (third["started"], third["messages"]) == (at(60), 1)
    assert len(found) == 4
    worst = answers("sessions", rows, AnalysisOptions(id_window="10 seconds", top=1))
    assert set(worst) == {(at(0), "/", "a"), (at(10), "/", "a"), (at(60), "/", "a")}


def test_uids_in_answers_are_written_as_everywhere():
    uids = [1, 31, 32, 816241961236168704, (1 << 63) - 1]
    rows = [
        fact("key", number, exchange="x", name="k", kind="unroutable", count=1, last_uid=uid)
        for number, uid in enumerate(uids)
    ]
    found = answers("unroutable", rows)
    assert [found[at(10 * number), "/", "x", "k"]["example_uid"] for number in range(len(uids))] == [
        uid_text(uid) for uid in uids
    ]


def test_every_virtual_host_has_its_own_answers():
    rows = [
        fact("step", 0, vhost=vhost, queue="q", consumer="c", connection="n", kind="delivered", count=count)
        for vhost, count in (("/", 3), ("blue", 4))
    ]
    for name in ("consumers", "flow", "throughput"):
        assert {key[1] for key in answers(name, rows)} == {"/", "blue"}


def test_a_stuck_consumer_is_reported_once_and_again_after_a_long_silence_of_all():
    rows = [fact("step", 0, queue="q", consumer="c", connection="n", kind="delivered", count=5)]
    rows += [fact("step", window, exchange="x", kind="published", count=1) for window in (10, 11, 12, 60, 61)]
    found = answers("anomalies", rows)
    assert [key[0] for key in sorted(found)] == [at(100), at(600)]
    assert {key[2:] for key in found} == {("consumer", "q / c / n / 0", "stuck")}


def test_no_facts_are_no_answers():
    for job in jobs.ALL:
        empty = job.answer(fact_table([]), OPTIONS, 0)
        assert {"window_start", "window_end", "vhost", *job.keys} <= set(empty.column_names)
        assert empty.num_rows == 0
