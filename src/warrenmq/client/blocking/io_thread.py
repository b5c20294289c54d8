"""The thread that runs a connection's event loop, and calls to it from other threads.

Any thread may `call`: the coroutine runs on the loop while the caller waits, always with a limit. The thread is a
daemon, so a program that does not close its connection can end; `atexit` closes what is still open, within EXIT_LIMIT.
A forked child has no such thread: all calls there are refused.

`_lock` guards whether the loop still accepts calls. Everything else is owned by the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from warrenmq.client.errors import CallTimedOut, CloseReason, ConnectionClosed, Misuse

# The engine keeps the timeouts. If the loop is so late that it misses one by this much, the caller gives up.
SLACK = 5.0

# How long the interpreter waits at its exit for all open connections to close.
EXIT_LIMIT = 2.0

FORKED = "this connection belongs to the parent process: open a new one after a fork"

Result = TypeVar("Result")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of event loops: uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class IoThread:
    """A thread with an event loop that runs from `start` until `end`."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        # Reentrant: garbage collection while it is held may call `spawn`, for a forgotten consumer.
        self._lock = threading.RLock()
        self.is_over = False
        self._reason = CloseReason("client", 200, "the connection is closed")
        self._has_begun: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._end_asked: asyncio.Event | None = None
        self._spawned: set[asyncio.Task[object]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._thread.start()
        self._loop = self._has_begun.result(SLACK)

    @property
    def is_current(self) -> bool:
        """Whether the caller is this thread."""
        return threading.current_thread() is self._thread

    def rename(self, name: str) -> None:
        self._thread.name = name

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, Result], limit: float) -> Result:
        """Run it on the loop and return its result; it must time out by itself within `limit` seconds."""
        try:
            future = self._submit(coroutine)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result(limit + SLACK)
        except concurrent.futures.CancelledError:
            raise ConnectionClosed(self._reason) from None
        except TimeoutError:
            if future.done():  # it raised its own TimeoutError
                return future.result()
            future.cancel()
            raise CallTimedOut(f"no reply from the connection's I/O thread within {limit + SLACK:g} s") from None
        except BaseException:  # the caller was interrupted
            future.cancel()
            raise

    def tell(self, function: Callable[[], object]) -> bool:
        """Call it soon on the loop, without waiting; return False if the loop has ended."""
        if self._process != os.getpid():
            return False  # in a forked child the lock may be held for ever
        with self._lock:
            if self.is_over or self._loop is None:
                return False
            self._loop.call_soon_threadsafe(function)
            return True

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run it on the loop without waiting; it must handle its own errors."""
        if not self.tell(lambda: self._keep(coroutine)):
            coroutine.close()

    def _keep(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    def end(self, reason: CloseReason | None = None) -> None:
        """On the loop: accept no more calls, which raise the reason; the thread ends after the pending ones."""
        with self._lock:
            self._reason = reason or self._reason
            self.is_over = True
        if self._end_asked is not None:
            self._end_asked.set()

    def join(self, limit: float) -> None:
        """Wait for the end of the thread; return at once if called by that thread."""
        if not self.is_current and self._process == os.getpid():
            self._thread.join(max(0.0, limit))

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        if self._process != os.getpid():
            raise Misuse(FORKED)
        if self.is_current:
            raise Misuse("a blocking call from the connection's own I/O thread would wait for itself")
        with self._lock:
            if self.is_over or self._loop is None:
                raise ConnectionClosed(self._reason)
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._end_asked = asyncio.Event()
        self._has_begun.set_result(asyncio.get_running_loop())
        await self._end_asked.wait()
        # Coroutines submitted just before the end run and raise ConnectionClosed; the runner cancels all others.
        await asyncio.sleep(0)


# -- connections that are not closed -----------------------------------------------------------------------------------


class Closable(Protocol):
    """What this module needs of a connection."""

    def ask_to_close(self) -> None:
        """Start closing, without waiting."""

    def wait_for_threads(self, limit: float) -> None:
        """Wait up to `limit` seconds for the threads to end."""

    def abandon(self) -> None:
        """In a forked child: make every later call raise Misuse."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def remember(connection: Closable) -> None:
    """Close it when the interpreter exits; refuse its use in a forked child."""
    _open.add(connection)


def forget(connection: Closable) -> None:
    _open.discard(connection)


def _close_all() -> None:
    deadline = time.monotonic() + EXIT_LIMIT
    left: list[Closable] = list(_open)
    for connection in left:
        connection.ask_to_close()
    for connection in left:
        connection.wait_for_threads(deadline - time.monotonic())


def _abandon_all() -> None:
    left: list[Closable] = list(_open)
    _open.clear()
    for connection in left:
        connection.abandon()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_abandon_all)
