"""The data folder: used by one broker at a time, accessible to its own user only.

The lock is the operating system's, so a killed broker leaves none behind. Folders are created with mode 0700 and files
with 0600. Access for other users is reported, never changed: the operator may want it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from warrenmq.journal.files import FOLDER_MODE, MODE

# Version of the folder as a whole; files have their own (docs/formats).
FORMAT_VERSION = 1

_GROUP_OR_OTHERS = 0o077
_MAY_ENTER = 0o011
_MAY_WRITE = 0o022
_NAMED = 3  # paths named in one warning


class DataDirError(Exception):
    """The folder cannot be used; the text says why in one line."""


class DataDir:
    """A folder that belongs to this process while it is locked.

    `lock` fills `warnings` with lines for the operator. If `is_strict`, a folder that others may write to is refused.
    """

    def __init__(self, path: Path, is_strict: bool = False) -> None:
        self.path = path
        self.is_strict = is_strict
        self.warnings: list[str] = []
        self._lock: int | None = None

    def lock(self) -> None:
        """Create the folder if necessary and lock it; raise DataDirError if another broker uses it."""
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
        """Raise DataDirError for another version. Return True if the file was missing and has been written."""
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
            return DataDirError(
                f"{path} is a symbolic link: remove it, the broker does not follow links in its data folder"
            )
        return DataDirError(f"cannot use the data folder {self.path}: {error.strerror}")

    # -- other users -------------------------------------------------------------------------------------------------

    def _check_permissions(self) -> list[str]:
        """Return warnings about the access of other users; in strict mode raise DataDirError if they can write."""
        root = os.stat(self.path)
        writable = [self.path] if _others_may_write(root) else []
        if writable or root.st_mode & _MAY_ENTER:  # else nothing below is reachable
            writable += [path for path, state in _walk(self.path) if _others_may_write(state)]
        remedy = f"chmod -R go= {self.path}"
        if writable:
            what = f"other users may write to {_listed(writable)}: they can change or delete messages"
            if self.is_strict:
                raise DataDirError(f"{what}; strict mode refuses this; to fix it: {remedy}")
            return [f"{what}; to fix it: {remedy}"]
        if root.st_mode & _GROUP_OR_OTHERS:
            return [f"other users may read the data folder {self.path}; to fix it: {remedy}"]
        return []


def _others_may_write(state: os.stat_result) -> bool:
    """Return True if others may write by the mode, or as owners. Symbolic links have no mode of their own."""
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
    """Create the folder and its missing parents, for this user only."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable. A parent that cannot be opened is not ours to sync."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
