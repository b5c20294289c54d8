"""The broker: isolated virtual hosts, and recovery of definitions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import PERSISTENT, Client, ClientChannel, assert_nothing_is_held, make_broker, waiting
from warrenmq.core.broker import Broker
from warrenmq.core.errors import NotAllowed, NotFound
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import EventSink
from warrenmq.core.queue import Queue
from warrenmq.core.snapshot import overview
from warrenmq.events import schema
from warrenmq.storage.memory_store import MemoryStorage

# -- virtual hosts


def test_a_fresh_broker_has_the_default_virtual_host(broker: Broker) -> None:
    assert list(broker.vhosts) == ["/"]


def test_a_virtual_host_that_does_not_exist_cannot_be_opened(broker: Broker) -> None:
    with pytest.raises(NotAllowed, match="vhost none not found"):
        broker.open_vhost("none", "guest")


def test_a_user_without_permissions_cannot_open_it(broker: Broker) -> None:
    broker.users.add("visitor", "secret")
    with pytest.raises(NotAllowed, match="access to vhost '/' refused for user 'visitor'"):
        broker.open_vhost("/", "visitor")
    broker.users.grant("visitor", "/", "", "", "")
    assert broker.open_vhost("/", "visitor") is broker.vhosts["/"]


def test_adding_a_virtual_host_again_returns_the_same_one(broker: Broker) -> None:
    assert broker.add_vhost("a") is broker.add_vhost("a")


def test_virtual_hosts_share_no_names_and_no_messages(broker: Broker) -> None:
    broker.add_vhost("a")
    here, there = Client(broker).channel(), Client(broker, "a").channel()
    mine, theirs = here.declare("q"), there.declare("q", auto_delete=True)
    here.declare_exchange("only here", "fanout")
    here.bind("amq.fanout", mine)
    here.publish(b"1", "q")
    here.publish(b"2", "", "amq.fanout")
    there.publish(b"3", "q")
    there.publish(b"4", "", "amq.fanout")
    assert (waiting(mine), waiting(theirs)) == ("12", "3")
    with pytest.raises(NotFound):
        there.publish(b"5", "", "only here")
    here.delete(mine)
    assert not theirs.is_deleted


def test_a_deleted_virtual_host_takes_everything_with_it(broker: Broker) -> None:
    broker.add_vhost("a")
    channel = Client(broker, "a").channel()
    queue = channel.declare("q", durable=True)
    channel.declare_exchange("x", "fanout", durable=True)
    channel.bind("x", queue)
    channel.publish(b"1", "q", delivery_mode=PERSISTENT)
    channel.consume(queue, prefetch=1)
    broker.end_turn()
    broker.delete_vhost("a")
    assert channel.cancels() == ["consumer"]
    channel.close()
    assert_nothing_is_held(broker)
    fresh = broker.add_vhost("a")
    assert not fresh.queues
    assert "x" not in fresh.exchanges


def test_a_deleted_virtual_host_is_not_found_after_a_restart() -> None:
    storage = MemoryStorage()
    broker = make_broker(storage)
    vhost = broker.add_vhost("a")
    channel = Client(broker, "a").channel()
    channel.declare_exchange("x", "fanout", durable=True)
    channel.bind("x", channel.declare("q", durable=True))
    channel.bind("amq.topic", vhost.exchange("amq.fanout"), "k")
    channel.publish(b"1", "q", delivery_mode=PERSISTENT)
    broker.delete_vhost("a")
    restarted = make_broker(storage)
    assert list(restarted.vhosts) == ["/"]
    assert_nothing_is_held(restarted)
    assert len(restarted.add_vhost("a").bindings) == 0


# -- restart


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def broker(storage: MemoryStorage) -> Broker:
    return make_broker(storage)


def restart(storage: MemoryStorage, vhost: str = "/") -> ClientChannel:
    """Start another broker on the same storage, as after a crash: nothing was closed before."""
    return Client(make_broker(storage), vhost).channel()


def test_a_restart_finds_durable_queues_and_exchanges_and_no_others(
    storage: MemoryStorage, channel: ClientChannel
) -> None:
    channel.declare("kept", durable=True, auto_delete=True, arguments={"x-max-length": 5})
    channel.declare("lost")
    channel.declare_exchange("kept", "topic", durable=True, internal=True, alternate="amq.fanout")
    channel.declare_exchange("lost", "topic")
    after = restart(storage)
    assert list(after.vhost.queues) == ["kept"]
    assert after.declare("kept", durable=True, auto_delete=True, arguments={"x-max-length": 5}).is_durable
    assert "lost" not in after.vhost.exchanges
    again = after.declare_exchange("kept", "topic", durable=True, internal=True, alternate="amq.fanout")
    assert again.alternate == "amq.fanout"


def test_a_restart_finds_persistent_messages_of_durable_queues_in_order(
    storage: MemoryStorage, channel: ClientChannel
) -> None:
    channel.declare("kept", durable=True)
    channel.declare("lost")
    for letter in "12345":
        channel.publish(letter.encode(), "kept", delivery_mode=PERSISTENT)
        channel.publish(b"t", "kept")
        channel.publish(letter.encode(), "lost", delivery_mode=PERSISTENT)
    after = restart(storage)
    queue = after.vhost.queues["kept"]
    assert waiting(queue) == "12345"
    assert after.client.broker.stats.ready == 5
    got = after.get(queue)
    assert got is not None
    assert got.message.properties.delivery_mode == PERSISTENT


def test_a_restart_finds_what_was_unacked_and_not_what_was_settled(
    storage: MemoryStorage, channel: ClientChannel
) -> None:
    queue = channel.declare("kept", durable=True)
    channel.publish_all("123456", "kept", delivery_mode=PERSISTENT)
    for _ in range(5):
        channel.get(queue, no_ack=False)
    channel.ack(1)
    channel.reject(2, requeue=False)
    channel.reject(4)
    after = restart(storage)
    assert waiting(after.vhost.queues["kept"]) == "3456"


def test_what_a_restart_finds_is_marked_as_redelivered_and_keeps_its_place(
    storage: MemoryStorage, channel: ClientChannel
) -> None:
    channel.declare("kept", durable=True)
    channel.publish_all("12", "kept", delivery_mode=PERSISTENT)
    after = restart(storage)
    queue = after.vhost.queues["kept"]
    after.publish_all("3", "kept", delivery_mode=PERSISTENT)
    after.consume(queue, prefetch=2)
    assert [(said.body, said.redelivered) for said in after.deliveries()] == [(b"1", True), (b"2", True)]
    after.close()
    assert waiting(queue) == "123"
    assert waiting(restart(storage).vhost.queues["kept"]) == "123"


def test_a_purged_or_deleted_queue_comes_back_empty_or_not_at_all(
    storage: MemoryStorage, channel: ClientChannel
) -> None:
    for name in ("purged", "deleted"):
        channel.declare(name, durable=True)
        channel.publish_all("12", name, delivery_mode=PERSISTENT)
    channel.vhost.queues["purged"].purge()
    channel.delete(channel.vhost.queues["deleted"])
    after = restart(storage)
    assert [(queue.name, waiting(queue)) for queue in after.vhost.queues.values()] == [("purged", "")]
    assert_nothing_is_held(after.client.broker)


def test_bindings_are_kept_only_if_both_ends_are_durable(storage: MemoryStorage, channel: ClientChannel) -> None:
    durable, transient = channel.declare("durable", durable=True), channel.declare("transient")
    kept = channel.declare_exchange("kept", "topic", durable=True)
    channel.declare_exchange("lost", "topic")
    channel.bind("kept", durable, "a.*", x=1)
    channel.bind("kept", transient, "a.*")
    channel.bind("lost", durable, "a.*")
    channel.bind("lost", kept, "#")
    channel.bind("amq.direct", kept, "a.b")
    channel.bind("amq.direct", durable, "gone")
    channel.unbind("amq.direct", durable, "gone")
    after = restart(storage)
    assert len(after.vhost.bindings) == 2
    after.publish(b"1", "a.b", "amq.direct")
    after.publish(b"2", "gone", "amq.direct")
    queue = after.vhost.queues["durable"]
    assert waiting(queue) == "1"
    after.unbind("kept", queue, "a.*", x=1)
    assert len(restart(storage).vhost.bindings) == 1


def test_exclusive_queues_are_not_kept_even_if_durable(storage: MemoryStorage, channel: ClientChannel) -> None:
    queue = channel.declare("mine", durable=True, exclusive=True)
    channel.bind("amq.direct", queue, "k")
    channel.publish(b"1", "mine", delivery_mode=PERSISTENT)
    after = restart(storage)
    assert not after.vhost.queues
    assert len(after.vhost.bindings) == 0
    assert waiting(after.declare("mine", durable=True)) == ""


def test_virtual_hosts_are_kept_with_what_is_in_them(storage: MemoryStorage, broker: Broker) -> None:
    broker.add_vhost("a")
    channel = Client(broker, "a").channel()
    channel.bind("amq.topic", channel.declare("q", durable=True), "#")
    channel.publish(b"1", "k", "amq.topic", delivery_mode=PERSISTENT)
    after = restart(storage, "a")
    assert waiting(after.vhost.queues["q"]) == "1"
    assert not after.client.broker.vhosts["/"].queues


def test_a_deleted_exchange_stays_deleted(storage: MemoryStorage, channel: ClientChannel) -> None:
    queue = channel.declare("q", durable=True)
    channel.declare_exchange("deleted", durable=True)
    channel.bind("deleted", queue, "k")
    channel.vhost.delete_exchange("deleted", if_unused=False)
    channel.declare_exchange("automatic", durable=True, auto_delete=True)
    channel.bind("automatic", queue, "k")
    channel.unbind("automatic", queue, "k")
    after = restart(storage)
    assert not {"deleted", "automatic"} & set(after.vhost.exchanges)
    assert len(after.vhost.bindings) == 0


def test_a_committed_transaction_is_found_and_an_open_one_is_not(
    storage: MemoryStorage, channel: ClientChannel
) -> None:
    queue = channel.declare("q", durable=True)
    channel.publish_all("12", "q", delivery_mode=PERSISTENT)
    channel.get(queue, no_ack=False)
    channel.get(queue, no_ack=False)
    channel.core.select_transactions()
    channel.ack(1)
    channel.publish_all("3", "q", delivery_mode=PERSISTENT)
    channel.core.commit()
    channel.ack(2)
    channel.publish_all("4", "q", delivery_mode=PERSISTENT)
    assert waiting(restart(storage).vhost.queues["q"]) == "23"


# -- watching


class Diary(EventSink):
    """Writes down what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.is_watching = True
        self.messages: list[tuple[str, bytes, str]] = []
        self.resources: list[tuple[str, str]] = []

    def published(self, channel: object, route: object, message: Message, queues: list[Queue]) -> None:
        message.uid = message.publish_time = 1
        self.message_event(schema.PUBLISHED, message, channel, 0)

    def message_event(self, kind: int, message: Message, channel: object, reason: int) -> None:
        self.messages.append((schema.kind_name(kind), message.body, ""))

    def enqueued(self, message: Message, queue: Any, depth: int) -> None:
        self.messages.append(("enqueued", message.body, queue.name))

    def queue_event(self, kind: int, entry: QueuedMessage, queue: Any, who: object, reason: int) -> None:
        self.messages.append((schema.kind_name(kind), entry.message.body, queue.name))

    def resource_event(self, kind: int, vhost: str, fields: dict[str, Any]) -> None:
        self.resources.append((schema.kind_name(kind), fields.get("consumer") or fields["queue"]))


def test_an_event_sink_receives_events_of_messages_and_resources() -> None:
    diary = Diary()
    broker = Broker(MemoryStorage(), diary)
    broker.users.add("guest", "guest")
    broker.users.grant("guest", None, ".*", ".*", ".*")
    channel = Client(broker).channel()
    queue = channel.declare("q")
    channel.consume(queue, "tag", prefetch=1)
    channel.publish(b"1", "q")
    channel.reject(1)
    broker.end_turn()
    channel.ack(2)
    channel.close()
    channel.delete(queue)
    assert diary.messages == [
        ("published", b"1", ""),
        ("routed", b"1", ""),
        ("enqueued", b"1", "q"),
        ("delivered", b"1", "q"),
        ("rejected", b"1", "q"),
        ("requeued", b"1", "q"),
        ("delivered", b"1", "q"),
        ("acked", b"1", "q"),
    ]
    assert diary.resources == [
        ("queue_declared", "q"),
        ("consumer_opened", "tag"),
        ("consumer_closed", "tag"),
        ("queue_deleted", "q"),
    ]


def test_the_overview_adds_up(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    broker.add_vhost("a")
    channel.bind("amq.fanout", queue)
    channel.core.select_confirms()
    channel.publish_all("123", "q")
    channel.publish(b"4", "nowhere", mandatory=True)
    channel.get(queue, no_ack=False)
    channel.reject(1)
    channel.consume(queue, prefetch=1)
    broker.end_turn()
    channel.ack(2)
    broker.end_turn()
    view: dict[str, Any] = {name: getattr(overview(broker), name) for name in overview(broker).__slots__}
    expected = {
        "vhosts": 2,
        "exchanges": 14,
        "queues": 1,
        "bindings": 1,
        "consumers": 1,
        "messages_ready": 1,
        "messages_unacked": 1,
        "published": 4,
        "delivered": 3,
        "redelivered": 1,
        "acked": 1,
        "confirmed": 4,
        "returned": 1,
        "unroutable": 1,
    }
    assert {name: view[name] for name in expected} == expected
    assert view["held_bytes"] > 0
