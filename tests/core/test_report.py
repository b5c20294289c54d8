"""Reports to the producer: the headers `x-report-to` and `x-report`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.client import (
    PERSISTENT,
    Client,
    ClientChannel,
    advance,
    assert_nothing_is_held,
    make_broker,
    waiting,
)
from warrenmq.core.broker import Broker
from warrenmq.core.errors import AccessRefused, PreconditionFailed
from warrenmq.core.queue import Queue

NOW = 1_000_000_000_000
TIME = "2001-09-09T01:46:40.000Z"
TO = {"x-report-to": "reports"}
ALL = {**TO, "x-report": "all"}


@pytest.fixture
def broker() -> Broker:
    return make_broker(now_ms=NOW)


@pytest.fixture
def reports(channel: ClientChannel) -> Queue:
    return channel.declare("reports", durable=True)


def declare(channel: ClientChannel, name: str = "q", **arguments: Any) -> Queue:
    return channel.declare(name, arguments={key.replace("_", "-"): value for key, value in arguments.items()})


def take(channel: ClientChannel, reports: Queue) -> list[dict[str, Any]]:
    found = []
    while (got := channel.get(reports)) is not None:
        found.append(json.loads(got.message.body))
    return found


def outcomes(channel: ClientChannel, reports: Queue) -> list[tuple[str, str | None, str | None, int]]:
    return [(each["outcome"], each["reason"], each["queue"], each["attempts"]) for each in take(channel, reports)]


def reject(channel: ClientChannel, queue: Queue) -> None:
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=False)


def test_a_report_says_what_became_of_the_message(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel)
    channel.bind("amq.topic", queue, "order.*")
    properties = {"message_id": "m-1", "correlation_id": "c-1", "delivery_mode": PERSISTENT, "headers": TO}
    channel.publish(b"a", "order.new", "amq.topic", **properties)
    reject(channel, queue)
    got = channel.get(reports)
    assert got is not None
    assert json.loads(got.message.body) == {
        "message_id": "m-1",
        "correlation_id": "c-1",
        "outcome": "dropped",
        "reason": "rejected",
        "queue": "q",
        "exchange": "amq.topic",
        "routing_key": "order.new",
        "attempts": 1,
        "time": TIME,
    }
    report = got.message.properties
    assert (report.content_type, report.type, report.correlation_id) == ("application/json", "warren.report", "c-1")
    assert (report.delivery_mode, report.headers) == (2, None)


def test_a_report_on_a_transient_message_is_transient(channel: ClientChannel, reports: Queue) -> None:
    channel.publish(b"a", "nowhere", headers=TO)
    got = channel.get(reports)
    assert got is not None
    assert got.message.properties.delivery_mode == 1


def test_without_the_header_nothing_is_reported(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel)
    channel.publish(b"a", "q", headers={"x-report": "all"})
    channel.publish(b"b", "nowhere", headers={"about": "x-report-to"})
    reject(channel, queue)
    assert take(channel, reports) == []


@pytest.mark.parametrize("mandatory", [False, True])
def test_unroutable(channel: ClientChannel, reports: Queue, mandatory: bool) -> None:
    channel.publish(b"a", "nowhere", headers=TO, mandatory=mandatory)
    assert outcomes(channel, reports) == [("unroutable", "no_route", None, 0)]


def test_dead_lettered(channel: ClientChannel, reports: Queue) -> None:
    dead = channel.declare("dead")
    queue = declare(channel, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    channel.publish(b"a", "q", headers=TO)
    reject(channel, queue)
    assert outcomes(channel, reports) == [("dead_lettered", "rejected", "q", 1)]
    reject(channel, dead)
    assert outcomes(channel, reports) == [("dropped", "rejected", "dead", 1)]


def test_a_dead_letter_that_no_queue_takes_is_dropped(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel, x_dead_letter_exchange="", x_dead_letter_routing_key="nowhere")
    channel.publish(b"a", "q", headers=TO)
    reject(channel, queue)
    assert outcomes(channel, reports) == [("dropped", "rejected", "q", 1)]


@pytest.mark.parametrize("to", [None, "dead"])
def test_expired(channel: ClientChannel, reports: Queue, broker: Broker, to: str | None) -> None:
    channel.declare("dead")
    letters = {} if to is None else {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": to}
    declare(channel, **letters)
    channel.publish(b"a", "q", headers=TO, expiration="100")
    advance(broker, 200)
    outcome = "expired" if to is None else "dead_lettered"
    assert outcomes(channel, reports) == [(outcome, "expired", "q", 0)]


def test_pushed_out_of_a_full_queue(channel: ClientChannel, reports: Queue) -> None:
    declare(channel, x_max_length=1)
    channel.publish_all("ab", "q", headers=TO)
    assert outcomes(channel, reports) == [("dropped", "maxlen", "q", 0)]


@pytest.mark.parametrize(
    ("overflow", "outcome", "reason"),
    [("reject-publish", "dropped", "refused"), ("reject-publish-dlx", "dead_lettered", "maxlen")],
)
def test_refused_by_a_full_queue(
    channel: ClientChannel, reports: Queue, overflow: str, outcome: str, reason: str
) -> None:
    channel.declare("dead")
    letters = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}
    declare(channel, x_max_length=0, x_overflow=overflow, **letters)
    channel.publish(b"a", "q", headers=TO)
    assert outcomes(channel, reports) == [(outcome, reason, "q", 0)]


def test_a_duplicate(channel: ClientChannel, reports: Queue) -> None:
    declare(channel, x_message_deduplication=True)
    for _ in range(2):
        channel.publish(b"a", "q", headers={**TO, "x-deduplication-header": "1"})
    assert outcomes(channel, reports) == [("dropped", "duplicate", "q", 0)]


def test_a_retry_is_reported_after_the_last_attempt(channel: ClientChannel, reports: Queue, broker: Broker) -> None:
    queue = declare(channel, x_retry_max=1, x_retry_delay=0)
    channel.publish(b"a", "q", headers=TO)
    reject(channel, queue)
    advance(broker, 16)
    assert outcomes(channel, reports) == []
    reject(channel, queue)
    assert outcomes(channel, reports) == [("dead_lettered", "delivery_limit", "q", 2)]


def test_acks_are_reported_on_request(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel)
    channel.publish(b"a", "q", headers=TO)
    channel.publish(b"b", "q", headers=ALL)
    channel.consume(queue)
    for delivered in channel.deliveries():
        channel.ack(delivered.tag)
    assert outcomes(channel, reports) == [("acked", None, "q", 1)]


def test_deliveries_without_acks_count_as_acked(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel)
    channel.publish(b"a", "q", headers=ALL)
    channel.get(queue)
    channel.publish(b"b", "q", headers=ALL)
    channel.consume(queue, no_ack=True)
    assert channel.bodies() == "b"
    channel.publish(b"c", "q", headers=ALL)
    assert channel.bodies() == "c"
    assert outcomes(channel, reports) == 3 * [("acked", None, "q", 1)]


def test_acks_in_a_transaction_are_reported_when_it_is_committed(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel)
    channel.core.select_transactions()
    channel.publish(b"a", "q", headers=ALL)
    channel.publish(b"b", "nowhere", headers=ALL)
    assert waiting(reports) == ""
    channel.core.commit()
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.ack(got.tag)
    assert outcomes(channel, reports) == [("unroutable", "no_route", None, 0)]
    channel.core.commit()
    assert outcomes(channel, reports) == [("acked", None, "q", 1)]


def test_scheduled_messages(channel: ClientChannel, reports: Queue, broker: Broker) -> None:
    channel.publish(b"a", "nowhere", headers={**TO, "x-delay": 100})
    channel.publish(b"b", "nowhere", headers={**TO, "x-delay": 5000})
    advance(broker, 200)
    assert outcomes(channel, reports) == [("unroutable", "no_route", None, 0)]
    broker.vhosts["/"].schedule.cancel(1, lambda _: None)
    assert outcomes(channel, reports) == [("dropped", "cancelled", None, 0)]


def test_a_purge_is_not_reported(channel: ClientChannel, reports: Queue) -> None:
    queue = declare(channel)
    channel.publish(b"a", "q", headers=ALL)
    queue.purge()
    channel.publish(b"b", "q", headers=ALL)
    channel.delete(queue)
    assert take(channel, reports) == []


def test_reports_to_a_missing_queue_are_dropped_with_a_warning(channel: ClientChannel, broker: Broker) -> None:
    warnings: list[str] = []
    broker.warning_log.on_warning = warnings.append
    channel.publish(b"a", "nowhere", headers=TO)
    assert warnings == [
        "queue 'reports' in vhost '/', to which producers want reports, does not exist or takes no message: "
        "the reports are dropped"
    ]
    assert_nothing_is_held(broker)


def test_reports_push_out_messages_that_want_reports(channel: ClientChannel, broker: Broker) -> None:
    reports = declare(channel, "reports", x_max_length=3)
    for _ in range(3):
        channel.publish(b"a", "reports", headers=TO)
    channel.publish(b"b", "reports", headers=TO)
    assert outcomes(channel, reports) == 3 * [("dropped", "maxlen", "reports", 0)]


def test_reports_are_delivered_in_the_same_turn(channel: ClientChannel, other: ClientChannel, reports: Queue) -> None:
    other.consume(reports, no_ack=True)
    channel.publish(b"a", "nowhere", headers=TO)
    (report,) = other.deliveries()
    assert json.loads(report.body)["outcome"] == "unroutable"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x-report-to": 5}, "invalid header 'x-report-to': expected the name of a queue, got '5'"),
        ({"x-report-to": ["q"]}, "invalid header 'x-report-to': expected the name of a queue, got array"),
        ({**TO, "x-report": "some"}, "invalid header 'x-report': expected 'all', got 'some'"),
    ],
)
def test_invalid_headers_are_refused(channel: ClientChannel, headers: dict[str, Any], text: str) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        channel.publish(b"a", "nowhere", headers=headers)
    assert refused.value.text == text


def test_a_publisher_must_be_allowed_to_publish_to_that_queue(broker: Broker) -> None:
    broker.users.add("worker", "secret")
    broker.users.grant("worker", "/", "", "^amq\\.topic$", "")
    channel = Client(broker, user="worker").channel()
    channel.publish(b"a", "nowhere", "amq.topic")
    with pytest.raises(AccessRefused) as refused:
        channel.publish(b"a", "nowhere", "amq.topic", headers=TO)
    assert refused.value.text == "write access to exchange 'amq.default' in vhost '/' refused for user 'worker'"


def test_a_system_stream_takes_no_reports(channel: ClientChannel, broker: Broker) -> None:
    stream = channel.declare("warren.events", durable=True, arguments={"x-queue-type": "stream"})
    channel.publish(b"a", "nowhere", headers={"x-report-to": "warren.events"})
    assert stream.message_count() == 0
