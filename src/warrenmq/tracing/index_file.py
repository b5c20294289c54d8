"""One file of the index of the event log: which ids are in which of some batches, and what each batch is about.

Keys are sorted and lie in pages, each with its checksum; the least key of each page is in the directory, which is
all that is kept in memory. So an id is found with one read. What a batch is about (its time, queues, exchanges,
kinds) is read when somebody searches by that. docs/formats/index.md draws the file.

A file never changes: it is written under another name, synced and renamed. Whatever is wrong with one is `BadIndex`,
and no loss: the event log has all that is in it.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct, error

from crc32c import crc32c

from warrenmq.journal.files import Files
from warrenmq.tracing.keys import sort_keys

MAGIC = b"WARRENIX"
VERSION = 2
SUFFIX = ".idx"
UNFINISHED = ".new"

PAGE_KEYS = 1024
_KEY_SIZE = 12  # the hash, and the number of the batch in this file
_PAGE_SIZE = PAGE_KEYS * _KEY_SIZE

# Magic, version; first offset, least and greatest time, all kinds, batches, keys, bytes of names, bytes of notes,
# checksum of the directory, checksum of names and notes; checksum of all that.
_HEAD = Struct("<8sIQqqQIIIIIII")
_HEAD_CHECKED = _HEAD.size - 4
_U32 = Struct("<I")
# Of one batch: offset since the first, least and greatest time, kinds, checksum of its bytes, their number, end of its
# names.
_NOTE = Struct("<IqqQIII")

QUEUE = "q"  # before a queue's name
EXCHANGE = "e"
_HIGHEST_BIT = 63


class BadIndex(ValueError):
    """An index file is damaged, or of another version."""


@dataclass(frozen=True, slots=True)
class BatchNote:
    """What the index knows of one batch."""

    offset: int
    first_time: int
    last_time: int
    kinds: int  # a bit for each
    checksum: int  # of its bytes, to know it again
    size: int  # the number of its bytes
    names: frozenset[str]  # queues and exchanges, with QUEUE or EXCHANGE before them
    keys: array[int]  # sorted

    def at(self, offset: int) -> BatchNote:
        """The same of a batch at this offset."""
        return replace(self, offset=offset)


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """Which batches are of interest; what is None says nothing. Times: start <= time < end."""

    start: int | None = None
    end: int | None = None
    kind: int | None = None
    names: frozenset[str] = frozenset()

    def may_be_in(self, first_time: int, last_time: int, kinds: int) -> bool:
        if self.start is not None and last_time < self.start:
            return False
        if self.end is not None and first_time >= self.end:
            return False
        return self.kind is None or kinds & kind_bit(self.kind) != 0


def kind_bit(kind: int) -> int:
    """Kinds of far later brokers share the last bit."""
    return 1 << min(kind, _HIGHEST_BIT)


def kinds_mask(kinds: Iterable[int]) -> int:
    mask = 0
    for kind in kinds:
        mask |= kind_bit(kind)
    return mask


def file_name(first_offset: int) -> str:
    return f"{first_offset:020d}{SUFFIX}"


# -- writing -----------------------------------------------------------------------------------------------------------


def encode(notes: Sequence[BatchNote]) -> bytes:
    """The file of these batches, which are in order."""
    hashes, numbers = _sorted_keys(notes)
    pages, fences, checksums = _encode_pages(hashes, numbers)
    directory = fences.tobytes() + checksums.tobytes()
    names, records = _encode_notes(notes)
    head = _HEAD.pack(
        MAGIC,
        VERSION,
        notes[0].offset,
        min(note.first_time for note in notes),
        max(note.last_time for note in notes),
        kinds_mask_of(notes),
        len(notes),
        len(numbers) // 4,
        len(names),
        len(records),
        crc32c(directory),
        crc32c(records, crc32c(names)),
        0,
    )[:_HEAD_CHECKED]
    return b"".join((head, _U32.pack(crc32c(head)), directory, names, records, *pages))


def kinds_mask_of(notes: Iterable[BatchNote]) -> int:
    mask = 0
    for note in notes:
        mask |= note.kinds
    return mask


def write(files: Files, folder: str, notes: Sequence[BatchNote]) -> str:
    """Write a file of these batches, in the place of one that begins with the same; gives its path."""
    path = os.path.join(folder, file_name(notes[0].offset))
    data = encode(notes)
    handle = files.create(path + UNFINISHED)
    try:
        files.write(handle, data, 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(path + UNFINISHED, path)
    files.sync_dir(folder)
    return path


def _sorted_keys(notes: Sequence[BatchNote]) -> tuple[bytearray, bytearray]:
    hashes, numbers = bytearray(), bytearray()
    for number, note in enumerate(notes):
        hashes += note.keys.tobytes()
        numbers += _U32.pack(number) * len(note.keys)
    sort_keys(hashes, numbers)
    return hashes, numbers


def _encode_pages(hashes: bytearray, numbers: bytearray) -> tuple[list[bytes], array[int], array[int]]:
    """The pages, the least key of each, and their checksums."""
    pages = [
        bytes(hashes[8 * at : 8 * (at + PAGE_KEYS)] + numbers[4 * at : 4 * (at + PAGE_KEYS)])
        for at in range(0, len(numbers) // 4, PAGE_KEYS)
    ]
    fences = array("Q", [int.from_bytes(page[:8], "little") for page in pages])
    return pages, fences, array("I", [crc32c(page) for page in pages])


def _encode_notes(notes: Sequence[BatchNote]) -> tuple[bytes, bytes]:
    """The names that occur, as JSON; then a record for each batch, and behind them the numbers of their names."""
    names = sorted(frozenset().union(*[note.names for note in notes]))
    numbers = {name: number for number, name in enumerate(names)}
    used = array("I")
    records = []
    for note in notes:
        used.extend(sorted(numbers[name] for name in note.names))
        times = (note.first_time, note.last_time)
        records.append(
            _NOTE.pack(note.offset - notes[0].offset, *times, note.kinds, note.checksum, note.size, len(used))
        )
    return json.dumps(names).encode(), b"".join(records) + used.tobytes()


# -- reading -----------------------------------------------------------------------------------------------------------


class IndexFile:
    """A file as it lies on disk. Its directory is in memory, everything else is read when it is asked for."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        try:
            self._read_directory()
        except error as problem:
            raise BadIndex(f"{path} is too short") from problem

    def _read_directory(self) -> None:
        data = self._read(_HEAD.size, 0)
        magic, version, self.first_offset, self.first_time, self.last_time, self.kinds, *rest = _HEAD.unpack(data)
        if magic != MAGIC or crc32c(data[:_HEAD_CHECKED]) != rest[-1]:
            raise BadIndex(f"{self.path} does not begin as an index does")
        if version != VERSION:
            raise BadIndex(f"{self.path} has format version {version}")
        self.batches, self.keys, self._names_size, self._notes_size, checksum, self._notes_checksum, _ = rest
        pages = -(-self.keys // PAGE_KEYS)
        directory = self._read(12 * pages, _HEAD.size)
        if len(directory) < 12 * pages or crc32c(directory) != checksum:
            raise BadIndex(f"the directory of {self.path} is damaged")
        self._fences = array("Q", directory[: 8 * pages])
        self._checksums = array("I", directory[8 * pages :])
        self._names_at = _HEAD.size + len(directory)
        self._pages_at = self._names_at + self._names_size + self._notes_size
        self._offsets, self.size = self._read_offsets()
        self.next_offset = self.first_offset + self._offsets[-1] + 1

    def _read_offsets(self) -> tuple[array[int], int]:
        """Of the batches, since the first; and how many bytes all have. Checks names and notes on the way."""
        _, records = self._read_names_and_notes()
        notes = list(_NOTE.iter_unpack(records[: self.batches * _NOTE.size]))
        return array("I", [note[0] for note in notes]), sum(note[5] for note in notes)

    def find(self, key: int) -> list[int]:
        """The offsets of the batches that have this key, in order."""
        found: list[int] = []
        page = max(0, bisect_left(self._fences, key) - 1)  # it may begin in the page before the one that begins with it
        while page < len(self._fences) and self._fences[page] <= key:
            hashes, numbers = self._read_page(page)
            low, high = bisect_left(hashes, key), bisect_right(hashes, key)
            found.extend(self.first_offset + self._offsets[number] for number in numbers[low:high])
            page += 1
        return found

    def candidates(self, wanted: IndexQuery, below: int) -> list[int]:
        """The offsets below this one of the batches that may have what is wanted, the last first."""
        if not wanted.may_be_in(self.first_time, self.last_time, self.kinds):
            return []
        names, records = self._read_names_and_notes()
        if not wanted.names.issubset(names):
            return []
        needed = [number for number, name in enumerate(names) if name in wanted.names]
        used = array("I", records[self.batches * _NOTE.size :])
        found = []
        start = 0
        for at, first, last, kinds, _, _, end in _NOTE.iter_unpack(records[: self.batches * _NOTE.size]):
            if self.first_offset + at < below and wanted.may_be_in(first, last, kinds):
                here = used[start:end] if needed else ()
                if all(number in here for number in needed):
                    found.append(self.first_offset + at)
            start = end
        found.reverse()
        return found

    def notes(self) -> list[BatchNote]:
        """All of it, to write it anew with more."""
        names, records = self._read_names_and_notes()
        keys = [array("Q") for _ in range(self.batches)]
        for hashes, numbers in self._read_pages():
            for key, number in zip(hashes, numbers, strict=True):
                keys[number].append(key)
        used = array("I", records[self.batches * _NOTE.size :])
        notes = []
        start = 0
        for number, note in enumerate(_NOTE.iter_unpack(records[: self.batches * _NOTE.size])):
            at, first, last, kinds, checksum, size, end = note
            here = frozenset([names[each] for each in used[start:end]])
            notes.append(BatchNote(self.first_offset + at, first, last, kinds, checksum, size, here, keys[number]))
            start = end
        return notes

    def checksum_of_last(self) -> tuple[int, int]:
        """The offset of its last batch, and the checksum of that."""
        _, records = self._read_names_and_notes()
        note = _NOTE.unpack_from(records, (self.batches - 1) * _NOTE.size)
        return self.first_offset + note[0], note[4]

    def _read_names_and_notes(self) -> tuple[list[str], bytes]:
        data = self._read(self._names_size + self._notes_size, self._names_at)
        if len(data) < self._names_size + self._notes_size or crc32c(data) != self._notes_checksum:
            raise BadIndex(f"the notes in {self.path} are damaged")
        names: list[str] = json.loads(data[: self._names_size])
        return names, data[self._names_size :]

    def _read(self, size: int, at: int) -> bytes:
        """The file is open for a moment only: there may be hundreds of them."""
        handle = self._files.open_read(self.path)
        try:
            return self._files.read(handle, size, at)
        finally:
            self._files.close(handle)

    def _read_pages(self) -> Iterator[tuple[array[int], array[int]]]:
        for page in range(len(self._fences)):
            yield self._read_page(page)

    def _read_page(self, page: int) -> tuple[array[int], array[int]]:
        """Its hashes, and the numbers of their batches."""
        count = min(PAGE_KEYS, self.keys - page * PAGE_KEYS)
        data = self._read(count * _KEY_SIZE, self._pages_at + page * _PAGE_SIZE)
        if len(data) < count * _KEY_SIZE or crc32c(data) != self._checksums[page]:
            raise BadIndex(f"page {page} of {self.path} is damaged")
        return array("Q", data[: 8 * count]), array("I", data[8 * count :])
