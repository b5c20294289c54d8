"""Recovery of a lost connection: a new link, then the recorded topology, in an order that works.

    exchanges, queues, exchange bindings, queue bindings        on a temporary channel
    per channel: open, qos, confirm or tx mode, stored publishes, consumers in their old order

Declarations that the broker refuses are reported and skipped. If the link is lost meanwhile, the next attempt starts
from the beginning. The task belongs to the connection, which cancels it when the user closes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from warrenmq.client.engine.channel import EngineChannel
from warrenmq.client.errors import (
    AccessRefused,
    ChannelClosed,
    ClientError,
    CloseReason,
    ConsumerCancelled,
    ResourceLocked,
)
from warrenmq.protocol import spec

if TYPE_CHECKING:
    from warrenmq.client.engine.connection import EngineConnection
    from warrenmq.client.engine.consumers import EngineConsumer
    from warrenmq.client.topology import QueueRecord

log = logging.getLogger("warrenmq.client")

# Seconds between attempts for an exclusive queue or consumer: the broker may not have noticed the lost connection yet.
_HELD_INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """Passed to recovery listeners. `attempt` counts from 1 for each loss; `error` is why the last one failed."""

    kind: Literal["lost", "trying", "recovered", "gave_up"]
    reason: CloseReason
    attempt: int = 0
    error: Exception | None = None


async def recover(connection: EngineConnection, reason: CloseReason) -> None:
    """Retry until it works or the attempts are used up."""
    backoff = connection.factory.recovery.backoff()
    attempts = connection.factory.recovery.attempts
    error: Exception | None = None
    connection.notify_recovery(RecoveryEvent("lost", reason))
    while attempts is None or backoff.attempt < attempts:
        await asyncio.sleep(backoff.next())
        connection.notify_recovery(RecoveryEvent("trying", reason, backoff.attempt, error))
        try:
            await connection.open_link()
            await _Restoration(connection).run()
            connection.require_link()
        except (ClientError, OSError) as failure:  # OSError: such as a certificate that cannot be read
            log.info("%r: attempt %d failed: %s", connection, backoff.attempt, failure)
            error = failure
            await connection.drop_link()
        else:
            connection.recovered(RecoveryEvent("recovered", reason, backoff.attempt))
            return
        if not connection.is_recovering:
            return  # closed by the user meanwhile
    final = replace(reason, is_final=True)
    connection.notify_recovery(RecoveryEvent("gave_up", final, backoff.attempt, error))
    connection.finish(final)


class _ClosedMeanwhile(Exception):
    """The user closed the channel during its restoration."""


class _Restoration:
    """Restores the topology on one link. ConnectionLost and CallTimedOut propagate: the link is unusable."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self._topology = connection.topology
        self._wants_topology = connection.factory.recovery.topology
        self._temporary: EngineChannel | None = None
        # A broker drops a silent connection after two heartbeats; until then it may hold our exclusive queues.
        self._retry_until = connection.loop.time() + 2 * connection.factory.heartbeat + 1

    async def run(self) -> None:
        if self._wants_topology:
            try:
                await self._declare_topology()
            finally:
                self._drop_temporary_channel()
        for channel in list(self._connection.channels.values()):
            if channel.is_open and not channel.is_closing:
                await self._restore(channel)

    # -- topology ----------------------------------------------------------------------------------------------------

    async def _declare_topology(self) -> None:
        topology = self._topology
        for exchange in topology.exchanges():
            await self._declare(
                spec.ExchangeDeclare(
                    exchange.name,
                    exchange.type,
                    False,
                    exchange.durable,
                    exchange.auto_delete,
                    exchange.internal,
                    False,
                    dict(exchange.arguments),
                ),
                spec.ExchangeDeclareOk,
                exchange,
            )
        for queue in topology.queues():
            await self._declare_queue(queue)
        for binding in topology.exchange_bindings():
            bind: spec.Method = spec.ExchangeBind(
                binding.destination, binding.source, binding.routing_key, False, dict(binding.arguments)
            )
            await self._declare(bind, spec.ExchangeBindOk, binding)
        for binding in topology.queue_bindings():
            bind = spec.QueueBind(
                binding.destination, binding.source, binding.routing_key, False, dict(binding.arguments)
            )
            await self._declare(bind, spec.QueueBindOk, binding)
        await self._close_temporary_channel()

    async def _declare_queue(self, queue: QueueRecord) -> None:
        method = spec.QueueDeclare(
            "" if queue.is_server_named else queue.name,
            False,
            queue.durable,
            queue.exclusive,
            queue.auto_delete,
            False,
            dict(queue.arguments),
        )
        declared = await self._declare(method, spec.QueueDeclareOk, queue)
        if declared is not None and declared.queue != queue.name:
            self._topology.rename_queue(queue.name, declared.queue)
            self._connection.notify_renamed(queue.name, declared.queue)

    async def _declare(self, method: spec.Method, expects: type, record: object) -> Any:
        """Return the reply, or None if the broker refused, which is reported."""
        is_exclusive = isinstance(method, spec.QueueDeclare) and method.exclusive
        while True:
            channel = await self._temporary_channel()
            try:
                return await self._with_deadline(method.name, channel.request(method, expects))
            except ChannelClosed as error:
                self._drop_temporary_channel()
                if not (is_exclusive and isinstance(error, ResourceLocked) and await self._wait_to_retry()):
                    self._connection.report("recovery", error, record)
                    return None

    async def _temporary_channel(self) -> EngineChannel:
        if self._temporary is None:
            channel = EngineChannel(self._connection, self._connection.free_number())
            channel.state.is_restoring = True  # an error only closes it
            self._connection.add(channel)
            self._temporary = channel
            await self._with_deadline("channel.open", channel.request(spec.ChannelOpen(), spec.ChannelOpenOk))
        return self._temporary

    async def _close_temporary_channel(self) -> None:
        if self._temporary is not None:
            await self._with_deadline(
                "channel.close", self._temporary.request(spec.ChannelClose(200, ""), spec.ChannelCloseOk)
            )

    def _drop_temporary_channel(self) -> None:
        channel, self._temporary = self._temporary, None
        if channel is not None:
            self._connection.forget(channel)

    # -- channels ----------------------------------------------------------------------------------------------------

    async def _restore(self, channel: EngineChannel) -> None:
        """Restore one channel; start over without a consumer that the broker refuses."""
        if not self._wants_topology:
            for consumer in list(channel.state.consumers.values()):
                channel.end_consumer(consumer, ConsumerCancelled(consumer.tag))
        channel.state.is_restoring = True
        try:
            while not await self._restore_once(channel):
                pass
        except _ClosedMeanwhile:
            pass
        finally:
            channel.state.is_restoring = False

    async def _restore_once(self, channel: EngineChannel) -> bool:
        """Return False to start over."""
        channel.refusal = None
        consumer: EngineConsumer | None = None
        try:
            await self._restore_modes(channel)
            prefetch = 0, 0  # of a new channel: no limit
            for consumer in list(channel.state.consumers.values()):
                if consumer.is_active:
                    prefetch = await self._restore_prefetch(channel, prefetch, consumer.prefetch)
                    await self._step(channel, "basic.consume", channel.subscribe(consumer))
            await self._restore_prefetch(channel, prefetch, channel.prefetch)
        except ChannelClosed as error:
            return await self._on_refused(channel, consumer, error)
        return True

    async def _on_refused(self, channel: EngineChannel, consumer: EngineConsumer | None, error: ChannelClosed) -> bool:
        """Drop the refused consumer; if something else was refused, the channel stays closed."""
        if channel.is_closing:
            return True
        reason = error.reason
        is_consume = (reason.class_id << 16 | reason.method_id) == spec.BasicConsume.index
        if consumer is None or not is_consume:
            self._connection.report("recovery", error, channel.facade)
            channel.end_refused(error, reason)
            return True
        is_held = consumer.exclusive and isinstance(error, AccessRefused)
        if not (is_held and await self._wait_to_retry()):
            self._connection.report("recovery", error, consumer)
            channel.end_consumer(consumer, ConsumerCancelled(consumer.tag))
        return False

    async def _restore_modes(self, channel: EngineChannel) -> None:
        state = channel.state
        await self._step(channel, "channel.open", channel.open())
        if channel.channel_prefetch is not None:
            count, size = channel.channel_prefetch
            await self._step(channel, "basic.qos", channel.request(spec.BasicQos(size, count, True), spec.BasicQosOk))
        if state.is_confirming:
            await self._step(channel, "confirm.select", channel.request(spec.ConfirmSelect(), spec.ConfirmSelectOk))
        if state.is_transactional:
            await self._step(channel, "tx.select", channel.request(spec.TxSelect(), spec.TxSelectOk))
        with self._connection.shared.lock:
            state.resume_publishing()

    async def _restore_prefetch(
        self, channel: EngineChannel, present: tuple[int, int], wanted: tuple[int, int]
    ) -> tuple[int, int]:
        """Set the prefetch of the consumers that follow; return it."""
        if wanted != present:
            count, size = wanted
            await self._step(channel, "basic.qos", channel.request(spec.BasicQos(size, count, False), spec.BasicQosOk))
        return wanted

    async def _step(self, channel: EngineChannel, what: str, work: Awaitable[Any]) -> None:
        """Make one call; raise if the channel was closed meanwhile."""
        await self._with_deadline(what, work)
        self._connection.require_link()
        if channel.is_closing:
            raise _ClosedMeanwhile
        if channel.refusal is not None:
            raise channel.refusal

    # -- deadlines ---------------------------------------------------------------------------------------------------

    async def _with_deadline(self, what: str, work: Awaitable[Any]) -> Any:
        return await self._connection.with_deadline(None, what, work)

    async def _wait_to_retry(self) -> bool:
        """Sleep and return True if another attempt may succeed."""
        if self._connection.loop.time() >= self._retry_until:
            return False
        await asyncio.sleep(_HELD_INTERVAL)
        return True
