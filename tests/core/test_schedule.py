"""Scheduled messages: `x-delay`, `x-deliver-at`, and the exchange type x-delayed-message."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, advance, assert_nothing_is_held, make_broker, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.delayed import Cursor
from warrenmq.core.errors import CommandInvalid, PreconditionFailed
from warrenmq.core.exchange import Exchange
from warrenmq.core.schedule import ScheduledMessage
from warrenmq.protocol import properties

NOW = 1_000_000_000_000


@pytest.fixture
def broker() -> Broker:
    return make_broker(now_ms=NOW)


def schedule(channel: ClientChannel, bodies: str, key: str = "q", exchange: str = "", **headers: Any) -> None:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    for letter in bodies:
        channel.publish(letter.encode(), key, exchange, headers=names)


def listed(broker: Broker, after: Cursor | None = None, count: int = 100) -> list[ScheduledMessage]:
    pages: list[list[ScheduledMessage]] = []
    broker.vhosts["/"].schedule.list_from(after, count, lambda found, _: pages.append(found))
    (found,) = pages
    return found


def test_a_delayed_message_arrives_when_its_time_comes(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    schedule(channel, "a", x_delay=100)
    assert (waiting(queue), len(broker.vhosts["/"].schedule)) == ("", 1)
    advance(broker, 99)
    assert waiting(queue) == ""
    advance(broker, 17)
    assert (waiting(queue), len(broker.vhosts["/"].schedule)) == ("a", 0)
    channel.get(queue)
    assert_nothing_is_held(broker)


def test_messages_arrive_in_the_order_of_their_times(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    for letter, delay in (("c", 300), ("a", 100), ("d", 400), ("b", 200)):
        schedule(channel, letter, x_delay=delay)
    advance(broker, 216)
    assert waiting(queue) == "ab"
    advance(broker, 200)
    assert waiting(queue) == "abcd"


@pytest.mark.parametrize(
    "moment",
    [
        datetime.fromtimestamp(NOW / 1000 + 5, UTC),
        NOW + 5000,
        "2001-09-09T01:46:45Z",
        "2001-09-09T03:46:45+02:00",
        "2001-09-09 01:46:45",
    ],
)
def test_a_message_can_be_scheduled_for_a_time(channel: ClientChannel, broker: Broker, moment: Any) -> None:
    queue = channel.declare("q")
    schedule(channel, "a", x_deliver_at=moment)
    advance(broker, 4999)
    assert waiting(queue) == ""
    advance(broker, 17)
    assert waiting(queue) == "a"


@pytest.mark.parametrize(
    "headers", [{"x_delay": 0}, {"x_delay": -5}, {"x_delay": "-5"}, {"x_deliver_at": NOW}, {"x_deliver_at": 0}]
)
def test_a_time_that_has_come_delays_nothing(channel: ClientChannel, headers: dict[str, Any]) -> None:
    queue = channel.declare("q")
    schedule(channel, "a", **headers)
    assert waiting(queue) == "a"


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"x_delay": "soon"}, "invalid header 'x-delay': expected milliseconds, at most ten years, got 'soon'"),
        ({"x_delay": True}, "invalid header 'x-delay': expected milliseconds, at most ten years, got bool"),
        ({"x_delay": 1.5}, "invalid header 'x-delay': expected milliseconds, at most ten years, got double"),
        ({"x_delay": 1 << 50}, f"invalid header 'x-delay': expected milliseconds, at most ten years, got '{1 << 50}'"),
        ({"x_deliver_at": "noon"}, "invalid header 'x-deliver-at': expected a time in ISO 8601, got 'noon'"),
        (
            {"x_deliver_at": 1 << 50},
            f"invalid header 'x-deliver-at': expected a time within ten years, got '{1 << 50}'",
        ),
    ],
)
def test_an_invalid_time_is_refused(channel: ClientChannel, headers: dict[str, Any], text: str) -> None:
    channel.declare("q")
    with pytest.raises(PreconditionFailed, match=text):
        schedule(channel, "a", **headers)


def test_a_text_of_digits_is_a_delay(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    schedule(channel, "a", x_delay="100")
    assert waiting(queue) == ""
    advance(broker, 116)
    assert waiting(queue) == "a"


def test_consumers_get_the_delay_negated(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    schedule(channel, "a", x_delay=100, color="red")
    advance(broker, 116)
    got = channel.get(queue)
    assert got is not None
    assert got.message.properties.headers == {"color": "red", "x-delay": -100}
    assert (got.message.exchange, got.message.routing_key, got.redelivered) == ("", "q", False)


def test_a_message_is_routed_by_the_bindings_of_its_time(channel: ClientChannel, broker: Broker) -> None:
    topics = channel.declare_exchange("topics", "topic")
    before, after = channel.declare("before"), channel.declare("after")
    channel.bind("topics", before, "a.*")
    schedule(channel, "m", "a.b", "topics", x_delay=100)
    channel.unbind("topics", before, "a.*")
    channel.bind("topics", after, "#")
    advance(broker, 116)
    assert (waiting(before), waiting(after)) == ("", "m")
    assert isinstance(topics, Exchange)


def test_carbon_copies_are_delayed_too(channel: ClientChannel, broker: Broker) -> None:
    queues = [channel.declare(name) for name in ("q", "cc", "bcc")]
    channel.publish(b"a", "q", headers={"x-delay": 100, "CC": ["cc"], "BCC": ["bcc"]})
    assert [waiting(queue) for queue in queues] == ["", "", ""]
    advance(broker, 116)
    assert [waiting(queue) for queue in queues] == ["a", "a", "a"]


def test_a_message_for_no_queue_is_dropped_when_it_is_due(channel: ClientChannel, broker: Broker) -> None:
    channel.declare_exchange("gone")
    schedule(channel, "a", "nowhere", x_delay=100)
    schedule(channel, "b", "key", "gone", x_delay=100)
    broker.vhosts["/"].delete_exchange("gone", False)
    advance(broker, 116)
    assert broker.stats.unroutable == 2
    assert_nothing_is_held(broker)


def test_a_mandatory_message_without_a_queue_is_returned_at_once(channel: ClientChannel, broker: Broker) -> None:
    channel.publish(b"a", "nowhere", mandatory=True, headers={"x-delay": 100})
    assert len(channel.returns()) == 1
    queue = channel.declare("q")
    channel.publish(b"b", "q", mandatory=True, headers={"x-delay": 100})
    assert (channel.returns(), waiting(queue)) == ([], "")
    advance(broker, 116)
    assert waiting(queue) == "b"


def test_a_scheduled_message_is_confirmed_when_it_is_kept(channel: ClientChannel, broker: Broker) -> None:
    channel.core.select_confirms()
    channel.declare("q")
    schedule(channel, "ab", x_delay=100)
    broker.end_turn()
    assert channel.confirms() == [(2, True)]


def test_a_transaction_schedules_on_commit(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.core.select_transactions()
    schedule(channel, "a", x_delay=100)
    assert len(broker.vhosts["/"].schedule) == 0
    channel.core.rollback()
    schedule(channel, "b", x_delay=100)
    channel.core.commit()
    assert len(broker.vhosts["/"].schedule) == 1
    advance(broker, 116)
    assert waiting(queue) == "b"


def test_the_ttl_starts_when_the_message_is_queued(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.publish(b"a", "q", expiration="50", headers={"x-delay": 100})
    advance(broker, 116)
    assert waiting(queue) == "a"
    advance(broker, 66)
    assert waiting(queue) == ""


def test_messages_of_the_broker_can_be_scheduled(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    header = properties.content_header(1, properties.BasicProperties(headers={"x-delay": 100}))
    broker.vhosts["/"].publish("", "q", header, b"a")
    assert waiting(queue) == ""
    advance(broker, 116)
    assert waiting(queue) == "a"


def test_the_vhost_and_its_schedule_are_deleted_together(broker: Broker) -> None:
    broker.add_vhost("other")
    broker.users.grant("guest", "other", ".*", ".*", ".*")
    channel = Client(broker, "other").channel()
    channel.declare("q")
    schedule(channel, "abc", x_delay=100)
    broker.delete_vhost("other")
    advance(broker, 116)
    assert broker.stats.held_bytes == 0
    assert broker.stats.expiry_bytes == 0


# -- one by one ------------------------------------------------------------------------------------------------------


def test_scheduled_messages_are_listed_by_time(channel: ClientChannel, broker: Broker) -> None:
    for letter, delay in (("c", 300), ("a", 100), ("d", 300), ("b", 200)):
        schedule(channel, letter, x_delay=delay)
    found = listed(broker)
    assert [(each.body, each.due_ms - NOW) for each in found] == [(b"a", 100), (b"b", 200), (b"c", 300), (b"d", 300)]
    assert (found[0].exchange, found[0].routing_key) == ("", "q")
    pages: list[tuple[bytes, bool]] = []
    cursor: Cursor | None = None
    for _ in range(3):
        answers: list[tuple[list[ScheduledMessage], Cursor | None]] = []
        broker.vhosts["/"].schedule.list_from(cursor, 2, lambda *answer, to=answers: to.append(answer))
        ((page, cursor),) = answers
        pages.append((b"".join(each.body for each in page), cursor is None))
    assert pages == [(b"ab", False), (b"cd", False), (b"", True)]


def test_a_scheduled_message_can_be_found_and_cancelled(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    schedule(channel, "abc", x_delay=100)
    vhost = broker.vhosts["/"]
    id = next(each.id for each in listed(broker) if each.body == b"b")
    found: list[ScheduledMessage | None] = []
    vhost.schedule.find(id, found.append)
    vhost.schedule.cancel(id, found.append)
    vhost.schedule.cancel(id, found.append)
    vhost.schedule.find(id, found.append)
    assert [each and each.body for each in found] == [b"b", b"b", None, None]
    assert "".join(each.body.decode() for each in listed(broker)) == "ac"
    advance(broker, 116)
    assert waiting(queue) == "ac"
    assert broker.stats.expiry_bytes == 0


def test_without_scheduled_messages_nothing_is_found(broker: Broker) -> None:
    vhost = broker.vhosts["/"]
    found: list[Any] = []
    vhost.schedule.find(1, found.append)
    vhost.schedule.cancel(1, found.append)
    assert (listed(broker), found) == ([], [None, None])


# -- x-delayed-message -----------------------------------------------------------------------------------------------


def declare(broker: Broker, name: str = "delayed", **arguments: Any) -> Exchange:
    names = {argument.replace("_", "-"): value for argument, value in arguments.items()}
    return broker.vhosts["/"].declare_exchange(name, "x-delayed-message", True, False, False, names)


@pytest.mark.parametrize(("type", "key"), [("direct", "k"), ("topic", "*"), ("fanout", "other"), ("x-random", "")])
def test_a_delayed_exchange_routes_like_its_type(channel: ClientChannel, broker: Broker, type: str, key: str) -> None:
    declare(broker, x_delayed_type=type)
    queue = channel.declare("q")
    channel.bind("delayed", queue, key)
    schedule(channel, "a", "k", "delayed", x_delay=100)
    schedule(channel, "b", "k", "delayed")
    assert waiting(queue) == "b"
    advance(broker, 116)
    assert waiting(queue) == "ba"


@pytest.mark.parametrize("arguments", [{}, {"x_delayed_type": "x-delayed-message"}, {"x_delayed_type": 1}])
def test_a_delayed_exchange_needs_a_type(broker: Broker, arguments: dict[str, Any]) -> None:
    with pytest.raises(
        PreconditionFailed, match="Invalid argument, 'x-delayed-type' must be an existing exchange type"
    ):
        declare(broker, **arguments)


def test_a_delayed_exchange_is_redeclared_with_the_same_type(broker: Broker) -> None:
    exchange = declare(broker, x_delayed_type="fanout")
    assert declare(broker, x_delayed_type="fanout") is exchange
    with pytest.raises(PreconditionFailed, match="inequivalent arg 'x-delayed-type'"):
        declare(broker, x_delayed_type="direct")
    with pytest.raises(CommandInvalid):
        broker.vhosts["/"].declare_exchange("other", "x-delay", True, False, False, {})
