"""A channel on asyncio: the engine's channel, with what users need around it. Owned by the connection's loop.

What waits for the server is a coroutine. `ack`, `nack` and `reject` wait for nothing and are plain calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.aio.consumer import Consumer
from warrenmq.client.aio.transaction import Transaction
from warrenmq.client.aio.worker import Inbox
from warrenmq.client.confirms import Confirmation
from warrenmq.client.delivery import Delivery, Returned
from warrenmq.client.engine.channel import EngineChannel, QueueState
from warrenmq.client.engine.channel_state import Body
from warrenmq.client.errors import CloseReason
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.aio.connection import Connection

Arguments = Mapping[str, Any]

# Who publishes without ever waiting lets the loop write after so many, so that the broker works at the same time:
# 150,000 -> 195,000 messages of 100 B a second, one run each on a busy machine.
_BREATH = 128


class Channel:
    """What `await connection.channel()` gives. Every waiting call takes a `timeout`; None is the factory's.

    >>> async def main():
    ...     async with aio.connect(url) as connection, await connection.channel() as channel:
    ...         await channel.confirm_select()
    ...         confirmation = await channel.publish("", "no such queue", b"one", mandatory=True)
    ...         try:
    ...             await confirmation  # the publish waited for room in the output only: this is the broker's word
    ...         except aio.Unroutable as unroutable:
    ...             print(unroutable.returned.reply_text)
    >>> asyncio.run(main())
    NO_ROUTE
    """

    def __init__(self, connection: Connection, engine_channel: EngineChannel) -> None:
        self.connection = connection
        self._engine_channel = engine_channel
        self._state = engine_channel.state
        self._tracing = connection.factory.tracing
        self._burst = 0
        engine_channel.facade = self

    # -- exchanges ---------------------------------------------------------------------------------------------------

    async def exchange_declare(
        self,
        exchange: str,
        type: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
        timeout: float | None = None,
    ) -> None:
        """Make sure that there is such an exchange; `passive` only asks."""
        await self._engine_channel.exchange_declare(
            exchange,
            type,
            passive=passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
            timeout=timeout,
        )

    async def exchange_delete(self, exchange: str, *, if_unused: bool = False, timeout: float | None = None) -> None:
        await self._engine_channel.exchange_delete(exchange, if_unused=if_unused, timeout=timeout)

    async def exchange_bind(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """From the exchange `source` to the exchange `destination`."""
        await self._engine_channel.exchange_bind(destination, source, routing_key, arguments, timeout=timeout)

    async def exchange_unbind(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        await self._engine_channel.exchange_unbind(destination, source, routing_key, arguments, timeout=timeout)

    # -- queues ------------------------------------------------------------------------------------------------------

    async def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        timeout: float | None = None,
    ) -> QueueState:
        """Make sure that there is such a queue; without a name the server gives it one. `passive` only asks."""
        return await self._engine_channel.queue_declare(
            queue,
            passive=passive,
            durable=durable,
            exclusive=exclusive,
            auto_delete=auto_delete,
            arguments=arguments,
            timeout=timeout,
        )

    async def queue_bind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        await self._engine_channel.queue_bind(queue, exchange, routing_key, arguments, timeout=timeout)

    async def queue_unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        await self._engine_channel.queue_unbind(queue, exchange, routing_key, arguments, timeout=timeout)

    async def queue_purge(self, queue: str, *, timeout: float | None = None) -> int:
        """Drop what waits in the queue; gives how many that were."""
        return await self._engine_channel.queue_purge(queue, timeout=timeout)

    async def queue_delete(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False, timeout: float | None = None
    ) -> int:
        """Delete the queue; gives how many messages went with it."""
        return await self._engine_channel.queue_delete(queue, if_unused=if_unused, if_empty=if_empty, timeout=timeout)

    # -- publishing --------------------------------------------------------------------------------------------------

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        mandatory: bool = False,
        timeout: float | None = None,
    ) -> Confirmation:
        """Send a message. Waits only while too much waits to be written; await what it gives for the broker's word."""
        self._burst += 1
        if self._burst == _BREATH:
            self._burst = 0
            await asyncio.sleep(0)
        if self._tracing is not None:
            return await self._publish_traced(exchange, routing_key, body, properties, mandatory, timeout)
        confirmation = self._state.publish(exchange, routing_key, body, properties, mandatory)
        if confirmation is None:
            return await self._publish_later(exchange, routing_key, body, properties, mandatory, timeout)
        return confirmation

    async def _publish_later(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None,
        mandatory: bool,
        timeout: float | None,
    ) -> Confirmation:
        loop = self.connection._engine.loop
        deadline = loop.time() + (self.connection.factory.call_timeout if timeout is None else timeout)
        while True:
            await self._engine_channel.waits.wait_until_writable(deadline - loop.time())
            confirmation = self._state.publish(exchange, routing_key, body, properties, mandatory)
            if confirmation is not None:
                return confirmation

    async def _publish_traced(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None,
        mandatory: bool,
        timeout: float | None,
    ) -> Confirmation:
        assert self._tracing is not None
        span = self._tracing.publishing(exchange, routing_key, body, properties)
        try:
            confirmation = self._state.publish(exchange, routing_key, body, span.properties, mandatory)
            if confirmation is None:
                confirmation = await self._publish_later(
                    exchange, routing_key, body, span.properties, mandatory, timeout
                )
        except BaseException as error:
            span.end(error)
            raise
        span.end()
        return confirmation

    async def confirm_select(self, *, timeout: float | None = None) -> None:
        """From now on the broker says its word on every publish of this channel."""
        await self._engine_channel.confirm_select(timeout=timeout)

    async def wait_for_confirms(self, timeout: float | None = None) -> None:
        """Until all that was published has the broker's word; raises the first no since the last wait."""
        await self._engine_channel.wait_for_confirms(timeout)

    @property
    def next_publish_tag(self) -> int:
        """The tag that the next publish gets; 0 outside confirm mode."""
        return self._state.next_publish_tag

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def qos(
        self,
        prefetch_count: int = 0,
        *,
        prefetch_size: int = 0,
        global_: bool = False,
        timeout: float | None = None,
    ) -> None:
        """How many deliveries may be unsettled at a time: per consumer begun from now on, or (global_) per channel."""
        await self._engine_channel.qos(prefetch_count, prefetch_size=prefetch_size, global_=global_, timeout=timeout)

    async def get(self, queue: str, *, auto_ack: bool = False, timeout: float | None = None) -> Delivery | None:
        """The next message of the queue, or None when it has none."""
        return await self._engine_channel.get(queue, auto_ack=auto_ack, timeout=timeout)

    def consume(
        self,
        queue: str,
        callback: Callable[[Delivery], object] | None = None,
        *,
        consumer_tag: str = "",
        auto_ack: bool = False,
        exclusive: bool = False,
        no_local: bool = False,
        arguments: Arguments | None = None,
        on_cancel: Callable[[Any], object] | None = None,
        timeout: float | None = None,
    ) -> Consumer:
        """Have what comes to the queue delivered: to the callback, plain or async, or by iteration.

        Await what it gives, or iterate it: nothing begins before. `timeout` is that of the iteration: it ends when
        nothing came for so long. `on_cancel(consumer)` is called when the server ends the consumer.
        """
        if callback is not None and self._tracing is not None:
            callback = self._tracing.traced(callback, queue)
        inbox = Inbox() if callback is None else None
        begin = partial(
            self._engine_channel.consume,
            queue,
            callback,
            work_queue=inbox,
            consumer_tag=consumer_tag,
            auto_ack=auto_ack,
            exclusive=exclusive,
            no_local=no_local,
            arguments=arguments,
            on_cancel=on_cancel,
        )
        return Consumer(self, begin, queue, inbox, timeout)

    async def cancel(self, consumer: Consumer | str, *, timeout: float | None = None) -> None:
        """End a consumer."""
        tag = consumer if isinstance(consumer, str) else consumer.tag
        await self._engine_channel.cancel(tag, timeout=timeout)

    def ack(self, delivery: Delivery | int, multiple: bool = False) -> bool:
        """Done with it (`multiple`: and with all before it). False: it is of an earlier life, and nothing was said."""
        return self._state.ack(self._state.tag_of(delivery), multiple)

    def nack(self, delivery: Delivery | int, multiple: bool = False, requeue: bool = True) -> bool:
        """Give it back, or drop it (it is dead-lettered where the queue says so)."""
        return self._state.nack(self._state.tag_of(delivery), multiple, requeue)

    def reject(self, delivery: Delivery | int, requeue: bool = True) -> bool:
        return self._state.reject(self._state.tag_of(delivery), requeue)

    async def recover(self, requeue: bool = True, *, timeout: float | None = None) -> None:
        """Have everything unsettled on this channel delivered again."""
        await self._engine_channel.recover(requeue, timeout=timeout)

    # -- transactions ------------------------------------------------------------------------------------------------

    async def tx_select(self, *, timeout: float | None = None) -> None:
        await self._engine_channel.tx_select(timeout=timeout)

    async def tx_commit(self, *, timeout: float | None = None) -> None:
        await self._engine_channel.tx_commit(timeout=timeout)

    async def tx_rollback(self, *, timeout: float | None = None) -> None:
        await self._engine_channel.tx_rollback(timeout=timeout)

    def transaction(self) -> Transaction:
        """`async with channel.transaction():` commits at the end of the block, or rolls back if it raises.

        The channel stays transactional: publishing and settling outside a block raises Misuse from then on.
        """
        return Transaction(self)

    @property
    def transaction_open(self) -> bool:
        """Whether a transaction block is open."""
        return self._engine_channel.transaction_open

    @transaction_open.setter
    def transaction_open(self, is_open: bool) -> None:
        self._engine_channel.transaction_open = is_open

    @property
    def needs_transaction(self) -> bool:
        """Whether `transaction` was used: what is published and settled has to be inside a block."""
        return self._engine_channel.needs_transaction

    # -- listeners: plain or async, run by the channel's worker ------------------------------------------------------

    def add_return_listener(self, listener: Callable[[Returned], object]) -> None:
        """Told of every mandatory message that came back."""
        self._engine_channel.return_listeners.add(listener)

    def remove_return_listener(self, listener: Callable[[Returned], object]) -> bool:
        """Return False if it was not there."""
        return self._engine_channel.return_listeners.remove(listener)

    def add_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> None:
        """Told the broker's word on publishes: tag, multiple, is_ack."""
        self._engine_channel.add_confirm_listener(listener)

    def remove_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> bool:
        """Return False if it was not there."""
        return self._engine_channel.remove_confirm_listener(listener)

    def add_close_listener(self, listener: Callable[[CloseReason], object]) -> None:
        """Told when the connection is lost (`is_final` False) and when the channel has ended."""
        self._engine_channel.close_listeners.add(listener)

    def remove_close_listener(self, listener: Callable[[CloseReason], object]) -> bool:
        """Return False if it was not there."""
        return self._engine_channel.close_listeners.remove(listener)

    # -- itself ------------------------------------------------------------------------------------------------------

    @property
    def is_blocked(self) -> bool:
        """The server has paused publishing on this channel by channel.flow: publishes wait."""
        return self._state.is_paused

    @property
    def number(self) -> int:
        return self._engine_channel.number

    @property
    def life(self) -> int:
        """Grows by one with each connection that the channel lives on."""
        return self._state.life

    @property
    def is_open(self) -> bool:
        """Until it has ended for good: True also while the connection is being recovered."""
        return self._engine_channel.is_open

    @property
    def close_reason(self) -> CloseReason | None:
        return self._engine_channel.close_reason

    async def close(self, reply_code: int = 200, reply_text: str = "Goodbye", *, timeout: float | None = None) -> None:
        """End the channel; what it has not settled goes back to its queues."""
        await self._engine_channel.close(reply_code, reply_text, timeout=timeout)

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"{self.close_reason}"
        return f"<Channel {self.number}: {state}>"
