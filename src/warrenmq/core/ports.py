"""What the core asks of the world, and nothing else.

The core decides; these keep (`MessageStore`, `Catalog`, `CommitLog`), talk (`Outbox`) and watch (`EventSink`).
Methods never block and never raise for the peer's sake. Compiled, because `Outbox` and `MessageStore` are called once
per message (ports.pxd).
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warrenmq.core.message import Message, QueuedMessage


class Outbox:
    """One connection's way out. Everything gathered in a turn is written at its end, in the order of the calls.

    `is_congested` says that the peer reads too slowly: consumers stop getting messages until `parked` are revived.
    """

    __slots__ = ("is_congested", "parked")

    def __init__(self) -> None:
        self.is_congested = False
        self.parked: dict[Any, None] = {}

    def deliver(
        self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, message: "Message"
    ) -> None:
        """basic.deliver; `consumer_tag` is a wire short string."""
        raise NotImplementedError

    def get_ok(self, channel: int, delivery_tag: int, redelivered: bool, message: "Message", remaining: int) -> None:
        """basic.get-ok."""
        raise NotImplementedError

    def returned(self, channel: int, reply_code: int, reply_text: str, message: "Message") -> None:
        """basic.return."""
        raise NotImplementedError

    def confirm(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """basic.ack to a publisher."""
        raise NotImplementedError

    def refuse(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """basic.nack to a publisher."""
        raise NotImplementedError

    def cancelled(self, channel: int, consumer_tag: str) -> None:
        """basic.cancel: the queue of this consumer is gone."""
        raise NotImplementedError


class MessageStore:
    """Keeps the persistent messages of one durable queue. Each call belongs to the open epoch of the commit log."""

    __slots__ = ()

    def append(self, entry: "QueuedMessage") -> None:
        """Keep a message at its position."""
        raise NotImplementedError

    def forget(self, entry: "QueuedMessage") -> None:
        """The message at this position was acked, dropped or purged."""
        raise NotImplementedError

    def recover(self) -> "Iterable[QueuedMessage]":
        """What was kept and not forgotten, by position; once, before the first append."""
        raise NotImplementedError

    def delete(self) -> None:
        """The queue is gone, and everything kept for it."""
        raise NotImplementedError


class CommitLog:
    """Decides when a turn's work is safe."""

    __slots__ = ()

    def end_turn(self) -> int:
        """Close the open epoch. Gives its number, or 0 if there is nothing to wait for.

        Later, when that epoch is durable, `Broker.epoch_is_durable` is called with the number; numbers only grow.
        """
        raise NotImplementedError


class Catalog:
    """Keeps definitions: virtual hosts and their durable exchanges, queues and bindings.

    A definition is a plain dictionary as `core/definitions.py` builds it. Each call belongs to the open epoch.
    """

    __slots__ = ()

    def save(self, kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        raise NotImplementedError

    def delete(self, kind: str, key: tuple[str, ...]) -> None:
        raise NotImplementedError

    def load(self, kind: str) -> "Iterable[dict[str, Any]]":
        """All of one kind, in the order they were saved."""
        raise NotImplementedError


class Storage:
    """The storage of one broker: its catalog, its log, and a message store per durable queue."""

    __slots__ = ()

    catalog: Catalog
    log: CommitLog

    def message_store(self, vhost: str, queue: str) -> MessageStore:
        raise NotImplementedError


class EventSink:
    """Hears what happens. The core calls it only where one is set, so that unwatched messages pay nothing."""

    __slots__ = ()

    def message_event(self, kind: str, message: "Message", vhost: str, queue: str) -> None:
        """published, enqueued, delivered, acked, requeued, returned, ...; queue is "" where none is concerned."""
        raise NotImplementedError

    def resource_event(self, kind: str, vhost: str, name: str) -> None:
        """connection, channel, consumer, queue, exchange: opened, closed, declared, deleted."""
        raise NotImplementedError
