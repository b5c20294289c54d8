"""How a lost connection comes back: a new link, then everything that was declared, in the order in which it can work.

    exchanges, queues, exchange bindings, queue bindings        on a channel of the recovery's own
    per channel: open, qos, confirm or tx mode, what was kept for sending, consumers in their old order

What the broker refuses is reported and left out; a link that is lost meanwhile means waiting and beginning again. The
task that runs this belongs to the connection, which cancels it when the user closes.
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

# How often to ask again for a queue or consumer that a connection holds which the broker may not know to be dead.
_HELD_INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """What a recovery listener is told. `attempt` counts from 1 for each loss; `error` is why an attempt failed."""

    kind: Literal["lost", "trying", "recovered", "gave_up"]
    reason: CloseReason
    attempt: int = 0
    error: Exception | None = None


async def recover(connection: EngineConnection, reason: CloseReason) -> None:
    """Try until it works, or the attempts are used up."""
    backoff = connection.factory.recovery.backoff()
    attempts = connection.factory.recovery.attempts
    error: Exception | None = None
    connection.notify_recovery(RecoveryEvent("lost", reason))
    while attempts is None or backoff.attempt < attempts:
        await asyncio.sleep(backoff.next())
        connection.notify_recovery(RecoveryEvent("trying", reason, backoff.attempt, error))
        try:
            await connection.open_link()
            await _Replay(connection).run()
            connection.require_link()
        except (ClientError, OSError) as failure:  # an OSError that is none of ours: a certificate cannot be read
            log.info("%r: attempt %d failed: %s", connection, backoff.attempt, failure)
            error = failure
            await connection.drop_link()
        else:
            connection.recovered(RecoveryEvent("recovered", reason, backoff.attempt))
            return
        if not connection.is_recovering:
            return  # the user closed in this very moment
    final = replace(reason, is_final=True)
    connection.notify_recovery(RecoveryEvent("gave_up", final, backoff.attempt, error))
    connection.finish(final)


class _ClosedMeanwhile(Exception):
    """The user closed the channel that is being restored."""


class _Replay:
    """One replay, on one link. ConnectionLost and CallTimedOut go through: the link is no good."""

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self._topology = connection.topology
        self._wants_topology = connection.factory.recovery.topology
        self._scratch: EngineChannel | None = None
        # A broker drops a connection that says nothing for two heartbeats: until then it may hold what was ours alone.
        self._retry_until = connection.loop.time() + 2 * connection.factory.heartbeat + 1

    async def run(self) -> None:
        if self._wants_topology:
            try:
                await self._declare_topology()
            finally:
                self._drop_scratch()
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
        await self._close_scratch()

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
        """The reply; None where the broker refused it, which is reported."""
        is_exclusive = isinstance(method, spec.QueueDeclare) and method.exclusive
        while True:
            channel = await self._need_scratch()
            try:
                return await self._with_deadline(method.name, channel.request(method, expects))
            except ChannelClosed as error:
                self._drop_scratch()
                if not (is_exclusive and isinstance(error, ResourceLocked) and await self._wait_to_retry()):
                    self._connection.report("recovery", error, record)
                    return None

    async def _need_scratch(self) -> EngineChannel:
        if self._scratch is None:
            channel = EngineChannel(self._connection, self._connection.free_number())
            channel.state.is_restoring = True  # an error closes it, and that is all
            self._connection.add(channel)
            self._scratch = channel
            await self._with_deadline("channel.open", channel.request(spec.ChannelOpen(), spec.ChannelOpenOk))
        return self._scratch

    async def _close_scratch(self) -> None:
        if self._scratch is not None:
            await self._with_deadline(
                "channel.close", self._scratch.request(spec.ChannelClose(200, ""), spec.ChannelCloseOk)
            )

    def _drop_scratch(self) -> None:
        channel, self._scratch = self._scratch, None
        if channel is not None:
            self._connection.forget(channel)

    # -- channels ----------------------------------------------------------------------------------------------------

    async def _restore(self, channel: EngineChannel) -> None:
        """Bring it back; begun again without the consumer that the broker refused, if it refused one."""
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
        """False: begin again."""
        channel.refusal = None
        consumer: EngineConsumer | None = None
        try:
            await self._restore_modes(channel)
            prefetch = 0, 0  # what a new channel has: no limit
            for consumer in list(channel.state.consumers.values()):
                if consumer.is_active:
                    prefetch = await self._restore_prefetch(channel, prefetch, consumer.prefetch)
                    await self._step(channel, "basic.consume", channel.subscribe(consumer))
            await self._restore_prefetch(channel, prefetch, channel.prefetch)
        except ChannelClosed as error:
            return await self._on_refused(channel, consumer, error)
        return True

    async def _on_refused(self, channel: EngineChannel, consumer: EngineConsumer | None, error: ChannelClosed) -> bool:
        """Leave out the consumer that was refused; if it was not a consumer, the channel stays closed."""
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
        """Prefetch of the consumers that begin after it."""
        if wanted != present:
            count, size = wanted
            await self._step(channel, "basic.qos", channel.request(spec.BasicQos(size, count, False), spec.BasicQosOk))
        return wanted

    async def _step(self, channel: EngineChannel, what: str, work: Awaitable[Any]) -> None:
        """One call of a channel's restoring; the user may close the channel meanwhile."""
        await self._with_deadline(what, work)
        self._connection.require_link()
        if channel.is_closing:
            raise _ClosedMeanwhile
        if channel.refusal is not None:
            raise channel.refusal

    # -- both --------------------------------------------------------------------------------------------------------

    async def _with_deadline(self, what: str, work: Awaitable[Any]) -> Any:
        return await self._connection.with_deadline(None, what, work)

    async def _wait_to_retry(self) -> bool:
        """Whether it is worth asking again; waits a little then."""
        if self._connection.loop.time() >= self._retry_until:
            return False
        await asyncio.sleep(_HELD_INTERVAL)
        return True
