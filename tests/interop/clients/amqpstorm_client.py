"""AMQPStorm, a library with a reader thread of its own."""

from __future__ import annotations

import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

import amqpstorm
from amqpstorm.exception import AMQPChannelError, AMQPConnectionError, AMQPError, AMQPMessageError

from .contract import (
    PATIENCE,
    PROPERTY_NAMES,
    Channel,
    Client,
    Delivery,
    Feature,
    Outcome,
    QueueState,
    Refused,
    Returned,
    Scope,
)

# AMQPStorm keeps only this sentence of a returned message.
RETURNED = re.compile(r"Message not delivered: (.*) \((\d+)\) to queue '(.*)' from exchange '(.*)'")
CLOSED = re.compile(r"(?:Channel \d+|Connection) was closed by remote server: (.*)", re.DOTALL)


@contextmanager
def refusals() -> Iterator[None]:
    """Turn AMQPStorm's exceptions for a close by the broker into ours."""
    try:
        yield
    except AMQPMessageError:
        raise
    except (AMQPChannelError, AMQPConnectionError) as failure:
        told = CLOSED.fullmatch(str(failure))
        if told is None or failure.error_code is None:
            raise
        scope = Scope.CHANNEL if isinstance(failure, AMQPChannelError) else Scope.CONNECTION
        raise Refused(scope, failure.error_code, told[1]) from failure


def returned_from(failure: AMQPMessageError) -> Returned:
    told = RETURNED.fullmatch(str(failure))
    assert told is not None, f"not a return: {failure}"
    return Returned(int(told[2]), told[1], exchange=told[4], routing_key=told[3])


def properties_for(properties: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(properties or {})
    if "type" in given:
        given["message_type"] = given.pop("type")
    if "timestamp" in given:
        given["timestamp"] = datetime.fromtimestamp(given["timestamp"], UTC)
    return given


def delivery_from(message: amqpstorm.Message) -> Delivery:
    found = {name: value for name, value in dict(message._properties).items() if value not in (None, "")}
    if "message_type" in found:
        found["type"] = found.pop("message_type")
    if isinstance(found.get("timestamp"), datetime):
        found["timestamp"] = int(found["timestamp"].timestamp())
    method = dict(message.method or {})
    body = message._body
    return Delivery(
        body=body if isinstance(body, bytes) else str(body).encode(),
        exchange=method["exchange"],
        routing_key=method["routing_key"],
        tag=method["delivery_tag"],
        redelivered=bool(method["redelivered"]),
        properties={name: found[name] for name in PROPERTY_NAMES if name in found},
        consumer=method.get("consumer_tag"),
        remaining=method.get("message_count"),
    )


class AmqpStormChannel(Channel):
    def __init__(self, connection: amqpstorm.Connection) -> None:
        self._channel: amqpstorm.Channel = connection.channel(rpc_timeout=int(PATIENCE))
        self._deliveries: deque[Delivery] = deque()
        self._consumers: set[str] = set()

    def _on_delivery(self, message: amqpstorm.Message) -> None:
        self._deliveries.append(delivery_from(message))

    def _wait_for(self, is_there: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with refusals():
            while not is_there() and time.monotonic() < deadline:
                self._channel.check_for_errors()
                if self._channel.consumer_tags:
                    self._channel.process_data_events(auto_decode=False)
                time.sleep(0.01)

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
            self._channel.exchange.declare(name, kind, passive, durable, auto_delete, dict(arguments or {}))

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with refusals():
            self._channel.exchange.delete(name, if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.exchange.bind(destination, source, routing_key, dict(arguments or {}))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.exchange.unbind(destination, source, routing_key, dict(arguments or {}))

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
            answer = self._channel.queue.declare(name, passive, durable, exclusive, auto_delete, dict(arguments or {}))
        return QueueState(answer["queue"], answer["message_count"], answer["consumer_count"])

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.queue.bind(queue, exchange, routing_key, dict(arguments or {}))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.queue.unbind(queue, exchange, routing_key, dict(arguments or {}))

    def purge_queue(self, name: str) -> int:
        with refusals():
            return int(self._channel.queue.purge(name)["message_count"])

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        with refusals():
            return int(self._channel.queue.delete(name, if_unused, if_empty)["message_count"])

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        self._publish(exchange, routing_key, body, properties, mandatory)

    def _publish(
        self, exchange: str, routing_key: str, body: bytes, properties: Mapping[str, Any] | None, mandatory: bool
    ) -> bool | None:
        with refusals():
            return self._channel.basic.publish(body, routing_key, exchange, properties_for(properties), mandatory)

    def select_confirms(self) -> None:
        with refusals():
            self._channel.confirm_deliveries()

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
            is_confirmed = self._publish(exchange, routing_key, body, properties, mandatory)
        except AMQPMessageError as unroutable:
            return Outcome(True, returned_from(unroutable))
        return Outcome(bool(is_confirmed))

    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        return sum(self.confirm(exchange, routing_key, body).confirmed for body in bodies)

    def next_return(self, timeout: float = PATIENCE) -> Returned | None:
        try:
            self._wait_for(lambda: False, timeout)
        except AMQPMessageError as unroutable:
            return returned_from(unroutable)
        return None

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        with refusals():
            message = self._channel.basic.get(queue, no_ack, auto_decode=False)
        return None if message is None else delivery_from(message)

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
            answer = str(
                self._channel.basic.consume(
                    self._on_delivery, queue, tag, exclusive, no_ack, arguments=dict(arguments or {})
                )
            )
        self._consumers.add(answer)
        return answer

    def cancel(self, tag: str) -> None:
        with refusals():
            self._channel.basic.cancel(tag)
        self._consumers.discard(tag)

    def next_delivery(self, timeout: float = PATIENCE) -> Delivery | None:
        self._wait_for(lambda: bool(self._deliveries), timeout)
        return self._deliveries.popleft() if self._deliveries else None

    def next_cancellation(self, timeout: float = PATIENCE) -> str | None:
        # AMQPStorm forgets the tag of a cancelled consumer; that is all that it shows.
        self._wait_for(lambda: bool(self._consumers.difference(self._channel.consumer_tags)), timeout)
        gone = self._consumers.difference(self._channel.consumer_tags)
        self._consumers -= gone
        return gone.pop() if gone else None

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        with refusals():
            self._channel.basic.ack(tag, multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        with refusals():
            self._channel.basic.nack(tag, multiple, requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        with refusals():
            self._channel.basic.reject(tag, requeue)

    def recover(self) -> None:
        with refusals():
            self._channel.basic.recover(requeue=True)

    def qos(self, count: int, *, for_channel: bool = False) -> None:
        with refusals():
            self._channel.basic.qos(count, global_=for_channel)

    def select_transactions(self) -> None:
        with refusals():
            self._channel.tx.select()

    def commit(self) -> None:
        with refusals():
            self._channel.tx.commit()

    def rollback(self) -> None:
        with refusals():
            self._channel.tx.rollback()

    def close(self) -> None:
        try:
            self._channel.close()
        except AMQPError:
            pass

    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        try:
            self._wait_for(lambda: False, timeout)
        except Refused as refused:
            return refused
        raise AssertionError("the channel was not closed")


class AmqpStormClient(Client):
    name = "amqpstorm"
    lacks = frozenset(
        {
            Feature.FRAME_MAX,
            Feature.RETURN_CONTENT,
            Feature.PUBLISH_EMPTY_PROPERTIES,
            Feature.INTERNAL_EXCHANGE,
            Feature.ANY_NAME,
        }
    )
    header_samples = {
        "true": True,
        "false": False,
        "negative": -5,
        "32 bit": 2**31 - 1,
        "64 bit": 2**40,
        "float": 1.5,
        "text": "grüße, 世界",
        "decimal": Decimal("3.14"),
        "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        "nothing": None,
        "list": [1, "two", [3.5, {"four": 4}], None],
        "table": {"inner": {"deeper": [True, False]}, "number": 7},
        "empty list": [],
        "empty table": {},
    }

    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        parts = urlsplit(url)
        with refusals():
            self._connection = amqpstorm.Connection(
                parts.hostname or "localhost",
                unquote(parts.username or "guest"),
                unquote(parts.password or "guest"),
                port=parts.port or 5672,
                virtual_host=unquote(parts.path[1:]) or "/",
                heartbeat=heartbeat,
                timeout=int(PATIENCE),
            )

    def channel(self) -> Channel:
        with refusals():
            return AmqpStormChannel(self._connection)

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def is_open(self) -> bool:
        return bool(self._connection.is_open)

    def close(self) -> None:
        if self._is_lost():
            # AMQPStorm notices an ended connection only by its heartbeats: it would wait for an answer to its goodbye.
            self._connection.set_state(self._connection.CLOSED)
        try:
            self._connection.close()
        except AMQPError:
            pass

    def _is_lost(self) -> bool:
        stream = self._connection.socket
        if stream is None or stream.fileno() < 0:
            return True
        is_readable = bool(select.select([stream], [], [], 0)[0])
        try:
            return is_readable and stream.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True
