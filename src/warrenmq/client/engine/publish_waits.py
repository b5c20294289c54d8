"""How publishers wait: for a confirm, or until the output is writable. Every wait has a time-out.

`block` and `block_until_writable` are for threads; `wait` and `wait_until_writable` for coroutines of any event loop.
While a caller waits the connection keeps reading, even if its workers are behind: the confirm has to come in.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from warrenmq.client.errors import CallTimedOut, ConnectionBlocked, Misuse

if TYPE_CHECKING:
    from warrenmq.client.confirms import Confirmation
    from warrenmq.client.engine.channel_state import ChannelState, SharedConnection

_MAX_WAIT = threading.TIMEOUT_MAX


class PublishWaits:
    """The waits of one channel, or of the connection itself."""

    __slots__ = (
        "_loop",
        "_review_reading",
        "_run_callback",
        "_shared",
        "_thread_id",
        "call_timeout",
        "report",
        "state",
    )

    def __init__(
        self,
        shared: SharedConnection,
        loop: asyncio.AbstractEventLoop,
        call_timeout: float,
        review_reading: Callable[[], None],
        run_callback: Callable[[Callable[[Confirmation], object], Confirmation], None],
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._shared = shared
        self._loop = loop
        self._thread_id = threading.get_ident()  # constructed on the loop
        self._review_reading = review_reading
        self._run_callback = run_callback
        self.report = report  # for exceptions of callbacks that run at once
        self.call_timeout = call_timeout
        self.state: ChannelState | None = None  # set by the channel

    # -- confirms ----------------------------------------------------------------------------------------------------

    def block(self, confirmation: Confirmation, timeout: float | None) -> None:
        """Block this thread until the confirm arrives."""
        if threading.get_ident() == self._thread_id:
            raise Misuse("waiting here would block the connection's own event loop: await the confirmation")
        waiter = threading.Lock()
        waiter.acquire()
        if self._add_waiter(confirmation, waiter.release) and not waiter.acquire(timeout=self._seconds(timeout)):
            raise self.timed_out("no confirm within the time-out")

    async def wait(self, confirmation: Confirmation, timeout: float | None = None) -> None:
        """Wait in a coroutine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if self._add_waiter(confirmation, self._waker(future, loop)):
            await self._await(loop, future, timeout, "no confirm within the time-out")

    def call_when_done(self, confirmation: Confirmation, callback: Callable[[Confirmation], object]) -> bool:
        """Have the channel's worker call it later; return False if the confirm is already here."""
        return self._add_waiter(confirmation, partial(self._run_callback, callback, confirmation))

    def _add_waiter(self, confirmation: Confirmation, waiter: Callable[[], object]) -> bool:
        with self._shared.lock:
            is_waiting = confirmation.add_waiter(waiter)
            if is_waiting:
                self._shared.awaited_confirms += 1
        if is_waiting:
            self._review_reading()
        return is_waiting

    # -- output ------------------------------------------------------------------------------------------------------

    def block_until_writable(self, timeout: float | None) -> None:
        """Block this thread until a publish may be retried."""
        if threading.get_ident() == self._thread_id:
            raise Misuse("waiting here would block the connection's own event loop")
        waiter = threading.Lock()
        waiter.acquire()
        if self._add_writable_callback(waiter.release) and not waiter.acquire(timeout=self._seconds(timeout)):
            raise self.timed_out("the message could not be written in time")

    async def wait_until_writable(self, timeout: float | None = None) -> None:
        """Wait in a coroutine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        if self._add_writable_callback(self._waker(future, loop)):
            await self._await(loop, future, timeout, "the message could not be written in time")

    def _add_writable_callback(self, waiter: Callable[[], None]) -> bool:
        """Return False if the publish may be retried at once: there is room, or the connection has ended."""
        shared = self._shared
        with shared.lock:
            if shared.final_reason is not None:
                return False
            written = 0 if shared.protocol is None else shared.protocol.output_size
            if max(written, shared.offline_bytes) <= shared.output_limit and not self._is_paused():
                return False
            shared.writable_callbacks.append(waiter)
        return True

    def _is_paused(self) -> bool:
        """Return True while the server pauses this channel by channel.flow."""
        return self.state is not None and self.state.is_paused

    # -- time-outs ---------------------------------------------------------------------------------------------------

    def timed_out(self, text: str) -> CallTimedOut:
        if self._shared.is_blocked:
            return ConnectionBlocked(f"{text}: the server blocks publishers")
        if self._is_paused():
            return ConnectionBlocked(f"{text}: the server has paused this channel (channel.flow)")
        return CallTimedOut(text)

    def _seconds(self, timeout: float | None) -> float:
        seconds = self.call_timeout if timeout is None else timeout
        return min(max(seconds, 0.0), _MAX_WAIT)

    async def _await(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[bool], timeout: float | None, text: str
    ) -> None:
        # Not asyncio.timeout, which costs 3 us more: as much as publishing 5 messages.
        timer = loop.call_later(self._seconds(timeout), _resolve, future, False)
        try:
            is_in_time = await future
        finally:
            timer.cancel()
        if not is_in_time:
            raise self.timed_out(text)

    def _waker(self, future: asyncio.Future[bool], loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        if loop is self._loop:
            return partial(_resolve, future)
        return partial(_resolve_elsewhere, loop, future)


def wake_waiters(shared: SharedConnection, to_wake: list[Confirmation]) -> None:
    """Wake those who wait for these confirmations. On the loop, after the lock is released."""
    count = sum([confirmation.wake() for confirmation in to_wake])
    with shared.lock:
        shared.awaited_confirms -= count


def _resolve(future: asyncio.Future[bool], is_in_time: bool = True) -> None:
    if not future.done():
        future.set_result(is_in_time)


def _resolve_elsewhere(loop: asyncio.AbstractEventLoop, future: asyncio.Future[bool]) -> None:
    try:
        loop.call_soon_threadsafe(_resolve, future)
    except RuntimeError:  # that loop is closed, with all its tasks
        pass
