"""py-amqp, the library under kombu and Celery."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

import amqp
from amqp.exceptions import AMQPError, ChannelError, ConnectionError, MessageNacked, RecoverableConnectionError

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


@contextmanager
def refusals() -> Iterator[None]:
    """Turn py-amqp's exceptions for a close by the broker into ours."""
    try:
        yield
    except AMQPError as failure:
        if not failure.reply_code:
            raise
        scope = Scope.CHANNEL if isinstance(failure, ChannelError) else Scope.CONNECTION
        raise Refused(scope, failure.reply_code, failure.reply_text) from failure


def message_for(body: bytes, properties: Mapping[str, Any] | None) -> amqp.Message:
    given = dict(properties or {})
    if "headers" in given:
        given["application_headers"] = given.pop("headers")
    return amqp.Message(body, **given)


def body_of(message: amqp.Message) -> bytes:
    """An empty body is read as text."""
    return message.body if isinstance(message.body, bytes) else message.body.encode()


def delivery_from(message: amqp.Message) -> Delivery:
    found = dict(message.properties)
    if "application_headers" in found:
        found["headers"] = found.pop("application_headers")
    info = message.delivery_info
    return Delivery(
        body=body_of(message),
        exchange=info["exchange"],
        routing_key=info["routing_key"],
        tag=info["delivery_tag"],
        redelivered=bool(info["redelivered"]),
        properties={name: found[name] for name in PROPERTY_NAMES if name in found},
        consumer=info.get("consumer_tag"),
        remaining=info.get("message_count"),
    )


class PyAmqpChannel(Channel):
    def __init__(self, connection: amqp.Connection) -> None:
        self._connection = connection
        self._channel: amqp.Channel = connection.channel()
        self._deliveries: deque[Delivery] = deque()
        self._returns: deque[Returned] = deque()
        self._cancellations: deque[str] = deque()
        self._channel.events["basic_return"].add(self._on_return)

    def _on_return(self, reason: Any, exchange: str, routing_key: str, message: amqp.Message) -> None:
        self._returns.append(Returned(reason.reply_code, reason.reply_text, exchange, routing_key, body_of(message)))

    def _wait_for(self, is_there: Callable[[], bool], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        with refusals():
            while not is_there() and (left := deadline - time.monotonic()) > 0:
                try:
                    self._connection.drain_events(timeout=left)
                except TimeoutError:
                    return

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
                name, kind, passive, durable, auto_delete, arguments=dict(arguments or {}), nowait=False
            )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with refusals():
            self._channel.exchange_delete(name, if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.exchange_bind(destination, source, routing_key, arguments=dict(arguments or {}))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.exchange_unbind(destination, source, routing_key, arguments=dict(arguments or {}))

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
            declared, messages, consumers = self._channel.queue_declare(
                name, passive, durable, exclusive, auto_delete, arguments=dict(arguments or {})
            )
        return QueueState(declared, messages, consumers)

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.queue_bind(queue, exchange, routing_key, arguments=dict(arguments or {}))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        with refusals():
            self._channel.queue_unbind(queue, exchange, routing_key, arguments=dict(arguments or {}))

    def purge_queue(self, name: str) -> int:
        with refusals():
            return int(self._channel.queue_purge(name))

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        with refusals():
            return int(self._channel.queue_delete(name, if_unused, if_empty))

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
            self._channel.basic_publish(message_for(body, properties), exchange, routing_key, mandatory)

    def select_confirms(self) -> None:
        with refusals():
            self._channel.confirm_select()
        # basic_publish_confirm would select once more.
        self._channel._confirm_selected = True

    def confirm(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> Outcome:
        message = message_for(body, properties)
        try:
            with refusals():
                self._channel.basic_publish_confirm(message, exchange, routing_key, mandatory, confirm_timeout=PATIENCE)
        except MessageNacked:
            return Outcome(False)
        return Outcome(True, self._returns.popleft() if self._returns else None)

    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        confirmed: set[int] = set()

        def on_ack(tag: int, multiple: bool) -> None:
            confirmed.update(range(1, tag + 1) if multiple else [tag])

        self._channel.events["basic_ack"].add(on_ack)
        for body in bodies:
            self.publish(exchange, routing_key, body)
        self._wait_for(lambda: len(confirmed) == len(bodies), PATIENCE)
        return len(confirmed)

    def next_return(self, timeout: float = PATIENCE) -> Returned | None:
        self._wait_for(lambda: bool(self._returns), timeout)
        return self._returns.popleft() if self._returns else None

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        with refusals():
            message = self._channel.basic_get(queue, no_ack)
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
            answer = self._channel.basic_consume(
                queue,
                tag,
                no_ack=no_ack,
                exclusive=exclusive,
                callback=lambda message: self._deliveries.append(delivery_from(message)),
                arguments=dict(arguments or {}),
                on_cancel=self._cancellations.append,
            )
        return str(answer)

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
        raise NotImplementedError("py-amqp has no nack")

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        with refusals():
            self._channel.basic_reject(tag, requeue)

    def recover(self) -> None:
        with refusals():
            self._channel.basic_recover(requeue=True)

    def qos(self, count: int, *, for_channel: bool = False) -> None:
        with refusals():
            self._channel.basic_qos(0, count, for_channel)

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
        except (AMQPError, OSError):
            pass

    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        try:
            self._wait_for(lambda: not self._channel.is_open, timeout)
        except Refused as refused:
            return refused
        raise AssertionError("the channel was not closed")


class PyAmqpClient(Client):
    name = "py-amqp"
    lacks = frozenset({Feature.NACK, Feature.INTERNAL_EXCHANGE})
    header_samples = {
        "true": True,
        "false": False,
        "negative": -5,
        "32 bit": 2**31 - 1,
        "64 bit": 2**40,
        "float": 1.5,
        "text": "grüße, 世界",
        "decimal": Decimal("3.14"),
        "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC).replace(tzinfo=None),
        "nothing": None,
        "list": [1, "two", [3.5, {"four": 4}], None],
        "table": {"inner": {"deeper": [True, False]}, "number": 7},
        "empty list": [],
        "empty table": {},
    }

    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        parts = urlsplit(url)
        self._connection = amqp.Connection(
            f"{parts.hostname}:{parts.port}",
            userid=unquote(parts.username or "guest"),
            password=unquote(parts.password or "guest"),
            virtual_host=unquote(parts.path[1:]) or "/",
            heartbeat=heartbeat,
            frame_max=frame_max or 131072,
            connect_timeout=PATIENCE,
        )
        try:
            self._connection.connect()
        except AMQPError as failure:
            if not failure.reply_code:
                raise
            # A refused login is a ChannelError to py-amqp, after its code.
            raise Refused(Scope.CONNECTION, failure.reply_code, failure.reply_text) from failure

    def channel(self) -> Channel:
        with refusals():
            return PyAmqpChannel(self._connection)

    def idle(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._connection.heartbeat_tick()
            try:
                self._connection.drain_events(timeout=min(0.2, left))
            except TimeoutError:
                continue

    @property
    def is_open(self) -> bool:
        try:
            self._connection.drain_events(timeout=0.01)
        except TimeoutError:
            return True
        except (OSError, RecoverableConnectionError, ConnectionError):
            return False
        return bool(self._connection.connected)

    def close(self) -> None:
        try:
            self._connection.close()
        except (AMQPError, OSError):
            pass
