"""Producers: publish with retries and a clear result.

- `SyncProducer` waits for the confirm of each message and resends what was nacked or lost;
- `OneWayProducer` neither waits nor raises for network trouble: what cannot be sent now goes to a bounded backlog, and
  is dropped and counted if it cannot be sent later either.

Threads or tasks may share one. Each owns a channel and reopens it when the broker closes it; given a URL or a factory,
it also owns a connection, made at the first send. Messages are persistent and have a `message_id` and a `timestamp`
unless the caller's properties say otherwise. A message that is resent may arrive twice, with the same id.

A OneWayProducer's condition guards its backlog; the worker that drains the backlog runs only while it is not empty.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final

from warrenmq.client.aio.dedicated_channel import DedicatedChannel
from warrenmq.client.aio.primitives import Condition, Event, Guard, Task, join, start, wait_for_confirm
from warrenmq.client.errors import ClientError, ConnectionClosed
from warrenmq.client.factory import ConnectionFactory
from warrenmq.client.sending import (
    BACKLOG_BYTES,
    RETRIED_LATER,
    Backlog,
    Body,
    OutgoingMessage,
    Retry,
    SendResult,
    Try,
    as_outgoing,
    owned_copy,
    raise_failure,
    with_defaults,
)
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection

_log = logging.getLogger("warrenmq.client")

_MAX_BURST: Final = 100  # messages of a backlog, while senders wait for the lock


class SyncProducer:
    """Sends messages and waits for their confirms.

    >>> from warrenmq.client import aio
    >>> async def main():
    ...     async with aio.connect(url) as connection:
    ...         channel = await connection.channel()
    ...         _ = await channel.queue_declare("orders", auto_delete=True)
    ...         async with aio.SyncProducer(connection, routing_key="orders") as producer:
    ...             result = await producer.send(b"one table, four chairs")
    ...             results = await producer.send_many([b"a lamp", b"a carpet"])
    ...         print(result.ok, result.attempts, len(results))
    >>> asyncio.run(main())
    True 1 2

    After a nack, a lost connection or a timeout a message is sent again, up to `retries` times; an error that would
    repeat itself (no such exchange, no permission, no queue) is not retried. Then SendFailed is raised or, with
    `raises=False`, the result is returned. If the producer connects by itself, a broker that is not up yet counts as a
    failed attempt, too.

    - `timeout`: for one `send` with all its attempts (None: only the retries limit it);
    - `attempt_timeout`: how long one attempt waits (None: the factory's call_timeout). While the connection is up, a
      message whose confirm is late is not sent twice: the next attempt goes on waiting.
    - `mandatory`: a message that reaches no queue is an error (Unroutable, retried with `retry_unroutable`).
    - `retry_missing`: a missing exchange is looked for again before each attempt, for one that is declared later.
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
        retry_missing: bool = False,
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
        self._retry = Retry(retries, interval, backoff, longest, jitter, retry_unroutable, retry_missing)
        self._own = DedicatedChannel(connection, lambda channel: channel.confirm_select())
        self.attempt_timeout = self._own.factory.call_timeout if attempt_timeout is None else attempt_timeout
        self._stopping = Event()
        self._lock = Guard()
        self._pending = 0

    async def send(
        self,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        routing_key: str | None = None,
        exchange: str | None = None,
        delay: float | None = None,
        deliver_at: datetime | int | str | None = None,
        report_to: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait for its confirm; raise SendFailed if it is given up."""
        message = OutgoingMessage(body, properties, routing_key, exchange, delay, deliver_at, report_to)
        return (await self._send_all([message], timeout))[0]

    async def send_many(
        self, messages: Iterable[Body | OutgoingMessage], *, timeout: float | None = None
    ) -> list[SendResult]:
        """Send all, then wait for all; return a result for each, in order. Resent messages come after the others."""
        return await self._send_all([as_outgoing(each) for each in messages], timeout)

    async def close(self) -> None:
        """Give up pending messages and close the channel."""
        self._stopping.set()
        await self._own.close()

    async def __aenter__(self) -> SyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- the attempts ------------------------------------------------------------------------------------------------

    async def _send_all(self, messages: Sequence[OutgoingMessage], timeout: float | None) -> list[SendResult]:
        whole = self.timeout if timeout is None else timeout
        tries = [Try(message, self._retry, whole) for message in messages]
        self._count(len(tries))
        try:
            await self._try_until_done(tries)
        finally:
            self._count(-len(tries))
        results = [each.result for each in tries if each.result is not None]
        if self.raises:
            raise_failure(results)
        return results

    async def _try_until_done(self, tries: Sequence[Try]) -> None:
        open_tries = list(tries)
        while open_tries:
            for each in open_tries:
                await self._publish(each)
            # Last first: once it is confirmed, most others are too, and this worker is not woken for each of them.
            pauses = [pause for each in reversed(open_tries) if (pause := await self._wait_for(each)) is not None]
            open_tries = [each for each in open_tries if each.result is None]
            if open_tries and await self._stopping.wait(max(pauses)):
                for each in open_tries:
                    each.give_up()
                return

    async def _publish(self, each: Try) -> None:
        allowed = each.begin(self.attempt_timeout)
        if each.confirmation is not None:
            return  # sent before; its confirm is late
        message = each.message
        exchange = self.exchange if message.exchange is None else message.exchange
        try:
            each.channel = channel = await self._own.get(allowed)
            if each.is_exchange_missing:
                await self._require_exchange(channel.connection, exchange, each)
            each.confirmation = await channel.publish(
                exchange,
                self.routing_key if message.routing_key is None else message.routing_key,
                message.body,
                message.properties,
                mandatory=self.mandatory,
                timeout=allowed,
            )
        except ClientError as error:
            each.error = error

    async def _require_exchange(self, connection: Connection, exchange: str, each: Try) -> None:
        """Raise NotFound if the exchange does not exist yet.

        On a channel of its own: a publish to a missing exchange would close the producer's, and fail other messages.
        """
        async with await connection.channel(timeout=each.allowed) as channel:
            await channel.exchange_declare(exchange, passive=True, timeout=each.allowed)
        each.is_exchange_missing = False

    async def _wait_for(self, each: Try) -> float | None:
        """Wait for the confirm; return the pause before the next attempt, or None if the result is known."""
        try:
            if each.error is not None:
                raise each.error
            assert each.confirmation is not None
            await wait_for_confirm(each.confirmation, each.allowed)
            each.confirmed()
        except ClientError as error:
            return each.failed(error, is_alone=self._pending == 1)
        return None

    def _count(self, change: int) -> None:
        with self._lock:
            self._pending += change


class OneWayProducer:
    """Fire and forget.

    >>> from warrenmq.client import aio
    >>> async def main():
    ...     async with aio.connect(url) as connection, aio.OneWayProducer(connection, exchange="amq.topic") as producer:
    ...         result = await producer.send(b"23.5", routing_key="temperature.kitchen")
    ...         print(result.outcome)
    >>> asyncio.run(main())
    sent

    `send` returns at once: "sent" (on its way), "queued" (in the backlog: the connection is recovering, blocked or
    busy) or "dropped" (the backlog is full, or the connection has ended). The backlog is retried in order, each message
    up to `retries` times; then it is dropped and counted in `dropped`. Invalid arguments still raise.
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
        self._own = DedicatedChannel(connection, _need_no_setup)
        self._call_timeout = self._own.factory.call_timeout
        self._backlog = Backlog(backlog, backlog_bytes, retries)
        self._changed = Condition()
        self._stopping = Event()
        self._drainer: Task | None = None
        self._is_opened = False
        # blocking only: self._open()

    @property
    def sent(self) -> int:
        """Messages sent, including those from the backlog."""
        return self._backlog.sent

    @property
    def queued(self) -> int:
        """Messages in the backlog."""
        return len(self._backlog)

    @property
    def dropped(self) -> int:
        """Messages given up."""
        return self._backlog.dropped

    async def send(
        self,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        routing_key: str | None = None,
        exchange: str | None = None,
        delay: float | None = None,
        deliver_at: datetime | int | str | None = None,
        report_to: str | None = None,
    ) -> SendResult:
        """Send the message, put it in the backlog, or drop it; never waits for the network."""
        return await self._send(OutgoingMessage(body, properties, routing_key, exchange, delay, deliver_at, report_to))

    async def send_many(self, messages: Iterable[Body | OutgoingMessage]) -> list[SendResult]:
        """Send all, in order; return a result for each."""
        return [await self._send(as_outgoing(each)) for each in messages]

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until the backlog is empty; return False on timeout (None: the factory's call_timeout)."""
        with self._changed:
            whole = self._call_timeout if timeout is None else timeout
            return await self._changed.wait_for(lambda: self._drainer is None, whole)

    async def close(self, timeout: float | None = None) -> None:
        """Flush, drop what is left after the timeout, and close the channel."""
        await self.flush(timeout)
        self._stopping.set()
        with self._changed:
            drainer = self._drainer
            self._backlog.drop_all()
        await self._own.close()
        if drainer is not None:
            await join(drainer, self._call_timeout)

    async def __aenter__(self) -> OneWayProducer:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        if self._is_opened:
            return
        self._is_opened = True
        if not self._own.owns_connection:
            await self._own.get(self._call_timeout)

    async def _send(self, original: OutgoingMessage) -> SendResult:
        await self._open()  # asyncio only
        message, message_id = with_defaults(original)
        channel = self._own.current
        if channel is None or self._backlog:
            return self._enqueue(message, message_id)
        try:
            await self._publish(channel, message, 0)
        except ConnectionClosed as ended:
            if self._own.owns_connection:
                return self._enqueue(message, message_id)
            return self._drop(ended, message_id)
        except RETRIED_LATER:
            return self._enqueue(message, message_id)
        with self._changed:
            self._backlog.sent += 1
        return SendResult("sent", message_id=message_id)

    async def _publish(self, channel: Channel, message: OutgoingMessage, timeout: float) -> None:
        await channel.publish(
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

    def _enqueue(self, message: OutgoingMessage, message_id: str) -> SendResult:
        with self._changed:
            if self._stopping.is_set() or self._own.has_ended:
                self._backlog.dropped += 1
                return SendResult("dropped", attempts=0, message_id=message_id)
            if not self._backlog.add(owned_copy(message)):
                return SendResult("dropped", attempts=0, message_id=message_id)
            if self._drainer is None:
                self._drainer = start(self._drain, "warren-client-one-way-producer")
        return SendResult("queued", attempts=0, message_id=message_id)

    # -- draining the backlog ----------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Send the backlog in order; end when it is empty."""
        pauses = self._retry.pauses()
        while (message := self._first()) is not None:
            try:
                channel = await self._own.get(self._call_timeout)
                await self._publish(channel, message, self._call_timeout)
            except ClientError as error:
                self._attempt_failed(error)
                await self._stopping.wait(pauses.next())
            except BaseException:
                self._end_drainer()  # a bug; the next message for the backlog starts a new drainer
                raise
            else:
                pauses.reset()
                await self._first_was_sent(channel)

    def _first(self) -> OutgoingMessage | None:
        """Return the oldest message; None if there is none, and the drainer must end."""
        with self._changed:
            if self._backlog:
                return self._backlog.first()
            self._end_drainer()
            return None

    def _end_drainer(self) -> None:
        with self._changed:
            self._drainer = None
            self._changed.notify_all()

    async def _first_was_sent(self, channel: Channel) -> None:
        """Send more as long as that needs no waiting; otherwise fast senders would fill the backlog."""
        with self._changed:
            self._backlog.first_sent()
            try:
                for _ in range(_MAX_BURST):
                    if not self._backlog:
                        return
                    await self._publish(channel, self._backlog.first(), 0)
                    self._backlog.first_sent()
            except ClientError:
                return  # the next attempt raises it again

    def _attempt_failed(self, error: ClientError) -> None:
        with self._changed:
            dropped = self._backlog.failed(error, is_last=self._stopping.is_set())
        if dropped:
            _log.warning("a one-way producer dropped %d messages: %s", dropped, error)


async def _need_no_setup(channel: Channel) -> None:
    """The channel of a one-way producer is used as opened."""
