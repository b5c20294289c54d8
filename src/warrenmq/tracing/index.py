"""The index of the event log: finds the batches that have an id, a queue, or a time.

The batches that came last are noted in memory. When there are enough of them the notes are written to a file
(index_file.py), named by the first of them; so a crash costs reading the last few hundred batches again. A broker
without a disk keeps all notes in memory.

Everything in it is in the event log too. What is missing, damaged or of another stream is thrown away, and whoever
owns the index adds the batches again from `next_offset` on.

Owned by one thread at a time, which may block on files.
"""

from __future__ import annotations

import logging
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable

from crc32c import crc32c

from warrenmq.events import schema
from warrenmq.events.batch import EventBatch, RowFilter
from warrenmq.events.codec import decode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import uid_key
from warrenmq.events.rows import Rows
from warrenmq.journal.files import Files
from warrenmq.tracing.index_file import (
    EXCHANGE,
    QUEUE,
    SUFFIX,
    UNFINISHED,
    BadIndex,
    BatchNote,
    IndexFile,
    IndexQuery,
    kinds_mask,
    write,
)
from warrenmq.tracing.keys import keys_of, keys_of_uids

log = logging.getLogger("warrenmq.tracing")

# A file is written when the notes in memory have so many keys, or are of so many batches, or these have so many bytes.
FILE_KEYS = 1_000_000
FILE_BATCHES = 4096
FILE_BYTES = 512 * 1024 * 1024

# Where that fails, it is tried again after so many more batches.
SEAL_AGAIN = 256
# Each message that names its source has an event of this kind, and few messages do.
MADE_FROM_ANOTHER = RowFilter(kinds=frozenset({schema.REPUBLISHED}))

# Bytes of a batch that it is known again by.
KNOWN_BY = 16 * 1024

_NO_KEYS = array("Q")


def checksum_of(octets: bytes) -> int:
    """By which a batch is known again: of its first bytes, which hold its names and times."""
    return crc32c(octets[:KNOWN_BY])


def note_of(octets: bytes, is_trusted: bool = False) -> BatchNote:
    """What the index has to know of a batch, whose offset is not known yet. `is_trusted`: see `decode`. BadEvents."""
    batch = decode(octets, is_trusted)
    names = [QUEUE + name for name in batch.used_names("queue")]
    names += [EXCHANGE + name for name in batch.used_names("exchange")]
    kinds = batch.used_kinds()
    keys = keys_of(batch)
    if schema.REPUBLISHED in kinds:
        keys = array("Q", sorted({*keys, *_keys_of_sources(batch)}))
    times, checksum = batch.time_range(), checksum_of(octets)
    return BatchNote(0, *times, kinds_mask(kinds), checksum, len(octets), frozenset(names), keys)


def note_of_written(rows: Rows, writer: ColumnWriter, octets: bytes) -> BatchNote:
    """The same of rows that this writer has just made these bytes of: much of it is known from there."""
    if rows.has_message_ids:
        return note_of(octets, is_trusted=True)
    names = [QUEUE + name for name in writer.used_names("queue")]
    names += [EXCHANGE + name for name in writer.used_names("exchange")]
    keys = keys_of_uids(octets, writer.uids_offset(), rows.count)
    times, kinds = (rows.first_time, rows.last_time), kinds_mask(writer.used_kinds())
    return BatchNote(0, *times, kinds, checksum_of(octets), len(octets), frozenset(names), keys)


def note_of_stored(offset: int, octets: bytes) -> BatchNote:
    """The same of what lies in the log; of what cannot be read, that it is there."""
    try:
        return note_of(octets).at(offset)
    except BadEvents as problem:
        log.warning("batch %d of the event log cannot be read and is left out of its index: %s", offset, problem)
        return BatchNote(offset, 0, 0, 0, checksum_of(octets), len(octets), frozenset(), _NO_KEYS)


def _keys_of_sources(batch: EventBatch) -> list[int]:
    """A message that another was made from leads to that as well."""
    made = batch.events(batch.select(MADE_FROM_ANOTHER))
    return [uid_key(event.source_uid) for event in made if event.source_uid is not None]


class Index:
    """`folder` is None where there is no disk. `next_offset` is that of the first batch that is not in it."""

    def __init__(
        self,
        folder: str | None,
        files: Files,
        file_keys: int = FILE_KEYS,
        file_batches: int = FILE_BATCHES,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._folder = folder
        self._files = files
        self._file_keys = file_keys
        self._file_batches = file_batches
        self._file_bytes = file_bytes
        self._sealed: list[IndexFile] = []  # in order
        self._open: list[BatchNote] = []  # behind them
        self._open_keys = 0
        self._open_bytes = 0
        self._seal_from = 0  # so many batches have to be there before a file is tried
        self.next_offset = 0

    # -- life --------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take what is in the folder; what is damaged, and all that comes behind it, is removed."""
        if self._folder is None:
            return
        self._files.make_dirs(self._folder)
        names = self._files.list(self._folder)
        for name in [name for name in names if name.endswith(UNFINISHED)]:
            self._files.remove(os.path.join(self._folder, name))
        paths = [os.path.join(self._folder, name) for name in names if name.endswith(SUFFIX)]
        for number, path in enumerate(paths):
            try:
                self._take_file(IndexFile(self._files, path))
            except BadIndex as problem:
                log.warning("the index of the event log is built again from batch %d on: %s", self.next_offset, problem)
                self._remove(paths[number:])
                break
        self._reopen_last()

    def _take_file(self, file: IndexFile) -> None:
        if self._sealed and file.first_offset < self.next_offset:
            raise BadIndex(f"{file.path} overlaps the one before")
        self._sealed.append(file)
        self.next_offset = file.next_offset

    def _reopen_last(self) -> None:
        """A file that is not full goes on: or each start would leave a small one."""
        last = self._sealed[-1] if self._sealed else None
        if last is not None and not self._is_full(last.keys, last.batches, last.size):
            file = self._sealed.pop()
            try:
                self._take_notes(file.notes())
            except BadIndex as problem:
                self.next_offset = file.first_offset
                log.warning("the index of the event log is built again from there: %s", problem)

    def newest(self) -> tuple[int, int] | None:
        """Offset and checksum of the last batch in it: if the event log has another one there, it is another log."""
        if self._open:
            return self._open[-1].offset, self._open[-1].checksum
        return self._sealed[-1].checksum_of_last() if self._sealed else None

    def clear(self) -> None:
        """It was of another log."""
        self._remove([file.path for file in self._sealed])
        if self._folder is not None:
            names = self._files.list(self._folder)
            self._remove([os.path.join(self._folder, name) for name in names if name.endswith(SUFFIX)])
        self._sealed = []
        self._take_notes([])
        self.next_offset = 0

    def seal(self) -> None:
        """Write what is in memory."""
        if self._folder is None or not self._open:
            return
        path = write(self._files, self._folder, self._open)
        self._sealed.append(IndexFile(self._files, path))
        self._take_notes([])
        self._seal_from = 0

    # -- batches come and go -----------------------------------------------------------------------------------------

    def add(self, note: BatchNote, after: int) -> int:
        """Note a batch. `after` is `next_offset` as the caller knows it: if that is no longer so, nothing is added.

        Gives the new `next_offset`.
        """
        if after == self.next_offset and note.offset >= after:
            self._open.append(note)
            self._open_keys += len(note.keys)
            self._open_bytes += note.size
            self.next_offset = note.offset + 1
            is_full = self._is_full(self._open_keys, len(self._open), self._open_bytes)
            if is_full and len(self._open) >= self._seal_from:
                self._try_to_seal()
        return self.next_offset

    def _try_to_seal(self) -> None:
        """A disk that is full for a while costs memory meanwhile, not the index."""
        try:
            self.seal()
        except OSError as problem:
            log.warning("the index of the event log cannot be written, and stays in memory: %s", problem)
            self._seal_from = len(self._open) + SEAL_AGAIN

    def forget_before(self, offset: int) -> int:
        """The log keeps no batch before this. Gives the new `next_offset`."""
        gone = [file for file in self._sealed if file.next_offset <= offset]
        self._sealed = self._sealed[len(gone) :]
        self._remove([file.path for file in gone])
        if self._open and self._open[-1 if self._folder is not None else 0].offset < offset:
            self._take_notes([note for note in self._open if note.offset >= offset])
        self.next_offset = max(self.next_offset, offset)
        return self.next_offset

    def _take_notes(self, notes: list[BatchNote]) -> None:
        """These are in memory now, and no others."""
        self._open = notes
        self._open_keys = sum(len(note.keys) for note in notes)
        self._open_bytes = sum(note.size for note in notes)

    def _is_full(self, keys: int, batches: int, octets: int) -> bool:
        return keys >= self._file_keys or batches >= self._file_batches or octets >= self._file_bytes

    def _remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self._files.exists(path):
                self._files.remove(path)

    # -- answers -----------------------------------------------------------------------------------------------------

    def find(self, keys: Iterable[int]) -> list[int]:
        """The offsets of all batches that have one of these keys, in order; rarely one that has none of them, too.

        BadIndex: a file is damaged, and is thrown away with all that is behind it.
        """
        found: set[int] = set()
        wanted = list(keys)
        for file in self._sealed:
            try:
                found.update(offset for key in wanted for offset in file.find(key))
            except BadIndex as problem:
                self._distrust(file, problem)
                raise
        found.update(note.offset for note in self._open if any(_has(note, key) for key in wanted))
        return sorted(found)

    def candidates(self, wanted: IndexQuery, below: int) -> tuple[list[int], int]:
        """Some offsets below this one of batches that may have what is wanted, the last first; and where to go on.

        That is 0 when there are no more. BadIndex as in `find`.
        """
        if self._open and self._open[0].offset < below:
            first = self._open[0].offset
            notes = [note for note in reversed(self._open) if note.offset < below]
            return [note.offset for note in notes if _may_have(note, wanted)], first
        for file in reversed(self._sealed):
            if file.first_offset < below:
                try:
                    return file.candidates(wanted, below), file.first_offset
                except BadIndex as problem:
                    self._distrust(file, problem)
                    raise
        return [], 0

    def figures(self) -> dict[str, int]:
        """For people and benchmarks."""
        keys = sum(file.keys for file in self._sealed) + self._open_keys
        return {"files": len(self._sealed), "keys": keys, "open_batches": len(self._open)}

    def _distrust(self, file: IndexFile, problem: BadIndex) -> None:
        """Throw away this file and all behind it: they are built again from the log."""
        log.warning("the index of the event log is built again from batch %d on: %s", file.first_offset, problem)
        number = self._sealed.index(file)
        self._remove([each.path for each in self._sealed[number:]])
        self._sealed = self._sealed[:number]
        self._take_notes([])
        self.next_offset = file.first_offset


def _has(note: BatchNote, key: int) -> bool:
    at = bisect_left(note.keys, key)
    return at < len(note.keys) and note.keys[at] == key


def _may_have(note: BatchNote, wanted: IndexQuery) -> bool:
    return wanted.may_be_in(note.first_time, note.last_time, note.kinds) and wanted.names <= note.names
