"""The data folder: one broker at a time, and for its own user only.

The lock is the operating system's, so a broker that was killed leaves none behind. Folders are made with mode 0700 and
files with 0600. A folder that other users can write to or read is reported, and never changed: the operator may have
made it so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from warrenmq.journal.files import FOLDER_MODE, MODE

# Of the folder as a whole; the files have versions of their own, too (docs/formats).
FORMAT_VERSION = 1

_GROUP_OR_OTHERS = 0o077
_MAY_ENTER = 0o011
_MAY_WRITE = 0o022
_NAMED = 3  # paths in one warning; the others are counted


class DataDirError(Exception):
    """The folder cannot be used; the text says why in one line."""


class DataDir:
    """A folder that this process has to itself while it is locked.

    `warnings` are lines for the operator, filled by `lock`. With `is_strict`, a folder that others may write to is
    refused.
    """

    def __init__(self, path: Path, is_strict: bool = False) -> None:
        self.path = path
        self.is_strict = is_strict
        self.warnings: list[str] = []
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the folder if need be and take it, or say who has it."""
        try:
            _make_folders(self.path)
            self.warnings = self._check_permissions()
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.path / "lock", flags, MODE)
        except OSError as error:
            raise self._error_for(error, "lock") from None
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

    def require_version(self) -> bool:
        """Refuse a folder of another version. Return True if the file was missing and the version was written."""
        try:
            found = self._read_version()
            if not found:
                self._write_version()
                return True
        except OSError as error:
            raise self._error_for(error, "version") from None
        if found != str(FORMAT_VERSION):
            raise DataDirError(
                f"the data folder {self.path} has format version {found!r}, this WarrenMQ reads version "
                f"{FORMAT_VERSION}: use the WarrenMQ that wrote it, or another folder"
            )
        return False

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read_version(self) -> str:
        try:
            handle = os.open(self.path / "version", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return ""
        with open(handle, "rb") as file:
            return file.read(64).decode("ascii", "replace").strip()

    def _write_version(self) -> None:
        temporary = self.path / "version.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, MODE), "w") as file:
            file.write(f"{FORMAT_VERSION}\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(self.path / "version")
        _sync_folder(self.path)

    def _error_for(self, error: OSError, name: str) -> DataDirError:
        if error.errno == errno.ELOOP:
            path = error.filename or self.path / name
            return DataDirError(f"{path} is a symbolic link: remove it, the broker follows no links there")
        return DataDirError(f"cannot use the data folder {self.path}: {error.strerror}")

    # -- other users -------------------------------------------------------------------------------------------------

    def _check_permissions(self) -> list[str]:
        """Warnings about what other users can do here; DataDirError in strict mode if they can write."""
        root = os.stat(self.path)
        writable = [self.path] if _others_may_write(root) else []
        if writable or root.st_mode & _MAY_ENTER:  # else nothing below can be reached
            writable += [path for path, state in _walk(self.path) if _others_may_write(state)]
        remedy = f"chmod -R go= {self.path}"
        if writable:
            what = f"other users may write to {_listed(writable)}: they can change or delete messages"
            if self.is_strict:
                raise DataDirError(f"{what}; strict mode refuses that; to keep them out: {remedy}")
            return [f"{what}; to keep them out: {remedy}"]
        if root.st_mode & _GROUP_OR_OTHERS:
            return [f"other users may look into the data folder {self.path}; to keep them out: {remedy}"]
        return []


def _others_may_write(state: os.stat_result) -> bool:
    """By its mode, or because it belongs to another user. A link has no mode of its own."""
    if state.st_uid not in (os.geteuid(), 0):
        return True
    return bool(state.st_mode & _MAY_WRITE) and not stat.S_ISLNK(state.st_mode)


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(parent, name)
            yield path, path.lstat()


def _listed(paths: list[Path]) -> str:
    shown = ", ".join(map(str, paths[:_NAMED]))
    return f"{shown} and {len(paths) - _NAMED} more" if len(paths) > _NAMED else shown


def _make_folders(path: Path) -> None:
    """Make the folder and those above it, each for this user only."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


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
