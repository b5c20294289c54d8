"""A client of the core without a socket: connections and channels as plain calls.

Stands where `server/session.py` stands: it makes routes, opens channels, ends turns, and leaves every decision to the
core. What the broker said back is read from the client's outbox.
"""

from __future__ import annotations

from typing import Any

from tests.support.outbox import Cancelled, ChannelClosed, Confirmed, Delivered, GetOk, RecordingOutbox, Returned
from warrenmq.core.broker import Broker
from warrenmq.core.connection import Connection
from warrenmq.core.consumer import Consumer
from warrenmq.core.exchange import Exchange
from warrenmq.core.limits import Limits
from warrenmq.core.message import address_of
from warrenmq.core.ports import Storage
from warrenmq.core.queue import Queue
from warrenmq.core.reply_to import ReplyQueue
from warrenmq.core.reserved import ADMINISTRATOR
from warrenmq.core.users import EVERYTHING
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.memory_store import MemoryStorage

PERSISTENT = 2


def make_broker(storage: Storage | None = None, now_ms: int = 0, limits: Limits | None = None) -> Broker:
    """A broker with nothing in it but the user that the clients here are."""
    broker = Broker(storage or MemoryStorage(), now_ms=now_ms, limits=limits)
    broker.users.add("guest", "guest", [ADMINISTRATOR])
    broker.users.grant("guest", None, EVERYTHING, EVERYTHING, EVERYTHING)
    return broker


class Client:
    """One connection to one virtual host."""

    def __init__(self, broker: Broker, vhost: str = "/", user: str = "guest") -> None:
        self.broker = broker
        self.vhost = broker.open_vhost(vhost, user)
        self.user = user
        self.outbox = RecordingOutbox()
        self.connection = Connection(self.vhost, user, self.outbox)
        self.connection.open()
        self.outbox.on_close = self.connection.close_channel
        self._last_number = 0

    def channel(self) -> ClientChannel:
        self._last_number += 1
        return ClientChannel(self, self._last_number)

    def close(self) -> None:
        """The socket is gone."""
        self.connection.close()


class ClientChannel:
    """One channel, and what it heard."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.vhost = client.vhost
        self.number = number
        self.core = client.connection.open_channel(number)

    # -- topology ----------------------------------------------------------------------------------------------------

    def declare(
        self,
        name: str = "",
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Queue:
        return self.vhost.declare_queue(name, durable, exclusive, auto_delete, arguments or {}, self.client.connection)

    def declare_exchange(
        self,
        name: str,
        type: str = "direct",
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        alternate: str | None = None,
    ) -> Exchange:
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        return self.vhost.declare_exchange(name, type, durable, auto_delete, internal, arguments)

    def bind(self, source: str, destination: Queue | Exchange, key: str = "", **arguments: Any) -> None:
        self.vhost.bind(source, destination, key, arguments)

    def unbind(self, source: str, destination: Queue | Exchange, key: str = "", **arguments: Any) -> None:
        self.vhost.unbind(source, destination, key, arguments)

    def delete(self, queue: Queue, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self.vhost.delete_queue(queue.name, self.client.connection, if_unused, if_empty)

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, body: bytes, key: str, exchange: str = "", *, mandatory: bool = False, **properties: Any) -> None:
        """Publish by a route that is made for this message, as a session does when it has none cached."""
        route = self.vhost.make_route(self.vhost.exchange(exchange), key, address_of(exchange, key), mandatory)
        self.core.publish(route, content_header(len(body), BasicProperties(**properties)), body)

    def publish_to_own(self, body: bytes, stream: str) -> None:
        """Publish to a stream of the broker, as a session does for a user who may."""
        route = self.vhost.find_route(b"", "", stream, address_of("", stream), False, False)
        self.core.publish(route, content_header(len(body), BasicProperties()), body)

    def publish_all(self, bodies: str, key: str, **properties: Any) -> None:
        """One message for each letter, to the default exchange."""
        for letter in bodies:
            self.publish(letter.encode(), key, **properties)

    # -- consuming ---------------------------------------------------------------------------------------------------

    def consume(
        self,
        queue: Queue,
        tag: str = "consumer",
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        priority: int = 0,
        prefetch: int | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> Consumer:
        """Start a consumer; a prefetch is set first, and stays set, as with basic.qos."""
        if prefetch is not None:
            self.core.limit_prefetch(prefetch, False)
        consumer = self.core.consume(queue, tag, no_ack, exclusive, priority, arguments or {})
        self.core.start(consumer)
        return consumer

    def start_replies(self, tag: str = "replies") -> str:
        """Consume by direct reply-to; the address that answers go to."""
        reply_queue = ReplyQueue(self.core, tag)
        self.core.start_replies(reply_queue)
        return reply_queue.name

    def get(self, queue: Queue, *, no_ack: bool = True) -> GetOk | None:
        if not self.core.get(queue, no_ack):
            return None
        (got,) = self.client.outbox.take(GetOk, self.number)
        return got

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.core.ack(tag, multiple)

    def reject(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.core.reject(tag, multiple, requeue)

    def close(self) -> None:
        self.client.connection.close_channel(self.number)

    # -- what was heard ----------------------------------------------------------------------------------------------

    def deliveries(self) -> list[Delivered]:
        """End the turn; what was delivered since the last time."""
        self.client.broker.end_turn()
        return self.client.outbox.take(Delivered, self.number)

    def bodies(self) -> str:
        """End the turn; the bodies delivered since the last time, joined."""
        return b"".join(delivered.body for delivered in self.deliveries()).decode()

    def returns(self) -> list[Returned]:
        return self.client.outbox.take(Returned, self.number)

    def confirms(self) -> list[tuple[int, bool]]:
        return [(confirmed.tag, confirmed.multiple) for confirmed in self.client.outbox.take(Confirmed, self.number)]

    def cancels(self) -> list[str]:
        """End the turn; the consumers that it took away."""
        self.client.broker.end_turn()
        return [cancelled.consumer for cancelled in self.client.outbox.take(Cancelled, self.number)]

    def closes(self) -> list[ChannelClosed]:
        """How the broker closed the channel by itself."""
        return self.client.outbox.take(ChannelClosed, self.number)


def advance(broker: Broker, ms: int) -> None:
    """Let time pass, and run what is due until nothing is."""
    broker.turn.now_ms += ms
    broker.end_turn()
    for _ in range(1000):
        due_ms = broker.timers.next_due_ms()
        if due_ms is None or due_ms > broker.turn.now_ms:
            return
        broker.timers.advance(broker.turn.now_ms)
        broker.end_turn()
    raise AssertionError("timers never come to rest")


def waiting(queue: Queue) -> str:
    """The bodies that stand in the queue's line, joined."""
    return b"".join(entry.message.body for entry in queue.backlog).decode()


def assert_nothing_is_held(broker: Broker) -> None:
    """No message is left anywhere, and the broker's sums know it."""
    stats = broker.stats
    assert (stats.ready, stats.unacked, stats.held_bytes, stats.shared_bytes) == (0, 0, 0, 0)
