"""Producers on asyncio: `SyncProducer` and `OneWayProducer` as in client/producer.py, with `await`.

Owned by the connection's loop. A OneWayProducer's task, which empties its backlog, lives only while there is something.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from warrenmq.client.aio.dedicated_channel import DedicatedChannel
from warrenmq.client.errors import CallTimedOut, ClientError, ConnectionClosed
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
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.confirms import Confirmation

_log = logging.getLogger("warrenmq.client")


class SyncProducer:
    """Sends and waits for the broker's word: `await producer.send(b"...")`. See warrenmq.client.SyncProducer."""

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
        self._stopping = asyncio.Event()
        self._under_way = 0

    async def send(
        self,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        routing_key: str | None = None,
        exchange: str | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it; raises SendFailed when it is given up."""
        return (await self._send_all([OutgoingMessage(body, properties, routing_key, exchange)], timeout))[0]

    async def send_many(
        self, messages: Iterable[Body | OutgoingMessage], *, timeout: float | None = None
    ) -> list[SendResult]:
        """Send all, wait once for all; a result for each, in order.

        Those that have to be sent again go after the others.
        """
        return await self._send_all(
            [each if isinstance(each, OutgoingMessage) else OutgoingMessage(each) for each in messages], timeout
        )

    async def close(self) -> None:
        """Give up what is still being tried, and close the channel."""
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
        self._under_way += len(tries)
        try:
            await self._try_until_done(tries)
        finally:
            self._under_way -= len(tries)
        results = [each.result for each in tries if each.result is not None]
        if self.raises:
            raise_failure(results)
        return results

    async def _try_until_done(self, tries: Sequence[Try]) -> None:
        open_tries = list(tries)
        while open_tries:
            for each in open_tries:
                await self._publish(each)
            # The last first: when its word is there, the others' mostly are, and nobody has to be woken for them.
            pauses = [pause for each in reversed(open_tries) if (pause := await self._await_word(each)) is not None]
            open_tries = [each for each in open_tries if each.result is None]
            if open_tries and await _comes_within(self._stopping, max(pauses)):
                for each in open_tries:
                    each.give_up()
                return

    async def _publish(self, each: Try) -> None:
        allowed = each.begin(self.attempt_timeout)
        if each.confirmation is not None:
            return  # it is with the broker, whose word is late
        message = each.message
        try:
            each.channel = channel = await self._own.get(allowed)
            each.confirmation = await channel.publish(
                self.exchange if message.exchange is None else message.exchange,
                self.routing_key if message.routing_key is None else message.routing_key,
                message.body,
                message.properties,
                mandatory=self.mandatory,
                timeout=allowed,
            )
        except ClientError as error:
            each.error = error

    async def _await_word(self, each: Try) -> float | None:
        """Wait for the broker's word; the pause before the next attempt, or None when the result is there."""
        try:
            if each.error is not None:
                raise each.error
            assert each.confirmation is not None
            await _word(each.confirmation, each.allowed)
            each.confirmed()
        except ClientError as error:
            return each.failed(error, is_alone=self._under_way == 1)
        return None


class OneWayProducer:
    """Fire and forget: `await producer.send(b"...")` does not wait for the network. See warrenmq.client.OneWayProducer.

    The first `send`, or entering `async with`, opens the channel.
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
        self._own = DedicatedChannel(connection, _as_it_is)
        self._call_timeout = self._own.factory.call_timeout
        self._backlog = Backlog(backlog, backlog_bytes, retries)
        self._stopping = asyncio.Event()
        self._emptier: asyncio.Task[None] | None = None
        self._was_opened = False

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

    async def send(
        self,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        routing_key: str | None = None,
        exchange: str | None = None,
    ) -> SendResult:
        """Send, or hold back, or drop."""
        return await self._send(OutgoingMessage(body, properties, routing_key, exchange))

    async def send_many(self, messages: Iterable[Body | OutgoingMessage]) -> list[SendResult]:
        """Send all, in order; a result for each."""
        return [
            await self._send(each if isinstance(each, OutgoingMessage) else OutgoingMessage(each)) for each in messages
        ]

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until nothing is held back; False when the time (the factory's call_timeout) was too short."""
        if self._emptier is None:
            return True
        done, _ = await asyncio.wait([self._emptier], timeout=self._call_timeout if timeout is None else timeout)
        return bool(done)

    async def close(self, timeout: float | None = None) -> None:
        """Flush; drop what is still there after the time-out; close the channel."""
        await self.flush(timeout)
        self._stopping.set()
        self._backlog.drop_all()
        await self._own.close()
        if self._emptier is not None:
            await self._emptier

    async def __aenter__(self) -> OneWayProducer:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        self._was_opened = True
        if not self._own.owns_connection:
            await self._own.get(self._call_timeout)

    async def _send(self, given: OutgoingMessage) -> SendResult:
        if not self._was_opened:
            await self._open()
        message, message_id = stamped(given)
        channel = self._own.current
        if channel is None or self._backlog:
            return self._hold_back(message, message_id)
        try:
            await self._publish(channel, message, 0)
        except ConnectionClosed as ended:
            if self._own.owns_connection:
                return self._hold_back(message, message_id)
            self._backlog.dropped += 1
            return SendResult("dropped", error=ended, message_id=message_id)
        except HELD_BACK_BY:
            return self._hold_back(message, message_id)
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

    def _hold_back(self, message: OutgoingMessage, message_id: str) -> SendResult:
        if self._stopping.is_set() or self._own.is_over:
            self._backlog.dropped += 1
            return SendResult("dropped", attempts=0, message_id=message_id)
        if not self._backlog.add(kept_copy(message)):
            return SendResult("dropped", attempts=0, message_id=message_id)
        if self._emptier is None:
            self._emptier = asyncio.create_task(self._empty(), name="warren-client-one-way-producer")
        return SendResult("queued", attempts=0, message_id=message_id)

    # -- the backlog's task ------------------------------------------------------------------------------------------

    async def _empty(self) -> None:
        """Send what is held back, first to last, and end when nothing is."""
        pauses = self._retry.pauses()
        try:
            while self._backlog:
                message = self._backlog.first()
                try:
                    await self._publish(await self._own.get(self._call_timeout), message, self._call_timeout)
                except ClientError as error:
                    self._round_failed(error)
                    await _comes_within(self._stopping, pauses.next())
                else:
                    pauses.reset()
                    if self._backlog:  # close() may have emptied it meanwhile
                        self._backlog.first_sent()
        finally:
            self._emptier = None

    def _round_failed(self, error: ClientError) -> None:
        dropped = self._backlog.failed(error, is_last=self._stopping.is_set())
        if dropped:
            _log.warning("a one-way producer dropped %d messages: %s", dropped, error)


async def _as_it_is(channel: Channel) -> None:
    """A new channel of a one-way producer needs no preparation."""


async def _word(confirmation: Confirmation, timeout: float) -> None:
    """The broker's word, within the time."""
    if confirmation.done():
        await confirmation
        return
    try:
        async with asyncio.timeout(timeout):
            await confirmation
    except TimeoutError as late:
        if isinstance(late, ClientError):
            raise
        raise CallTimedOut("the broker's word on the message did not come in time") from None


async def _comes_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
