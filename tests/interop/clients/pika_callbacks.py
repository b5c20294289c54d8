"""pika's AsyncioConnection and SelectConnection: the same callbacks on two loops.

The loop runs in a thread of its own; every call is handed to it and its answer awaited. Owned by the loop thread:
the connection and its channels. What arrives crosses over in queues.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from .contract import PATIENCE, Channel, Client, Delivery, Feature, Outcome, QueueState, Refused, Returned, Scope
from .pika_blocking import parse_denial
from .pika_values import HEADER_SAMPLES, delivery_from, properties_for

Item = TypeVar("Item")


def refusal(reason: Exception) -> Exception:
    """The exception of ours that says the same as pika's reason."""
    if isinstance(reason, ChannelClosedByBroker):
        return Refused(Scope.CHANNEL, reason.reply_code, reason.reply_text)
    if isinstance(reason, ConnectionClosedByBroker):
        return Refused(Scope.CONNECTION, reason.reply_code, reason.reply_text)
    if isinstance(reason, ProbableAuthenticationError | ProbableAccessDeniedError):
        return Refused(Scope.CONNECTION, *parse_denial(reason))
    return reason


def take_from(source: queue.Queue[Item], timeout: float) -> Item | None:
    try:
        return source.get(timeout=timeout)
    except queue.Empty:
        return None


class PikaCallbackChannel(Channel):
    def __init__(self, client: PikaCallbackClient) -> None:
        self._client = client
        self._deliveries: queue.Queue[Delivery] = queue.Queue()
        self._returns: queue.Queue[Returned] = queue.Queue()
        self._cancellations: queue.Queue[str] = queue.Queue()
        self._closed: Future[Exception] = Future()
        self._pending: Future[Any] | None = None
        self._published = 0
        self._unconfirmed: dict[int, Future[bool]] = {}
        opened: Future[Any] = Future()
        self._pending = opened

        def open_channel() -> None:
            try:
                self._channel = client.connection.channel(on_open_callback=opened.set_result)
                self._channel.add_on_close_callback(self._on_close)
            except Exception as failure:
                opened.set_exception(failure)

        client.run_soon(open_channel)
        opened.result(PATIENCE)
        client.run_soon(self._listen)

    def _listen(self) -> None:
        self._channel.add_on_return_callback(self._on_return)
        self._channel.add_on_cancel_callback(lambda frame: self._cancellations.put(frame.method.consumer_tag))

    def _on_close(self, _channel: Any, reason: Exception) -> None:
        failure = refusal(reason)
        self._closed.set_result(failure)
        waiting = [self._pending, *self._unconfirmed.values()]
        for future in waiting:
            if future is not None and not future.done():
                future.set_exception(failure)

    def _on_return(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._returns.put(Returned(method.reply_code, method.reply_text, method.exchange, method.routing_key, body))

    def _on_delivery(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._deliveries.put(delivery_from(method, properties, body))

    def _on_confirm(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        settled = [each for each in self._unconfirmed if each <= tag] if frame.method.multiple else [tag]
        is_ack = isinstance(frame.method, pika.spec.Basic.Ack)
        for each in settled:
            # A tag that is confirmed twice, or was never published, is a KeyError here.
            self._unconfirmed.pop(each).set_result(is_ack)

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the channel that takes a callback, and wait for the callback."""
        answer: Future[Any] = Future()

        def call() -> None:
            self._pending = answer
            try:
                getattr(self._channel, method)(*arguments, **named, callback=answer.set_result)
            except Exception as failure:
                answer.set_exception(self._why_closed() or failure)

        self._client.run_soon(call)
        return answer.result(PATIENCE)

    def _tell(self, method: str, *arguments: Any, **named: Any) -> None:
        """Call a method of the channel that the broker does not answer."""
        told: Future[None] = Future()

        def call() -> None:
            try:
                getattr(self._channel, method)(*arguments, **named)
                told.set_result(None)
            except Exception as failure:
                told.set_exception(self._why_closed() or failure)

        self._client.run_soon(call)
        told.result(PATIENCE)

    def _why_closed(self) -> Exception | None:
        return self._closed.result() if self._closed.done() else None

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
        given = dict(arguments) if arguments else None
        self._ask("exchange_declare", name, kind, passive, durable, auto_delete, internal, given)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._ask("exchange_delete", name, if_unused)

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("exchange_bind", destination, source, routing_key, dict(arguments or {}))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("exchange_unbind", destination, source, routing_key, dict(arguments or {}))

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
        given = dict(arguments) if arguments else None
        answer = self._ask("queue_declare", name, passive, durable, exclusive, auto_delete, given).method
        return QueueState(answer.queue, answer.message_count, answer.consumer_count)

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("queue_bind", queue, exchange, routing_key, dict(arguments or {}))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._ask("queue_unbind", queue, exchange, routing_key, dict(arguments or {}))

    def purge_queue(self, name: str) -> int:
        return int(self._ask("queue_purge", name).method.message_count)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return int(self._ask("queue_delete", name, if_unused, if_empty).method.message_count)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        self._tell("basic_publish", exchange, routing_key, body, properties_for(properties), mandatory)

    def select_confirms(self) -> None:
        self._ask("confirm_delivery", self._on_confirm)

    def _publish_unconfirmed(
        self, exchange: str, routing_key: str, body: bytes, properties: pika.BasicProperties | None, mandatory: bool
    ) -> Future[bool]:
        confirmed: Future[bool] = Future()

        def call() -> None:
            self._published += 1
            self._unconfirmed[self._published] = confirmed
            self._channel.basic_publish(exchange, routing_key, body, properties, mandatory)

        self._client.run_soon(call)
        return confirmed

    def confirm(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> Outcome:
        confirmed = self._publish_unconfirmed(exchange, routing_key, body, properties_for(properties), mandatory)
        is_confirmed = confirmed.result(PATIENCE)
        # The return of a message comes before its confirm, so it is here by now or will never be.
        return Outcome(is_confirmed, None if self._returns.empty() else self._returns.get_nowait())

    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        in_flight = [self._publish_unconfirmed(exchange, routing_key, body, None, False) for body in bodies]
        return sum(confirmed.result(PATIENCE) for confirmed in in_flight)

    def next_return(self, timeout: float = PATIENCE) -> Returned | None:
        return take_from(self._returns, timeout)

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        answer: Future[Delivery | None] = Future()

        def on_message(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            answer.set_result(delivery_from(method, properties, body))

        def on_empty(_frame: Any) -> None:
            if not answer.done():
                answer.set_result(None)

        def call() -> None:
            self._pending = answer
            try:
                self._channel.add_callback(on_empty, [pika.spec.Basic.GetEmpty])
                self._channel.basic_get(queue, on_message, no_ack)
            except Exception as failure:
                answer.set_exception(self._why_closed() or failure)

        self._client.run_soon(call)
        return answer.result(PATIENCE)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        given = dict(arguments) if arguments else None
        answer = self._ask("basic_consume", queue, self._on_delivery, no_ack, exclusive, tag or None, given)
        return str(answer.method.consumer_tag)

    def cancel(self, tag: str) -> None:
        self._ask("basic_cancel", tag)

    def next_delivery(self, timeout: float = PATIENCE) -> Delivery | None:
        return take_from(self._deliveries, timeout)

    def next_cancellation(self, timeout: float = PATIENCE) -> str | None:
        return take_from(self._cancellations, timeout)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._tell("basic_ack", tag, multiple)

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._tell("basic_nack", tag, multiple, requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._tell("basic_reject", tag, requeue)

    def recover(self) -> None:
        self._ask("basic_recover", True)

    def qos(self, count: int, *, for_channel: bool = False) -> None:
        self._ask("basic_qos", 0, count, for_channel)

    def select_transactions(self) -> None:
        self._ask("tx_select")

    def commit(self) -> None:
        self._ask("tx_commit")

    def rollback(self) -> None:
        self._ask("tx_rollback")

    def close(self) -> None:
        if not self._closed.done():
            self._tell("close")
            self._closed.result(PATIENCE)

    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        reason = self._closed.result(timeout)
        assert isinstance(reason, Refused), f"closed for another reason: {reason!r}"
        return reason


class PikaCallbackClient(Client):
    lacks = frozenset({Feature.DUPLICATE_TAG})
    header_samples = HEADER_SAMPLES
    connection: Any

    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        parameters = pika.URLParameters(url)
        parameters.heartbeat = heartbeat
        if frame_max is not None:
            parameters.frame_max = frame_max
        self._opened: Future[Any] = Future()
        self._closed: Future[Exception] = Future()
        self._thread = threading.Thread(target=self._run, args=(parameters,), name=self.name, daemon=True)
        self._thread.start()
        try:
            self._opened.result(PATIENCE)
        except AMQPConnectionError as failure:
            self._stop_loop()
            raise refusal(failure) from failure

    def _run(self, parameters: pika.connection.Parameters) -> None:
        raise NotImplementedError

    def run_soon(self, call: Callable[[], None]) -> None:
        """Have the loop thread make the call."""
        raise NotImplementedError

    def _stop_loop(self) -> None:
        self.run_soon(self.connection.ioloop.stop)
        self._thread.join(PATIENCE)

    def _callbacks(self) -> dict[str, Any]:
        return {
            "on_open_callback": self._opened.set_result,
            "on_open_error_callback": lambda _connection, failure: self._opened.set_exception(failure),
            "on_close_callback": lambda _connection, reason: self._closed.set_result(reason),
        }

    def channel(self) -> Channel:
        return PikaCallbackChannel(self)

    def idle(self, seconds: float) -> None:
        time.sleep(seconds)

    @property
    def is_open(self) -> bool:
        return not self._closed.done()

    def close(self) -> None:
        if not self._closed.done():
            self.run_soon(self._close_if_open)
            self._closed.result(PATIENCE)
        if self._thread.is_alive():
            self._stop_loop()

    def _close_if_open(self) -> None:
        # Asked for in one thread, done in another: the connection may have been lost in between.
        if self.connection.is_open:
            self.connection.close()


class PikaAsyncioClient(PikaCallbackClient):
    name = "pika-asyncio"

    def _run(self, parameters: pika.connection.Parameters) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop

        async def connect() -> None:
            self.connection = AsyncioConnection(parameters, custom_ioloop=loop, **self._callbacks())

        loop.run_until_complete(connect())
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def run_soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)


class PikaSelectClient(PikaCallbackClient):
    name = "pika-select"

    def _run(self, parameters: pika.connection.Parameters) -> None:
        self.connection = pika.SelectConnection(parameters, **self._callbacks())
        self.connection.ioloop.start()

    def run_soon(self, call: Callable[[], None]) -> None:
        self.connection.ioloop.add_callback_threadsafe(call)
