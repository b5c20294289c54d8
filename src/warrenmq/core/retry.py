"""Automatic retry (`x-retry-*`): a delivery that fails returns to its queue after a delay.

A delivery fails when it is nacked or rejected, with or without requeue, when its consumer is lost with its channel, and
when it is not acked in time. The message leaves the queue for the queue's retry store, in one epoch, and comes back at
the end of the queue when its delay is over; other messages are delivered meanwhile. With `x-retry-ordered` it stays at
the head, and the queue waits. After the last attempt it is dead-lettered: to `<queue>.dead` if the queue has no
dead-letter exchange.

The number of attempts is `QueuedMessage.attempts`, stored with the message. Owned by the loop thread.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from warrenmq.core import definitions
from warrenmq.core.dead_letter import DeadLetters
from warrenmq.core.delayed import FIRST, Cursor, DelayedMessages
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.retry_options import RetryOptions, override
from warrenmq.core.timers import Timer
from warrenmq.events import schema
from warrenmq.protocol import properties

if TYPE_CHECKING:
    from warrenmq.core.classic_queue import ClassicQueue
    from warrenmq.core.vhost import VHost

REASON = "x-retry-reason"
STORE_PREFIX = "warren.retry."
DEAD_SUFFIX = ".dead"
_MAX_NAME = 255  # bytes

_OVERRIDES = re.compile(rb"x-retry-(?:max|delay|backoff|jitter)")


def name_of_store(queue: str) -> str:
    """Return the name of the store and the definition of the retries of a durable queue."""
    return STORE_PREFIX + queue


class Retry:
    """The retries of one queue. `options`: None if retry was disabled while messages waited for theirs.

    `held_until_ms`: an ordered queue delivers nothing before this time.
    """

    __slots__ = (
        "_cached",
        "_dead_letters",
        "_messages",
        "_queue",
        "_reasons",
        "_timer",
        "_vhost",
        "held_until_ms",
        "options",
    )

    def __init__(self, vhost: VHost, queue: ClassicQueue) -> None:
        self.options: RetryOptions | None = None
        self.held_until_ms = 0
        self._vhost = vhost
        self._queue = queue
        self._messages: DelayedMessages | None = None  # opened with the first one
        self._dead_letters: DeadLetters | None = None
        self._cached = (b"", 0, b"")  # header, reason, and the header with the reason
        self._reasons: dict[int, int] = {}  # of the messages that an ordered queue waits for, by position
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return 0 if self._messages is None else len(self._messages)

    @property
    def returned(self) -> int:
        """The number of messages that came back since the start."""
        return 0 if self._messages is None else self._messages.released

    def waiting_bytes(self) -> int:
        return 0 if self._messages is None else self._messages.backlog.bytes_in_memory()

    # -- a delivery fails --------------------------------------------------------------------------------------------

    def options_of(self, entry: QueuedMessage) -> RetryOptions | None:
        """Return how to retry a delivery: as the queue's arguments say, or those of its consumer; None: not at all."""
        if self.options is not None or entry.consumer is None:
            return self.options
        options: RetryOptions | None = entry.consumer.retry  # type: ignore[attr-defined]
        return options

    def keep_failed(
        self, entries: list[QueuedMessage], actor: object, reason: int
    ) -> tuple[list[QueuedMessage], list[QueuedMessage]]:
        """Keep failed deliveries for their next attempts; dead-letter those that had their last one.

        Return those that are not retried, and those that an ordered queue waits for: the queue requeues both.
        """
        queue = self._queue
        if reason in (schema.R_CLIENT, schema.R_REJECTED):
            actor, reason = None, schema.R_REJECTED  # an event has already reported that they are settled
        others: list[QueuedMessage] = []
        held: list[QueuedMessage] = []
        for entry in entries:
            options = self.options_of(entry)
            if options is None:
                others.append(entry)
                continue
            delay_ms = self._delay_of(entry, options)
            if delay_ms >= 0 and options.is_ordered:
                self._emit(entry, options, actor, reason, delay_ms)
                self._hold(entry, delay_ms, reason)
                held.append(entry)
                continue
            if actor is None:
                queue.release(entry)
            if delay_ms < 0:
                queue.rejected += 1
                queue.drop(entry, schema.R_DELIVERY_LIMIT, actor)
            else:
                queue.requeued += 1
                self._emit(entry, options, actor, reason, delay_ms)
                self._keep(entry, delay_ms, reason)
                queue.backlog.settle(entry)
            if actor is not None:
                queue.release(entry)
        return others, held

    def _delay_of(self, entry: QueuedMessage, options: RetryOptions) -> int:
        """Return the milliseconds until the next attempt; -1 if this was the last one."""
        options = self._override_by_headers(options, entry.message.header)
        if entry.attempts > options.max:
            return -1
        return options.delay_after(entry.attempts, random.random())

    def _emit(self, entry: QueuedMessage, options: RetryOptions, actor: object, reason: int, delay_ms: int) -> None:
        """Emit that a message waits for its next attempt, if it is traced."""
        if entry.message.uid != 0:
            queue = self._queue
            due_ms = queue.turn.now_ms + delay_ms
            most = self._override_by_headers(options, entry.message.header).max
            queue.events.detailed_event(schema.RETRIED, entry, queue, actor, reason, due_ms, most, None)

    def _override_by_headers(self, options: RetryOptions, header: bytes) -> RetryOptions:
        return self._override(options, properties.headers(header) or {}) if _OVERRIDES.search(header) else options

    def _override(self, options: RetryOptions, headers: Mapping[str, Any]) -> RetryOptions:
        changed, invalid = override(options, headers)
        if invalid:
            self._vhost.broker.warning_log.warn(
                "retry header",
                f"a message in queue '{self._queue.name}' in vhost '{self._vhost.name}' has an invalid header "
                f"'{invalid}': the setting of the queue applies",
            )
        return changed

    def _keep(self, entry: QueuedMessage, delay_ms: int, reason: int) -> None:
        """Keep a message until its next attempt. It is removed from the queue in the same epoch."""
        if self._messages is None:
            self._create()
        assert self._messages is not None
        message = entry.message
        waiting = message.with_header(self._with_reason(message.header, reason))
        self._messages.add(waiting, self._queue.turn.now_ms + delay_ms, entry.attempts)
        self._queue.stats.retried += 1

    def _with_reason(self, header: bytes, reason: int) -> bytes:
        cached = self._cached
        if cached[0] != header or cached[1] != reason:
            cached = self._cached = header, reason, properties.with_header(header, REASON, schema.reason_name(reason))
        return cached[2]

    def _release(self, entry: QueuedMessage) -> None:
        self._queue.enqueue_again(entry.message, entry.attempts)

    # -- in order ----------------------------------------------------------------------------------------------------

    def _hold(self, entry: QueuedMessage, delay_ms: int, reason: int) -> None:
        """Deliver nothing before the next attempt for this message, which is requeued."""
        self._reasons[entry.position] = reason
        self._queue.stats.retried += 1
        self._hold_until(self._queue.turn.now_ms + delay_ms)

    def is_held(self, entry: QueuedMessage) -> bool:
        """Return True if the queue waits for this message."""
        return entry.position in self._reasons

    def hold_restored(self, entry: QueuedMessage | None) -> None:
        """After a restart the first message waits again if it has failed before: when it failed is not stored."""
        if entry is not None and entry.attempts and self.options is not None and self.options.is_ordered:
            self._hold_until(self._queue.turn.now_ms + max(0, self._delay_of(entry, self.options)))

    def _hold_until(self, due_ms: int) -> None:
        if due_ms > self.held_until_ms:
            self.held_until_ms = due_ms
            timers = self._vhost.broker.timers
            if self._timer is not None:
                timers.cancel(self._timer)
            self._timer = timers.schedule(due_ms, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self.held_until_ms = 0
        self._queue.make_due()

    def stamp(self, entry: QueuedMessage, message: Message) -> Message:
        """Return the message of an ordered queue with the reason for this attempt."""
        reason = self._reasons.pop(entry.position, 0) if self._reasons else 0
        return message.with_header(self._with_reason(message.header, reason)) if reason else message

    # -- after the last attempt --------------------------------------------------------------------------------------

    def dead_letters(self) -> DeadLetters | None:
        """Return what publishes to `<queue>.dead`, which is declared if it does not exist."""
        queue = self._queue
        name = queue.name + DEAD_SUFFIX
        if len(name.encode("utf-8", "surrogateescape")) > _MAX_NAME:
            return None
        if name not in self._vhost.queues:
            self._vhost.declare_queue(name, queue.is_durable, False, False, {}, None)
        if self._dead_letters is None:
            options = replace(queue.options, dead_letter_exchange="", dead_letter_routing_key=name)
            self._dead_letters = DeadLetters(self._vhost, queue, options)
        return self._dead_letters

    def list_from(
        self, after: Cursor | None, count: int, receive: Callable[[list[QueuedMessage], Cursor | None], None]
    ) -> None:
        """Pass on the next `count` messages that wait, in the order of their times, as `DelayedMessages.list_from`."""
        if self._messages is None:
            receive([], None)
        else:
            self._messages.list_from(after or FIRST, count, receive)

    # -- the store ---------------------------------------------------------------------------------------------------

    def _create(self) -> None:
        queue = self._queue
        self.restore()
        if queue.is_durable:
            name = name_of_store(queue.name)
            vhost = self._vhost
            vhost.broker.catalog.save("queue", (vhost.name, name), definitions.of_store(vhost.name, name))

    def restore(self) -> None:
        """Open the store, with the messages that an earlier run has left."""
        queue = self._queue
        options = QueueOptions(is_durable=queue.is_durable, durability=queue.options.durability)
        broker = self._vhost.broker
        store = broker.storage.message_store(self._vhost.name, name_of_store(queue.name), options)
        self._messages = DelayedMessages(broker, store, queue.is_durable, self._release)

    def purge(self) -> int:
        """Drop all waiting messages. Return their number."""
        return 0 if self._messages is None else self._messages.purge()

    def delete(self) -> None:
        """The queue is deleted."""
        if self._timer is not None:
            self._vhost.broker.timers.cancel(self._timer)
            self._timer = None
        if self._messages is not None:
            self._messages.delete()
            self._messages = None
            if self._queue.is_durable:
                self._vhost.broker.catalog.delete("queue", (self._vhost.name, name_of_store(self._queue.name)))
