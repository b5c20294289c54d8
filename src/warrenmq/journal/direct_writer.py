# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Writes a file with O_DIRECT, without holding the interpreter lock.

For a large write that will not be read soon: a write to fresh page cache takes 0.8 to 2 ns of CPU per byte, a direct
write 0.1, and the copy as much. The disk needs whole blocks from aligned memory, so data is copied to a staging buffer
first; the bytes before the first whole block and after the last one are written normally, through the same descriptor.
The whole write is one stretch without the interpreter lock: taking it back may need 5 ms each time under load.

During a write, the writer and the descriptor belong to one thread. Compiled when the package is built
(direct_writer.pxd); not available uncompiled, since Python code would hold the lock during the copies.
"""

import os
from collections.abc import Sequence
from typing import Any

try:
    import cython
except ImportError:
    from warrenmq.journal.uncompiled import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.libc.errno import EINTR, EINVAL, errno
    from cython.cimports.libc.stdlib import calloc, free
    from cython.cimports.libc.string import memcpy
    from cython.cimports.posix.fcntl import F_GETFL, F_SETFL, fcntl
    from cython.cimports.posix.stdlib import posix_memalign
    from cython.cimports.posix.unistd import pwrite

IS_AVAILABLE: bool = cython.compiled and hasattr(os, "O_DIRECT")

BLOCK = 4096  # the block size of disks and file systems, or a multiple of it
STAGE = 1024 * 1024

_BLOCK = BLOCK  # the same as C integers
_O_DIRECT: int = getattr(os, "O_DIRECT", 0)


class DirectWriter:
    """Owns a staging buffer of whole blocks and, during a write, a view of each buffer."""

    __slots__ = ("_buffer", "_buffer_done", "_stage", "_stage_size", "_views")

    _stage: Any  # aligned memory, declared in direct_writer.pxd
    _views: Any  # the buffers, an array of Py_buffer

    def __cinit__(self, stage_size: int = STAGE) -> None:
        if stage_size < _BLOCK or stage_size % _BLOCK:
            raise ValueError("the stage size must be a multiple of the block size")
        self._stage_size = stage_size
        if posix_memalign(cython.cast("void **", cython.address(self._stage)), _BLOCK, stage_size) != 0:
            raise MemoryError

    def __dealloc__(self) -> None:
        free(self._stage)

    def write(self, handle: int, buffers: Sequence[bytes | bytearray | memoryview], offset: int) -> bool:
        """Write everything. Return False if the file does not support direct writes; part may have been written, as
        after an error."""
        count = len(buffers)
        acquired = 0
        left = 0
        self._views = cython.cast("Views", calloc(count + 1, cython.sizeof("Py_buffer")))
        if self._views == cython.NULL:
            raise MemoryError
        try:
            while acquired < count:
                PyObject_GetBuffer(buffers[acquired], cython.address(self._views[acquired]), PyBUF_SIMPLE)
                left += self._views[acquired].len
                acquired += 1
            with cython.nogil:
                failure = self._write(handle, offset, left)
        finally:
            while acquired > 0:
                acquired -= 1
                PyBuffer_Release(cython.address(self._views[acquired]))
            free(self._views)
        if failure == EINVAL:
            return False
        if failure:
            raise OSError(failure, os.strerror(failure))
        return True

    def _write(self, handle: int, offset: int, left: int) -> int:
        """Return 0 or an errno. A short write is continued, because the next write reports why."""
        self._buffer = 0
        self._buffer_done = 0
        failure = 0
        is_direct = False
        flags = fcntl(handle, F_GETFL)
        if flags < 0:
            failure = errno
        flags &= ~_O_DIRECT
        while left > 0 and failure == 0:
            misaligned = offset & (_BLOCK - 1)
            is_whole = misaligned == 0 and left >= _BLOCK
            size = min(left & -_BLOCK, self._stage_size) if is_whole else min(_BLOCK - misaligned, left)
            if is_direct != is_whole:
                if fcntl(handle, F_SETFL, flags | _O_DIRECT if is_whole else flags) < 0:
                    failure = errno
                    break
                is_direct = is_whole
            self._fill_stage(size)
            written = pwrite(handle, self._stage, size, offset)
            if written > 0:
                self._advance(written)
                offset += written
                left -= written
            elif written == 0:
                failure = EINVAL  # neither written nor refused: the normal write will report the cause
            elif errno != EINTR:
                failure = errno
        if is_direct:
            fcntl(handle, F_SETFL, flags)
        return failure

    def _fill_stage(self, size: int) -> None:
        """Copy the next `size` bytes to the staging buffer."""
        piece = self._buffer
        done = self._buffer_done
        filled = 0
        while filled < size:
            part = min(size - filled, self._views[piece].len - done)
            memcpy(self._stage + filled, cython.cast("BytePointer", self._views[piece].buf) + done, part)
            filled += part
            piece += 1  # a piece that does not end here is the last one
            done = 0

    def _advance(self, written: int) -> None:
        """Advance by `written` bytes."""
        self._buffer_done += written
        while self._buffer_done > 0 and self._buffer_done >= self._views[self._buffer].len:
            self._buffer_done -= self._views[self._buffer].len
            self._buffer += 1
