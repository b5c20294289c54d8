"""Remote calls over messages: a request is published, the reply comes back to this channel by direct reply-to.

The broker's pseudo-queue `amq.rabbitmq.reply-to` needs no declaration and stores nothing: a reply that nobody waits for
is dropped. Requests are matched to replies by correlation id. The other side is any consumer that publishes its reply
to `reply_to` with the same correlation id, as handlers of a Service do.
"""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING

from warrenmq.client.aio.dedicated_channel import DedicatedChannel
from warrenmq.client.aio.primitives import Future, new_future, sleep, wait_for_result
from warrenmq.client.errors import ClientError, CloseReason, ConnectionLost
from warrenmq.client.pending_calls import (
    REPLY_TO,
    PendingCalls,
    channel_closed_error,
    connection_lost,
    last_life_lost,
    no_reply,
    recovery_pauses,
    remaining,
    request_properties,
    weak_listener,
)
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.delivery import Delivery
    from warrenmq.client.sending import Body


class RpcClient:
    """Calls that wait for a reply.

    >>> from warrenmq.client import aio
    >>> @aio.consumer("double", setup=lambda channel: channel.queue_declare("double", auto_delete=True))
    ... def double(delivery):
    ...     return str(2 * int(delivery.body))
    >>> async def main():
    ...     async with aio.connect(url) as connection:
    ...         async with aio.Service(connection, double), aio.RpcClient(connection) as rpc:
    ...             reply = await rpc.call("", "double", "21")
    ...         print(reply.body)
    >>> asyncio.run(main())
    b'42'

    Raises Unroutable at once if no queue takes the request, RpcTimeout if no reply comes in time. When the connection
    is lost, pending calls raise ConnectionLost and new ones wait for the recovery. A reply that comes too late is
    dropped and counted in `late_replies`. Any number of calls may be pending, from any thread or task.
    """

    def __init__(self, connection: Connection, *, timeout: float | None = None) -> None:
        self.timeout = connection.factory.call_timeout if timeout is None else timeout
        self._connection = connection
        self._must_consume_anew = not connection.factory.recovery.topology  # then no recovery brings the consumer back
        self._consumed_in = 0
        self._calls: PendingCalls[Future[Delivery]] = PendingCalls()
        self._own = DedicatedChannel(connection, self._prepare)
        self._listener = weak_listener(self._life_changed)
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
        """Send a request and return its reply."""
        deadline = monotonic() + (self.timeout if timeout is None else timeout)
        waiter: Future[Delivery] = new_future()
        correlation_id = await self._send(exchange, routing_key, body, properties, waiter, deadline)
        try:
            return await wait_for_result(waiter, remaining(deadline))
        except TimeoutError as late:
            if isinstance(late, ClientError):
                raise
            raise no_reply(exchange, routing_key) from None
        finally:
            self._calls.forget(correlation_id)

    async def close(self) -> None:
        """Close the channel; pending calls raise ConnectionLost."""
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
        waiter: Future[Delivery],
        deadline: float,
    ) -> str:
        """Publish the request, waiting for a recovery if necessary; return its correlation id."""
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
                    raise connection_lost()  # with unconfirmed="resend" the request would be sent, and its reply lost
                await channel.publish(exchange, routing_key, body, request, mandatory=True, timeout=remaining(deadline))
                return correlation_id
            except ConnectionLost:
                self._calls.forget(correlation_id)
                pause = pauses.next()
                if monotonic() + pause >= deadline:
                    raise
                await sleep(pause)
            except BaseException:
                self._calls.forget(correlation_id)
                raise

    # -- notifications --------------------------------------------------------------------------------------------

    async def _prepare(self, channel: Channel) -> None:
        channel.add_return_listener(self._calls.returned)
        channel.add_close_listener(self._channel_closed)
        self._consumed_in = channel.life
        await channel.consume(REPLY_TO, self._calls.answered, auto_ack=True)

    def _life_changed(self) -> None:
        channel = self._own.current
        if channel is not None:
            self._calls.fail(connection_lost(), last_life_lost(channel.life, self._connection.is_open))

    def _channel_closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            self._calls.fail(channel_closed_error(reason))
