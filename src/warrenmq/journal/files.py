"""File operations, as storage uses them.

All file access goes through `Files`, so that a test can substitute a layer that records, fails, or forgets what was not
synced. It has no state: any thread may call it, and callers agree on who owns a handle. A handle is a descriptor, a
path is a `str`. Errors are the operating system's `OSError`.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress

from warrenmq.journal import direct_writer

Data = bytes | bytearray | memoryview

# Only the broker's user may read messages, whatever the umask.
MODE = 0o600
FOLDER_MODE = 0o700
# Without it (macOS), all of a file's metadata is synced as well.
_sync_data = getattr(os, "fdatasync", os.fsync)

# No descriptor is free, for this process or on this machine.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

# The kernel or the file system does not support writes that sync.
UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)

# Linux; elsewhere it takes two calls.
_RWF_DSYNC: int = getattr(os, "RWF_DSYNC", 0)

# IOV_MAX: the maximum per write.
_MAX_BUFFERS = 1024


class Files:
    """Portable implementation."""

    def create(self, path: str) -> int:
        """Create an empty file, or truncate an existing one; never follow a symbolic link."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def open_read(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self, handle: int) -> None:
        os.close(handle)

    def write(self, handle: int, data: Data, offset: int) -> None:
        """Write all of the data. After an error, part of it may have been written."""
        written = os.pwrite(handle, data, offset)
        if written < len(data):
            self._write_rest([data], written, handle, offset)

    def writev(self, handle: int, buffers: Sequence[Data], offset: int) -> None:
        """Write adjacent buffers; they are joined first only if there are more than IOV_MAX."""
        if len(buffers) > _MAX_BUFFERS:
            buffers = [b"".join(buffers)]
        written = os.pwritev(handle, buffers, offset)
        if written < sum(map(len, buffers)):
            self._write_rest(buffers, written, handle, offset)

    def _write_rest(self, buffers: Sequence[Data], skip: int, handle: int, offset: int) -> None:
        """Complete a short write; a full disk reports its error only now."""
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
        """Write the buffers, bypassing the page cache if possible; return True if it was bypassed.

        For a large write that will not be read soon. No other thread may use the handle meanwhile.
        """
        self.writev(handle, buffers, offset)
        return False

    def write_durably(self, handle: int, buffers: Sequence[Data], offset: int) -> None:
        """Write the buffers and return when they are durable. Earlier writes may not be."""
        self.writev(handle, buffers, offset)
        self.sync(handle)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """Read `size` bytes, fewer at the end of the file."""
        data = os.pread(handle, size, offset)
        if len(data) == size or not data:
            return data
        buffers = [data]  # at the end of the file, or beyond what the kernel reads at once (2 GiB)
        missing = size - len(data)
        while missing and (data := os.pread(handle, missing, offset + size - missing)):
            buffers.append(data)
            missing -= len(data)
        return b"".join(buffers) if len(buffers) > 1 else buffers[0]

    def sync(self, handle: int) -> None:
        """Return when the content of the file would survive a power loss."""
        _sync_data(handle)

    def drop_cached(self, handle: int, end: int) -> None:
        """Advise the kernel to drop the file's pages before `end` from the page cache."""
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(handle, 0, end, os.POSIX_FADV_DONTNEED)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing any file with the new name."""
        os.replace(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_dirs(self, path: str) -> None:
        """Create a folder and its missing parents."""
        if not os.path.isdir(path):
            parent = os.path.dirname(path)
            if parent:
                self.make_dirs(parent)
            with suppress(FileExistsError):
                os.mkdir(path, FOLDER_MODE)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and everything in it, if it exists."""
        if os.path.lexists(path):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        """Return when the names in the folder (files created, renamed, removed) would survive a power loss.

        Needs a descriptor: an error in `NO_DESCRIPTOR` means that no sync was attempted, so the call may be repeated.
        """
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder; empty if there is no such folder."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def free_space(self, path: str) -> int:
        """Return how many bytes this process could still write."""
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize


class SystemFiles(Files):
    """`Files` with the faster calls of this system.

    A write and its sync are one call, and large writes may bypass the page cache. Whether the system and the file
    system support that is found out at the first use.
    """

    def __init__(self) -> None:
        self._supports_durable_writes = True
        self._supports_direct_writes = direct_writer.IS_AVAILABLE
        self._idle_writers: list[direct_writer.DirectWriter] = []  # each used by one thread at a time

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
        return super().write_direct(handle, buffers, offset)  # all of it: the same bytes at the same offset

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
