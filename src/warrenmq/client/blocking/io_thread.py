"""The thread that a connection's event loop lives in, and the bridge to it.

Any thread may `call`: the coroutine runs on the loop, the caller waits for its end, never without a limit. The thread
is a daemon, so that a program which forgets its connection can end; what is still open then is closed by `atexit`,
within EXIT_LIMIT. A child process after a fork has no such thread: every call there is refused.

Shared between threads: whether the loop still takes calls, under `_lock`. Everything else belongs to the loop.
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

# The engine keeps the time-outs. Should a loop be so late that it misses one by this much, the caller goes on alone.
SLACK = 5.0

# How long the end of the interpreter waits for the goodbyes of connections that nobody closed, all together.
EXIT_LIMIT = 2.0

FORKED = "this connection belongs to the parent process: connect anew after a fork"

Result = TypeVar("Result")


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the fastest event loop here: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class IoThread:
    """A loop in a thread of its own, from `start` until `end` is called."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        # Reentrant: garbage may be collected while it is held, and a forgotten consumer says so by `spawn`.
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
        """Whether the caller is this very thread."""
        return threading.current_thread() is self._thread

    def rename(self, name: str) -> None:
        self._thread.name = name

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def call(self, coroutine: Coroutine[Any, Any, Result], limit: float) -> Result:
        """Run it on the loop and give what it gives. `limit`: when it ends by itself at the latest."""
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
            if future.done():  # its own time-out, not ours
                return future.result()
            future.cancel()
            raise CallTimedOut(f"no answer from the connection's I/O thread in {limit + SLACK:g} s") from None
        except BaseException:  # the caller was interrupted: nobody waits for it any more
            future.cancel()
            raise

    def tell(self, function: Callable[[], object]) -> bool:
        """Have the loop call this soon, without waiting; False when it is over."""
        if self._process != os.getpid():
            return False  # in a child nobody may ever release the lock
        with self._lock:
            if self.is_over or self._loop is None:
                return False
            self._loop.call_soon_threadsafe(function)
            return True

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run it on the loop without waiting for it; it must handle its own errors."""
        if not self.tell(lambda: self._keep(coroutine)):
            coroutine.close()

    def _keep(self, coroutine: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)

    def end(self, reason: CloseReason | None = None) -> None:
        """On the loop: take no more calls (callers hear the reason); the thread ends when those before have ended."""
        with self._lock:
            self._reason = reason or self._reason
            self.is_over = True
        if self._end_asked is not None:
            self._end_asked.set()

    def join(self, limit: float) -> None:
        """Wait for the thread's end; not from the thread itself, which cannot wait for its own."""
        if not self.is_current and self._process == os.getpid():
            self._thread.join(max(0.0, limit))

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        if self._process != os.getpid():
            raise Misuse(FORKED)
        if self.is_current:
            raise Misuse("this would wait for itself: the call came from the connection's own I/O thread")
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
        # What was submitted just before the end gets its turn, and is told that all is over; the runner cancels what
        # is still there then.
        await asyncio.sleep(0)


# -- forgotten connections ---------------------------------------------------------------------------------------------


class Closable(Protocol):
    """What this module asks of a connection."""

    def ask_to_close(self) -> None:
        """Begin to close without waiting."""

    def wait_for_threads(self, limit: float) -> None:
        """Give the threads this long to end."""

    def abandon(self) -> None:
        """In a child process: make every later call raise Misuse."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def remember(connection: Closable) -> None:
    """Close it at the interpreter's end, should nobody else do so; refuse its use in a child process."""
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
