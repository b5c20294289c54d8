"""The index of the event log: finds the batches that contain an id, a queue, or a time.

An SQLite database (docs/formats/index.md). The newest batches are in memory until there are enough for a run: their
keys are sorted together and stored in pages, one row each. A row per key would take eleven times the CPU (decision 26).
A crash loses only what was in memory, which is then read from the log again.

Everything in the index is also in the event log. A damaged index, or that of another log, is deleted, and the caller
adds the batches again from `next_offset` on.

Owned by one thread at a time, which may block on the disk.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from pathlib import Path

from crc32c import crc32c

from warrenmq.events import schema
from warrenmq.events.batch import RowFilter
from warrenmq.events.codec import decode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import uid_key
from warrenmq.events.rows import Rows
from warrenmq.journal.files import MODE, Files
from warrenmq.tracing.keys import keys_of, keys_of_uids, sort_keys

log = logging.getLogger("warrenmq.tracing")

FILE_NAME = "index.sqlite"
VERSION = 3  # 1 and 2 were files of our own
# A run is written when the batches in memory have that many keys, or are that many, or have that many bytes.
RUN_KEYS = 1_000_000
RUN_BATCHES = 4096
RUN_BYTES = 512 * 1024 * 1024
# If the disk is full, writing is tried again after that many more batches.
RETRY_BATCHES = 256

QUEUE = "q"  # prefix of a queue's name
EXCHANGE = "e"
# Each message that names its source has an event of this kind, and few messages do.
MADE_FROM_ANOTHER = RowFilter(kinds=frozenset({schema.REPUBLISHED}))

_CHECKSUM_BYTES = 16 * 1024  # of a batch: its names and times come first
_HIGHEST_BIT = 63
_PAGE_KEYS = 1350  # a row that fills a database page of 16 KiB
_KEY_SIZE = 12  # the hash, and the batch: its offset from the first of the run
_SCHEMA = f"""
PRAGMA page_size = 16384;
BEGIN;
CREATE TABLE runs (
    first INTEGER PRIMARY KEY, end INTEGER, first_time INTEGER, last_time INTEGER, kinds INTEGER, keys INTEGER,
    is_open INTEGER
);
CREATE TABLE batches (
    offset INTEGER PRIMARY KEY, first_time INTEGER, last_time INTEGER, kinds INTEGER, checksum INTEGER, size INTEGER,
    keys BLOB
);
CREATE TABLE names (run INTEGER, name BLOB, batches BLOB, PRIMARY KEY (run, name)) WITHOUT ROWID;
CREATE TABLE pages (run INTEGER, last_key INTEGER, checksum INTEGER, data BLOB);
CREATE INDEX pages_by_key ON pages (run, last_key);
PRAGMA user_version = {VERSION};
COMMIT;
"""
_DISK_ERRORS = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY}
_ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF


class BadIndex(ValueError):
    """The index is damaged and was deleted."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    offset: int
    first_time: int
    last_time: int
    kinds: int  # a bit for each
    checksum: int  # identifies the batch
    size: int  # of the batch in bytes
    names: frozenset[str]  # queues and exchanges, prefixed with QUEUE or EXCHANGE
    keys: array[int]  # sorted


def kinds_mask(kinds: Iterable[int]) -> int:
    """Return a bit for each kind; those of far later versions share the last one."""
    return reduce(or_, [1 << min(kind, _HIGHEST_BIT) for kind in kinds], 0)


def checksum_of(data: bytes) -> int:
    """Identify a batch by its first bytes."""
    return crc32c(data[:_CHECKSUM_BYTES])


def entry_of(data: bytes, is_trusted: bool = False) -> IndexEntry:
    """Make the entry of a batch, at offset 0. `is_trusted`: see `decode`. Raises BadEvents."""
    batch = decode(data, is_trusted)
    kinds = batch.used_kinds()
    keys = keys_of(batch)
    if schema.REPUBLISHED in kinds:
        made = batch.events(batch.select(MADE_FROM_ANOTHER))
        sources = [uid_key(event.source_uid) for event in made if event.source_uid is not None]
        keys = array("Q", sorted({*keys, *sources}))
    names = _prefixed(batch.used_names("queue"), batch.used_names("exchange"))
    return IndexEntry(0, *batch.time_range(), kinds_mask(kinds), checksum_of(data), len(data), names, keys)


def entry_of_written(rows: Rows, writer: ColumnWriter, data: bytes) -> IndexEntry:
    """Make the same entry from the rows that `writer` just encoded, without decoding where possible."""
    if rows.has_message_ids:
        return entry_of(data, is_trusted=True)
    keys = keys_of_uids(data, writer.uids_offset(), rows.count)
    times, kinds = (rows.first_time, rows.last_time), kinds_mask(writer.used_kinds())
    names = _prefixed(writer.used_names("queue"), writer.used_names("exchange"))
    return IndexEntry(0, *times, kinds, checksum_of(data), len(data), names, keys)


def entry_of_stored(offset: int, data: bytes) -> IndexEntry:
    """Make the entry of a batch read from the log; an unreadable batch gets one without keys and names."""
    try:
        return replace(entry_of(data), offset=offset)
    except BadEvents as error:
        log.warning("batch %d of the event log is not indexed, as it cannot be read: %s", offset, error)
        return IndexEntry(offset, 0, 0, 0, checksum_of(data), len(data), frozenset(), array("Q"))


def _prefixed(queues: Iterable[str | None], exchanges: Iterable[str | None]) -> frozenset[str]:
    """Return the names that are not None, as the index has them."""
    places = (QUEUE, queues), (EXCHANGE, exchanges)
    return frozenset(prefix + name for prefix, names in places for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class _Run:
    """Batches that were written together: offsets from `first` to before `end`."""

    first: int
    end: int
    first_time: int
    last_time: int
    kinds: int
    keys: int


class Index:
    """`folder` is None without a disk. `next_offset` is that of the first batch that is not in the index."""

    def __init__(
        self,
        folder: str | None,
        run_keys: int = RUN_KEYS,
        run_batches: int = RUN_BATCHES,
        run_bytes: int = RUN_BYTES,
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._run_keys = run_keys
        self._run_batches = run_batches
        self._run_bytes = run_bytes
        self._database = sqlite3.connect(":memory:", check_same_thread=False)  # until it is loaded
        self._runs: list[_Run] = []  # in order
        self._set_open([])  # the batches after them
        self._retry_at = 0  # number of open batches from which a run is written
        self.next_offset = 0

    # -- life --------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the database; delete a damaged one, and what earlier versions wrote. Raises OSError."""
        if self._folder is not None:
            Files().make_dirs(str(self._folder))
            for path in [*self._folder.glob("*.idx"), *self._folder.glob("*.idx.new")]:
                path.unlink()
        with suppress(BadIndex), self._checked():
            self._open_database()
            self._read_runs()

    def _open_database(self) -> None:
        path = ":memory:" if self._folder is None else _make_private(self._folder / FILE_NAME)
        self._database = sqlite3.connect(path, check_same_thread=False)
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._database.executescript(_SCHEMA)
        elif version != VERSION:
            raise BadIndex(f"version {version}")

    def _read_runs(self) -> None:
        rows = self._database.execute("SELECT * FROM runs ORDER BY first").fetchall()
        for first, end, first_time, last_time, kinds, keys, is_open in rows:
            self._runs.append(_Run(first, end, first_time, last_time, kinds & _ALL_BITS, keys))
            self.next_offset = self._runs[-1].end
            if is_open:
                self._set_open(self._read_open(self._runs.pop().first))

    def _read_open(self, run: int) -> list[IndexEntry]:
        """Return the entries of a run that was not full when the broker stopped."""
        names: dict[int, set[str]] = {}
        for name, batches in self._database.execute("SELECT name, batches FROM names WHERE run = ?", (run,)):
            for number in array("I", batches):
                names.setdefault(run + number, set()).add(name.decode("utf-8", "surrogatepass"))
        rows = self._database.execute("SELECT * FROM batches WHERE offset >= ? ORDER BY offset", (run,)).fetchall()
        return [
            IndexEntry(
                at, first, last, kinds & _ALL_BITS, checksum, size, frozenset(names.get(at, ())), array("Q", keys)
            )
            for at, first, last, kinds, checksum, size, keys in rows
        ]

    def newest(self) -> tuple[int, int] | None:
        """Return offset and checksum of the last batch: another log has another batch there."""
        if self._open:
            return self._open[-1].offset, self._open[-1].checksum
        found: tuple[int, int] | None = None
        with suppress(BadIndex), self._checked():
            rows = self._database.execute("SELECT offset, checksum FROM batches ORDER BY offset DESC LIMIT 1")
            found = rows.fetchone()
        return found

    def clear(self) -> None:
        """Delete everything and begin again at offset 0."""
        self._database.close()
        if self._folder is not None:
            for name in (FILE_NAME, FILE_NAME + "-journal"):
                self._folder.joinpath(name).unlink(missing_ok=True)
        self._runs = []
        self._set_open([])
        self.next_offset = 0
        self._open_database()

    def close(self) -> None:
        """Write what is in memory. Raises OSError or BadIndex."""
        if self._open and self._folder is not None:
            with self._checked():
                self._write_open(is_full=False)
        self._database.close()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Raise OSError if the disk fails; delete a damaged index and raise BadIndex."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError) as error:
            if isinstance(error, sqlite3.Error) and error.sqlite_errorcode & 0xFF in _DISK_ERRORS:
                raise OSError(f"{FILE_NAME}: {error}") from error
            log.warning("the index of the event log is damaged and is built again: %s", error)
            self.clear()
            raise BadIndex(str(error)) from error

    # -- batches come and go -----------------------------------------------------------------------------------------

    def add(self, entry: IndexEntry, after: int) -> int:
        """Add a batch, unless `next_offset` is no longer `after`. Return the new `next_offset`."""
        if after == self.next_offset and entry.offset >= after:
            self._open.append(entry)
            self._open_keys += len(entry.keys)
            self._open_bytes += entry.size
            self.next_offset = entry.offset + 1
            is_full = (
                self._open_keys >= self._run_keys
                or len(self._open) >= self._run_batches
                or self._open_bytes >= self._run_bytes
            )
            if is_full and len(self._open) >= self._retry_at:
                self._write_run()
        return self.next_offset

    def forget_before(self, offset: int) -> int:
        """The log keeps no batch before this offset. Return the new `next_offset`."""
        self._runs = [run for run in self._runs if run.end > offset]  # the next write deletes their rows
        if self._open and self._open[0].offset < offset:
            self._set_open([entry for entry in self._open if entry.offset >= offset])
        self.next_offset = max(self.next_offset, offset)
        return self.next_offset

    def _set_open(self, entries: list[IndexEntry]) -> None:
        self._open = entries
        self._open_keys = sum(len(entry.keys) for entry in entries)
        self._open_bytes = sum(entry.size for entry in entries)

    def _write_run(self) -> None:
        """Write the open batches; if the disk is full they stay in memory."""
        try:
            with self._checked():
                self._runs.append(self._write_open(is_full=True))
        except OSError as error:
            log.warning("the index of the event log cannot be written, and stays in memory: %s", error)
            self._retry_at = len(self._open) + RETRY_BATCHES
        except BadIndex:
            return  # the caller sees it by `next_offset`
        else:
            self._set_open([])
            self._retry_at = 0

    def _write_open(self, is_full: bool) -> _Run:
        """Write the open batches as a run, with their keys in pages if it is full, else with each batch."""
        entries, first = self._open, self._open[0].offset
        times = min(entry.first_time for entry in entries), max(entry.last_time for entry in entries)
        kinds = reduce(or_, [entry.kinds for entry in entries])
        run = _Run(first, entries[-1].offset + 1, *times, kinds, self._open_keys)
        with self._database as database:
            kept_from = self._runs[0].first if self._runs else first
            for table, column in (("runs", "first"), ("batches", "offset"), ("names", "run"), ("pages", "run")):
                database.execute(f"DELETE FROM {table} WHERE {column} < ? OR {column} >= ?", (kept_from, first))
            row = run.first, run.end, *times, _signed(kinds), run.keys, not is_full
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            rows = [_batch_row(entry, with_keys=not is_full) for entry in entries]
            database.executemany("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany("INSERT INTO names VALUES (?, ?, ?)", _name_rows(entries))
            if is_full:
                database.executemany("INSERT INTO pages VALUES (?, ?, ?, ?)", _page_rows(entries))
        return run

    # -- answers -----------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[int]) -> list[int]:
        """Return the offsets of all batches with one of these keys, in order; rarely also of one without.

        BadIndex: the index is damaged, and was deleted.
        """
        found = {entry.offset for entry in self._open if any(_has(entry, key) for key in keys)}
        with self._checked():
            for run in self._runs:
                for key in keys:
                    found.update(self._find_in_run(run.first, key))
        return sorted(found)

    def _find_in_run(self, run: int, key: int) -> Iterator[int]:
        query = "SELECT checksum, data FROM pages WHERE run = ? AND last_key >= ? ORDER BY last_key, rowid"
        for checksum, data in self._database.execute(query, (run, _ordered(key))):
            if crc32c(data) != checksum:
                raise BadIndex("the checksum of a page is wrong")
            count = len(data) // _KEY_SIZE
            keys, batches = array("Q", data[: 8 * count]), array("I", data[8 * count :])
            low, high = bisect_left(keys, key), bisect_right(keys, key)
            yield from (run + number for number in batches[low:high])
            if high < count:
                return

    def candidates(self, wanted: RowFilter, below: int) -> tuple[list[int], int]:
        """Return some offsets below this one of batches that may have such rows, the last first, and where to go on.

        That is 0 when there are no more. Of the filter only times, kinds, queue and exchange are used. BadIndex as in
        `find`.
        """
        wanted_kinds = _ALL_BITS if wanted.kinds is None else kinds_mask(wanted.kinds)
        names = _prefixed([wanted.queue], [wanted.exchange])

        def overlaps(first_time: int, last_time: int, kinds: int) -> bool:
            is_before = wanted.time_from is not None and last_time < wanted.time_from
            is_after = wanted.time_to is not None and first_time >= wanted.time_to
            return not is_before and not is_after and kinds & wanted_kinds != 0

        if self._open and self._open[0].offset < below:
            entries = [entry for entry in reversed(self._open) if entry.offset < below and names <= entry.names]
            found = [each.offset for each in entries if overlaps(each.first_time, each.last_time, each.kinds)]
            return found, self._open[0].offset
        run = next((run for run in reversed(self._runs) if run.first < below), None)
        if run is None:
            return [], 0
        if not overlaps(run.first_time, run.last_time, run.kinds):
            return [], run.first
        with self._checked():
            rows = self._database.execute(
                "SELECT offset, first_time, last_time, kinds FROM batches WHERE offset >= ? AND offset < ? "
                "ORDER BY offset DESC",
                (run.first, min(run.end, below)),
            )
            found = [offset for offset, *about in rows if overlaps(*about)]
            for name in names:
                key = run.first, name.encode("utf-8", "surrogatepass")
                row = self._database.execute("SELECT batches FROM names WHERE run = ? AND name = ?", key).fetchone()
                numbers = set(array("I", row[0])) if row else ()
                found = [offset for offset in found if offset - run.first in numbers]
        return found, run.first

    def figures(self) -> dict[str, int]:
        """Return sizes, for people and benchmarks."""
        keys = sum(run.keys for run in self._runs) + self._open_keys
        return {"runs": len(self._runs), "keys": keys, "open_batches": len(self._open)}


def _make_private(path: Path) -> str:
    """Create the file if it is missing, for the broker's user only; SQLite creates its journal with the same mode."""
    for each in (path, path.with_name(path.name + "-journal")):
        if each.is_symlink():
            each.unlink()  # it would be followed
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE))
    return str(path)


def _batch_row(entry: IndexEntry, with_keys: bool) -> tuple[int | bytes | None, ...]:
    keys = entry.keys.tobytes() if with_keys else None
    return entry.offset, entry.first_time, entry.last_time, _signed(entry.kinds), entry.checksum, entry.size, keys


def _name_rows(entries: Sequence[IndexEntry]) -> Iterator[tuple[int, bytes, bytes]]:
    """For each name, the batches that contain it."""
    first = entries[0].offset
    batches: dict[str, array[int]] = {}
    for entry in entries:
        for name in entry.names:
            batches.setdefault(name, array("I")).append(entry.offset - first)
    return ((first, name.encode("utf-8", "surrogatepass"), batches[name].tobytes()) for name in sorted(batches))


def _page_rows(entries: Sequence[IndexEntry]) -> Iterator[tuple[int, int, int, bytes]]:
    """The keys of all batches, sorted, in pages."""
    first = entries[0].offset
    hashes, numbers = bytearray(), bytearray()
    for entry in entries:
        hashes += entry.keys.tobytes()
        numbers += (entry.offset - first).to_bytes(4, "little") * len(entry.keys)
    sort_keys(hashes, numbers)
    for begin in range(0, len(numbers) // 4, _PAGE_KEYS):
        keys = hashes[8 * begin : 8 * (begin + _PAGE_KEYS)]
        data = bytes(keys + numbers[4 * begin : 4 * (begin + _PAGE_KEYS)])
        yield first, _ordered(int.from_bytes(keys[-8:], "little")), crc32c(data), data


def _has(entry: IndexEntry, key: int) -> bool:
    at = bisect_left(entry.keys, key)
    return at < len(entry.keys) and entry.keys[at] == key


def _ordered(key: int) -> int:
    """A key of 64 bits as a signed number, in the same order: SQLite has no unsigned ones."""
    return key - (1 << 63)


def _signed(bits: int) -> int:
    """The same 64 bits as a signed number."""
    return bits - (bits >> 63 << 64)
