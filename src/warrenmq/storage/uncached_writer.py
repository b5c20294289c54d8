"""Writes files that are written fast and seldom read (the event log), without filling the page cache.

They would evict everything else from it, and fresh pages may cost far more than reused ones: a write took 3 ns of CPU
per byte on a virtual machine whose memory was never used before, 0.35 where it was. So large writes bypass the cache
(0.2 ns), and after others the kernel is advised to drop the pages (0.7 ns).

A direct write takes as long as the disk does, while the cache absorbs bursts: a slow disk is written through the cache
for a while. Owned by the thread that writes segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from warrenmq.journal.files import Data, Files

# A smaller write costs little, and would not keep a disk busy by itself.
LARGE_WRITE = 256 * 1024
# A disk is slow if this many writes in a row take longer per byte than this (250 MB/s), plus the time for taking the
# interpreter lock back on a busy machine.
SLOW_FROM = 4e-9
SLOW_IN_A_ROW = 3
INTERPRETER_WAIT = 0.010
# A slow disk is written through the cache for this many seconds, then tried again.
SLOW_FOR = 1.0
# After a cached write, this much stays in the cache.
CACHED_BYTES = 8 * 1024 * 1024


class UncachedWriter:
    """`clock` returns seconds."""

    def __init__(self, files: Files, clock: Callable[[], float]) -> None:
        self._files = files
        self._clock = clock
        self._slow_writes = 0  # in a row
        self._is_slow_until = 0.0

    def writev(self, handle: int, pieces: Sequence[Data], offset: int) -> None:
        """Like `Files.writev`."""
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
