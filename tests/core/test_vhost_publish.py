"""`VHost.publish`: publishing without a channel."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker, waiting
from tests.support.rejecting import add_rejecting_queue
from tests.support.storage import ManualStorage
from warrenmq.core.broker import Broker
from warrenmq.core.errors import AccessRefused, NotFound, NotImplementedHere, PreconditionFailed
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED, REJECTED, UNROUTED
from warrenmq.core.ports import SYNCED
from warrenmq.core.queue import Queue
from warrenmq.core.vhost import TRACE_EXCHANGE, VHost
from warrenmq.protocol.properties import BasicProperties, content_header


def publish(vhost: VHost, body: str, key: str, exchange: str = "", *, settling: bool = False, **properties: Any) -> int:
    header = content_header(len(body), BasicProperties(**properties))
    vhost.broker.turn.is_settling = settling  # as while dead letters are published
    try:
        return vhost.publish(exchange, key, header, body.encode())
    finally:
        vhost.broker.turn.is_settling = False


@pytest.fixture
def vhost(channel: ClientChannel) -> VHost:
    return channel.vhost


@pytest.fixture
def second(channel: ClientChannel) -> Queue:
    return channel.declare("second")


# -- outcomes


def test_what_waits_is_queued_and_what_meets_a_consumer_is_delivered(
    vhost: VHost, channel: ClientChannel, queue: Queue
) -> None:
    assert publish(vhost, "1", "q") == QUEUED
    assert waiting(queue) == "1"
    channel.consume(queue)
    assert channel.bodies() == "1"
    assert publish(vhost, "2", "q") == DELIVERED
    assert channel.bodies() == "2"


def test_what_no_queue_takes_is_unrouted_and_counts_for_no_publisher(broker: Broker, vhost: VHost) -> None:
    assert publish(vhost, "1", "nowhere") == UNROUTED
    assert (broker.stats.published, broker.stats.unroutable) == (0, 0)


def test_the_outcome_says_what_a_confirm_would_wait_for() -> None:
    broker = make_broker(ManualStorage())
    channel = Client(broker).channel()
    channel.declare("durable", durable=True)
    assert publish(channel.vhost, "1", "durable") == QUEUED
    assert publish(channel.vhost, "1", "durable", delivery_mode=PERSISTENT) == QUEUED | SYNCED


def test_a_rejection_is_returned_beside_what_became_of_the_rest(
    vhost: VHost, channel: ClientChannel, queue: Queue
) -> None:
    for target in (queue, add_rejecting_queue(vhost)):
        channel.bind("amq.fanout", target)
    assert publish(vhost, "1", "", "amq.fanout") == QUEUED | REJECTED


# -- where it goes: as a client's publish


def test_alternate_exchanges_take_what_finds_no_queue(vhost: VHost, channel: ClientChannel, queue: Queue) -> None:
    channel.declare_exchange("x", alternate="amq.fanout")
    channel.bind("amq.fanout", queue)
    assert publish(vhost, "1", "k", "x") == QUEUED
    assert waiting(queue) == "1"


def test_cc_and_bcc_are_further_keys_and_bcc_is_taken_out(vhost: VHost, queue: Queue, second: Queue) -> None:
    publish(vhost, "1", "nowhere", headers={"CC": ["q"], "BCC": ["second"]})
    assert (waiting(queue), waiting(second)) == ("1", "1")
    (entry,) = queue.backlog
    assert entry.message.properties.headers == {"CC": ["q"]}


def test_headers_decide_at_a_headers_exchange(vhost: VHost, channel: ClientChannel, queue: Queue) -> None:
    channel.bind("amq.headers", queue, a=1)
    assert publish(vhost, "1", "", "amq.headers", headers={"a": 2}) == UNROUTED
    assert publish(vhost, "2", "", "amq.headers", headers={"a": 1}) == QUEUED
    assert waiting(queue) == "2"


def test_an_exchange_drops_duplicates(broker: Broker, vhost: VHost, queue: Queue) -> None:
    vhost.declare_exchange("once", "fanout", False, False, False, {"x-message-deduplication": True})
    vhost.bind("once", queue, "", {})
    assert publish(vhost, "1", "", "once", headers={"x-deduplication-header": "a"}) == QUEUED
    assert publish(vhost, "2", "", "once", headers={"x-deduplication-header": "a"}) == DROPPED
    assert (waiting(queue), broker.stats.deduplicated) == ("1", 1)


def test_an_exchange_does_not_remember_what_a_queue_rejected(vhost: VHost) -> None:
    full = add_rejecting_queue(vhost)
    vhost.declare_exchange("once", "fanout", False, False, False, {"x-message-deduplication": True})
    vhost.bind("once", full, "", {})
    assert publish(vhost, "1", "", "once", headers={"x-deduplication-header": "a"}) == REJECTED
    full.is_full = False
    assert publish(vhost, "2", "", "once", headers={"x-deduplication-header": "a"}) == QUEUED


def test_a_change_of_topology_counts_for_the_next_publish(vhost: VHost, channel: ClientChannel, queue: Queue) -> None:
    assert publish(vhost, "1", "k", "amq.direct") == UNROUTED
    channel.bind("amq.direct", queue, "k")
    assert publish(vhost, "2", "k", "amq.direct") == QUEUED
    channel.delete(queue)
    assert publish(vhost, "3", "k", "amq.direct") == UNROUTED


def test_a_queue_drops_duplicates(vhost: VHost, channel: ClientChannel) -> None:
    channel.declare("once", arguments={"x-message-deduplication": True})
    assert publish(vhost, "1", "once", headers={"x-deduplication-header": "a"}) == QUEUED
    assert publish(vhost, "2", "once", headers={"x-deduplication-header": "a"}) == DROPPED


def test_an_answer_reaches_the_channel_that_waits_for_it(vhost: VHost, channel: ClientChannel) -> None:
    address = channel.start_replies()
    assert publish(vhost, "1", address) == DELIVERED
    assert channel.bodies() == "1"
    assert publish(vhost, "1", address + "x") == UNROUTED


def test_keys_need_not_be_text(vhost: VHost, channel: ClientChannel) -> None:
    queue = channel.declare("\udcff")
    assert publish(vhost, "1", "\udcff") == QUEUED
    (entry,) = queue.backlog
    assert entry.message.routing_key == "\udcff"


# -- refusals


def test_an_exchange_that_does_not_exist_is_refused(vhost: VHost) -> None:
    with pytest.raises(NotFound, match="no exchange 'x' in vhost '/'"):
        publish(vhost, "1", "k", "x")


def test_internal_exchanges_need_is_internal(vhost: VHost, channel: ClientChannel, queue: Queue) -> None:
    channel.bind(TRACE_EXCHANGE, queue, "#")
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange"):
        publish(vhost, "1", "k", TRACE_EXCHANGE)
    header = content_header(1, BasicProperties())
    assert vhost.publish(TRACE_EXCHANGE, "k", header, b"1", is_internal=True) == QUEUED
    with pytest.raises(AccessRefused):  # though the route is known now
        publish(vhost, "1", "k", TRACE_EXCHANGE)


def test_properties_are_checked_but_for_the_users_own(vhost: VHost, queue: Queue) -> None:
    assert publish(vhost, "1", "q", user_id="somebody", reply_to="amq.rabbitmq.reply-to") == QUEUED
    (entry,) = queue.backlog
    assert entry.message.properties.reply_to == "amq.rabbitmq.reply-to"
    with pytest.raises(PreconditionFailed, match="invalid expiration"):
        publish(vhost, "1", "q", expiration="soon")


# -- a client's route


def test_a_client_may_not_publish_to_an_internal_exchange(vhost: VHost) -> None:
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange"):
        vhost.find_route(b"method", TRACE_EXCHANGE, "k", b"", False, False)


def test_immediate_is_not_implemented(vhost: VHost) -> None:
    with pytest.raises(NotImplementedHere, match="immediate=true"):
        vhost.find_route(b"method", "", "q", b"", False, True)
    assert not vhost.routes


def test_routes_to_reply_addresses_are_not_kept(vhost: VHost, channel: ClientChannel) -> None:
    address = channel.start_replies()
    route = vhost.find_route(b"method", "", address, b"", False, False)
    assert [queue.name for queue in route.queues or []] == [address]
    assert not vhost.routes


# -- in the middle of a settlement


def test_nothing_is_delivered_in_the_middle_of_a_settlement(
    broker: Broker, vhost: VHost, channel: ClientChannel, queue: Queue
) -> None:
    channel.consume(queue, no_ack=True)
    assert publish(vhost, "1", "q", settling=True) == QUEUED
    assert publish(vhost, "2", "q", settling=True) == QUEUED
    channel.publish(b"3", "q")  # it finds others in line
    assert channel.client.outbox.said == []
    assert channel.bodies() == "123"


def test_an_answer_waits_for_the_end_of_the_turn_too(vhost: VHost, channel: ClientChannel) -> None:
    address = channel.start_replies()
    for body in "12":
        assert publish(vhost, body, address, settling=True) == QUEUED
    assert channel.client.outbox.said == []
    assert channel.bodies() == "12"
    publish(vhost, "3", address, settling=True)
    channel.close()
    assert channel.bodies() == ""


def test_it_is_stored_in_the_epoch_of_the_settlement() -> None:
    storage = ManualStorage()
    broker = make_broker(storage)
    channel = Client(broker).channel()
    work = channel.declare("work", durable=True)
    channel.declare("dead", durable=True)
    channel.publish(b"1", "work", delivery_mode=PERSISTENT)
    channel.consume(work)
    (delivered,) = channel.deliveries()
    epoch = storage.log.epoch
    channel.reject(delivered.tag, requeue=False)
    publish(channel.vhost, "1", "dead", settling=True, delivery_mode=PERSISTENT)
    assert (storage.kept("work"), storage.kept("dead")) == ("", "1")
    broker.end_turn()
    assert storage.log.epoch == epoch + 1


def test_a_settlement_ends_with_its_publish(vhost: VHost, channel: ClientChannel, queue: Queue) -> None:
    channel.consume(queue, no_ack=True)
    with pytest.raises(PreconditionFailed):
        publish(vhost, "1", "q", settling=True, expiration="soon")
    assert publish(vhost, "2", "q") == DELIVERED


def test_what_a_delivery_makes_due_is_delivered_in_the_same_turn(
    vhost: VHost, client: Client, channel: ClientChannel, queue: Queue, second: Queue
) -> None:
    bodies = iter("23")

    def publish_next() -> None:
        for body in bodies:
            publish(vhost, body, "second", settling=True)
            return

    client.outbox.on_deliver = publish_next
    channel.consume(queue, "first", no_ack=True)
    channel.consume(second, "second", no_ack=True)
    publish(vhost, "1", "q", settling=True)
    assert channel.bodies() == "123"
