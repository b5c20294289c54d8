"""The operating system's files, as storage uses them.

Every touch of a file goes through `Files`, so that a test can put a layer in its place that records, fails, or forgets
what was not synced. It keeps no state: any thread may call it, and who owns a handle is up to the callers. A handle is
a descriptor; a path is a `str`. What the operating system refuses comes as its `OSError`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress

from warrenmq.journal import direct_writer

Data = bytes | bytearray | memoryview

# Only the broker's user may read messages, whatever the umask allows.
MODE = 0o600
FOLDER_MODE = 0o700
# Without it (macOS), the whole of a file's metadata is synced as well.
_sync_data = getattr(os, "fdatasync", os.fsync)

# No descriptor is free, for this process or on this machine.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

# The kernel or the file system does not know writes that sync.
UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)

# Linux; elsewhere two calls do it.
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)

# The system takes no more in one write (IOV_MAX).
_MAX_BUFFERS = 1024


class Files:
    """The real ones."""

    def create(self, path: str) -> int:
        """A new, empty file, or an old one emptied; a symbolic link is followed nowhere."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write(self, handle: int, data: Data, offset: int) -> None:
        """Write all of it. After an error some of it may be there."""
        written = os.pwrite(handle, data, offset)
        if written < len(data):
            self._write_rest([data], written, handle, offset)

    def writev(self, handle: int, buffers: Sequence[Data], offset: int) -> None:
        """Write the buffers one behind the other, without joining them first unless they are very many."""
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        written = os.pwritev(handle, buffers, offset)
        if written < sum(map(len, buffers)):
            self._write_rest(buffers, written, handle, offset)

    def _write_rest(self, buffers: Sequence[Data], skip: int, handle: int, offset: int) -> None:
        """Write what a short write left over: a full disk tells its error only now."""
        for buffer in buffers:
            rest = memoryview(buffer)[skip:]
            skip = max(0, skip - len(buffer))
            start = offset + len(buffer) - len(rest)
            while rest:
                written = os.pwrite(handle, rest, start)
                start += written
                rest = rest[written:]
            offset += len(buffer)

    def write_direct(self, handle: int, buffers: Sequence[Data], offset: int) -> bool:
        """Write the buffers, and where it is possible not into the system's memory of files; says whether it was.

        For a large write that nobody reads soon. The handle is the caller's alone meanwhile.
        """
        self.writev(handle, buffers, offset)
        return False

    def write_durably(self, handle: int, buffers: Sequence[Data], offset: int) -> None:
        """Write the buffers and return when they are durable. What was written before may not be."""
        self.writev(handle, buffers, offset)
        self.sync(handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """That many bytes, fewer at the end of the file."""
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        buffers = [data]  # the end of the file, or a read longer than the kernel does at once (2 GiB)
        missing = size - len(data)
        while missing and (data := os.pread(handle, missing, offset + size - missing)):
            buffers.append(data)
            missing -= len(data)
        return b"".join(buffers) if len(buffers) > 1 else buffers[0]

    def sync(self, handle: int) -> None:
        """Return when the file's content would survive a power loss."""
        _sync_data(handle)

    def drop_cached(self, handle: int, end: int) -> None:
        """What lies before `end` will not be read soon: the system need not keep it in memory. A hint, and no more."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(handle, 0, end, os.POSIX_FADV_DONTNEED)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; a file that had it is gone."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_dirs(self, path: str) -> None:
        """Make a folder, and those above it that are missing."""
        if not os.path.isdir(path):
            parent = os.path.dirname(path)
            if parent:
                self.make_dirs(parent)
            with suppress(FileExistsError):
                os.mkdir(path, FOLDER_MODE)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all in it; none is fine too."""
        if os.path.lexists(path):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Return when the folder's names (files made, renamed, removed) would survive a power loss.

        Needs a descriptor: an error of `NO_DESCRIPTOR` means that no sync was tried, and it may be called again.
        """
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def free_space(self, path: str) -> int:
        """Bytes that this process could still write."""
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize


class SystemFiles(Files):
    """The same, by what the system at hand knows beyond it: with less of the processor and of the interpreter.

    A write and its sync are one call, and large writes may go past the cache. What the system or a file system does not
    know is found out once.
    """

    def __init__(self) -> None:
        self._supports_durable_writes = True
        self._supports_direct_writes = direct_writer.IS_AVAILABLE
        self._idle_writers: list[direct_writer.DirectWriter] = []  # each is taken by one thread at a time

    def write_direct(self, handle: int, buffers: Sequence[Data], offset: int) -> bool:
        if self._supports_direct_writes:
            try:
                writer = self._idle_writers.pop()
            except IndexError:
                writer = direct_writer.DirectWriter()
            try:
                is_written = writer.write(handle, buffers, offset)
            finally:
                self._idle_writers.append(writer)
            if is_written:
                return True
            self._supports_direct_writes = False
            self._idle_writers.clear()
        return super().write_direct(handle, buffers, offset)  # all of it: the same bytes in the same place

    def write_durably(self, handle: int, buffers: Sequence[Data], offset: int) -> None:
        if _RWF_DSYNC == 0 or not self._supports_durable_writes:
            super().write_durably(handle, buffers, offset)
            return
        try:
            written = os.pwritev(handle, buffers, offset, _RWF_DSYNC)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self._supports_durable_writes = False
            super().write_durably(handle, buffers, offset)
            return
        if written < sum(map(len, buffers)):
            self._write_rest(buffers, written, handle, offset)
            self.sync(handle)
