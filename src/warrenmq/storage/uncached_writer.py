"""Writes files that are written fast and seldom read (the event log), and spares the system's memory of files.

They would push out all else there, and fresh pages may cost far more than those that come back (a write took 3 ns of
CPU per byte on a virtual machine whose memory was never used before, 0.35 where it was). So a large write goes past
that memory (0.2 ns), and of all that does not, the system is told not to keep it (0.7 ns).

Past it, a write takes as long as the disk does, while the memory takes bursts: a disk that is slow is written to
through it for a while. Owned by the thread that writes segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warrenmq.journal.files import Data, Files

# A smaller write costs little, and would not keep a disk busy by itself.
LARGE_WRITE = 256 * 1024
# A disk that takes longer per byte (250 MB/s), and that so many times in a row, is slow. Getting the interpreter back
# takes time, too, and so does a busy machine, which is no fault of the disk's.
SLOW_FROM = 4e-9
SLOW_IN_A_ROW = 3
INTERPRETER_WAIT = 0.010
# So long a slow disk is written to through the memory, in seconds; then it is tried again.
SLOW_FOR = 1.0
# Behind a write through the memory so much stays in it.
CACHED_BYTES = 8 * 1024 * 1024


class UncachedWriter:
    """`clock` gives seconds."""

    def __init__(self, files: Files, clock: Callable[[], float]) -> None:
        self._files = files
        self._clock = clock
        self._slow_writes = 0  # in a row
        self._is_slow_until = 0.0

    def writev(self, handle: int, pieces: Sequence[Data], offset: int) -> None:
        """As `Files.writev`."""
        size = sum(map(len, pieces))
        if size >= LARGE_WRITE and self._clock() >= self._is_slow_until:
            if self._write_direct(handle, pieces, offset, size):
                return
        else:
            self._files.writev(handle, pieces, offset)
        if offset > CACHED_BYTES:
            self._files.drop_cached(handle, offset - CACHED_BYTES)

    def _write_direct(self, handle: int, pieces: Sequence[Data], offset: int, size: int) -> bool:
        began = self._clock()
        if not self._files.write_direct(handle, pieces, offset):
            return False
        now = self._clock()
        is_slow = now - began > INTERPRETER_WAIT + size * SLOW_FROM
        self._slow_writes = self._slow_writes + 1 if is_slow else 0
        if self._slow_writes >= SLOW_IN_A_ROW:
            self._is_slow_until = now + SLOW_FOR
        return True
