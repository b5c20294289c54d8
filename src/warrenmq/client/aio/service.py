"""Services: functions that each serve a queue, run until stopped.

    @consumer("orders", prefetch=50)
    async def handle(delivery): ...

    asyncio.run(run("amqp://localhost", handle))  # until SIGINT or SIGTERM

Each handler has channels of its own; it runs on their workers, which also park failed messages. One worker watches the
service: it subscribes again when the broker cancels a consumer or closes a channel, and drains at the end. The number
of running handlers is guarded by a condition; everything else belongs to the watching worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from warrenmq.client.aio.commands import Commands, stopped_by_signals
from warrenmq.client.aio.primitives import Condition, Task, call_user, join, start
from warrenmq.client.aio.producer import SyncProducer
from warrenmq.client.errors import (
    ClientError,
    CloseReason,
    ConnectionClosed,
    ConnectionFailed,
    Misuse,
    PreconditionFailed,
    Unroutable,
)
from warrenmq.client.factory import ConnectionFactory, waiting_factory
from warrenmq.client.handling import (
    CONSUMER_RETRY,
    Handler,
    Verdict,
    is_retried_by_broker,
    reply_for,
    settle,
    verdict_after,
)
from warrenmq.client.notes import CAPABILITY as NOTES
from warrenmq.client.notes import shorten_note
from warrenmq.client.parking import (
    attempts_of,
    describe_error,
    log_not_parked,
    log_parked,
    parked_properties,
    remove_traceback,
    report_of,
)
from warrenmq.client.sending import Retry, SendFailed
from warrenmq.protocol import spec

if TYPE_CHECKING:
    from warrenmq.client.aio.channel import Channel
    from warrenmq.client.aio.connection import Connection
    from warrenmq.client.aio.topic import TopicConsumer
    from warrenmq.client.backoff import Backoff
    from warrenmq.client.delivery import Delivery
    from warrenmq.protocol.properties import BasicProperties

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
    """Runs handlers (functions decorated with `@consumer`) until stopped.

    >>> from warrenmq.client import aio
    >>> @aio.consumer("greetings", setup=lambda channel: channel.queue_declare("greetings", auto_delete=True))
    ... def greet(delivery):
    ...     return b"hello " + delivery.body
    >>> async def main():
    ...     async with aio.connect(url) as connection:
    ...         async with aio.Service(connection, greet), aio.RpcClient(connection) as rpc:
    ...             reply = await rpc.call("", "greetings", "Ann")
    ...         print(reply.body)
    >>> asyncio.run(main())
    b'hello Ann'

    Given a URL or a factory, it connects and disconnects by itself; a connection stays the caller's. `stop` is
    graceful: no new message is handled, running handlers have `drain` seconds to end, and all other messages are
    requeued.

    A consumer that the broker cancelled is started again as `retry` says; if that fails, the service ends, and `run`,
    `wait` and `close` raise the error.
    """

    def __init__(
        self,
        where: str | ConnectionFactory | Connection,
        *handlers: Handler,
        drain: float = 30.0,
        retry: Retry | None = None,
    ) -> None:
        if not handlers:
            raise Misuse("a service needs a handler: a function decorated with @consumer(queue)")
        # blocking only: for handler in handlers:
        # blocking only:     if handler.is_async:
        # blocking only:         raise Misuse(f"{handler.name} is async: serve it by warrenmq.client.aio.Service")
        self._where = where
        self._handlers = handlers
        self.drain = drain
        self._retry = Retry() if retry is None else retry
        self._commands: Commands[_Subscription] = Commands()
        self._changed = Condition()
        self._running = 0  # handlers
        self._is_stopping = False
        self._connection: Connection | None = None
        self._subscriptions: list[_Subscription] = []
        self._watcher: Task | None = None
        self._failure: Exception | None = None
        self._parker: SyncProducer | None = None
        self._parking_pauses = self._retry.pauses()
        self.notes_errors = True  # until the broker refuses one

    # -- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> Service:
        """Connect and consume; return when every handler has its consumers."""
        self._require_new()
        await self._begin(await self._connect())
        return self

    def _require_new(self) -> None:
        if self._watcher is not None:
            raise Misuse("a service can be started only once")

    async def _begin(self, connection: Connection) -> None:
        self._connection = connection
        self._parker = SyncProducer(connection, timeout=connection.factory.call_timeout)
        try:
            for handler in self._handlers:
                for _ in range(handler.concurrency):
                    subscription = (_Subscription if handler.group is None else _Membership)(self, handler)
                    self._subscriptions.append(subscription)
                    await subscription.begin(self._connection)
        except BaseException:
            await self._disconnect()
            raise
        self._connection.add_close_listener(self._connection_closed)
        self._watcher = start(self._watch, "warren-client-service")

    def stop(self) -> None:
        """Ask the service to end, without waiting. Handlers and signal handlers may call it."""
        self._commands.stop()

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait until the service has ended, and raise if it failed; return False on timeout."""
        if self._watcher is None:
            raise Misuse("the service was not started")
        if not await join(self._watcher, timeout):
            return False
        if self._failure is not None:
            raise self._failure
        return True

    async def close(self) -> None:
        """Stop, and wait for the end."""
        self.stop()
        if self._watcher is not None:
            await self.wait()

    async def run(self, attempts: int | None = None, wait: float | None = None) -> None:
        """Start, and serve until stopped; in the main thread SIGINT and SIGTERM stop it gracefully.

        Waits for a broker that is not up yet: without a limit unless `attempts` is given, with pauses of `wait` seconds
        (None: those of the factory). Each failed attempt is logged; a refused login is not tried again.
        """
        self._require_new()
        with stopped_by_signals(self.stop):
            connection = await self._connect_when_up(attempts, wait)
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

    # -- handling, on the channels' workers --------------------------------------------------------------------------

    async def handle(self, subscription: _Subscription, delivery: Delivery, pauses: Backoff | None) -> None:
        """Run the handler and settle the message; when stopping, leave it to the broker.

        `pauses` are those of a delivery that is retried here.
        """
        handler = subscription.handler
        with self._changed:
            if self._is_stopping:
                return
            self._running += 1
        try:
            try:
                await self._reply(delivery, await call_user(handler.function, delivery))
            except Exception as error:  # noqa: BLE001 - the user's code
                await self._handle_error(subscription, delivery, error, pauses or handler.retry.pauses())
            else:
                await self._settle(handler, delivery, "ack")
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    async def _handle_error(
        self, subscription: _Subscription, delivery: Delivery, error: Exception, pauses: Backoff
    ) -> None:
        handler, attempts = subscription.handler, attempts_of(delivery) + pauses.attempt
        verdict = verdict_after(handler, delivery, error, attempts)
        await self._note(handler, delivery, error, attempts)
        if verdict == "retry":
            if not is_retried_by_broker(delivery):
                subscription.retry(delivery, pauses)
                return
            verdict = "requeue"
        if verdict == "park":
            verdict = await self._park(handler, delivery, error, attempts)
        await self._settle(handler, delivery, verdict)

    async def _note(self, handler: Handler, delivery: Delivery, error: Exception, attempts: int) -> None:
        """Write the error into the biography of the message, where the broker keeps notes."""
        if not self.notes_errors or not delivery.channel.connection.has_capability(NOTES):
            return
        text = f"{handler.name} failed, attempt {attempts} of {handler.retry.retries + 1}: {describe_error(error)}"
        try:
            async with self._transaction_of(delivery):
                delivery.note(shorten_note(text))
        except ClientError as failure:
            _log.info("the error was not noted: %s", failure)

    async def _reply(self, delivery: Delivery, result: Any) -> None:
        reply = reply_for(delivery, result)
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
            _log.info("%r was not settled, the broker will redeliver it: %s", delivery, error)

    def _transaction_of(self, delivery: Delivery) -> AbstractAsyncContextManager[None]:
        """Return a transaction if the handler has made its channel transactional."""
        channel: Channel = delivery.channel
        return channel.transaction() if channel.needs_transaction else nullcontext()

    # -- parking, on the channels' workers ---------------------------------------------------------------------------

    async def _park(self, handler: Handler, delivery: Delivery, error: Exception, attempts: int) -> Verdict:
        """Publish the message to the dead queue; return what to do with the original."""
        if delivery.is_stale:
            return "requeue"  # the broker redelivers it
        try:
            await self._publish_dead(handler, delivery, parked_properties(handler, delivery, error, attempts))
        except ClientError as failure:
            log_not_parked(handler, delivery, failure)
            with self._changed:  # a message that is redelivered at once fails again at once
                await self._changed.wait_for(lambda: self._is_stopping, self._parking_pauses.next())
            return "requeue"
        self._parking_pauses.reset()
        log_parked(handler, delivery, error)
        await self._report(handler, delivery, attempts)
        return "ack"

    async def _report(self, handler: Handler, delivery: Delivery, attempts: int) -> None:
        """Report a parked message to its producer, if it wants that."""
        report = report_of(handler, delivery, attempts)
        if report is not None:
            assert self._parker is not None
            queue, body, properties = report
            try:
                await self._parker.send(body, properties, routing_key=queue)
            except ClientError as failure:
                _log.warning("a report on %r was not published to queue %r: %s", delivery, queue, failure)

    async def _publish_dead(self, handler: Handler, delivery: Delivery, properties: BasicProperties) -> None:
        assert self._connection is not None
        assert self._parker is not None
        assert handler.dead_queue is not None
        is_declared = False
        while True:
            try:
                await self._parker.send(delivery.body, properties, routing_key=handler.dead_queue)
                return
            except SendFailed as failed:
                error = failed.result.error
                if isinstance(error, Unroutable) and not is_declared:
                    async with await self._connection.channel() as channel:
                        await channel.queue_declare(handler.dead_queue, durable=True)
                    is_declared = True
                elif not isinstance(error, Misuse) or not remove_traceback(properties):  # too large for a frame
                    raise

    # -- watching ----------------------------------------------------------------------------------------------------

    def subscription_ended(self, subscription: _Subscription) -> None:
        """The broker cancelled the consumer or closed the channel."""
        self._commands.put(subscription)

    def _connection_closed(self, reason: CloseReason) -> None:
        if reason.is_final:
            if reason.by != "client":
                self._failure = ConnectionClosed(reason)
            self.stop()

    async def _watch(self) -> None:
        try:
            while (subscription := await self._commands.next()) is not None:
                if not subscription.is_active:
                    await self._begin_again(subscription)
        except Exception as error:  # noqa: BLE001 - the user's setup may raise anything; `wait` raises it
            self._failure = error
        finally:
            await self._shut_down()

    async def _begin_again(self, subscription: _Subscription) -> None:
        """Subscribe again, with the service's retries."""
        assert self._connection is not None
        pauses = self._retry.pauses()
        while True:
            try:
                await self._commands.unless_stopped(partial(subscription.begin, self._connection))
                return
            except ConnectionClosed:
                return  # the close listener handles it
            except ClientError as error:
                if pauses.attempt >= self._retry.retries:
                    raise
                _log.warning("consuming from %r failed, will be retried: %s", subscription.handler.queue, error)
                if await self._commands.wait_for_stop(pauses.next()):
                    return

    async def _shut_down(self) -> None:
        """Handle no more messages, wait for running handlers, disconnect."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for subscription in self._subscriptions:
            await subscription.cancel()
        with self._changed:
            if not await self._changed.wait_for(lambda: self._running == 0, self.drain):
                _log.warning("%d handlers did not end within %s seconds", self._running, self.drain)
        await self._disconnect()

    # -- the connection ----------------------------------------------------------------------------------------------

    @property
    def _owns_connection(self) -> bool:
        return isinstance(self._where, (str, ConnectionFactory))

    async def _connect(self) -> Connection:
        if isinstance(self._where, str):
            return await ConnectionFactory(self._where).connect_async()
        return await self._where.connect_async() if isinstance(self._where, ConnectionFactory) else self._where

    async def _connect_when_up(self, attempts: int | None, wait: float | None) -> Connection | None:
        """Connect, waiting for the broker; return None if stopped meanwhile."""
        if not isinstance(self._where, (str, ConnectionFactory)):
            return self._where
        factory = waiting_factory(self._where, attempts, wait)
        pauses = factory.connect_pauses()
        while True:
            try:
                return await self._commands.unless_stopped(factory.with_(attempts=1).connect_async)
            except ConnectionFailed as failure:
                if failure.is_refusal or pauses.attempt + 1 == attempts:
                    raise
                pause = pauses.next()
                _log.warning("broker not reachable, retrying in %.1f s: %s", pause, failure)
            if await self._commands.wait_for_stop(pause):
                return None

    async def _disconnect(self) -> None:
        assert self._connection is not None
        assert self._parker is not None
        self._connection.remove_close_listener(self._connection_closed)
        try:
            await self._parker.close()
        except ClientError as error:
            _log.info("the channel for parked messages was not closed: %s", error)
        for subscription in self._subscriptions:
            await subscription.close()
        if self._owns_connection:
            await self._connection.close()


class _Subscription:
    """One consumer of a service, on its own channel; a handler has as many as its concurrency."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self.handler = handler
        self.is_active = False
        self._service = service
        self._channel: Channel | None = None
        self._tag = ""
        self._attempt = 0
        self._pauses: dict[Delivery, Backoff] = {}  # of deliveries that are handed out again
        self._retry_arguments = handler.retry_arguments()

    async def begin(self, connection: Connection) -> None:
        """Consume, on the previous channel if it is still open: running handlers settle on it."""
        channel = self._channel
        if channel is None or not channel.is_open:
            channel = self._channel = await connection.channel()
            self._pauses = {}
            channel._engine_channel.redelivers = False  # `retry` decides about the message
            channel.add_close_listener(partial(self._channel_closed, channel))
        self._attempt += 1
        self.is_active = True
        try:
            await self._consume(channel, partial(self._cancelled, self._attempt))
        except BaseException as error:
            self.is_active = False
            if not isinstance(error, PreconditionFailed) or not self._retry_arguments:
                raise
            self._retry_arguments = {}  # the broker makes no retries for this queue: it may be a stream
            await self.begin(connection)

    async def _consume(self, channel: Channel, on_cancel: Callable[[object], None]) -> None:
        handler = self.handler
        if handler.setup is not None:
            await call_user(handler.setup, channel)
        await channel.qos(handler.channel_prefetch)
        started = await channel.consume(
            handler.queue,
            self._received,
            auto_ack=handler.auto_ack,
            exclusive=handler.exclusive,
            arguments=self._arguments_on(channel),
            on_cancel=on_cancel,
        )
        self._tag = started.tag

    def _arguments_on(self, channel: Channel) -> dict[str, Any]:
        """Return the arguments of basic.consume, with those that have the broker make the retries."""
        if not channel.connection.has_capability(CONSUMER_RETRY):
            self._retry_arguments = {}
        return self._retry_arguments | dict(self.handler.arguments or {})

    async def cancel(self) -> None:
        channel = self._channel
        if channel is not None and channel.is_open and channel.connection.is_open:  # a lost connection delivers nothing
            try:
                await channel.cancel(self._tag, timeout=channel.connection.factory.close_timeout)
            except ClientError as error:
                _log.info("the consumer of %r was not cancelled: %s", self.handler.queue, error)

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            try:
                if self._retry_arguments and channel.connection.is_open:
                    # Unhandled messages return at once; when a channel is closed they count as failed.
                    await channel.recover(timeout=channel.connection.factory.close_timeout)
                await channel.close()
            except ClientError as error:
                _log.info("a channel of %r was not closed: %s", self.handler.queue, error)

    async def _received(self, delivery: Delivery) -> None:
        await self._service.handle(self, delivery, self._pauses.pop(delivery, None))

    def retry(self, delivery: Delivery, pauses: Backoff) -> None:
        """Hand out the delivery again after the next pause; it stays unsettled meanwhile."""
        channel: Channel = delivery.channel
        channel.connection._engine.call_later(pauses.next(), partial(self._hand_out, channel, delivery, pauses))

    def _hand_out(self, channel: Channel, delivery: Delivery, pauses: Backoff) -> None:
        """On the connection's loop."""
        if channel.is_open and not delivery.is_stale:
            self._pauses[delivery] = pauses
            channel._engine_channel.get_work_queue().put([delivery])

    def _cancelled(self, attempt: int, _: object) -> None:
        if attempt == self._attempt:
            self._end()

    def _channel_closed(self, channel: Channel, reason: CloseReason) -> None:
        if channel is self._channel and reason.is_final and reason.by == "server":
            if reason.reply_code == spec.ACCESS_REFUSED:
                self._service.notes_errors = False  # the user may not publish to the default exchange
            self._end()

    def _end(self) -> None:
        """The broker ended it. If it is just being started, `begin` raises."""
        if self.is_active:
            self.is_active = False
            self._service.subscription_ended(self)


class _Membership(_Subscription):
    """A member of a topic's consumer group, whose partitions have channels of their own."""

    _member: TopicConsumer | None = None

    async def _consume(self, channel: Channel, on_cancel: Callable[[object], None]) -> None:
        handler = self.handler
        if handler.setup is not None:
            await call_user(handler.setup, channel)
        topic = await channel.declare_topic(handler.queue, handler.partitions)
        self._member = await topic.consume(
            self._received,
            group=handler.group or "",
            prefetch=handler.prefetch,
            drain=self._service.drain,
            arguments=self._arguments_on(channel),
            on_failure=on_cancel,
        )

    async def cancel(self) -> None:
        if self._member is not None:
            self._member.stop()

    async def close(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            await member.close()
        await super().close()
