"""The data folder: one broker at a time.

The lock is the operating system's, so a broker that was killed leaves none behind.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class DataDirError(Exception):
    """The folder cannot be used; the text says why in one line."""


class DataDir:
    """A folder that this process has to itself while it is locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the folder if need be and take it, or say who has it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise DataDirError(f"cannot use the data folder {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            who = f" (process {owner})" if owner else ""
            raise DataDirError(f"the data folder {self.path} is in use by another broker{who}") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._lock = descriptor

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
