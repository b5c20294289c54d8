"""A channel for any thread: the hot calls go straight to the engine's channel state, all others over to the loop.

No state of its own but what the user may set; the engine's channel owns the rest, and outlives lost connections.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from warrenmq.client.blocking.consumer import Consumer
from warrenmq.client.blocking.transaction import Transaction
from warrenmq.client.blocking.worker import Inbox, Worker
from warrenmq.client.confirms import Confirmation
from warrenmq.client.delivery import Delivery, Returned
from warrenmq.client.engine.channel import QueueState
from warrenmq.client.errors import ClientError, CloseReason, ConnectionClosed, Misuse
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from warrenmq.client.blocking.connection import Connection
    from warrenmq.client.engine.channel import EngineChannel
    from warrenmq.client.engine.channel_state import Body

Arguments = Mapping[str, Any]
Result = TypeVar("Result")


class Channel:
    """Where everything happens: declare, publish, consume, settle. Made by `connection.channel()`.

    Every call that waits for the server takes `timeout` (None: the connection's call_timeout) and raises CallTimedOut
    when it has passed, ConnectionLost when the connection was lost under it, and the channel's error (NotFound,
    PreconditionFailed, ...) when the server closed the channel for it: such a channel stays closed.
    """

    def __init__(self, connection: Connection, engine_channel: EngineChannel) -> None:
        self.connection = connection
        self._engine_channel = engine_channel
        self._state = engine_channel.state
        self._thread = connection._thread
        self._tracing = connection.factory.tracing
        self._call_timeout = connection.factory.call_timeout
        engine_channel.facade = self

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def exchange_declare(
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
        """Make sure that there is such an exchange; `passive` only asks whether there is one of this name."""
        self._call(
            self._engine_channel.exchange_declare(
                exchange,
                type,
                passive=passive,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=arguments,
                timeout=timeout,
            ),
            timeout,
        )

    def exchange_delete(self, exchange: str, *, if_unused: bool = False, timeout: float | None = None) -> None:
        self._call(self._engine_channel.exchange_delete(exchange, if_unused=if_unused, timeout=timeout), timeout)

    def exchange_bind(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        """Have the exchange `source` hand on to the exchange `destination`."""
        self._call(
            self._engine_channel.exchange_bind(destination, source, routing_key, arguments, timeout=timeout), timeout
        )

    def exchange_unbind(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        self._call(
            self._engine_channel.exchange_unbind(destination, source, routing_key, arguments, timeout=timeout), timeout
        )

    # -- queues ------------------------------------------------------------------------------------------------------

    def queue_declare(
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
        """Make sure that there is such a queue; without a name the server makes one up, and the answer says it."""
        return self._call(
            self._engine_channel.queue_declare(
                queue,
                passive=passive,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=arguments,
                timeout=timeout,
            ),
            timeout,
        )

    def queue_bind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        self._call(self._engine_channel.queue_bind(queue, exchange, routing_key, arguments, timeout=timeout), timeout)

    def queue_unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        self._call(self._engine_channel.queue_unbind(queue, exchange, routing_key, arguments, timeout=timeout), timeout)

    def queue_purge(self, queue: str, *, timeout: float | None = None) -> int:
        """Drop what waits in the queue; how much that was."""
        return self._call(self._engine_channel.queue_purge(queue, timeout=timeout), timeout)

    def queue_delete(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False, timeout: float | None = None
    ) -> int:
        """Delete the queue; how many messages went with it."""
        return self._call(
            self._engine_channel.queue_delete(queue, if_unused=if_unused, if_empty=if_empty, timeout=timeout), timeout
        )

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        mandatory: bool = False,
        timeout: float | None = None,
    ) -> Confirmation:
        """Send a message. In confirm mode the confirmation's `result()` waits for the broker's word on it.

        Waits, up to the time-out, only while more than the connection's output_limit is not yet written.
        """
        if self._tracing is not None:
            return self._publish_traced(exchange, routing_key, body, properties, mandatory, timeout)
        confirmation = self._state.publish(exchange, routing_key, body, properties, mandatory)
        if confirmation is None:
            return self._publish_patiently(exchange, routing_key, body, properties, mandatory, timeout)
        return confirmation

    def _publish_patiently(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None,
        mandatory: bool,
        timeout: float | None,
    ) -> Confirmation:
        """There was no room: wait for some and try again, as other threads wait for it too."""
        deadline = time.monotonic() + (self._call_timeout if timeout is None else timeout)
        while True:
            self._engine_channel.waits.block_until_writable(deadline - time.monotonic())
            confirmation = self._state.publish(exchange, routing_key, body, properties, mandatory)
            if confirmation is not None:
                return confirmation

    def _publish_traced(
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
                confirmation = self._publish_patiently(exchange, routing_key, body, span.properties, mandatory, timeout)
        except BaseException as error:
            span.end(error)
            raise
        span.end()
        return confirmation

    def confirm_select(self, *, timeout: float | None = None) -> None:
        """From now on the broker gives its word on every publish."""
        self._call(self._engine_channel.confirm_select(timeout=timeout), timeout)

    def wait_for_confirms(self, timeout: float | None = None) -> None:
        """Wait for the broker's word on all that was published; raises for the first bad one since the last wait."""
        self._call(self._engine_channel.wait_for_confirms(timeout=timeout), timeout)

    @property
    def next_publish_tag(self) -> int:
        """The tag that the next publish gets in confirm mode; 0 outside of it."""
        return self._state.next_publish_tag

    # -- consuming ---------------------------------------------------------------------------------------------------

    def qos(
        self,
        prefetch_count: int = 0,
        *,
        prefetch_size: int = 0,
        global_: bool = False,
        timeout: float | None = None,
    ) -> None:
        """How many deliveries may be unsettled at a time: per consumer begun from now on, or (global_) per channel."""
        self._call(
            self._engine_channel.qos(prefetch_count, prefetch_size=prefetch_size, global_=global_, timeout=timeout),
            timeout,
        )

    def get(self, queue: str, *, auto_ack: bool = False, timeout: float | None = None) -> Delivery | None:
        """The next message of the queue, or None when it has none."""
        return self._call(self._engine_channel.get(queue, auto_ack=auto_ack, timeout=timeout), timeout)

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
        """Have what comes to the queue delivered: to the callback, on the channel's worker thread, or by iteration.

        `timeout` is that of the iteration: it ends when nothing came for so long. `on_cancel(consumer)` is called when
        the server ends the consumer.
        """
        _require_plain(callback)
        if callback is not None and self._tracing is not None:
            callback = self._tracing.traced(callback, queue)
        inbox = Inbox() if callback is None else None
        engine_consumer = self._call(
            self._engine_channel.consume(
                queue,
                callback,
                work_queue=inbox,
                consumer_tag=consumer_tag,
                auto_ack=auto_ack,
                exclusive=exclusive,
                no_local=no_local,
                arguments=arguments,
                on_cancel=on_cancel,
            ),
            None,
        )
        return Consumer(self, engine_consumer, inbox, timeout)

    def cancel(self, consumer: Consumer | str, *, timeout: float | None = None) -> None:
        """End a consumer."""
        tag = consumer if isinstance(consumer, str) else consumer.tag
        self._call(self._engine_channel.cancel(tag, timeout=timeout), timeout)

    # -- settling ----------------------------------------------------------------------------------------------------

    def ack(self, delivery: Delivery | int, multiple: bool = False) -> bool:
        """Done with it (`multiple`: and with all before it). False: it is of an earlier life, and nothing was said."""
        return self._state.ack(self._state.tag_of(delivery), multiple)

    def nack(self, delivery: Delivery | int, multiple: bool = False, requeue: bool = True) -> bool:
        """Give it back, or drop it (it is dead-lettered where the queue says so)."""
        return self._state.nack(self._state.tag_of(delivery), multiple, requeue)

    def reject(self, delivery: Delivery | int, requeue: bool = True) -> bool:
        return self._state.reject(self._state.tag_of(delivery), requeue)

    def recover(self, requeue: bool = True, *, timeout: float | None = None) -> None:
        """Have everything unsettled on this channel delivered again."""
        self._call(self._engine_channel.recover(requeue, timeout=timeout), timeout)

    # -- transactions ------------------------------------------------------------------------------------------------

    def tx_select(self, *, timeout: float | None = None) -> None:
        self._call(self._engine_channel.tx_select(timeout=timeout), timeout)

    def tx_commit(self, *, timeout: float | None = None) -> None:
        self._call(self._engine_channel.tx_commit(timeout=timeout), timeout)

    def tx_rollback(self, *, timeout: float | None = None) -> None:
        self._call(self._engine_channel.tx_rollback(timeout=timeout), timeout)

    def transaction(self) -> Transaction:
        """`with channel.transaction():` commits at the end of the block, or rolls back if it raises.

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

    # -- listeners: called on the channel's worker thread ------------------------------------------------------------

    def add_return_listener(self, listener: Callable[[Returned], object]) -> None:
        """Told of every mandatory message that came back."""
        _require_plain(listener)
        self._engine_channel.return_listeners.add(listener)

    def remove_return_listener(self, listener: Callable[[Returned], object]) -> bool:
        """Return False if it was not there."""
        return self._engine_channel.return_listeners.remove(listener)

    def add_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> None:
        """Told (tag, multiple, is_ack) of every word of the broker on publishes."""
        _require_plain(listener)
        self._engine_channel.add_confirm_listener(listener)

    def remove_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> bool:
        """Return False if it was not there."""
        return self._engine_channel.remove_confirm_listener(listener)

    def add_close_listener(self, listener: Callable[[CloseReason], object]) -> None:
        """Told when the channel has ended for good: who began it, and why."""
        _require_plain(listener)
        self._engine_channel.close_listeners.add(listener)

    def remove_close_listener(self, listener: Callable[[CloseReason], object]) -> bool:
        """Return False if it was not there."""
        return self._engine_channel.close_listeners.remove(listener)

    # -- the channel itself ------------------------------------------------------------------------------------------

    @property
    def is_blocked(self) -> bool:
        """The server has paused publishing on this channel by channel.flow: publishes wait."""
        return self._state.is_paused

    @property
    def number(self) -> int:
        return self._engine_channel.number

    @property
    def life(self) -> int:
        """Grows with each new connection to the server that the channel lives on."""
        return self._state.life

    @property
    def is_open(self) -> bool:
        """Not closed for good; while the connection recovers it is open, and calls wait."""
        return self._engine_channel.is_open

    @property
    def close_reason(self) -> CloseReason | None:
        return self._engine_channel.close_reason

    def close(self, reply_code: int = 200, reply_text: str = "Goodbye", timeout: float | None = None) -> None:
        """End the channel and wait for the callback that runs just now; closing twice is no error."""
        limit = self.connection.factory.close_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            if not self._thread.is_over:
                self._thread.call(self._engine_channel.close(reply_code, reply_text, timeout=limit), limit)
        except ConnectionClosed:
            pass  # the connection ended, and the channel with it
        worker = self._engine_channel.work_queue
        if isinstance(worker, Worker):
            worker.join(deadline - time.monotonic())

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except ClientError:
            if error is None:  # what went wrong in the block is the news, not that its end went wrong too
                raise

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed: {self.close_reason}"
        return f"<Channel {self.number} of {self.connection!r}, {state}>"

    def _call(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Result:
        return self._thread.call(coroutine, self._call_timeout if timeout is None else timeout)


def _require_plain(callback: Callable[..., object] | None) -> None:
    """A coroutine function here would never be awaited."""
    if inspect.iscoroutinefunction(callback):
        raise Misuse("the blocking client calls plain functions; for coroutines use warrenmq.client.aio")
