"""A disk in memory that knows what is durable, and can show what a real one may show after the power fails.

The rules are POSIX's, not those of a kind file system:

- `sync` makes the data and the size of that one file durable, and nothing else.
- Data that was not synced may be there or not, sector by sector (512 bytes). A sector holds what it held after any of
  the writes since the last sync, so later parts of a file may be there without earlier ones.
- A size that was not synced may be any that the file had since; what was never written to reads as zeros, or as
  anything at all.
- A name that was created, removed or renamed may be as before until its folder is synced, whatever was synced in the
  file. A rename happens wholly or not at all. Changes of different names may overtake each other.

Owned by the test. `Disk` is the state, `RecordingFiles` the door that storage code comes through; it notes every
operation, so that `replay` can bring another disk to any moment of the past.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from warrenmq.journal.files import Files

SECTOR = 512
PLENTY = 1 << 40


@dataclass(eq=False)
class File:
    """One file, whatever it is called: as programs see it, and as the last sync left it."""

    current: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # (offset, data), or (size, None): truncated

    def write(self, offset: int, data: bytes) -> None:
        _change(self.current, offset, data)
        self.pending.append((offset, data))

    def truncate(self, size: int) -> None:
        _change(self.current, size, None)
        self.pending.append((size, None))

    def sync(self) -> None:
        for offset, data in self.pending:
            _change(self.durable, offset, data)
        self.pending.clear()


@dataclass(eq=False)
class Folder:
    current: dict[str, File | Folder] = field(default_factory=dict)
    durable: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(eq=False, frozen=True)
class Change:
    """Names that change together or not at all; None: the name goes."""

    names: tuple[tuple[Folder, str, File | Folder | None], ...]

    def apply(self) -> Change:
        for folder, name, node in self.names:
            _set(folder.current, name, node)
        return self

    def touches(self, folders: Iterable[Folder]) -> bool:
        return any(folder in folders for folder, _, _ in self.names)

    def subjects(self) -> set[object]:
        """What another change must not overtake this one about."""
        nodes = {node for _, _, node in self.names if node is not None}
        return nodes | {(folder, name) for folder, name, _ in self.names}


class Disk:
    """Files and folders, now and after a crash."""

    def __init__(self) -> None:
        self.root = Folder()
        self.changes: list[Change] = []  # of names, not yet durable, in order

    # -- names -------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> File | Folder | None:
        node: File | Folder | None = self.root
        for name in _parts(path):
            node = node.current.get(name) if isinstance(node, Folder) else None
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> File:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, File):
            raise _error(errno.EISDIR, path)
        return node

    def link(self, path: str, node: File | Folder | None) -> None:
        self.change((path, node))

    def change(self, *names: tuple[str, File | Folder | None]) -> None:
        """Change these names together."""
        places = [(self.folder(os.path.dirname(path)), os.path.basename(path), node) for path, node in names]
        self.changes.append(Change(tuple(places)).apply())

    def sync_folder(self, folder: Folder) -> None:
        """Make its names durable; a rename between two folders takes what came before it in the other one along."""
        folders = {folder}
        due: list[Change] = []
        kept: list[Change] = []
        for change in reversed(self.changes):
            if change.touches(folders):
                folders.update(each for each, _, _ in change.names)
                due.append(change)
            else:
                kept.append(change)
        for change in reversed(due):
            for each, name, node in change.names:
                _set(each.durable, name, node)
        self.changes = kept[::-1]

    def walk(self) -> Iterator[tuple[str, File]]:
        """All files with their paths, as programs see them."""
        yield from _walk("", self.root)

    # -- the end of the world ----------------------------------------------------------------------------------------

    def after_kill(self) -> Disk:
        """The process died, the machine did not: everything is as programs saw it, and as little of it is durable."""
        copies: dict[File | Folder, File | Folder] = {}

        def copy(node: File | Folder) -> Any:
            if node not in copies:
                if isinstance(node, File):
                    copies[node] = File(bytearray(node.current), bytearray(node.durable), list(node.pending))
                else:
                    copies[node] = twin = Folder()
                    twin.current = {name: copy(each) for name, each in node.current.items()}
                    twin.durable = {name: copy(each) for name, each in node.durable.items()}
            return copies[node]

        disk = Disk()
        disk.root = copy(self.root)
        for change in self.changes:
            names = [(copy(folder), name, node and copy(node)) for folder, name, node in change.names]
            disk.changes.append(Change(tuple(names)))
        return disk

    def after_power_loss(self, choice: random.Random) -> Disk:
        """One of the states that the disk may be in when the power comes back."""
        how = choice.choice(("nothing more", "everything", "as it was some time before", "anything", "anything"))
        entries: dict[Folder, dict[str, File | Folder]] = {}
        for change in _choose_changes(self.changes, how, choice):
            for folder, name, node in change.names:
                _set(entries.setdefault(folder, dict(folder.durable)), name, node)
        copies: dict[File | Folder, File | Folder] = {}

        def survive(node: File | Folder) -> Any:
            if node not in copies:
                if isinstance(node, File):
                    content = _choose_content(node, how, choice)
                    copies[node] = File(content, bytearray(content))
                else:
                    copies[node] = twin = Folder()
                    twin.current = {name: survive(each) for name, each in entries.get(node, node.durable).items()}
                    twin.durable = dict(twin.current)
            return copies[node]

        disk = Disk()
        disk.root = survive(self.root)
        return disk


class RecordingFiles(Files):
    """The door to a `Disk`. `operations` is everything that was done, in order; `free` is what `free_space` says."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk = disk or Disk()
        self.operations: list[tuple[Any, ...]] = []
        self.free = PLENTY
        self._open: dict[int, tuple[File, bool, str]] = {}
        self._next_handle = 1000

    def replay(self, operations: Iterable[tuple[Any, ...]]) -> None:
        """Do what another one did; handles come out the same."""
        for name, *arguments in operations:
            getattr(self, name)(*arguments)

    def open_paths(self) -> int:
        """How many handles were not closed."""
        return len(self._open)

    # -- files -------------------------------------------------------------------------------------------------------

    def create(self, path: str) -> int:
        node = self.disk.find(path)
        self.disk.folder(os.path.dirname(path))
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        self.operations.append(("create", path))
        if node is None:
            node = File()
            self.disk.link(path, node)
        else:
            node.truncate(0)
        return self._hand_out(node, True, path)

    def open(self, path: str) -> int:
        node = self.disk.file(path)
        self.operations.append(("open", path))
        return self._hand_out(node, True, path)

    def open_read(self, path: str) -> int:
        node = self.disk.file(path)
        self.operations.append(("open_read", path))
        return self._hand_out(node, False, path)

    def write(self, handle: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        data = bytes(data)
        file = self._writable(handle)
        self.operations.append(("write", handle, data, offset))
        if data:
            file.write(offset, data)

    def writev(self, handle: int, pieces: Iterable[bytes | bytearray | memoryview], offset: int) -> None:
        self.write(handle, b"".join(pieces), offset)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._file(handle).current[offset : offset + size])

    def sync(self, handle: int) -> None:
        file = self._file(handle)
        self.operations.append(("sync", handle))
        file.sync()

    def drop_cached(self, handle: int, end: int) -> None:
        """Nothing here is kept in the memory of a system."""

    def lose_pending(self, handle: int) -> None:
        """A sync failed: what was written is seen by programs until the power goes, and by nobody after that."""
        self.operations.append(("lose_pending", handle))
        self._file(handle).pending.clear()

    def truncate(self, handle: int, size: int) -> None:
        file = self._writable(handle)
        self.operations.append(("truncate", handle, size))
        file.truncate(size)

    def size(self, handle: int) -> int:
        return len(self._file(handle).current)

    def close(self, handle: int) -> None:
        self._file(handle)
        self.operations.append(("close", handle))
        del self._open[handle]

    # -- names -------------------------------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        node, target = self.disk.find(old), self.disk.find(new)
        if node is None:
            raise _error(errno.ENOENT, old)
        if isinstance(target, Folder) and target.current:
            raise _error(errno.ENOTEMPTY, new)
        self.disk.folder(os.path.dirname(new))
        self.operations.append(("rename", old, new))
        if node is not target:
            self.disk.change((old, None), (new, node))

    def remove(self, path: str) -> None:
        self.disk.file(path)
        self.operations.append(("remove", path))
        self.disk.link(path, None)

    def make_dirs(self, path: str) -> None:
        folder = ""
        for name in _parts(path):
            folder += f"/{name}"
            if self.disk.find(folder) is None:
                self.operations.append(("make_dirs", folder))
                self.disk.link(folder, Folder())
            else:
                self.disk.folder(folder)

    def remove_tree(self, path: str) -> None:
        """One by one, as the system does it: a crash may come in between."""
        node = self.disk.find(path)
        if node is None:
            return
        if isinstance(node, Folder):
            for name in list(node.current):
                self.remove_tree(f"{path}/{name}")
        self.remove_name(path)

    def remove_name(self, path: str) -> None:
        """A file, or a folder with nothing in it."""
        self.operations.append(("remove_name", path))
        self.disk.link(path, None)

    def sync_dir(self, path: str) -> None:
        folder = self.disk.folder(path)
        self.operations.append(("sync_dir", path))
        self.disk.sync_folder(folder)

    def list(self, path: str) -> list[str]:
        node = self.disk.find(path)
        return sorted(node.current) if isinstance(node, Folder) else []

    def exists(self, path: str) -> bool:
        return self.disk.find(path) is not None

    def free_space(self, path: str) -> int:
        return self.free

    # -- handles -----------------------------------------------------------------------------------------------------

    def path_of(self, handle: int) -> str:
        """The name by which it was opened."""
        return self._open[handle][2]

    def _hand_out(self, file: File, is_writable: bool, path: str) -> int:
        self._next_handle += 1
        self._open[self._next_handle] = file, is_writable, path
        return self._next_handle

    def _file(self, handle: int) -> File:
        if handle not in self._open:
            raise _error(errno.EBADF, str(handle))
        return self._open[handle][0]

    def _writable(self, handle: int) -> File:
        file = self._file(handle)
        if not self._open[handle][1]:
            raise _error(errno.EBADF, str(handle))
        return file


# -- what survives ---------------------------------------------------------------------------------------------------


def _choose_changes(changes: list[Change], how: str, choice: random.Random) -> list[Change]:
    """Which changes of names a crash leaves. One that is lost takes all with it that build on the same name or node."""
    if how == "nothing more":
        return []
    if how == "everything":
        return changes
    if how == "as it was some time before":
        return changes[: choice.randint(0, len(changes))]
    lost: set[object] = set()
    survived = []
    for change in changes:
        if change.subjects() & lost or choice.random() < 0.5:
            lost |= change.subjects()
        else:
            survived.append(change)
    return survived


def _choose_content(file: File, how: str, choice: random.Random) -> bytearray:
    if how == "nothing more" or not file.pending:
        return bytearray(file.durable)
    if how == "everything":
        return bytearray(file.current)
    if how == "as it was some time before":
        return _content_of_before(file, choice)
    return _content_of_any_sectors(file, choice)


def _content_of_before(file: File, choice: random.Random) -> bytearray:
    """The writes up to some moment, the last of them perhaps not whole."""
    content = bytearray(file.durable)
    *earlier, (offset, data) = file.pending[: choice.randint(0, len(file.pending))] or [(len(content), None)]
    for change in earlier:
        _change(content, *change)
    if data is not None and choice.random() < 0.5:
        whole = offset % SECTOR + len(data)
        data = data[: max(0, choice.randrange(0, whole + SECTOR, SECTOR) - offset % SECTOR)]
    if data != b"":
        _change(content, offset, data)
    return content


def _content_of_any_sectors(file: File, choice: random.Random) -> bytearray:
    """Every sector as it was after any of the writes; the size, one that the file had."""
    content = bytearray(file.durable)
    sizes = [len(content)]
    versions: dict[int, list[bytes]] = {}
    for offset, data in file.pending:
        before = len(content)
        _change(content, offset, data)
        sizes.append(len(content))
        end = len(content) if data is None else offset + len(data)
        for sector in range(min(offset, before) // SECTOR, max(end, before if data is None else 0) // SECTOR + 1):
            start = sector * SECTOR
            known = versions.setdefault(sector, [bytes(file.durable[start : start + SECTOR])])
            known.append(bytes(content[start : start + SECTOR]))
    size = choice.choice(sizes)
    filling = bytes(SECTOR) if choice.random() < 0.8 else choice.randbytes(SECTOR)
    survived = bytearray(file.durable[:size])
    while len(survived) < size:
        survived += filling[: size - len(survived)]
    for sector, known in versions.items():
        start = sector * SECTOR
        kept = choice.choice(known)[: max(0, size - start)]
        if kept:
            survived[start : start + len(kept)] = kept
    return survived


# -- small things ----------------------------------------------------------------------------------------------------


def _change(content: bytearray, offset: int, data: bytes | None) -> None:
    """Write data at an offset, or make the content this long."""
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _set(entries: dict[str, File | Folder], name: str, node: File | Folder | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _walk(path: str, folder: Folder) -> Iterator[tuple[str, File]]:
    for name, node in sorted(folder.current.items()):
        if isinstance(node, File):
            yield f"{path}/{name}", node
        else:
            yield from _walk(f"{path}/{name}", node)


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
