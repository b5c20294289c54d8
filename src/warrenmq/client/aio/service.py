"""Small services on asyncio: functions that each serve a queue, run until told to stop, as in client/service.py.

    @consumer("orders", prefetch=50)
    async def handle(delivery): ...

    asyncio.run(run("amqp://localhost", handle))        # until SIGINT or SIGTERM

Everything belongs to the connection's loop. Handlers may be async or plain; they run on the tasks of their channels.
A service has one task of its own, which subscribes again where the broker ended a consumer, and drains at the end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.aio.producer import SyncProducer
from warrenmq.client.errors import ClientError, CloseReason, ConnectionClosed, Misuse, Unroutable
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
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.delivery import Delivery

__all__ = ["Handler", "Reject", "Reply", "Requeue", "Service", "consumer", "run"]

_log = logging.getLogger("warrenmq.client")


async def run(
    where: str | ConnectionFactory | Connection,
    *handlers: Handler,
    drain: float = 30.0,
    attempts: int | None = None,
    wait: float | None = None,
) -> None:
    """Serve until SIGINT, SIGTERM or `stop`; raises when the connection is lost for good.

    Waits for a broker that is not up yet: see Service.run.
    """
    await Service(where, *handlers, drain=drain).run(attempts, wait)


class Service:
    """Runs handlers (functions marked by `@consumer`, async or plain) until stopped. See warrenmq.client.Service."""

    def __init__(
        self,
        where: str | ConnectionFactory | Connection,
        *handlers: Handler,
        drain: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        if not handlers:
            raise Misuse("a service needs a handler: a function marked by @consumer(queue)")
        self._where = where
        self._handlers = handlers
        self._drain = drain
        self._retry = Retry() if retry is None else retry
        self._ended: asyncio.Queue[_Subscription] = asyncio.Queue()
        self._stopping = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._at_work = 0
        self._is_stopping = False
        self._connection: Connection | None = None
        self._subscriptions: list[_Subscription] = []
        self._watcher: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._parker: SyncProducer | None = None
        self._parking_pauses = self._retry.pauses()

    # -- what the owner calls ----------------------------------------------------------------------------------------

    async def start(self) -> Service:
        """Connect and consume; returns when every handler is being served."""
        self._require_new()
        await self._begin(await self._connect())
        return self

    def _require_new(self) -> None:
        if self._watcher is not None:
            raise Misuse("a service is started once")

    async def _begin(self, connection: Connection) -> None:
        self._connection = connection
        self._parker = SyncProducer(connection, timeout=connection.factory.call_timeout)
        try:
            for handler in self._handlers:
                for _ in range(handler.concurrency):
                    subscription = _Subscription(self, handler)
                    self._subscriptions.append(subscription)
                    await subscription.begin(self._connection)
        except BaseException:
            await self._disconnect()
            raise
        self._connection.add_close_listener(self._connection_closed)
        self._watcher = asyncio.create_task(self._watch(), name="warren-client-service")

    def stop(self) -> None:
        """Ask for the end; returns at once."""
        self._stopping.set()

    async def wait(self) -> None:
        """Wait until the service has ended, by `stop` or by failing, which raises."""
        if self._watcher is None:
            raise Misuse("the service was not started")
        await asyncio.shield(self._watcher)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Stop, and wait until everything has ended."""
        self.stop()
        if self._watcher is not None:
            await self.wait()

    async def run(self, attempts: int | None = None, wait: float | None = None) -> None:
        """Start, and serve until stopped; in the main thread SIGINT and SIGTERM stop it gracefully.

        A broker that is not up yet is waited for, unless `attempts` to connect is given; with pauses of `wait` seconds,
        by default those of the factory. Each failed attempt is logged; a refused login is not tried again.
        """
        self._require_new()
        with _stopped_by_signals(self):
            connection = await self._connect_patiently(attempts, wait)
            if connection is not None:
                await self._begin(connection)
                try:
                    await self.wait()
                finally:
                    await self.close()

    async def __aenter__(self) -> Service:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- handling, on the channels' tasks ----------------------------------------------------------------------------

    async def handle(self, handler: Handler, delivery: Delivery) -> None:
        """Run the handler and settle the message; while stopping leave it to the broker."""
        if self._is_stopping:
            return
        self._at_work += 1
        self._idle.clear()
        try:
            try:
                answer = handler.function(delivery)
                await self._answer(delivery, await answer if inspect.isawaitable(answer) else answer)
            except Exception as error:  # noqa: BLE001 - the user's code
                verdict = verdict_after(handler, delivery, error)
                if verdict == "park":
                    verdict = await self._park(handler, delivery, error)
                await self._settle(handler, delivery, verdict)
            else:
                await self._settle(handler, delivery, "ack")
        finally:
            self._at_work -= 1
            if self._at_work == 0:
                self._idle.set()

    async def _answer(self, delivery: Delivery, answer: Any) -> None:
        reply = reply_for(delivery, answer)
        if reply is not None:
            async with self._transaction_of(delivery):
                await delivery.channel.publish("", reply[0], reply[1].body, reply[1].properties)

    async def _settle(self, handler: Handler, delivery: Delivery, verdict: Verdict) -> None:
        if handler.auto_ack or delivery.is_settled:
            return
        try:
            async with self._transaction_of(delivery):
                settle(handler, delivery, verdict)
        except ClientError as error:
            _log.info("%r was not settled, the broker will deliver it again: %s", delivery, error)

    def _transaction_of(self, delivery: Delivery) -> AbstractAsyncContextManager[None]:
        """Where the handler has made its channel transactional, a transaction."""
        channel: Channel = delivery.channel
        return channel.transaction() if channel.needs_transaction else nullcontext()

    # -- parking, on the channels' tasks -----------------------------------------------------------------------------

    async def _park(self, handler: Handler, delivery: Delivery, error: Exception) -> Verdict:
        """Publish the message to the failed queue; what to do with the original then."""
        if delivery.is_stale:
            return "requeue"  # the broker delivers it again
        try:
            await self._publish_failed(handler, delivery, error)
        except ClientError as failure:
            log_not_parked(handler, delivery, failure)
            with suppress(TimeoutError):  # a message that comes again at once would fail again at once
                async with asyncio.timeout(self._parking_pauses.next()):
                    await self._stopping.wait()
            return "requeue"
        self._parking_pauses.reset()
        log_parked(handler, delivery, error)
        return "ack"

    async def _publish_failed(self, handler: Handler, delivery: Delivery, error: Exception) -> None:
        assert self._connection is not None
        assert self._parker is not None
        assert handler.failed_queue is not None
        properties = parked_properties(handler, delivery, error)
        try:
            await self._parker.send(delivery.body, properties, routing_key=handler.failed_queue)
        except SendFailed as failed:
            if not isinstance(failed.result.error, Unroutable):
                raise
            async with await self._connection.channel() as channel:
                await channel.queue_declare(handler.failed_queue, durable=True)
            await self._parker.send(delivery.body, properties, routing_key=handler.failed_queue)

    # -- the watching task -------------------------------------------------------------------------------------------

    def subscription_ended(self, subscription: _Subscription) -> None:
        """The broker cancelled the consumer or closed the channel."""
        self._ended.put_nowait(subscription)

    def _connection_closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            if reason.by != "client":
                self._failure = ConnectionClosed(reason)
            self.stop()

    async def _watch(self) -> None:
        renewing = asyncio.create_task(self._renew(), name="warren-client-service-renewal")
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([renewing, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (renewing, stopping):
                task.cancel()
            await asyncio.wait([renewing, stopping])
            if not renewing.cancelled():
                self._failure = _exception_of(renewing)
            await self._shut_down()

    async def _renew(self) -> None:
        while True:
            subscription = await self._ended.get()
            if not subscription.is_active:
                await self._begin_again(subscription)

    async def _begin_again(self, subscription: _Subscription) -> None:
        """Subscribe again, as patiently as the retries say."""
        assert self._connection is not None
        pauses = self._retry.pauses()
        while True:
            try:
                await subscription.begin(self._connection)
                return
            except ConnectionClosed:
                return  # the close listener says the rest
            except ClientError as error:
                if pauses.attempt >= self._retry.retries:
                    raise
                _log.warning("consuming from %r failed, and will be tried again: %s", subscription.handler.queue, error)
                await asyncio.sleep(pauses.next())

    async def _shut_down(self) -> None:
        """Begin nothing more, let what is begun end, leave."""
        self._is_stopping = True
        for subscription in self._subscriptions:
            await subscription.cancel()
        try:
            async with asyncio.timeout(self._drain):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("%d handlers did not end within %s seconds", self._at_work, self._drain)
        await self._disconnect()

    # -- the connection ----------------------------------------------------------------------------------------------

    @property
    def _owns_connection(self) -> bool:
        return isinstance(self._where, (str, ConnectionFactory))

    async def _connect(self) -> Connection:
        if isinstance(self._where, str):
            return await ConnectionFactory(self._where).connect_async()
        return await self._where.connect_async() if isinstance(self._where, ConnectionFactory) else self._where

    async def _connect_patiently(self, attempts: int | None, wait: float | None) -> Connection | None:
        """None when `stop` came first."""
        if not isinstance(self._where, (str, ConnectionFactory)):
            return self._where
        factory = waiting_factory(self._where, attempts, wait)
        connecting = asyncio.create_task(factory.connect_async(), name="warren-client-service-connecting")
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([connecting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                return connecting.result()
        finally:
            stopping.cancel()
            connecting.cancel()  # it leaves nothing behind then
            await asyncio.wait([connecting, stopping])
        return None

    async def _disconnect(self) -> None:
        assert self._connection is not None
        assert self._parker is not None
        self._connection.remove_close_listener(self._connection_closed)
        try:
            await self._parker.close()
        except ClientError as error:
            _log.info("the channel for failed messages was not closed: %s", error)
        for subscription in self._subscriptions:
            await subscription.close()
        if self._owns_connection:
            await self._connection.close()


class _Subscription:
    """One consumer of a service, on its own channel; several where a handler has concurrency."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self.handler = handler
        self.is_active = False
        self._service = service
        self._channel: Channel | None = None
        self._tag = ""
        self._attempt = 0

    async def begin(self, connection: Connection) -> None:
        """Consume, on the channel that there was if it is still open: handlers at work can settle on no other."""
        channel = self._channel
        if channel is None or not channel.is_open:
            channel = self._channel = await connection.channel()
            channel.add_close_listener(partial(self._channel_closed, channel))
        self._attempt += 1
        self.is_active = True
        try:
            await self._consume(channel, partial(self._cancelled, self._attempt))
        except BaseException:
            self.is_active = False
            raise

    async def _consume(self, channel: Channel, on_cancel: Callable[[object], None]) -> None:
        handler = self.handler
        if handler.setup is not None:
            done = handler.setup(channel)
            if inspect.isawaitable(done):
                await done
        await channel.qos(handler.channel_prefetch)
        started = await channel.consume(
            handler.queue,
            self._received,
            auto_ack=handler.auto_ack,
            exclusive=handler.exclusive,
            arguments=handler.arguments,
            on_cancel=on_cancel,
        )
        self._tag = started.tag

    async def cancel(self) -> None:
        channel = self._channel
        if channel is not None and channel.is_open and channel.connection.is_open:  # a lost one delivers nothing
            try:
                await channel.cancel(self._tag, timeout=channel.connection.factory.close_timeout)
            except ClientError as error:
                _log.info("the consumer of %r was not cancelled: %s", self.handler.queue, error)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            try:
                await channel.close()
            except ClientError as error:
                _log.info("a channel of %r was not closed: %s", self.handler.queue, error)

    async def _received(self, delivery: Delivery) -> None:
        await self._service.handle(self.handler, delivery)

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


def _exception_of(task: asyncio.Task[None]) -> Exception | None:
    """What ended the task; the user's setup may raise what it likes."""
    error = task.exception()
    return error if isinstance(error, Exception) else None


@contextmanager
def _stopped_by_signals(service: Service) -> Iterator[None]:
    """SIGINT and SIGTERM stop the service meanwhile; signals belong to the main thread, others go without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, service.stop)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
