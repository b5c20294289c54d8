"""Appends epochs to the commit log, in files that roll by size and are reused.

Each step may be the last before a crash, so their order matters:

- Epochs that wait for the same sync may reach the disk in any order. Each records the last epoch that was synced when
  it was written, so a scan knows that epochs after a hole beyond that point were never durable.
- A new file is created, and its folder synced, before its first epoch is written; the previous file is synced before
  that. So if a file named N exists, all epochs below N were durable, and a missing one is damage.
- Old files are removed or made spares oldest first, with a folder sync after each: the remaining files have no gap.
- Zeros follow the last epoch and are overwritten by the next one: they mark a clean end, whatever an earlier use of the
  file left after them.

Used by one thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from warrenmq.journal.errors import JournalError, SyncFailed
from warrenmq.journal.files import NO_DESCRIPTOR, Data, Files
from warrenmq.journal.log_file import (
    EPOCH_HEAD_SIZE,
    FILE_SIZE,
    MAX_PAYLOAD,
    LogFile,
    encode_epoch_head,
    encode_file_head,
    log_name,
    random_salt,
)

_END = bytes(EPOCH_HEAD_SIZE)
_MAX_JOINED = 64 * 1024  # larger payloads are not copied to be joined with their head
_ZEROS = bytes(2**20)
_MAX_SPARES = 2


class LogWriter:
    """Appends epochs.

    `append` raises `OSError` if the disk refuses; after `cut` it can be retried. A failed sync raises `SyncFailed`, as
    does every later `append` and `sync`.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        next_sequence: int,
        file_size: int = FILE_SIZE,
        older: Sequence[LogFile] = (),
        salt: int | None = None,
    ) -> None:
        """The first append begins a new file. `older` files were found by a scan; `cut_torn_tail` made them durable."""
        self.files = files
        self.folder = folder
        self.next_sequence = next_sequence
        self.file_size = file_size
        self._salt = random_salt() if salt is None else salt
        self._older = list(older)
        self._current: LogFile | None = None
        self._handle = -1
        self._synced = next_sequence - 1
        self._failure: SyncFailed | None = None
        self._has_unsynced_folder = False  # a file was renamed or removed since the last folder sync
        self.on_roll: Callable[[], None] | None = None  # called between creating and syncing a file: a crash point
        self._spare_handle = -1  # of the partial spare
        self._spare_size = 0
        files.make_dirs(folder)
        # Even if the folder existed: its creator may have been killed before the sync.
        files.sync_dir(os.path.dirname(folder) or ".")
        self._spares = self._find_spares()

    @property
    def files_in_use(self) -> list[LogFile]:
        """Return all files of the log, oldest first."""
        return [*self._older, self._current] if self._current else list(self._older)

    @property
    def written(self) -> int:
        """The last epoch that was appended."""
        return self.next_sequence - 1

    @property
    def synced(self) -> int:
        """The last epoch that is durable."""
        return self._synced

    @property
    def current_size(self) -> int:
        """Bytes in the file that is being written; 0 before the first epoch."""
        return self._current.size if self._current is not None else 0

    def append(self, payload: Data, sequence: int, time_ms: int, durably: bool = False) -> None:
        """Write an epoch after the last one. With `durably` it and all before it are durable on return, else after
        `sync`."""
        self._check_append(payload, sequence)
        current = self._current
        if current is None or not self._has_room(current, len(payload)):
            current = self._roll()
        head = self._head(current, payload, sequence, time_ms)
        is_alone = self._synced == sequence - 1  # everything before is durable
        if durably and is_alone:
            self.files.write_durably(self._handle, (head, payload, _END), current.size)
        elif len(payload) <= _MAX_JOINED:
            self.files.write(self._handle, b"".join((head, payload, _END)), current.size)
        else:
            self.files.writev(self._handle, (head, payload, _END), current.size)
        self._note_append(current, sequence, len(head) + len(payload))
        if durably:
            if is_alone:
                self._synced = sequence
            else:
                self.sync()

    def begin_append(self, payload: Data, sequence: int, time_ms: int) -> tuple[int, bytes, int] | None:
        """Return the write that the caller must make durable before `end_append`: handle, bytes, offset.

        Changes nothing. Return None if the epoch needs `append`: a new file, or a sync of earlier epochs.
        """
        self._check_append(payload, sequence)
        current = self._current
        if current is None or self._synced != sequence - 1 or not self._has_room(current, len(payload)):
            return None
        return self._handle, b"".join((self._head(current, payload, sequence, time_ms), payload, _END)), current.size

    def end_append(self, sequence: int, record: bytes) -> None:
        """Record that the epoch of `begin_append` is durable."""
        assert self._current is not None
        self._note_append(self._current, sequence, len(record) - len(_END))
        self._synced = sequence

    def _check_append(self, payload: Data, sequence: int) -> None:
        if sequence != self.next_sequence:
            raise ValueError(f"epoch {sequence} cannot follow epoch {self.next_sequence - 1}")
        if len(payload) > MAX_PAYLOAD:
            raise JournalError(f"an epoch of {len(payload)} bytes is too long for the log")
        self._raise_if_failed()

    def _head(self, current: LogFile, payload: Data, sequence: int, time_ms: int) -> bytes:
        head = encode_epoch_head(payload, sequence, self._synced, time_ms, self._salt)
        if current.last < current.first:
            # The file head is written with the first epoch; until then a reused file keeps its old head.
            return encode_file_head(current.first, self._salt) + head
        return head

    def _note_append(self, current: LogFile, sequence: int, size: int) -> None:
        self._current = current._replace(last=sequence, size=current.size + size)
        self.next_sequence = sequence + 1

    def sync(self) -> None:
        """Return when every appended epoch is durable."""
        self._raise_if_failed()
        if self._current is not None and self._synced < self._current.last:
            self._sync_or_fail(lambda: self.files.sync(self._handle), self._current.path)
            self._synced = self._current.last

    def cut(self) -> None:
        """Truncate the file to its last whole epoch, after a failed append."""
        if self._current is not None:
            self.files.truncate(self._handle, self._current.size)

    def remove_up_to(self, sequence: int) -> None:
        """Remove files without later epochs, or keep them as spares; the newest stays: its name keeps the sequence."""
        newest = 0 if self._current is not None else 1
        if self._has_unsynced_folder:
            self._sync_folder()  # the last call had no descriptor for it
        while len(self._older) > newest and self._older[0].last <= sequence:
            path = self._older[0].path
            if len(self._spares) < _MAX_SPARES and self._is_reusable(path):
                spare = self._new_spare_path()
                self.files.rename(path, spare)
                self._spares.append(spare)
            else:
                self.files.remove(path)
            del self._older[0]
            self._has_unsynced_folder = True
            # After each file: the disk may keep later folder changes without earlier ones, which would leave a gap.
            self._sync_folder()

    def begin_file(self) -> None:
        """Make the next epoch begin a new file; the file is created now, since its name keeps the sequence."""
        if self.files_in_use and (self._current is None or self._current.last >= self._current.first):
            self._roll()

    @property
    def has_spare(self) -> bool:
        """Return True if the next roll finds a preallocated file."""
        return bool(self._spares)

    def prepare_spare(self) -> None:
        """Preallocate the next file: overwriting allocated blocks is faster to sync."""
        while self.prepare_spare_step():
            pass

    def prepare_spare_step(self) -> bool:
        """Preallocate and sync one MiB of the next file; return True while there is more to do."""
        if self._spare_handle < 0:
            if self._spares:
                return False
            self._spare_handle = self.files.create(self._partial_spare_path)
            self._spare_size = 0
        try:
            piece = min(len(_ZEROS), self.file_size - self._spare_size)
            self.files.write(self._spare_handle, memoryview(_ZEROS)[:piece], self._spare_size)
            self.files.sync(self._spare_handle)
        except OSError:
            self._discard_partial_spare()
            raise
        self._spare_size += piece
        if self._spare_size < self.file_size:
            return True
        self._close_partial_spare()
        spare = self._new_spare_path()
        self.files.rename(self._partial_spare_path, spare)
        self._spares.append(spare)
        return False

    def close(self) -> None:
        """Close the files, without a sync."""
        if self._handle >= 0:
            self.files.close(self._handle)
            self._handle = -1
        if self._spare_handle >= 0:
            self._discard_partial_spare()

    def _has_room(self, current: LogFile, length: int) -> bool:
        return current.size + EPOCH_HEAD_SIZE + length + len(_END) <= self.file_size

    def _roll(self) -> LogFile:
        """Begin a new file. After an error it can be called again."""
        self.sync()
        path = os.path.join(self.folder, log_name(self.next_sequence))
        if self._spares:
            self.files.rename(self._spares[-1], path)
            self._spares.pop()
            handle = self.files.open(path)
        else:
            handle = self.files.create(path)
        if self.on_roll is not None:
            self.on_roll()
        try:
            self._sync_folder()
        except (SyncFailed, OSError):
            self.files.close(handle)
            raise
        if self._current is not None:
            self.files.close(self._handle)
            self._older.append(self._current)
        # A start that wrote no epoch may have left a file of that name.
        self._older = [file for file in self._older if file.path != path]
        self._handle = handle
        self._current = LogFile(self.next_sequence, self.next_sequence - 1, path, 0)
        return self._current

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _sync_folder(self) -> None:
        self._sync_or_fail(lambda: self.files.sync_dir(self.folder), self.folder)
        self._has_unsynced_folder = False

    def _sync_or_fail(self, sync: Callable[[], None], path: str) -> None:
        """Call `sync`; an error other than a missing descriptor is final (`SyncFailed`)."""
        try:
            sync()
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                self._failure = SyncFailed(path, error)
                raise self._failure from error
            raise

    @property
    def _partial_spare_path(self) -> str:
        return os.path.join(self.folder, "spare-new")

    def _new_spare_path(self) -> str:
        number = 1
        while (path := os.path.join(self.folder, f"spare-{number}")) in self._spares:
            number += 1
        return path

    def _find_spares(self) -> list[str]:
        """Return the spares that the last run left; remove those that are unusable."""
        spares: list[str] = []
        for name in self.files.list(self.folder):
            if name.startswith("spare-"):
                path = os.path.join(self.folder, name)
                if name != "spare-new" and len(spares) < _MAX_SPARES and self._is_reusable(path):
                    spares.append(path)
                else:
                    self.files.remove(path)
        return spares

    def _is_reusable(self, path: str) -> bool:
        """Return True if most blocks of a file are allocated, and it is not too large: an epoch may exceed the file
        size."""
        handle = self.files.open_read(path)
        try:
            return self.file_size * 3 // 4 <= self.files.size(handle) <= self.file_size
        finally:
            self.files.close(handle)

    def _close_partial_spare(self) -> None:
        self.files.close(self._spare_handle)
        self._spare_handle = -1

    def _discard_partial_spare(self) -> None:
        self._close_partial_spare()
        self.files.remove(self._partial_spare_path)
