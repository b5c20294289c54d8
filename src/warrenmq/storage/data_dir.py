"""The data folder: one broker at a time.

The lock is the operating system's, so a broker that was killed leaves none behind.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

# Of the folder as a whole; the files have versions of their own, too (docs/formats).
FORMAT_VERSION = 1


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
        _sync_folder(self.path.parent)
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

    def require_version(self) -> None:
        """Note the version of the formats in a new folder; refuse a folder of another version."""
        path = self.path / "version"
        try:
            found = path.read_text("ascii", "replace").strip() if path.exists() else ""
            if not found:
                temporary = self.path / "version.tmp"
                with temporary.open("w") as file:
                    file.write(f"{FORMAT_VERSION}\n")
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(path)
                _sync_folder(self.path)
                return
        except OSError as error:
            raise DataDirError(f"cannot use the data folder {self.path}: {error.strerror}") from None
        if found != str(FORMAT_VERSION):
            raise DataDirError(
                f"the data folder {self.path} has format version {found!r}, this WarrenMQ reads version "
                f"{FORMAT_VERSION}: use the WarrenMQ that wrote it, or another folder"
            )

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _sync_folder(path: Path) -> None:
    """A folder or file that was made is there after a power loss, too. Where the parent is not ours, it has to be."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
