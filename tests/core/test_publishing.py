"""Routing of published messages: exchanges, alternates, CC and BCC, and properties that matter."""

from __future__ import annotations

import pytest

from tests.support.client import Client, ClientChannel, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.errors import NotFound, PreconditionFailed
from warrenmq.core.queue import Queue


@pytest.fixture
def second(channel: ClientChannel) -> Queue:
    return channel.declare("second")


# -- exchanges


def test_the_default_exchange_leads_to_the_queue_of_that_name(
    channel: ClientChannel, queue: Queue, second: Queue
) -> None:
    channel.publish(b"1", "second")
    assert (waiting(queue), waiting(second)) == ("", "1")


def test_a_direct_exchange_leads_to_every_queue_bound_with_the_key(
    channel: ClientChannel, queue: Queue, second: Queue
) -> None:
    channel.bind("amq.direct", queue, "both")
    channel.bind("amq.direct", second, "both")
    channel.bind("amq.direct", second, "one")
    for key in ("both", "one", "none"):
        channel.publish(key[:1].encode(), key, "amq.direct")
    assert (waiting(queue), waiting(second)) == ("b", "bo")


def test_a_fanout_exchange_leads_everywhere_whatever_the_key(
    channel: ClientChannel, queue: Queue, second: Queue
) -> None:
    channel.bind("amq.fanout", queue, "a")
    channel.bind("amq.fanout", second)
    channel.publish(b"1", "anything", "amq.fanout")
    assert (waiting(queue), waiting(second)) == ("1", "1")


def test_a_topic_exchange_leads_by_words(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    channel.bind("amq.topic", queue, "stock.*.nyse")
    channel.bind("amq.topic", second, "stock.#")
    channel.publish(b"1", "stock.ibm.nyse", "amq.topic")
    channel.publish(b"2", "stock", "amq.topic")
    channel.publish(b"3", "bond", "amq.topic")
    assert (waiting(queue), waiting(second)) == ("1", "12")


def test_a_headers_exchange_looks_into_each_message(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    channel.bind("amq.headers", queue, **{"x-match": "all", "size": 1, "colour": "red"})
    channel.bind("amq.headers", second, **{"x-match": "any", "size": 1, "colour": "red"})
    channel.publish(b"1", "", "amq.headers", headers={"size": 1, "colour": "red"})
    channel.publish(b"2", "", "amq.headers", headers={"size": 2, "colour": "red"})
    channel.publish(b"3", "", "amq.headers", headers={"size": 2})
    channel.publish(b"4", "", "amq.headers")
    assert (waiting(queue), waiting(second)) == ("1", "12")


def test_a_message_reaches_a_queue_once_whatever_the_number_of_ways(channel: ClientChannel, queue: Queue) -> None:
    channel.bind("amq.topic", queue, "a.*")
    channel.bind("amq.topic", queue, "#")
    channel.bind("amq.topic", channel.vhost.exchange("amq.fanout"), "a.#")
    channel.bind("amq.fanout", queue)
    channel.publish(b"1", "a.b", "amq.topic", headers={"CC": ["a.c", "d"]})
    assert waiting(queue) == "1"


def test_an_exchange_that_does_not_exist_is_refused(channel: ClientChannel) -> None:
    with pytest.raises(NotFound, match="no exchange 'nowhere' in vhost '/'"):
        channel.publish(b"1", "", "nowhere")


# -- exchange to exchange, alternates


def test_exchanges_lead_to_exchanges(channel: ClientChannel, queue: Queue) -> None:
    middle = channel.declare_exchange("middle", "topic")
    channel.bind("amq.direct", middle, "a.b")
    channel.bind("middle", queue, "a.#")
    channel.publish(b"1", "a.b", "amq.direct")
    channel.publish(b"2", "a.c", "amq.direct")
    assert waiting(queue) == "1"


def test_exchanges_bound_in_a_circle_deliver_once(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    rings = [channel.declare_exchange(name, "fanout") for name in ("one", "two", "three")]
    for source, destination in zip(rings, rings[1:] + rings[:1], strict=True):
        channel.bind(source.name, destination)
        channel.bind(source.name, source)
    channel.bind("two", queue)
    channel.bind("three", second)
    for name in ("one", "two", "three"):
        channel.publish(b"x", "", name)
    assert (waiting(queue), waiting(second)) == ("xxx", "xxx")


def test_what_finds_no_queue_goes_to_the_alternate_exchange(
    channel: ClientChannel, queue: Queue, second: Queue
) -> None:
    channel.declare_exchange("main", alternate="amq.fanout")
    channel.bind("main", queue, "known")
    channel.bind("amq.fanout", second)
    channel.publish(b"1", "known", "main")
    channel.publish(b"2", "unknown", "main")
    assert (waiting(queue), waiting(second)) == ("1", "2")


def test_alternates_follow_each_other_and_a_circle_of_them_ends(channel: ClientChannel, queue: Queue) -> None:
    channel.declare_exchange("one", alternate="two")
    channel.declare_exchange("two", alternate="three")
    channel.declare_exchange("three", alternate="one")
    channel.publish(b"1", "k", "one", mandatory=True)
    assert [returned.body for returned in channel.returns()] == [b"1"]
    channel.bind("three", queue, "k")
    channel.publish(b"2", "k", "one", mandatory=True)
    assert channel.returns() == []
    assert waiting(queue) == "2"


def test_an_alternate_that_does_not_exist_leads_nowhere(channel: ClientChannel) -> None:
    channel.declare_exchange("main", alternate="gone")
    channel.publish(b"1", "k", "main", mandatory=True)
    assert len(channel.returns()) == 1


def test_the_default_exchange_can_be_an_alternate(channel: ClientChannel, queue: Queue) -> None:
    channel.declare_exchange("main", alternate="")
    channel.publish(b"1", "q", "main")
    assert waiting(queue) == "1"


# -- CC and BCC


def test_cc_and_bcc_are_further_routing_keys(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    third = channel.declare("third")
    channel.publish(b"1", "q", headers={"CC": ["second"], "BCC": ["third", "q"]})
    assert (waiting(queue), waiting(second), waiting(third)) == ("1", "1", "1")


def test_bcc_is_removed_and_everything_else_is_kept(channel: ClientChannel, queue: Queue) -> None:
    channel.declare("second")
    channel.publish(
        b"1", "q", content_type="text/plain", headers={"a": 1, "CC": ["c"], "BCC": ["second"], "z": [True]}, app_id="me"
    )
    (entry,) = queue.backlog
    properties = entry.message.properties
    assert properties.headers == {"a": 1, "CC": ["c"], "z": [True]}
    assert (properties.content_type, properties.app_id) == ("text/plain", "me")


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["q", 1, True, {"q": "q"}])
def test_cc_and_bcc_must_be_arrays(channel: ClientChannel, name: str, value: object) -> None:
    with pytest.raises(PreconditionFailed, match=f'unacceptable_type_in_header,"{name}"'):
        channel.publish(b"1", "q", headers={name: value})


def test_anything_but_strings_in_cc_is_passed_over(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    channel.publish(b"1", "q", headers={"CC": [1, None, "second", ["q"]]})
    assert (waiting(queue), waiting(second)) == ("1", "1")


def test_headers_that_only_look_like_cc_mean_nothing(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    channel.publish(b"1", "q", headers={"cc": ["second"], "ACCESS": "CC", "XCC": ["second"]})
    assert (waiting(queue), waiting(second)) == ("1", "")


# -- other properties


def test_the_user_id_must_be_the_publishers_own(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"1", "q", user_id="guest")
    assert waiting(queue) == "1"
    with pytest.raises(PreconditionFailed, match="user_id property set to 'root' but authenticated user was 'guest'"):
        channel.publish(b"2", "q", user_id="root")
    assert waiting(queue) == "1"


@pytest.mark.parametrize("expiration", ["0", "1", "60000"])
def test_an_expiration_is_a_number_in_digits(channel: ClientChannel, queue: Queue, expiration: str) -> None:
    channel.publish(b"1", "q", expiration=expiration)
    (entry,) = queue.backlog
    assert entry.message.properties.expiration == expiration


@pytest.mark.parametrize("expiration", ["", "-1", "1.5", "soon", "1 ", "\u0661", str(10**12)])
def test_any_other_expiration_is_refused(channel: ClientChannel, queue: Queue, expiration: str) -> None:
    with pytest.raises(PreconditionFailed, match="invalid expiration"):
        channel.publish(b"1", "q", expiration=expiration)
    assert waiting(queue) == ""


def test_what_was_refused_never_reaches_a_queue_nor_gets_a_confirm(
    broker: Broker, channel: ClientChannel, queue: Queue
) -> None:
    channel.core.select_confirms()
    with pytest.raises(PreconditionFailed):
        channel.publish(b"1", "q", user_id="root")
    broker.end_turn()
    assert channel.confirms() == []


def test_the_message_is_the_same_on_its_way_out(channel: ClientChannel, queue: Queue) -> None:
    channel.bind("amq.topic", queue, "#")
    channel.publish(b"body", "a.b", "amq.topic", message_id="m", delivery_mode=1, headers={"k": None})
    channel.consume(queue)
    (delivered,) = channel.deliveries()
    message = delivered.message
    assert (message.exchange, message.routing_key, message.body) == ("amq.topic", "a.b", b"body")
    properties = message.properties
    assert (properties.message_id, properties.delivery_mode, properties.headers) == ("m", 1, {"k": None})


def test_one_message_in_many_queues_is_settled_in_each(channel: ClientChannel, queue: Queue, second: Queue) -> None:
    channel.bind("amq.fanout", queue)
    channel.bind("amq.fanout", second)
    channel.publish(b"1", "", "amq.fanout")
    channel.get(queue, no_ack=False)
    channel.reject(1)
    first, other = next(iter(queue.backlog)), next(iter(second.backlog))
    assert first.message is other.message
    assert (first.redelivered, other.redelivered) == (True, False)


# -- mandatory


def test_a_mandatory_message_without_a_queue_comes_back(broker: Broker, channel: ClientChannel) -> None:
    channel.bind("amq.direct", channel.declare("q"), "k")
    channel.publish(b"1", "nowhere", "amq.direct", mandatory=True, message_id="m")
    (returned,) = channel.returns()
    assert (returned.code, returned.text, returned.body) == (312, "NO_ROUTE", b"1")
    message = returned.message
    assert (message.exchange, message.routing_key, message.properties.message_id) == ("amq.direct", "nowhere", "m")
    assert (broker.stats.returned, broker.stats.unroutable) == (1, 1)


def test_a_mandatory_message_that_finds_a_queue_does_not_come_back(channel: ClientChannel, queue: Queue) -> None:
    channel.publish(b"1", "q", mandatory=True)
    channel.publish(b"2", "nowhere", mandatory=True, headers={"CC": ["q"]})
    assert channel.returns() == []
    assert waiting(queue) == "12"


def test_other_messages_without_a_queue_are_dropped(broker: Broker, channel: ClientChannel) -> None:
    channel.publish(b"1", "nowhere")
    assert channel.returns() == []
    assert broker.stats.unroutable == 1


def test_a_return_comes_before_its_confirm(broker: Broker, client: Client, channel: ClientChannel) -> None:
    channel.core.select_confirms()
    channel.publish(b"1", "nowhere", mandatory=True)
    broker.end_turn()
    assert [type(said).__name__ for said in client.outbox.said] == ["Returned", "Confirmed"]
