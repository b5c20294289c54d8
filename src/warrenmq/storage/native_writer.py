"""A thread that makes one write durable at a time without holding the interpreter lock.

Handing an epoch to a Python thread and back costs more than the disk does: each side waits for the other to release the
interpreter lock, and each wait is a sleep. This thread waits on an eventfd, writes, and signals another eventfd that
the loop listens to, all in C. Compared with the Python thread: 1.5 times the rate with one durable confirm in flight,
1.6 times with 1000 of 16 B, 1.35 times with 100 of 1 KiB (medians of 7 interleaved runs on two cores).

The record belongs to the thread from `write` until `on_done`; everything else here is the loop's. Compiled when the
package is built (native_writer.pxd); uncompiled it is not available.
"""

import os
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

IS_AVAILABLE = cython.compiled and hasattr(os, "eventfd")
# How long the thread polls for the next record after a small one, before it sleeps: being woken may take longer than
# the wait. After large records polling cost a fifth of the rate, so there it sleeps at once.
_POLL_NS = 200_000
UNFINISHED = -1


class NativeWriter:
    """One write at a time. `on_done(error)` is called on the loop, with 0 or an errno."""

    __slots__ = ("_loop", "_on_done", "_record", "_state", "_thread")

    _state: Any  # a C struct that the thread shares, declared in native_writer.pxd

    def __init__(self, loop: AbstractEventLoop, on_done: Callable[[int], None]) -> None:
        self._loop: AbstractEventLoop | None = loop
        self._on_done = on_done
        self._record = b""
        self._state.wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._state.done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._state.is_ending = 0
        self._state.poll_ns = _POLL_NS
        loop.add_reader(self._state.done, self._is_done)
        self._thread = threading.Thread(target=self._serve, name="warren-log-writer", daemon=True)
        self._thread.start()

    def write(self, handle: int, record: bytes, offset: int) -> None:
        """Start a write; the record is durable when `on_done` is called with 0."""
        self._record = record  # keeps the bytes alive: the thread has only their address
        self._state.data = record
        self._state.size = len(record)
        self._state.error = UNFINISHED
        self._state.handle = handle
        self._state.offset = offset
        writer_request(cython.address(self._state))  # type: ignore[name-defined]  # noqa: F821

    def detach_loop(self) -> None:
        """Stop calling `on_done`. On the loop, before `stop`."""
        if self._loop is not None:
            self._loop.remove_reader(self._state.done)
            self._loop = None

    def stop(self) -> None:
        """Finish the current write, then end the thread. Blocks."""
        self._state.is_ending = 1
        writer_request(cython.address(self._state))  # type: ignore[name-defined]  # noqa: F821
        self._thread.join()
        os.close(self._state.wake)
        os.close(self._state.done)

    def error(self) -> int:
        """Return the result of the last write: 0, an errno, or UNFINISHED."""
        error: int = self._state.error
        return error

    def _is_done(self) -> None:
        os.eventfd_read(self._state.done)
        self._on_done(self._state.error)

    def _serve(self) -> None:
        with cython.nogil:
            writer_serve(cython.address(self._state))  # type: ignore[name-defined]  # noqa: F821
