"""Scheduled messages: published with a delay or a time, and routed when it comes.

The header `x-delay` (milliseconds) or `x-deliver-at` (an AMQP timestamp, milliseconds since 1970, or ISO 8601) delays a
message on any exchange. It is routed by the bindings of that later moment, and is then published for good: its confirm
means that it is kept until then. As with RabbitMQ's plugin, consumers get `x-delay` negated, so a message that is
published again with the same headers is not delayed again.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.core import definitions, report
from warrenmq.core.delayed import FIRST, Cursor, DelayedMessages
from warrenmq.core.errors import NotFound
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED, UNROUTED
from warrenmq.core.ports import NOTHING
from warrenmq.core.publish_rules import DELAY, parse_delay
from warrenmq.core.publishing import publish_again
from warrenmq.core.queue import Queue
from warrenmq.events import schema
from warrenmq.protocol import properties

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.vhost import VHost

STORE = "warren.scheduled"


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """One waiting message; `id` is valid until it is released or cancelled."""

    id: int
    due_ms: int
    exchange: str
    routing_key: str
    header: bytes
    body: bytes


class Schedule:
    """The scheduled messages of one virtual host. Persistent ones survive a restart."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._messages: DelayedMessages | None = None  # opened with the first one
        # Stands for the schedule in events: not a queue that clients can see.
        self._queue = Queue(
            vhost.name,
            STORE,
            True,
            False,
            None,
            {},
            vhost.broker.stats,
            vhost.broker.turn,
            NOTHING,
            vhost.broker.events,
        )

    def __len__(self) -> int:
        return 0 if self._messages is None else len(self._messages)

    def waiting_bytes(self) -> int:
        """Return the memory of the waiting messages; part of `Stats.held_bytes`."""
        return 0 if self._messages is None else self._messages.backlog.bytes_in_memory()

    def restore(self) -> None:
        """Open the store that an earlier run has left."""
        broker = self._vhost.broker
        store = broker.storage.message_store(self._vhost.name, STORE, QueueOptions(is_durable=True))
        self._messages = DelayedMessages(broker, store, True, self._release)

    def add(self, message: Message, due_ms: int, channel: Channel | None) -> int:
        """Keep a message of this channel until this time. Return the durability level that its confirm waits for."""
        if self._messages is None:
            vhost = self._vhost
            self.restore()
            vhost.broker.catalog.save("queue", (vhost.name, STORE), definitions.of_store(vhost.name, STORE))
        assert self._messages is not None
        self._vhost.broker.stats.scheduled += 1
        if message.uid != 0:
            entry = QueuedMessage(message, 0)
            self._queue.events.detailed_event(schema.SCHEDULED, entry, self._queue, channel, 0, due_ms, 0, None)
        return self._messages.add(message, due_ms, 0)

    def _release(self, entry: QueuedMessage) -> None:
        """Route a message that is due; it is dropped if no queue takes it."""
        waited = entry.message
        message = waited.with_header(_negate_delay(waited.header))
        broker = self._vhost.broker
        if message.uid != 0:
            broker.events.advance_clock()
        outcome = UNROUTED
        try:
            outcome = publish_again(self._vhost, message)
        except NotFound:
            broker.warning_log.warn(
                "exchange of a scheduled message",
                f"exchange '{message.exchange}' in vhost '{self._vhost.name}' does not exist any more: scheduled "
                "messages to it are dropped",
            )
        if not outcome & (QUEUED | DELIVERED | DROPPED):
            broker.stats.unroutable += 1
            self._emit(schema.UNROUTABLE, message, schema.R_NO_ROUTE)
            self._vhost.reports.add(message, report.UNROUTABLE, schema.reason_name(schema.R_NO_ROUTE), None, 0)

    def _emit(self, kind: int, message: Message, reason: int) -> None:
        if message.uid != 0:
            self._queue.events.queue_event(kind, QueuedMessage(message, 0), self._queue, None, reason)

    # -- one by one --------------------------------------------------------------------------------------------------

    def list_from(
        self, after: Cursor | None, count: int, receive: Callable[[list[ScheduledMessage], Cursor | None], None]
    ) -> None:
        """Pass on the next `count` messages in the order of their times, and where to continue; None: at the end.

        `receive` is called once, on the loop, possibly later.
        """
        if self._messages is None:
            receive([], None)
            return
        self._messages.list_from(
            after or FIRST, count, lambda entries, last: receive([_describe(entry) for entry in entries], last)
        )

    def find(self, id: int, receive: Callable[[ScheduledMessage | None], None]) -> None:
        """Pass on one message; None if it does not wait. `receive` is called once, on the loop, possibly later."""
        if self._messages is None:
            receive(None)
            return
        self._messages.find([id], lambda entries: receive(_describe(entries[0]) if entries else None))

    def cancel(self, id: int, receive: Callable[[ScheduledMessage | None], None]) -> None:
        """Remove one message, and pass it on; None if it does not wait, so that it may have been released."""

        def removed(entry: QueuedMessage | None) -> None:
            if entry is not None:
                self._emit(schema.DROPPED, entry.message, schema.R_CLIENT)
                self._vhost.reports.add(entry.message, report.DROPPED, "cancelled", None, 0)
            receive(None if entry is None else _describe(entry))

        if self._messages is None:
            receive(None)
        else:
            self._messages.cancel(id, removed)

    def delete(self) -> None:
        """The virtual host is deleted."""
        if self._messages is not None:
            self._messages.delete()
            self._messages = None
            self._vhost.broker.catalog.delete("queue", (self._vhost.name, STORE))


def _describe(entry: QueuedMessage) -> ScheduledMessage:
    message = entry.message
    return ScheduledMessage(
        entry.position, entry.expires_ms, message.exchange, message.routing_key, message.header, message.body
    )


def _negate_delay(header: bytes) -> bytes:
    headers = properties.headers(header) or {}
    if DELAY not in headers:
        return header
    return properties.with_header(header, DELAY, -parse_delay(headers[DELAY]))
