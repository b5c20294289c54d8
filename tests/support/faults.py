"""A disk that fails on purpose: the n-th operation that changes something ends in an error of the test's choice.

Wraps any `Files`. Reading works always. What a failed operation leaves behind is what systems leave behind: of a write
perhaps half, of a failed sync data that programs still see and that no later sync makes durable (Linux marks the pages
clean). No space and no descriptor are errors that last until the test ends them; they hit only what takes them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from tests.support.disk import RecordingFiles
from warrenmq.journal.files import Files

# What fails while there is none of it.
SHORTAGES = {
    errno.ENOSPC: frozenset({"create", "write", "make_dirs", "rename"}),
    errno.EMFILE: frozenset({"create", "open", "sync_dir", "remove_tree"}),
}


class FaultyFiles(Files):
    """`sites` names the operations that could have failed, in order: run once without a fault to learn how many."""

    def __init__(self, inner: Files, fail_at: int = 0, number: int = errno.EIO, leaves_half: bool = False) -> None:
        self.inner = inner
        self.fail_at = fail_at  # counted from 1; 0: never
        self.number = number
        self.leaves_half = leaves_half
        self.sites: list[str] = []
        self.has_failed = False
        self.is_short = False

    def give_back(self) -> None:
        self.is_short = False

    # -- what can fail -----------------------------------------------------------------------------------------------

    def create(self, path: str) -> int:
        self._pass("create", path)
        return self.inner.create(path)

    def open(self, path: str) -> int:
        self._pass("open", path)
        return self.inner.open(path)

    def write(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        try:
            self._pass("write", str(handle))
        except OSError:
            if self.leaves_half and len(data) > 1:
                self.inner.write(handle, bytes(data)[: len(data) // 2], offset)
            raise
        self.inner.write(handle, data, offset)

    def writev(self, handle: int, pieces: Iterable[bytes | bytearray | memoryview], offset: int) -> None:
        self.write(handle, b"".join(pieces), offset)

    def sync(self, handle: int) -> None:
        try:
            self._pass("sync", str(handle))
        except OSError:
            if isinstance(self.inner, RecordingFiles):
                self.inner.lose_pending(handle)
            raise
        self.inner.sync(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._pass("truncate", str(handle))
        self.inner.truncate(handle, size)

    def rename(self, old: str, new: str) -> None:
        self._pass("rename", old)
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self._pass("remove", path)
        self.inner.remove(path)

    def make_dirs(self, path: str) -> None:
        if not self.inner.exists(path):
            self._pass("make_dirs", path)
        self.inner.make_dirs(path)

    def remove_tree(self, path: str) -> None:
        self._pass("remove_tree", path)
        self.inner.remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._pass("sync_dir", path)
        self.inner.sync_dir(path)

    # -- what cannot -------------------------------------------------------------------------------------------------

    def open_read(self, path: str) -> int:
        return self.inner.open_read(path)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return self.inner.read(handle, size, offset)

    def size(self, handle: int) -> int:
        return self.inner.size(handle)

    def close(self, handle: int) -> None:
        self.inner.close(handle)

    def list(self, path: str) -> list[str]:
        return self.inner.list(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def free_space(self, path: str) -> int:
        return 0 if self.is_short and self.number == errno.ENOSPC else self.inner.free_space(path)

    def _pass(self, operation: str, where: str) -> None:
        """Count the operation; raise if its time has come."""
        self.sites.append(operation)
        can_fail = operation in SHORTAGES.get(self.number, (operation,))
        if len(self.sites) == self.fail_at and can_fail:
            self.has_failed = True
            self.is_short = self.number in SHORTAGES
            raise OSError(self.number, os.strerror(self.number), where)
        if self.is_short and can_fail:
            raise OSError(self.number, os.strerror(self.number), where)
