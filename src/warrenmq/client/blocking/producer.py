"""Producers: publishing with retries and a clear result, on the blocking face.

- `SyncProducer` waits for the broker's word on each message and sends again what was refused or lost;
- `OneWayProducer` never waits and never raises for the network's sake: what cannot go out now stands in a bounded
  backlog until it can, or is dropped and counted.

Both are thread-safe and own a channel, which is opened again when the broker closed it; given a URL or a factory, they
own a connection too, made at the first send. Messages are persistent and have a `message_id` and a `timestamp`, unless
the caller's properties say otherwise. What is sent again may arrive twice, with the same id.

A `DelayedProducer` will join them when the broker can hold messages back until a time: `send(body, delay=...)` with the
results and retries of `SyncProducer`. It is not here yet.

The backlog of a OneWayProducer is guarded by its lock; the thread that empties it lives only while there is something.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from warrenmq.client.blocking.dedicated_channel import DedicatedChannel
from warrenmq.client.errors import ClientError, ConnectionClosed
from warrenmq.client.factory import ConnectionFactory
from warrenmq.client.sending import (
    BACKLOG_BYTES,
    HELD_BACK_BY,
    Backlog,
    Body,
    OutgoingMessage,
    Retry,
    SendResult,
    Try,
    kept_copy,
    raise_failure,
    stamped,
)
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.connection import Connection

_log = logging.getLogger("warrenmq.client")

_SENT_AT_ONCE: Final = 100  # messages of a backlog, while senders wait for the lock


class SyncProducer:
    """Sends and waits for the broker's word.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection:
    ...     _ = connection.channel().queue_declare("orders", auto_delete=True)
    ...     with SyncProducer(connection, routing_key="orders") as producer:
    ...         result = producer.send(b"one table, four chairs")
    ...         results = producer.send_many([b"a lamp", b"a carpet"])
    >>> result.ok, result.attempts, len(results)
    (True, 1, 2)

    A nack, a loss or a time-out is followed by up to `retries` further attempts; what the broker would only refuse
    again (no such exchange, no right, no queue) by none. Then SendFailed is raised, or, with `raises=False`, the result
    is returned. A broker that is not up yet when the producer connects by itself counts as a failed attempt, too.

    - `timeout`: for a whole send with all its attempts (None: the retries are the bound);
    - `attempt_timeout`: how long one attempt waits (None: the factory's call_timeout). A message that waits for its
      confirm on a connection that stands is not sent twice: the next attempt waits on.
    - `mandatory`: a message that no queue takes is an error (Unroutable; `retry_unroutable` makes it worth a retry).
    """

    def __init__(
        self,
        connection: str | ConnectionFactory | Connection,
        exchange: str = "",
        routing_key: str = "",
        *,
        retries: int = 16,
        interval: float = 0.1,
        backoff: float = 2.0,
        longest: float = 30.0,
        jitter: float = 0.5,
        retry_unroutable: bool = False,
        mandatory: bool = True,
        timeout: float | None = None,
        attempt_timeout: float | None = None,
        raises: bool = True,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.timeout = timeout
        self.raises = raises
        self._retry = Retry(retries, interval, backoff, longest, jitter, retry_unroutable)
        self._own = DedicatedChannel(connection, lambda channel: channel.confirm_select())
        self.attempt_timeout = self._own.factory.call_timeout if attempt_timeout is None else attempt_timeout
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._under_way = 0

    def send(
        self,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        routing_key: str | None = None,
        exchange: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it; raises SendFailed when it is given up."""
        return self._send_all([OutgoingMessage(body, properties, routing_key, exchange)], timeout)[0]

    def send_many(
        self, messages: Iterable[Body | OutgoingMessage], *, timeout: float | None = None
    ) -> list[SendResult]:
        """Send all, wait once for all; a result for each, in order.

        Those that have to be sent again go after the others.
        """
        return self._send_all(
            [each if isinstance(each, OutgoingMessage) else OutgoingMessage(each) for each in messages], timeout
        )

    def close(self) -> None:
        """Give up what is still being tried, and close the channel."""
        self._stopping.set()
        self._own.close()

    def __enter__(self) -> SyncProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the attempts ------------------------------------------------------------------------------------------------

    def _send_all(self, messages: Sequence[OutgoingMessage], timeout: float | None) -> list[SendResult]:
        whole = self.timeout if timeout is None else timeout
        tries = [Try(message, self._retry, whole) for message in messages]
        self._count(len(tries))
        try:
            self._try_until_done(tries)
        finally:
            self._count(-len(tries))
        results = [each.result for each in tries if each.result is not None]
        if self.raises:
            raise_failure(results)
        return results

    def _try_until_done(self, tries: Sequence[Try]) -> None:
        open_tries = list(tries)
        while open_tries:
            for each in open_tries:
                self._publish(each)
            # The last first: when its word is there, the others' mostly are, and nobody has to be woken for them.
            pauses = [pause for each in reversed(open_tries) if (pause := self._await_word(each)) is not None]
            open_tries = [each for each in open_tries if each.result is None]
            if open_tries and self._stopping.wait(max(pauses)):
                for each in open_tries:
                    each.give_up()
                return

    def _publish(self, each: Try) -> None:
        allowed = each.begin(self.attempt_timeout)
        if each.confirmation is not None:
            return  # it is with the broker, whose word is late
        message = each.message
        try:
            each.channel = channel = self._own.get(allowed)
            each.confirmation = channel.publish(
                self.exchange if message.exchange is None else message.exchange,
                self.routing_key if message.routing_key is None else message.routing_key,
                message.body,
                message.properties,
                mandatory=self.mandatory,
                timeout=allowed,
            )
        except ClientError as error:
            each.error = error

    def _await_word(self, each: Try) -> float | None:
        """Wait for the broker's word; the pause before the next attempt, or None when the result is there."""
        try:
            if each.error is not None:
                raise each.error
            assert each.confirmation is not None
            each.confirmation.result(each.allowed)
            each.confirmed()
        except ClientError as error:
            return each.failed(error, is_alone=self._under_way == 1)
        return None

    def _count(self, more: int) -> None:
        with self._lock:
            self._under_way += more


class OneWayProducer:
    """Fire and forget.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection:
    ...     with OneWayProducer(connection, exchange="amq.topic") as producer:
    ...         producer.send(b"23.5", routing_key="temperature.kitchen").outcome
    'sent'

    `send` returns at once: "sent" (on its way), "queued" (held back: the connection is recovering, blocked or busy) or
    "dropped" (no room in the backlog, or the connection has ended). What is held back is tried again in order, up to
    `retries` times; then it is dropped and counted in `dropped`. A wrong argument still raises.
    """

    def __init__(
        self,
        connection: str | ConnectionFactory | Connection,
        exchange: str = "",
        routing_key: str = "",
        *,
        retries: int = 16,
        interval: float = 0.1,
        backoff: float = 2.0,
        longest: float = 30.0,
        jitter: float = 0.5,
        backlog: int = 10_000,
        backlog_bytes: int = BACKLOG_BYTES,
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self._retry = Retry(retries, interval, backoff, longest, jitter)
        self._own = DedicatedChannel(connection, lambda channel: None)
        self._call_timeout = self._own.factory.call_timeout
        self._backlog = Backlog(backlog, backlog_bytes, retries)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._emptier: threading.Thread | None = None
        if not self._own.owns_connection:
            self._own.get(self._call_timeout)

    @property
    def sent(self) -> int:
        """Messages that went out, late ones included."""
        return self._backlog.sent

    @property
    def queued(self) -> int:
        """Messages that are held back now."""
        return len(self._backlog)

    @property
    def dropped(self) -> int:
        """Messages that were given up."""
        return self._backlog.dropped

    def send(
        self,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        routing_key: str | None = None,
        exchange: str | None = None,
    ) -> SendResult:
        """Send, or hold back, or drop; never waits."""
        return self._send(OutgoingMessage(body, properties, routing_key, exchange))

    def send_many(self, messages: Iterable[Body | OutgoingMessage]) -> list[SendResult]:
        """Send all, in order; a result for each."""
        return [self._send(each if isinstance(each, OutgoingMessage) else OutgoingMessage(each)) for each in messages]

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is held back; False when the time (the factory's call_timeout) was too short."""
        with self._changed:
            whole = self._call_timeout if timeout is None else timeout
            return self._changed.wait_for(lambda: self._emptier is None, whole)

    def close(self, timeout: float | None = None) -> None:
        """Flush; drop what is still there after the time-out; close the channel."""
        self.flush(timeout)
        self._stopping.set()
        with self._changed:
            emptier = self._emptier
            self._backlog.drop_all()
        self._own.close()
        if emptier is not None:
            emptier.join(self._call_timeout)

    def __enter__(self) -> OneWayProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _send(self, given: OutgoingMessage) -> SendResult:
        message, message_id = stamped(given)
        channel = self._own.current
        if channel is None or self._backlog:
            return self._hold_back(message, message_id)
        try:
            self._publish(channel, message, 0)
        except ConnectionClosed as ended:
            if self._own.owns_connection:
                return self._hold_back(message, message_id)
            return self._drop(ended, message_id)
        except HELD_BACK_BY:
            return self._hold_back(message, message_id)
        with self._changed:
            self._backlog.sent += 1
        return SendResult("sent", message_id=message_id)

    def _publish(self, channel: Channel, message: OutgoingMessage, timeout: float) -> None:
        channel.publish(
            self.exchange if message.exchange is None else message.exchange,
            self.routing_key if message.routing_key is None else message.routing_key,
            message.body,
            message.properties,
            timeout=timeout,
        )

    def _drop(self, error: ClientError | None, message_id: str) -> SendResult:
        with self._changed:
            self._backlog.dropped += 1
        return SendResult("dropped", error=error, message_id=message_id)

    def _hold_back(self, message: OutgoingMessage, message_id: str) -> SendResult:
        with self._changed:
            if self._stopping.is_set() or self._own.is_over:
                self._backlog.dropped += 1
                return SendResult("dropped", attempts=0, message_id=message_id)
            if not self._backlog.add(kept_copy(message)):
                return SendResult("dropped", attempts=0, message_id=message_id)
            if self._emptier is None:
                self._emptier = threading.Thread(target=self._empty, name="warren-client-one-way-producer", daemon=True)
                self._emptier.start()
        return SendResult("queued", attempts=0, message_id=message_id)

    # -- the backlog's thread ----------------------------------------------------------------------------------------

    def _empty(self) -> None:
        """Send what is held back, first to last, and end when nothing is."""
        pauses = self._retry.pauses()
        while (message := self._first()) is not None:
            try:
                channel = self._own.get(self._call_timeout)
                self._publish(channel, message, self._call_timeout)
            except ClientError as error:
                self._round_failed(error)
                self._stopping.wait(pauses.next())
            except BaseException:
                self._end_emptier()  # a bug; the next message that is held back begins anew
                raise
            else:
                pauses.reset()
                self._first_sent(channel)

    def _first(self) -> OutgoingMessage | None:
        """The message that has waited longest; None: there is none, and the thread is to end."""
        with self._changed:
            if self._backlog:
                return self._backlog.first()
            self._end_emptier()
            return None

    def _end_emptier(self) -> None:
        with self._changed:
            self._emptier = None
            self._changed.notify_all()

    def _first_sent(self, channel: Channel) -> None:
        """The first is on its way; send more while that needs no waiting, or quick senders would fill the backlog."""
        with self._changed:
            if self._backlog:  # close() may have emptied it meanwhile
                self._backlog.first_sent()
            try:
                for _ in range(min(len(self._backlog), _SENT_AT_ONCE)):
                    self._publish(channel, self._backlog.first(), 0)
                    self._backlog.first_sent()
            except ClientError:
                return  # the next round meets it again

    def _round_failed(self, error: ClientError) -> None:
        with self._changed:
            dropped = self._backlog.failed(error, is_last=self._stopping.is_set())
        if dropped:
            _log.warning("a one-way producer dropped %d messages: %s", dropped, error)
