"""Remote calls over messages on asyncio: `RpcClient` as in client/rpc.py, with `await`. Its loop owns it."""

from __future__ import annotations

import asyncio
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from warrenmq.client.aio.dedicated_channel import DedicatedChannel
from warrenmq.client.errors import ClientError, CloseReason, ConnectionLost
from warrenmq.client.pending_calls import (
    REPLY_TO,
    PendingCalls,
    closed_error,
    forgetful,
    last_life_lost,
    lost,
    no_answer,
    recovery_pauses,
    remaining,
    request_properties,
)
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.delivery import Delivery
    from warrenmq.client.sending import Body


class RpcClient:
    """Calls that wait for an answer: `answer = await rpc.call("", "double", "21")`. See warrenmq.client.RpcClient."""

    def __init__(self, connection: Connection, *, timeout: float | None = None) -> None:
        self.timeout = connection.factory.call_timeout if timeout is None else timeout
        self._connection = connection
        self._must_consume_anew = not connection.factory.recovery.topology  # then no recovery brings the consumer back
        self._consumed_in = 0
        self._calls: PendingCalls[asyncio.Future[Delivery]] = PendingCalls()
        self._own = DedicatedChannel(connection, self._prepare)
        self._listener = forgetful(self._life_changed)
        connection.add_recovery_listener(self._listener)

    @property
    def late_replies(self) -> int:
        return self._calls.late_replies

    async def call(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        timeout: float | None = None,
    ) -> Delivery:
        """Send a request and wait for its answer."""
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        waiter: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()
        correlation_id = await self._send(exchange, routing_key, body, properties, waiter, deadline)
        try:
            async with asyncio.timeout(remaining(deadline)):
                return await waiter
        except TimeoutError as late:
            if isinstance(late, ClientError):
                raise
            raise no_answer(exchange, routing_key) from None
        finally:
            self._calls.forget(correlation_id)

    async def close(self) -> None:
        """Close the channel; calls under way raise."""
        self._connection.remove_recovery_listener(self._listener)
        await self._own.close()
        self._calls.fail(ConnectionLost("the RPC client was closed"))

    async def __aenter__(self) -> RpcClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None,
        waiter: asyncio.Future[Delivery],
        deadline: float,
    ) -> str:
        """Publish the request, waiting for a recovery if there is one; its correlation id."""
        pauses = recovery_pauses()
        while True:
            channel = await self._own.get(remaining(deadline))
            if self._must_consume_anew and channel.life != self._consumed_in:
                await channel.close()
                continue
            correlation_id = self._calls.add(waiter, channel.life)
            request = request_properties(properties, correlation_id)
            try:
                if not self._connection.is_open:
                    raise lost()  # where unconfirmed publishes are resent it would be kept, with no way back
                await channel.publish(exchange, routing_key, body, request, mandatory=True, timeout=remaining(deadline))
                return correlation_id
            except ConnectionLost:
                self._calls.forget(correlation_id)
                pause = pauses.next()
                if monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
            except BaseException:
                self._calls.forget(correlation_id)
                raise

    # -- what the channel tells --------------------------------------------------------------------------------------

    async def _prepare(self, channel: Channel) -> None:
        channel.add_return_listener(self._calls.returned)
        channel.add_close_listener(self._channel_closed)
        self._consumed_in = channel.life
        await channel.consume(REPLY_TO, self._calls.answered, auto_ack=True)

    def _life_changed(self) -> None:
        channel = self._own.current
        if channel is not None:
            self._calls.fail(lost(), last_life_lost(channel.life, self._connection.is_open))

    def _channel_closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            self._calls.fail(closed_error(reason))
