"""A connection over all its links: channels, listeners, recovery, and the end.

It has one link at a time. When that is lost unexpectedly, a task opens a new one and restores the topology
(engine/recovery.py). A close by the user wins every race: it cancels the recovery at any point.

Owned by the loop that `connect` ran on, except where a section or docstring says "any thread".
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from warrenmq.client.engine import recovery
from warrenmq.client.engine.channel import EngineChannel
from warrenmq.client.engine.channel_state import DeliveryBuffer, LinkListener, SharedConnection
from warrenmq.client.engine.consumers import Notification, WorkQueue
from warrenmq.client.engine.link import Link
from warrenmq.client.engine.listener_list import ListenerList
from warrenmq.client.engine.pending_replies import PendingReplies
from warrenmq.client.engine.publish_waits import PublishWaits, wake_waiters
from warrenmq.client.engine.recovery import RecoveryEvent
from warrenmq.client.engine.work_queues import WorkQueues
from warrenmq.client.errors import (
    AuthenticationFailed,
    ClientError,
    CloseReason,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Misuse,
)
from warrenmq.client.factory import ConnectionFactory
from warrenmq.client.topology import Topology
from warrenmq.client.url import Address
from warrenmq.protocol import events, spec
from warrenmq.protocol.errors import LocalMisuse

__all__ = ["EngineConnection", "RecoveryEvent", "State"]

log = logging.getLogger("warrenmq.client")

_numbers = itertools.count(1)

T = TypeVar("T")
MakeWorkQueue = Callable[[str, "EngineConnection"], WorkQueue]


def _make_name() -> str:
    """Return a name for a connection that the user did not name; the broker shows it too."""
    return f"warren-client-{os.getpid()}-{next(_numbers)}"


class State(Enum):
    """The state of a connection; the values appear in error texts."""

    NEW = "not connected yet"
    OPEN = "open"
    RECOVERING = "being recovered"
    CLOSING = "closing"
    CLOSED = "closed"


class EngineConnection:
    """One connection of the user. `facade` is the object that the user holds."""

    def __init__(self, factory: ConnectionFactory, make_work_queue: MakeWorkQueue) -> None:
        self.factory = factory if factory.name else factory.with_(name=_make_name())
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self.facade: Any = self
        self.state = State.NEW
        self.metrics = factory.metrics
        self.shared = SharedConnection(
            factory.output_limit, factory.unconfirmed == "resend", self._schedule_flush, factory.metrics
        )
        self.work_queues = WorkQueues(factory.work_limit, self._is_awaited, self._set_reading, self._from_any_thread)
        self.waits = self.make_waits(self._run_callback, self._report_own)
        self.topology = Topology()
        self.channels: dict[int, EngineChannel] = {}
        self.address: Address | None = None
        self.server_properties: dict[str, Any] = {}
        self.close_reason: CloseReason | None = None
        self._make_work_queue = make_work_queue
        self._work_queue: WorkQueue | None = None
        self._link: Link | None = None
        self._replies = PendingReplies()
        self._not_recovering = asyncio.Event()  # cleared during a recovery
        self._recovery: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._background_tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self.blocked_listeners: ListenerList[tuple[Callable[[str], object], Callable[[], object]]] = ListenerList()
        # Called for every lost link, and for the end (`is_final`).
        self.close_listeners: ListenerList[Callable[[CloseReason], object]] = ListenerList()
        self.recovery_listeners: ListenerList[Callable[[RecoveryEvent], object]] = ListenerList()
        self.renamed_listeners: ListenerList[Callable[[str, str], object]] = ListenerList()

    # -- any thread --------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def is_recovering(self) -> bool:
        return self.state is State.RECOVERING

    @property
    def is_closed(self) -> bool:
        """Return True once the connection is closing or has ended."""
        return self.state in (State.CLOSING, State.CLOSED)

    @property
    def is_blocked(self) -> bool:
        return self.shared.is_blocked

    @property
    def name(self) -> str | None:
        return self.factory.name

    def report(self, context: str, error: BaseException, source: object) -> None:
        """Pass an error that no caller gets to the exception handler, or log it. Any thread."""
        if self.metrics is not None and context.endswith("callback"):
            self.metrics.callback_failed()
        handler = self.factory.exception_handler
        if handler is None:
            log.error("%s of %r: %s", context, source, error, exc_info=error)
            return
        try:
            handler(context, error, source)
        except Exception:  # the user's code again
            log.exception("the exception handler raised at %s of %r", context, source)

    # -- opening -----------------------------------------------------------------------------------------------------

    async def connect(self, timeout: float | None = None) -> None:
        """Open the first link within the factory's attempts, or raise ConnectionFailed and clean up."""
        try:
            async with asyncio.timeout(timeout):
                await self._connect_with_retries()
        except TimeoutError as late:
            self._abandon_connecting()
            if isinstance(late, ClientError):
                raise
            raise ConnectionFailed(f"no connection within {timeout} seconds") from None
        except BaseException:
            self._abandon_connecting()
            raise
        self.state = State.OPEN
        self._not_recovering.set()
        if self.metrics is not None:
            self.metrics.connection_opened()

    async def _connect_with_retries(self) -> None:
        attempts, pauses = self.factory.attempts, self.factory.connect_pauses()
        while True:
            try:
                await self.open_link()
                return
            except ConnectionFailed as failure:
                if failure.is_refusal or pauses.attempt + 1 == attempts:
                    raise
                pause = pauses.next()
                log.warning("broker not reachable, retrying in %.1f s: %s", pause, failure)
            await asyncio.sleep(pause)

    def _abandon_connecting(self) -> None:
        self.state = State.CLOSED
        self._ended.set()

    async def open_link(self) -> None:
        """Try the addresses in turn until one connects."""
        tls = self.factory.tls_context()
        failures: list[tuple[str, Exception]] = []
        for address in self.factory.addresses:
            link = Link(self, self.factory, self.shared)
            try:
                opened = await link.open(address, tls)
                if link.end_reason is not None:
                    raise ConnectionFailed(str(link.end_reason))
            except ConnectionFailed as failure:
                failures.append((f"{address[0]}:{address[1]}", failure))
                continue
            self._begin_link(link, address, opened)
            return
        text = "; ".join(f"{where}: {failure}" for where, failure in failures)
        is_refused = any(isinstance(failure, AuthenticationFailed) for _, failure in failures)
        kind = AuthenticationFailed if is_refused else ConnectionFailed
        raise kind(f"no connection to {text}", failures)

    def _begin_link(self, link: Link, address: Address, opened: events.Opened) -> None:
        self._link = link
        self.address = address
        self.server_properties = opened.server_properties
        with self.shared.lock:
            self.shared.protocol = link.protocol
            self.shared.write_directly = link.write_directly
            self.shared.is_flush_scheduled = False

    # -- channels ----------------------------------------------------------------------------------------------------

    async def channel(self, timeout: float | None = None) -> EngineChannel:
        return await self.with_deadline(timeout, "channel.open", self._open_channel())

    async def _open_channel(self) -> EngineChannel:
        await self.wait_ready()
        channel = EngineChannel(self, self.free_number())
        self.add(channel)
        try:
            await channel.open()
        except ClientError:
            self.forget(channel)
            raise
        if self.metrics is not None:
            self.metrics.channel_opened()
        return channel

    def free_number(self) -> int:
        assert self._link is not None
        limit = self._link.tuning.channel_max
        for number in range(1, limit + 1):
            if number not in self.channels:
                return number
        raise Misuse(f"all {limit} channels of the connection are in use")

    def add(self, channel: EngineChannel) -> None:
        self.channels[channel.number] = channel
        self.shared.channel_states[channel.number] = channel.state

    def forget(self, channel: EngineChannel) -> None:
        """Remove the channel; its number may be reused."""
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            del self.shared.channel_states[channel.number]

    # -- calls -------------------------------------------------------------------------------------------------------

    async def wait_ready(self) -> None:
        """Wait for the end of a recovery; raise if the connection has ended."""
        while self.state is State.RECOVERING:
            await self._not_recovering.wait()
        if self.state is not State.OPEN:
            raise ConnectionClosed(self.close_reason or CloseReason("client", 0, self.state.value))

    async def with_deadline(self, timeout: float | None, what: str, work: Awaitable[T]) -> T:
        """Await the work under one deadline."""
        seconds = self.factory.call_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            raise self.waits.timed_out(f"{what}: no answer within {seconds} seconds") from None

    async def request(
        self,
        replies: PendingReplies,
        channel: int,
        method: spec.Method,
        *expects: type,
        on_late_reply: Callable[[Any], None] | None = None,
    ) -> Any:
        """Send a method and wait for its reply, at most until the link ends; the caller sets the time-out."""
        if self._link is None:
            raise self.shared.not_open()
        future = replies.add(*expects, on_late_reply=on_late_reply)
        try:
            self._link.send(channel, method)
        except LocalMisuse as misuse:
            replies.withdraw(future)
            raise Misuse(str(misuse)) from misuse
        self.work_queues.begin_call()
        try:
            return await future
        finally:
            self.work_queues.end_call()

    def send(self, channel: int, method: spec.Method) -> None:
        """Send a method that needs no reply, if there is a link."""
        if self._link is not None and not self._link.has_ended:
            self._link.send(channel, method)

    async def update_secret(self, secret: str | bytes, reason: str = "", timeout: float | None = None) -> None:
        """Send the server a new secret, such as a fresh token; later links log in with it too."""
        data = secret.encode() if isinstance(secret, str) else secret
        method = spec.ConnectionUpdateSecret(data, reason)
        await self.with_deadline(timeout, "connection.update-secret", self._update_secret(method))

    async def _update_secret(self, method: spec.ConnectionUpdateSecret) -> None:
        await self.wait_ready()
        await self.request(self._replies, 0, method, spec.ConnectionUpdateSecretOk)
        self.factory = self.factory.with_(password=method.new_secret.decode())

    # -- input -------------------------------------------------------------------------------------------------------

    def on_received(self, link: Link) -> None:
        """Process what the link's listener collected under the lock."""
        listener = link.listener
        if listener.filled_buffers:
            filled_buffers, listener.filled_buffers = listener.filled_buffers, []
            for buffer in filled_buffers:
                self._put_deliveries(buffer)
        if listener.to_wake:
            to_wake, listener.to_wake = listener.to_wake, []
            wake_waiters(self.shared, to_wake)
            self.work_queues.review()
        if listener.returns or listener.confirm_notifications or listener.orphans:
            self._dispatch_rare_input(listener)
        if self.metrics is not None and (listener.confirmed or listener.nacked):
            self._count_confirms(listener)
        if listener.events:
            received, listener.events = listener.events, []
            for event in received:
                self._on_event(event)

    def _put_deliveries(self, buffer: DeliveryBuffer) -> None:
        items, buffer.items = buffer.items, []
        if self.metrics is not None:
            self.metrics.delivered(
                len(items), sum(len(item.body) for item in items if not isinstance(item, Notification))
            )
        work_queue = buffer.work_queue
        if work_queue is None:
            work_queue = buffer.state.channel.get_work_queue()
        work_queue.put(items)
        self.work_queues.check(work_queue)

    def _dispatch_rare_input(self, listener: LinkListener) -> None:
        returns, listener.returns = listener.returns, []
        for state, returned in returns:
            if self.metrics is not None:
                self.metrics.returned()
            state.channel.on_return(returned)
        notices, listener.confirm_notifications = listener.confirm_notifications, []
        for state, tag, multiple, is_ack in notices:
            state.channel.on_confirm(tag, multiple, is_ack)
        orphans, listener.orphans = listener.orphans, []
        for state, tag in orphans:
            state.channel.requeue([tag])

    def _count_confirms(self, listener: LinkListener) -> None:
        assert self.metrics is not None
        if listener.confirmed:
            self.metrics.confirmed(listener.confirmed)
        if listener.nacked:
            self.metrics.nacked(listener.nacked)
        listener.confirmed = listener.nacked = 0

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, (events.MethodReceived, events.ContentReceived)):
            if event.channel == 0:
                self._replies.resolve(event.method, type(event.method))
            elif (channel := self.channels.get(event.channel)) is not None:
                channel.on_event(event)
        elif isinstance(event, events.Blocked):
            self.shared.is_blocked = True
            for on_blocked, _ in self.blocked_listeners:
                self.notify("blocked callback", on_blocked, event.reason)
        elif isinstance(event, events.Unblocked):
            self.shared.is_blocked = False
            for _, on_unblocked in self.blocked_listeners:
                self.notify("unblocked callback", on_unblocked)

    def on_lost(self, link: Link, reason: CloseReason) -> None:
        """Handle the end of the link: fail the pending calls and start the recovery, if enabled."""
        if link is not self._link:
            return
        self._link = None
        if self.state is State.CLOSING:
            return  # `_close` waits for this and fails all calls
        if self.metrics is not None:
            self.metrics.connection_lost()
        recovers = self.factory.recovery.enabled and self.state is State.OPEN
        reason = replace(reason, is_final=self.state is State.OPEN and not recovers)
        self.shared.lost_reason = reason
        self._replies.fail_all(ConnectionLost(f"the connection was lost: {reason}", reason))
        for channel in list(self.channels.values()):
            channel.on_lost(reason, is_news=recovers)
        if recovers:
            self.state = State.RECOVERING
            self._not_recovering.clear()
            self.notify_close(reason)
            self._recovery = self.loop.create_task(recovery.recover(self, reason), name="warren-client-recovery")
            self._recovery.add_done_callback(self._on_recovery_done)
        elif self.state is State.OPEN:
            self.finish(reason)
        self.on_writable()

    def on_writable(self) -> None:
        """Wake the publishers that wait for room in the output."""
        with self.shared.lock:
            waiters, self.shared.writable_callbacks = self.shared.writable_callbacks, []
        for waiter in waiters:
            waiter()

    # -- called by the recovery --------------------------------------------------------------------------------------

    def require_link(self) -> None:
        if self._link is None:
            raise self.shared.not_open()

    def _on_recovery_done(self, task: asyncio.Task[None]) -> None:
        """End the connection if the recovery failed because of a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%r: the recovery failed", self, exc_info=error)
            if self.state is State.RECOVERING:
                self.finish(CloseReason("client", spec.INTERNAL_ERROR, f"the recovery failed: {error!r}"))

    def recovered(self, event: RecoveryEvent) -> None:
        """Finish the recovery: admit the calls that wait for it."""
        if self.state is not State.RECOVERING:
            return  # closed by the user meanwhile
        self.state = State.OPEN
        self._recovery = None
        with self.shared.lock:
            self.shared.offline_bytes = 0
        self._not_recovering.set()
        self._flush()
        self.on_writable()
        self.work_queues.review()
        if self.metrics is not None:
            self.metrics.connection_recovered()
        self.notify_recovery(event)

    def notify_recovery(self, event: RecoveryEvent) -> None:
        for listener in self.recovery_listeners:
            self.notify("recovery callback", listener, event)

    def notify_renamed(self, old: str, new: str) -> None:
        for listener in self.renamed_listeners:
            self.notify("queue renamed callback", listener, old, new)

    async def drop_link(self) -> None:
        """Abort a link on which the recovery failed."""
        link, self._link = self._link, None
        if link is not None:
            await link.abort()

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def make_work_queue(self, what: str) -> WorkQueue:
        return self.work_queues.add(self._make_work_queue(what, self))

    def notify(self, context: str, callback: Callable[..., object], *arguments: object) -> None:
        """Queue a call of the user's code on the worker of the connection's own listeners."""
        if self._ending is not None:
            return
        if self._work_queue is None:
            self._work_queue = self.make_work_queue("listeners")
        self._work_queue.put([Notification(context, self.facade, callback, *arguments)])

    def notify_close(self, reason: CloseReason) -> None:
        for listener in self.close_listeners:
            self.notify("close callback", listener, reason)

    # -- scheduling --------------------------------------------------------------------------------------------------

    def make_waits(
        self, run_callback: Callable[[Callable[..., object], Any], None], report: Callable[[str, BaseException], None]
    ) -> PublishWaits:
        timeout = self.factory.call_timeout
        return PublishWaits(self.shared, self.loop, timeout, self.work_queues.review_soon, run_callback, report)

    def _schedule_flush(self) -> None:
        """Have the loop write the output soon. Any thread."""
        if threading.get_ident() == self._thread_id:
            self.loop.call_soon(self._flush)
        else:
            self._from_any_thread(self._flush)

    def _is_awaited(self) -> bool:
        """Return True while a caller waits for a confirm."""
        return self.shared.awaited_confirms > 0

    def _set_reading(self, is_reading: bool) -> None:
        if self._link is None:
            return
        if is_reading:
            self._link.resume_reading()
        else:
            self._link.pause_reading()

    def _flush(self) -> None:
        if self._link is not None:
            self._link.flush()

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it on the loop after this time. Any thread."""
        self._from_any_thread(partial(self.loop.call_later, seconds, call))

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background task on the loop, unless the connection is closed. Any thread."""
        self._from_any_thread(partial(self._spawn, work))

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self.is_closed:
            task = self.loop.create_task(work(), name="warren-client-background")
            self._background_tasks.add(task)
            task.add_done_callback(self._background_tasks.discard)

    def _from_any_thread(self, call: Callable[[], object]) -> None:
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed, and with it the connection
            pass

    def _run_callback(self, callback: Callable[..., object], argument: Any) -> None:
        self.notify("callback", callback, argument)

    def _report_own(self, context: str, error: BaseException) -> None:
        self.report(context, error, self.facade)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(
        self, reply_code: int = spec.REPLY_SUCCESS, reply_text: str = "Goodbye", timeout: float | None = None
    ) -> None:
        """End the connection in any state; never raise. Return when the server has answered or the time is over."""
        if self._closing is None and self.state is not State.CLOSED:
            seconds = self.factory.close_timeout if timeout is None else timeout
            reason = CloseReason("client", reply_code, reply_text)
            self._begin_closing(reason)
            self._closing = self.loop.create_task(self._close(reason, seconds), name="warren-client-close")
        if self._closing is not None:
            await asyncio.shield(self._closing)
        if await self.work_queues.wait_all_ended():
            await self._ended.wait()

    async def wait_ended(self) -> None:
        """Return when the connection has ended and none of its tasks is left on the loop."""
        await self._ended.wait()

    def _begin_closing(self, reason: CloseReason) -> None:
        """Stop all threads from sending."""
        self.state = State.CLOSING
        self.close_reason = reason
        if self._recovery is not None:
            self._recovery.cancel()
        with self.shared.lock:
            self.shared.final_reason = reason
            for state in self.shared.channel_states.values():
                state.detach()
        self._not_recovering.set()
        self.on_writable()

    async def _close(self, reason: CloseReason, timeout: float) -> None:
        if self._recovery is not None:
            await asyncio.wait((self._recovery,))
            self._recovery = None
        link = self._link
        if link is not None:
            link.begin_close(reason.reply_code, reason.reply_text)
            await asyncio.wait((link.closed,), timeout=timeout)
            await link.abort()
        self._link = None
        self.finish(reason)

    def finish(self, reason: CloseReason) -> None:
        """End for good: fail all calls, notify listeners, stop the workers."""
        self.state = State.CLOSED
        self.close_reason = reason
        with self.shared.lock:
            self.shared.final_reason = reason
        self._replies.fail_all(ConnectionClosed(reason))
        for channel in list(self.channels.values()):
            channel.on_connection_end(reason)
        self.notify_close(reason)
        if self._work_queue is not None:
            self._work_queue.stop()
        self._not_recovering.set()
        self.on_writable()
        if self.metrics is not None:
            self.metrics.connection_closed()
        self._ending = self.loop.create_task(self._end(), name="warren-client-end")

    async def _end(self) -> None:
        if self._background_tasks:
            await asyncio.wait(self._background_tasks)  # `finish` has failed whatever they wait for
        await self.work_queues.wait_all_ended()
        self._ended.set()

    def __repr__(self) -> str:
        return f"<connection to {self.factory.url(self.address)}, {self.state.value}>"
