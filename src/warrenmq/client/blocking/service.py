"""Small services on the blocking face: functions that each serve a queue, run until told to stop.

    @consumer("orders", prefetch=50)
    def handle(delivery): ...

    run("amqp://localhost", handle)        # until SIGINT or SIGTERM

A Service consumes for its handlers, each on channels of its own, and is watched by one thread, which subscribes again
when the broker cancelled a consumer or closed a channel, and drains when the service stops. Handlers run on the
channels' workers, which also park what failed. The count of handlers at work is guarded by the service's lock, all else
belongs to the thread.
"""

from __future__ import annotations

import logging
import queue as queues
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.blocking.producer import SyncProducer
from warrenmq.client.errors import ClientError, CloseReason, ConnectionClosed, ConnectionFailed, Misuse, Unroutable
from warrenmq.client.factory import ConnectionFactory, waiting_factory
from warrenmq.client.handling import (
    Handler,
    Reject,
    Reply,
    Requeue,
    Verdict,
    consumer,
    reply_for,
    settle,
    verdict_after,
)
from warrenmq.client.parking import log_not_parked, log_parked, parked_properties
from warrenmq.client.sending import Retry, SendFailed

if TYPE_CHECKING:
    from warrenmq.client.blocking.channel import Channel
    from warrenmq.client.blocking.connection import Connection
    from warrenmq.client.delivery import Delivery

__all__ = ["Handler", "Reject", "Reply", "Requeue", "Service", "consumer", "run"]

_log = logging.getLogger("warrenmq.client")


def run(
    where: str | ConnectionFactory | Connection,
    *handlers: Handler,
    drain: float = 30.0,
    attempts: int | None = None,
    wait: float | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; raises when the connection is lost for good.

    Waits for a broker that is not up yet: see Service.run.
    """
    Service(where, *handlers, drain=drain).run(attempts, wait)


class Service:
    """Runs handlers (functions marked by `@consumer`) until it is stopped.

    >>> import threading
    >>> from warrenmq import client
    >>> seen = threading.Event()
    >>> @consumer("greetings", setup=lambda channel: channel.queue_declare("greetings", auto_delete=True))
    ... def greet(delivery):
    ...     seen.set()
    >>> with client.connect(url) as connection, Service(connection, greet):
    ...     _ = connection.channel().publish("", "greetings", b"hello")
    ...     seen.wait(10)
    True

    Given a URL or factory it connects and disconnects by itself; a connection stays the caller's. `stop` is graceful:
    nothing new is begun, handlers at work have `drain` seconds to end, and what was not begun goes back to the queue.

    A consumer that the broker ended is started again, `retry` says how patiently; then the service fails and `run`,
    `wait` and `close` raise what happened.
    """

    def __init__(
        self,
        where: str | ConnectionFactory | Connection,
        *handlers: Handler,
        drain: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        if not handlers:
            raise Misuse("a service needs a handler: a function marked by @consumer(queue)")
        for handler in handlers:
            if handler.is_async:
                raise Misuse(f"{handler.name} is async: serve it by warrenmq.client.aio.Service")
        self._where = where
        self._handlers = handlers
        self._drain = drain
        self._retry = Retry() if retry is None else retry
        self._commands: queues.SimpleQueue[_Subscription | None] = queues.SimpleQueue()
        self._idle = threading.Condition()
        self._at_work = 0
        self._is_stopping = False
        self._connection: Connection | None = None
        self._subscriptions: list[_Subscription] = []
        self._watcher: threading.Thread | None = None
        self._failure: Exception | None = None
        self._parker: SyncProducer | None = None
        self._parking_pauses = self._retry.pauses()

    # -- what the owner calls ----------------------------------------------------------------------------------------

    def start(self) -> Service:
        """Connect and consume; returns when every handler is being served."""
        self._require_new()
        self._begin(self._connect())
        return self

    def _require_new(self) -> None:
        if self._watcher is not None:
            raise Misuse("a service is started once")

    def _begin(self, connection: Connection) -> None:
        self._connection = connection
        self._parker = SyncProducer(connection, timeout=connection.factory.call_timeout)
        try:
            for handler in self._handlers:
                for _ in range(handler.concurrency):
                    subscription = _Subscription(self, handler)
                    self._subscriptions.append(subscription)
                    subscription.begin(self._connection)
        except BaseException:
            self._disconnect()
            raise
        self._connection.add_close_listener(self._connection_closed)
        self._watcher = threading.Thread(target=self._watch, name="warren-client-service", daemon=True)
        self._watcher.start()

    def stop(self) -> None:
        """Ask for the end; returns at once. Any thread, handlers and signal handlers included."""
        self._commands.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the service has ended; raises if that was by failing. False: the time was too short."""
        if self._watcher is None:
            raise Misuse("the service was not started")
        self._watcher.join(timeout)
        if self._watcher.is_alive():
            return False
        if self._failure is not None:
            raise self._failure
        return True

    def close(self) -> None:
        """Stop, and wait until everything has ended."""
        self.stop()
        if self._watcher is not None:
            self.wait()

    def run(self, attempts: int | None = None, wait: float | None = None) -> None:
        """Start, and serve until stopped; in the main thread SIGINT and SIGTERM stop it gracefully.

        A broker that is not up yet is waited for, unless `attempts` to connect is given; with pauses of `wait` seconds,
        by default those of the factory. Each failed attempt is logged; a refused login is not tried again.
        """
        self._require_new()
        with _stopped_by_signals(self):
            connection = self._connect_patiently(attempts, wait)
            if connection is not None:
                self._begin(connection)
                self.wait()

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- handling, on the channels' workers --------------------------------------------------------------------------

    def handle(self, handler: Handler, delivery: Delivery) -> None:
        """Run the handler and settle the message; while stopping leave it to the broker."""
        with self._idle:
            if self._is_stopping:
                return
            self._at_work += 1
        try:
            try:
                self._answer(delivery, handler.function(delivery))
            except Exception as error:  # noqa: BLE001 - the user's code
                verdict = verdict_after(handler, delivery, error)
                self._settle(handler, delivery, self._park(handler, delivery, error) if verdict == "park" else verdict)
            else:
                self._settle(handler, delivery, "ack")
        finally:
            with self._idle:
                self._at_work -= 1
                self._idle.notify_all()

    def _answer(self, delivery: Delivery, answer: Any) -> None:
        reply = reply_for(delivery, answer)
        if reply is not None:
            with self._transaction_of(delivery):
                delivery.channel.publish("", reply[0], reply[1].body, reply[1].properties)

    def _settle(self, handler: Handler, delivery: Delivery, verdict: Verdict) -> None:
        if handler.auto_ack or delivery.is_settled:
            return
        try:
            with self._transaction_of(delivery):
                settle(handler, delivery, verdict)
        except ClientError as error:
            _log.info("%r was not settled, the broker will deliver it again: %s", delivery, error)

    def _transaction_of(self, delivery: Delivery) -> AbstractContextManager[None]:
        """Where the handler has made its channel transactional, a transaction."""
        channel: Channel = delivery.channel
        return channel.transaction() if channel.needs_transaction else nullcontext()

    # -- parking, on the channels' workers ---------------------------------------------------------------------------

    def _park(self, handler: Handler, delivery: Delivery, error: Exception) -> Verdict:
        """Publish the message to the failed queue; what to do with the original then."""
        if delivery.is_stale:
            return "requeue"  # the broker delivers it again
        try:
            self._publish_failed(handler, delivery, error)
        except ClientError as failure:
            log_not_parked(handler, delivery, failure)
            with self._idle:  # a message that comes again at once would fail again at once
                self._idle.wait_for(lambda: self._is_stopping, self._parking_pauses.next())
            return "requeue"
        self._parking_pauses.reset()
        log_parked(handler, delivery, error)
        return "ack"

    def _publish_failed(self, handler: Handler, delivery: Delivery, error: Exception) -> None:
        assert self._connection is not None
        assert self._parker is not None
        assert handler.failed_queue is not None
        properties = parked_properties(handler, delivery, error)
        try:
            self._parker.send(delivery.body, properties, routing_key=handler.failed_queue)
        except SendFailed as failed:
            if not isinstance(failed.result.error, Unroutable):
                raise
            with self._connection.channel() as channel:
                channel.queue_declare(handler.failed_queue, durable=True)
            self._parker.send(delivery.body, properties, routing_key=handler.failed_queue)

    # -- the watching thread -----------------------------------------------------------------------------------------

    def subscription_ended(self, subscription: _Subscription) -> None:
        """The broker cancelled the consumer or closed the channel."""
        self._commands.put(subscription)

    def _connection_closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            if reason.by != "client":
                self._failure = ConnectionClosed(reason)
            self.stop()

    def _watch(self) -> None:
        try:
            while (subscription := self._commands.get()) is not None:
                if not subscription.is_active:
                    self._begin_again(subscription)
        except Exception as error:  # noqa: BLE001 - the user's setup may raise what it likes; `wait` tells
            self._failure = error
        finally:
            self._shut_down()

    def _begin_again(self, subscription: _Subscription) -> None:
        """Subscribe again, as patiently as the retries say; a stop meanwhile is heard afterwards."""
        assert self._connection is not None
        pauses = self._retry.pauses()
        while True:
            try:
                subscription.begin(self._connection)
                return
            except ConnectionClosed:
                return  # the close listener says the rest
            except ClientError as error:
                if pauses.attempt >= self._retry.retries:
                    raise
                _log.warning("consuming from %r failed, and will be tried again: %s", subscription.handler.queue, error)
                if self._stop_comes_within(pauses.next()):
                    self.stop()
                    return

    def _stop_comes_within(self, seconds: float) -> bool:
        """Wait; True at once when the stop command comes. Other subscriptions that end meanwhile wait their turn."""
        deadline = monotonic() + seconds
        others: list[_Subscription] = []
        try:
            while True:
                try:
                    command = self._commands.get(timeout=max(0.0, deadline - monotonic()))
                except queues.Empty:
                    return False
                if command is None:
                    return True
                others.append(command)
        finally:
            for other in others:
                self._commands.put(other)

    def _shut_down(self) -> None:
        """Begin nothing more, let what is begun end, leave."""
        with self._idle:
            self._is_stopping = True
            self._idle.notify_all()
        for subscription in self._subscriptions:
            subscription.cancel()
        with self._idle:
            if not self._idle.wait_for(lambda: self._at_work == 0, self._drain):
                _log.warning("%d handlers did not end within %s seconds", self._at_work, self._drain)
        self._disconnect()

    # -- the connection ----------------------------------------------------------------------------------------------

    @property
    def _owns_connection(self) -> bool:
        return isinstance(self._where, (str, ConnectionFactory))

    def _connect(self) -> Connection:
        if isinstance(self._where, str):
            return ConnectionFactory(self._where).connect()
        return self._where.connect() if isinstance(self._where, ConnectionFactory) else self._where

    def _connect_patiently(self, attempts: int | None, wait: float | None) -> Connection | None:
        """As a loop of its own, so that `stop` ends it; None then."""
        if not isinstance(self._where, (str, ConnectionFactory)):
            return self._where
        factory = waiting_factory(self._where, attempts, wait)
        pauses = factory.connect_pauses()
        while True:
            try:
                return factory.with_(attempts=1).connect()
            except ConnectionFailed as failure:
                if failure.is_refusal or pauses.attempt + 1 == attempts:
                    raise
                pause = pauses.next()
                _log.warning("broker not reachable, retrying in %.1f s: %s", pause, failure)
            if self._stop_comes_within(pause):
                return None

    def _disconnect(self) -> None:
        assert self._connection is not None
        assert self._parker is not None
        self._connection.remove_close_listener(self._connection_closed)
        try:
            self._parker.close()
        except ClientError as error:
            _log.info("the channel for failed messages was not closed: %s", error)
        for subscription in self._subscriptions:
            subscription.close()
        if self._owns_connection:
            self._connection.close()


class _Subscription:
    """One consumer of a service, on its own channel; several where a handler has concurrency."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self.handler = handler
        self.is_active = False
        self._service = service
        self._channel: Channel | None = None
        self._tag = ""
        self._attempt = 0

    def begin(self, connection: Connection) -> None:
        """Consume, on the channel that there was if it is still open: handlers at work can settle on no other."""
        channel = self._channel
        if channel is None or not channel.is_open:
            channel = self._channel = connection.channel()
            channel.add_close_listener(partial(self._channel_closed, channel))
        self._attempt += 1
        self.is_active = True
        try:
            self._consume(channel, partial(self._cancelled, self._attempt))
        except BaseException:
            self.is_active = False
            raise

    def _consume(self, channel: Channel, on_cancel: Callable[[object], None]) -> None:
        handler = self.handler
        if handler.setup is not None:
            handler.setup(channel)
        channel.qos(handler.channel_prefetch)
        started = channel.consume(
            handler.queue,
            self._received,
            auto_ack=handler.auto_ack,
            exclusive=handler.exclusive,
            arguments=handler.arguments,
            on_cancel=on_cancel,
        )
        self._tag = started.tag

    def cancel(self) -> None:
        channel = self._channel
        if channel is not None and channel.is_open and channel.connection.is_open:  # a lost one delivers nothing
            try:
                channel.cancel(self._tag, timeout=channel.connection.factory.close_timeout)
            except ClientError as error:
                _log.info("the consumer of %r was not cancelled: %s", self.handler.queue, error)

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            try:
                channel.close()
            except ClientError as error:
                _log.info("a channel of %r was not closed: %s", self.handler.queue, error)

    def _received(self, delivery: Delivery) -> None:
        self._service.handle(self.handler, delivery)

    def _cancelled(self, attempt: int, _: object) -> None:
        if attempt == self._attempt:
            self._end()

    def _channel_closed(self, channel: Channel, reason: CloseReason) -> None:
        if channel is self._channel and reason.is_final and reason.by == "server":
            self._end()

    def _end(self) -> None:
        """The broker ended it. One that is just being started says so itself, by raising."""
        if self.is_active:
            self.is_active = False
            self._service.subscription_ended(self)


@contextmanager
def _stopped_by_signals(service: Service) -> Iterator[None]:
    """SIGINT and SIGTERM stop the service meanwhile; signals belong to the main thread, others go without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: service.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
