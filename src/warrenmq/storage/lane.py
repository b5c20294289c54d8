"""The fast lane of the committer: a thread that makes one write durable at a time and never asks for the interpreter.

Handing an epoch to a thread of Python and hearing back costs more than the disk does: each side waits for the other to
let go of the interpreter, and each wait is a sleep. This thread sleeps on a descriptor, writes, and rings another one
that the loop listens to, all outside of Python.

The record is the thread's from `write` until `on_done`; all else here is the loop's. Compiled when the
package is built (lane.pxd); uncompiled there is no lane, for a thread of Python would gain nothing.
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
# So long the thread looks for the next record before it sleeps, after a small one: then little else is going on, and to
# be woken may take longer than the wait. With one confirm in flight 0, 100 and 300 us were tried on a noisy machine: no
# clear order (0.8 to 1.3 times the rate without the lane); after large records looking cost a fifth, so it is left out.
_LOOK_NS = 200_000


class Lane:
    """One write at a time. `on_done(error)` is called on the loop: 0, or what the operating system said."""

    __slots__ = ("_loop", "_on_done", "_record", "_state", "_thread")

    _state: Any  # what the thread sees of it: a struct, declared in lane.pxd

    def __init__(self, loop: AbstractEventLoop, on_done: Callable[[int], None]) -> None:
        self._loop: AbstractEventLoop | None = loop
        self._on_done = on_done
        self._record = b""
        self._state.wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._state.ring = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._state.is_ending = 0
        self._state.look_ns = _LOOK_NS
        loop.add_reader(self._state.ring, self._heard)
        self._thread = threading.Thread(target=self._serve, name="warren-lane", daemon=True)
        self._thread.start()

    def write(self, handle: int, record: bytes, offset: int) -> None:
        """Begin to write; the record is durable when `on_done` says 0."""
        self._record = record  # held for the thread, which has only the address
        self._state.octets = record
        self._state.size = len(record)
        self._state.handle = handle
        self._state.offset = offset
        lane_ask(cython.address(self._state))  # type: ignore[name-defined]  # noqa: F821

    def leave_loop(self) -> None:
        """Nothing is heard from here on. On the loop, before `stop`."""
        if self._loop is not None:
            self._loop.remove_reader(self._state.ring)
            self._loop = None

    def stop(self) -> None:
        """End the thread, after the write that it may be at. Blocks."""
        self._state.is_ending = 1
        lane_ask(cython.address(self._state))  # type: ignore[name-defined]  # noqa: F821
        self._thread.join()
        os.close(self._state.wake)
        os.close(self._state.ring)

    def _heard(self) -> None:
        os.eventfd_read(self._state.ring)
        self._on_done(self._state.error)

    def _serve(self) -> None:
        with cython.nogil:
            lane_serve(cython.address(self._state))  # type: ignore[name-defined]  # noqa: F821
