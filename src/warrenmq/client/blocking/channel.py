"""A channel: the engine's channel as users see it. It lives through lost connections.

Calls that wait for the server go to the connection's loop. `publish`, `ack`, `nack` and `reject` use the engine's
ChannelState directly.

Written by tools/unasync.py from aio/channel.py: change that, then run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.blocking.consumer import Consumer
from warrenmq.client.blocking.primitives import check_callback
from warrenmq.client.blocking.topic import Topic
from warrenmq.client.blocking.transaction import Transaction
from warrenmq.client.blocking.worker import Inbox
from warrenmq.client.confirms import Confirmation
from warrenmq.client.delivery import Delivery, Returned
from warrenmq.client.engine.channel import QueueState
from warrenmq.client.errors import ClientError, CloseReason
from warrenmq.client.keys import check_binding_key, check_routing_key
from warrenmq.client.publish_headers import with_publish_headers
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.blocking.connection import Connection
    from warrenmq.client.engine.channel import EngineChannel
    from warrenmq.client.engine.channel_state import Body

Arguments = Mapping[str, Any]


class Channel:
    """Declares, publishes, consumes and settles. Opened by `connection.channel()`.

    >>> from warrenmq import client
    >>> with client.connect(url) as connection, connection.channel() as channel:
    ...     channel.confirm_select()
    ...     confirmation = channel.publish("", "no such queue", b"one", mandatory=True)
    ...     try:
    ...         confirmation.result()
    ...     except client.Unroutable as unroutable:
    ...         print(unroutable.returned.reply_text)
    NO_ROUTE

    Every call that waits for the server takes `timeout` (None: the connection's call_timeout). It raises CallTimedOut
    after that time, ConnectionLost if the connection is lost meanwhile, and the channel's error (NotFound,
    PreconditionFailed, ...) if the server closes the channel because of it: such a channel stays closed.
    """

    def __init__(self, connection: Connection, engine_channel: EngineChannel) -> None:
        self.connection = connection
        self._engine_channel = engine_channel
        self._state = engine_channel.state
        self._call = connection._call
        self._tracing = connection.factory.tracing
        self._has_strict_keys = connection.factory.strict_keys
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
        """Declare an exchange; `passive` only checks that one with this name exists."""
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
        """Have the exchange `source` route to the exchange `destination`."""
        if self._has_strict_keys:
            check_binding_key(routing_key)
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
        """Declare a queue. Without a name the server generates one, which is in the result."""
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
        if self._has_strict_keys:
            check_binding_key(routing_key)
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

    def unbind_all(self, queue: str, *, timeout: float | None = None) -> int:
        """Remove the bindings of the queue that were made on this connection; return their number.

        AMQP cannot list bindings: those that other connections have made stay.
        """
        return self._call(self._engine_channel.unbind_all(queue, timeout=timeout), timeout)

    def message_count(self, queue: str, *, timeout: float | None = None) -> int:
        """Return the number of ready messages. NotFound closes the channel, as every refused call does."""
        return (self.queue_declare(queue, passive=True, timeout=timeout)).message_count

    def consumer_count(self, queue: str, *, timeout: float | None = None) -> int:
        """Return the number of consumers. NotFound closes the channel, as every refused call does."""
        return (self.queue_declare(queue, passive=True, timeout=timeout)).consumer_count

    def queue_purge(self, queue: str, *, timeout: float | None = None) -> int:
        """Drop the ready messages of the queue; return their number."""
        return self._call(self._engine_channel.queue_purge(queue, timeout=timeout), timeout)

    def queue_delete(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False, timeout: float | None = None
    ) -> int:
        """Delete the queue; return the number of messages in it."""
        return self._call(
            self._engine_channel.queue_delete(queue, if_unused=if_unused, if_empty=if_empty, timeout=timeout), timeout
        )

    # -- topics ------------------------------------------------------------------------------------------------------

    def declare_topic(
        self, topic: str, partitions: int = 8, *, groups: Iterable[str] = (), arguments: Arguments | None = None
    ) -> Topic:
        """Declare a topic, whose messages are spread over partitions: see Topic. Puts the channel in confirm mode.

        The `groups` get queues for all messages published from now on; others when their first member consumes.
        `arguments` are those of the queues. A group may get more partitions later, not fewer.
        """
        return Topic(self, topic, partitions, arguments).declare(groups)

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None = None,
        *,
        mandatory: bool = False,
        delay: float | None = None,
        deliver_at: datetime | int | str | None = None,
        report_to: str | None = None,
        timeout: float | None = None,
    ) -> Confirmation:
        """Send a message. In confirm mode, wait for its confirm with `confirmation.result()`.

        Waits, up to the timeout, only while more than the connection's output_limit is not yet written.

        WarrenMQ delivers the message `delay` seconds later, or at the time `deliver_at` (a datetime with a time zone,
        milliseconds since 1970, or ISO 8601 text), and sends a report of its failure to the queue `report_to`.
        """
        if delay is not None or deliver_at is not None or report_to is not None:
            properties = with_publish_headers(properties, delay, deliver_at, report_to)
        if self._has_strict_keys and exchange:  # the default exchange takes the name of a queue
            check_routing_key(routing_key)
        if self._tracing is not None:
            return self._publish_traced(exchange, routing_key, body, properties, mandatory, timeout)
        confirmation = self._state.publish(exchange, routing_key, body, properties, mandatory)
        if confirmation is None:
            return self._publish_when_writable(exchange, routing_key, body, properties, mandatory, timeout)
        return confirmation

    def _publish_when_writable(
        self,
        exchange: str,
        routing_key: str,
        body: Body,
        properties: BasicProperties | None,
        mandatory: bool,
        timeout: float | None,
    ) -> Confirmation:
        """The output is full: wait for room and try again, as others may take it first."""
        deadline = monotonic() + (self._call_timeout if timeout is None else timeout)
        while True:
            self._engine_channel.waits.block_until_writable(deadline - monotonic())
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
                confirmation = self._publish_when_writable(
                    exchange, routing_key, body, span.properties, mandatory, timeout
                )
        except BaseException as error:
            span.end(error)
            raise
        span.end()
        return confirmation

    def confirm_select(self, *, timeout: float | None = None) -> None:
        """Put the channel in confirm mode: the broker confirms every publish from now on."""
        self._call(self._engine_channel.confirm_select(timeout=timeout), timeout)

    def wait_for_confirms(self, timeout: float | None = None) -> None:
        """Wait until all publishes are confirmed; raise the first failure since the last call."""
        self._call(self._engine_channel.wait_for_confirms(timeout=timeout), timeout)

    @property
    def next_publish_tag(self) -> int:
        """The tag of the next publish; 0 outside confirm mode."""
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
        """Limit unsettled deliveries: per consumer started from now on, or (global_) for the channel."""
        self._call(
            self._engine_channel.qos(prefetch_count, prefetch_size=prefetch_size, global_=global_, timeout=timeout),
            timeout,
        )

    def get(self, queue: str, *, auto_ack: bool = False, timeout: float | None = None) -> Delivery | None:
        """Return the next message of the queue, or None if it is empty."""
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
        filter: str | Arguments | None = None,
        arguments: Arguments | None = None,
        on_cancel: Callable[[Any], object] | None = None,
        timeout: float | None = None,
    ) -> Consumer:
        """Deliver the messages of the queue to the callback, on the channel's worker, or by iteration.

        `timeout` ends the iteration if no message comes for that long. `on_cancel(consumer)` is called when the server
        cancels the consumer.

        WarrenMQ delivers only messages that match `filter`, a selector such as `"priority > 3"` or a table of header
        conditions; the others wait for other consumers.
        """
        if filter is not None:
            arguments = {**(arguments or {}), "x-filter": filter}
        check_callback(callback)
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
        consumer = Consumer(self, begin, queue, inbox, timeout)
        consumer._start()
        return consumer

    def cancel(self, consumer: Consumer | str, *, timeout: float | None = None) -> None:
        """Cancel a consumer."""
        tag = consumer if isinstance(consumer, str) else consumer.tag
        self._call(self._engine_channel.cancel(tag, timeout=timeout), timeout)

    def set_default_consumer(self, callback: Callable[[Delivery], object] | None) -> None:
        """Call it with the deliveries that belong to no consumer of this channel; None: they are not handled.

        A broker sends such a delivery after a cancel, or for `recover(requeue=False)`. Without a default consumer it
        stays unsettled until the channel is closed.
        """
        check_callback(callback)
        self._engine_channel.set_default_consumer(callback)

    # -- settling ----------------------------------------------------------------------------------------------------

    def ack(self, delivery: Delivery | int, multiple: bool = False) -> bool:
        """Acknowledge it (`multiple`: and all before it). False: its connection was lost, and no ack was sent."""
        return self._state.ack(self._state.tag_of(delivery), multiple)

    def nack(self, delivery: Delivery | int, multiple: bool = False, requeue: bool = True) -> bool:
        """Requeue it, or drop it (dead-lettered if the queue is configured so)."""
        return self._state.nack(self._state.tag_of(delivery), multiple, requeue)

    def reject(self, delivery: Delivery | int, requeue: bool = True) -> bool:
        return self._state.reject(self._state.tag_of(delivery), requeue)

    def recover(self, requeue: bool = True, *, timeout: float | None = None) -> None:
        """Have the broker redeliver everything unsettled on this channel."""
        self._call(self._engine_channel.recover(requeue, timeout=timeout), timeout)

    # -- transactions ------------------------------------------------------------------------------------------------

    def tx_select(self, *, timeout: float | None = None) -> None:
        self._call(self._engine_channel.tx_select(timeout=timeout), timeout)

    def tx_commit(self, *, timeout: float | None = None) -> None:
        self._call(self._engine_channel.tx_commit(timeout=timeout), timeout)

    def tx_rollback(self, *, requeue: bool = False, timeout: float | None = None) -> None:
        """Roll back. AMQP leaves what the transaction had acked unsettled; `requeue` has the broker redeliver it."""
        self._call(self._engine_channel.tx_rollback(requeue=requeue, timeout=timeout), timeout)

    def transaction(self, *deliveries: Delivery, redeliver: bool | None = None) -> Transaction:
        """Return a block (`with`) that commits at its end, or rolls back if it raises.

        The deliveries are acked in the transaction. After a rollback the broker redelivers them and all others that the
        block has settled; with `redeliver=False` they stay unsettled. None: False in the handler of a service, which
        retries the message, else True. The channel stays transactional: publishing and settling outside a block raises
        Misuse from then on.
        """
        return Transaction(self, deliveries, self._engine_channel.redelivers if redeliver is None else redeliver)

    @property
    def transaction_open(self) -> bool:
        """Whether a transaction block is open."""
        return self._engine_channel.transaction_open

    @transaction_open.setter
    def transaction_open(self, is_open: bool) -> None:
        self._engine_channel.transaction_open = is_open

    @property
    def needs_transaction(self) -> bool:
        """Whether `transaction` was used, so that publishing and settling must be inside a block."""
        return self._engine_channel.needs_transaction

    # -- listeners, called on the channel's worker --------------------------------------------------------------------

    def add_return_listener(self, listener: Callable[[Returned], object]) -> None:
        """Call it with every mandatory message that is returned."""
        check_callback(listener)
        self._engine_channel.return_listeners.add(listener)

    def remove_return_listener(self, listener: Callable[[Returned], object]) -> bool:
        """Return False if there is no such listener."""
        return self._engine_channel.return_listeners.remove(listener)

    def add_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> None:
        """Call it with (tag, multiple, is_ack) of every confirm."""
        check_callback(listener)
        self._engine_channel.add_confirm_listener(listener)

    def remove_confirm_listener(self, listener: Callable[[int, bool, bool], object]) -> bool:
        """Return False if there is no such listener."""
        return self._engine_channel.remove_confirm_listener(listener)

    def add_close_listener(self, listener: Callable[[CloseReason], object]) -> None:
        """Call it when the connection is lost (`is_final` is False), and when the channel has ended."""
        check_callback(listener)
        self._engine_channel.close_listeners.add(listener)

    def remove_close_listener(self, listener: Callable[[CloseReason], object]) -> bool:
        """Return False if there is no such listener."""
        return self._engine_channel.close_listeners.remove(listener)

    # -- the channel itself ------------------------------------------------------------------------------------------

    @property
    def is_blocked(self) -> bool:
        """Whether the server has paused publishing on this channel (channel.flow); publishes wait."""
        return self._state.is_paused

    @property
    def number(self) -> int:
        return self._engine_channel.number

    @property
    def life(self) -> int:
        """A number that grows with each reconnect."""
        return self._state.life

    @property
    def is_open(self) -> bool:
        """Whether it has not ended for good. While the connection recovers it is open, and calls wait."""
        return self._engine_channel.is_open

    @property
    def close_reason(self) -> CloseReason | None:
        return self._engine_channel.close_reason

    def close(self, reply_code: int = 200, reply_text: str = "Goodbye", timeout: float | None = None) -> None:
        """Close the channel and wait for a running callback to end. Closing twice is allowed."""
        self.connection._close_channel(self._engine_channel, reply_code, reply_text, timeout)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except ClientError:
            if error is None:  # otherwise the error in the block is raised
                raise

    def __repr__(self) -> str:
        state = "open" if self.is_open else f"closed: {self.close_reason}"
        return f"<Channel {self.number} of {self.connection!r}, {state}>"
