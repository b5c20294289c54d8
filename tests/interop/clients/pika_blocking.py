"""pika's BlockingConnection."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosed,
    ChannelClosedByBroker,
    ChannelWrongStateError,
    ConnectionClosed,
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
    NackError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
    UnroutableError,
)

from .contract import PATIENCE, Channel, Client, Delivery, Feature, Outcome, QueueState, Refused, Returned, Scope
from .pika_values import HEADER_SAMPLES, delivery_from, properties_for


@contextmanager
def refusals() -> Iterator[None]:
    """Turn pika's exceptions for a close by the broker into ours."""
    try:
        yield
    except ChannelClosedByBroker as closed:
        raise Refused(Scope.CHANNEL, closed.reply_code, closed.reply_text) from closed
    except ConnectionClosedByBroker as closed:
        raise Refused(Scope.CONNECTION, closed.reply_code, closed.reply_text) from closed


class PikaBlockingChannel(Channel):
    def __init__(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        self._channel: BlockingChannel = connection.channel()
        self._deliveries: deque[Delivery] = deque()
        self._returns: deque[Returned] = deque()
        self._cancellations: deque[str] = deque()
        self._close_reason: Exception | None = None
        self._channel.add_on_return_callback(self._on_return)
        self._channel.add_on_cancel_callback(lambda frame: self._cancellations.append(frame.method.consumer_tag))
        # BlockingChannel tells a close only from the next call; its inner channel tells at once.
        self._channel._impl.add_on_close_callback(self._on_close)

    def _on_close(self, _channel: Any, reason: Exception) -> None:
        self._close_reason = reason

    def _on_return(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._returns.append(
            Returned(method.reply_code, method.reply_text, method.exchange, method.routing_key, bytes(body))
        )

    def _on_delivery(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._deliveries.append(delivery_from(method, properties, body))

    def _wait_for(self, is_there: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with refusals():
            while not is_there() and (left := deadline - time.monotonic()) > 0:
                self._connection.process_data_events(time_limit=min(left, 0.05))

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        with refusals():
            self._channel.exchange_declare(
                name, kind, passive, durable, auto_delete, internal, dict(arguments) if arguments else None
            )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with refusals():
            self._channel.exchange_delete(name, if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.exchange_bind(destination, source, routing_key, dict(arguments or {}))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.exchange_unbind(destination, source, routing_key, dict(arguments or {}))

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueState:
        with refusals():
            answer = self._channel.queue_declare(
                name, passive, durable, exclusive, auto_delete, dict(arguments) if arguments else None
            ).method
        return QueueState(answer.queue, answer.message_count, answer.consumer_count)

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.queue_bind(queue, exchange, routing_key, dict(arguments or {}))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.queue_unbind(queue, exchange, routing_key, dict(arguments or {}))

    def purge_queue(self, name: str) -> int:
        with refusals():
            return int(self._channel.queue_purge(name).method.message_count)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        with refusals():
            return int(self._channel.queue_delete(name, if_unused, if_empty).method.message_count)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        with refusals():
            self._channel.basic_publish(exchange, routing_key, body, properties_for(properties), mandatory)

    def select_confirms(self) -> None:
        with refusals():
            self._channel.confirm_delivery()

    def confirm(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> Outcome:
        try:
            self.publish(exchange, routing_key, body, properties, mandatory=mandatory)
        except UnroutableError as unroutable:
            message = unroutable.messages[0]
            method = message.method
            returned = Returned(method.reply_code, method.reply_text, method.exchange, method.routing_key, message.body)
            return Outcome(True, returned)
        except NackError:
            return Outcome(False)
        return Outcome(True)

    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        return sum(self.confirm(exchange, routing_key, body).confirmed for body in bodies)

    def next_return(self, timeout: float = PATIENCE) -> Returned | None:
        self._wait_for(lambda: bool(self._returns), timeout)
        return self._returns.popleft() if self._returns else None

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        with refusals():
            method, properties, body = self._channel.basic_get(queue, no_ack)
        return None if method is None else delivery_from(method, properties, body)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        with refusals():
            return str(
                self._channel.basic_consume(
                    queue, self._on_delivery, no_ack, exclusive, tag or None, dict(arguments) if arguments else None
                )
            )

    def cancel(self, tag: str) -> None:
        with refusals():
            self._channel.basic_cancel(tag)

    def next_delivery(self, timeout: float = PATIENCE) -> Delivery | None:
        self._wait_for(lambda: bool(self._deliveries), timeout)
        return self._deliveries.popleft() if self._deliveries else None

    def next_cancellation(self, timeout: float = PATIENCE) -> str | None:
        self._wait_for(lambda: bool(self._cancellations), timeout)
        return self._cancellations.popleft() if self._cancellations else None

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        with refusals():
            self._channel.basic_ack(tag, multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        with refusals():
            self._channel.basic_nack(tag, multiple, requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        with refusals():
            self._channel.basic_reject(tag, requeue)

    def recover(self) -> None:
        with refusals():
            self._channel.basic_recover(requeue=True)

    def qos(self, count: int, *, for_channel: bool = False) -> None:
        with refusals():
            self._channel.basic_qos(prefetch_count=count, global_qos=for_channel)

    def select_transactions(self) -> None:
        with refusals():
            self._channel.tx_select()

    def commit(self) -> None:
        with refusals():
            self._channel.tx_commit()

    def rollback(self) -> None:
        with refusals():
            self._channel.tx_rollback()

    def close(self) -> None:
        try:
            self._channel.close()
        except (ChannelClosed, ChannelWrongStateError):
            pass

    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        try:
            self._wait_for(lambda: self._close_reason is not None, timeout)
            assert self._close_reason is not None, "the channel was not closed"
            with refusals():
                raise self._close_reason
        except Refused as refused:
            return refused


class PikaBlockingClient(Client):
    name = "pika"
    lacks = frozenset({Feature.DUPLICATE_TAG})
    header_samples = HEADER_SAMPLES

    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        parameters = pika.URLParameters(url)
        parameters.heartbeat = heartbeat
        parameters.socket_timeout = PATIENCE
        if frame_max is not None:
            parameters.frame_max = frame_max
        try:
            with refusals():
                self._connection = pika.BlockingConnection(parameters)
        except (ProbableAuthenticationError, ProbableAccessDeniedError) as denied:
            code, text = parse_denial(denied)
            raise Refused(Scope.CONNECTION, code, text) from denied

    def channel(self) -> Channel:
        with refusals():
            return PikaBlockingChannel(self._connection)

    def idle(self, seconds: float) -> None:
        with refusals():
            self._connection.sleep(seconds)

    @property
    def is_open(self) -> bool:
        if self._connection.is_open:
            try:
                self._connection.process_data_events(0)
            except AMQPConnectionError:
                return False
        return bool(self._connection.is_open)

    def close(self) -> None:
        try:
            self._connection.close()
        except (ConnectionClosed, ConnectionWrongStateError, AMQPConnectionError):
            pass


def parse_denial(denied: AMQPConnectionError) -> tuple[int, str]:
    """pika tells a refused login as text: `ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - ...'`."""
    text = str(denied.args[0])
    code, quoted = text.split(": (", 1)[1].split(") ", 1)
    return int(code), quoted.strip("'\"")
