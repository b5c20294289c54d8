"""Reads the commit log: returns every whole epoch in order, and tells a tail torn by a crash from damage.

docs/formats/log.md draws the files; log_writer.py has the order of writes that this relies on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from warrenmq.journal.files import Files
from warrenmq.journal.log_file import (
    EPOCH_HEAD_SIZE,
    FILE_HEAD_SIZE,
    Epoch,
    EpochSpan,
    LogFile,
    epoch_at,
    find_epochs,
    log_name,
    parse_file_head,
    parse_log_name,
)


class TornTail(NamedTuple):
    """The rest of an epoch that was being written at a crash. It held nothing durable."""

    file: str
    offset: int
    size: int
    reason: str


class Damage(NamedTuple):
    """Data that was durable and cannot be read. `lost` is the first and last missing sequence, if any."""

    file: str
    offset: int
    reason: str
    lost: tuple[int, int] | None


class LogScan:
    """One pass over the log: iterate it to the end, then read its attributes.

    Epochs come in the order of their sequences, each once, and only if they are whole. One file is in memory at a time.
    """

    def __init__(self, files: Files, folder: str, progress: Callable[[int, int], None] | None = None) -> None:
        self.folder = folder
        self.files_found: list[LogFile] = []  # `older` of the next writer
        self.last_sequence = 0  # counts epochs lost at the end: the next one gets the next number
        self.torn_tail: TornTail | None = None
        self.damage: list[Damage] = []
        self._files = files
        self._progress = progress
        self._salts: set[int] = set()  # of all intact file heads
        self._expected = 0  # the next sequence

    def __iter__(self) -> Iterator[Epoch]:
        firsts = [first for name in self._files.list(self.folder) if (first := parse_log_name(name)) is not None]
        total = self._read_heads(firsts)
        done = 0
        for number, first in enumerate(firsts):
            name = log_name(first)
            data = self._read(name)
            done += len(data)
            if number and first < self._expected:
                reason = f"it begins with epoch {first} instead of {self._expected} and was skipped"
                self.damage.append(Damage(name, 0, reason, None))
            else:
                self._enter_file(name, first, number == 0)
                next_first = firsts[number + 1] if number + 1 < len(firsts) else 0
                size = yield from self._read_epochs(name, first, data, next_first)
                path = os.path.join(self.folder, name)
                self.files_found.append(LogFile(first, self._expected - 1, path, size))
            if self._progress is not None:
                self._progress(done, total)
            data = b""  # free it before the next file is read
        self.last_sequence = max(0, self._expected - 1)

    def _read_heads(self, firsts: list[int]) -> int:
        """Collect the salts of all files; return the total size."""
        total = 0
        for first in firsts:
            path = os.path.join(self.folder, log_name(first))
            handle = self._files.open_read(path)
            try:
                total += self._files.size(handle)
                head = parse_file_head(self._files.read(handle, FILE_HEAD_SIZE, 0), path)
            finally:
                self._files.close(handle)
            if head is not None:
                self._salts.add(head[1])
        return total

    def _read(self, name: str) -> bytes:
        handle = self._files.open_read(os.path.join(self.folder, name))
        try:
            return self._files.read(handle, self._files.size(handle), 0)
        finally:
            self._files.close(handle)

    def _enter_file(self, name: str, first: int, is_oldest: bool) -> None:
        """Begin the next file, and report epochs that are missing before it."""
        # A tail that was torn before this file was created is no damage: the writer of this file found the same end.
        torn, self.torn_tail = self.torn_tail, None
        if not is_oldest and first > self._expected:
            lost = (self._expected, first - 1)
            if torn is not None:
                self.damage.append(Damage(torn.file, torn.offset, torn.reason, lost))
            else:
                self.damage.append(Damage(name, 0, "epochs are missing before this file", lost))
        self._expected = first

    def _read_epochs(self, name: str, first: int, data: bytes, next_first: int) -> Generator[Epoch, None, int]:
        """Yield the epochs of one file and return its end. `next_first` is the first epoch of the next file."""
        salts, problem = self._check_head(name, first, data)
        if salts is None:
            return 0
        size = 0
        offset = FILE_HEAD_SIZE if problem is None else 0
        view = memoryview(data)
        while True:
            if problem is None:
                found = epoch_at(data, offset)
                if not isinstance(found, str) and found.sequence == self._expected and found.salt in salts:
                    yield Epoch(found.sequence, found.time_ms, view[found.start : found.end], name)
                    self._expected += 1
                    offset = size = found.end
                    continue
                problem = self._end_reason(data, offset, found)
            later = find_epochs(data, offset, salts, self._expected)
            if later and problem is None:
                problem = "an epoch is missing"
            was_synced = next_first > self._expected or any(each.synced >= self._expected for each in later)
            if not later or not was_synced:
                if problem is not None:
                    self.torn_tail = TornTail(name, offset, len(data.rstrip(b"\0")) - offset, problem)
                return size
            lost = (self._expected, later[0].sequence - 1) if later[0].sequence > self._expected else None
            self.damage.append(Damage(name, offset, str(problem), lost))
            self._expected = later[0].sequence
            offset = later[0].start - EPOCH_HEAD_SIZE
            problem = None

    def _check_head(self, name: str, first: int, data: bytes) -> tuple[set[int] | None, str | None]:
        """Return the valid salts of a file (None: it has no epochs), and what is wrong with its head."""
        head = parse_file_head(data, os.path.join(self.folder, name))
        if head is not None:
            if head[0] == first:
                return {head[1]}, None
            if head[0] > first:
                self.damage.append(Damage(name, 0, f"its head says that it begins with epoch {head[0]}", None))
            return None, None  # reused, but not written yet: all epochs in it are older
        if data.count(0) == len(data):
            return None, None  # not written yet
        begin = epoch_at(data, FILE_HEAD_SIZE)
        if not isinstance(begin, str) and begin.sequence == first:
            self.damage.append(Damage(name, 0, "its file head is damaged", None))
            return {begin.salt}, None
        # A writer uses one salt for all its files.
        return self._salts, "its file head is damaged"

    def _end_reason(self, data: bytes, offset: int, found: EpochSpan | str) -> str | None:
        """Return why no epoch was read at `offset`; None for a clean end: zeros, end of file, or an older epoch."""
        if not any(data[offset : offset + EPOCH_HEAD_SIZE]):
            return None
        if isinstance(found, str):
            return found
        if found.sequence < self._expected:
            return None
        return f"epoch {found.sequence} was found instead of {self._expected}"


def read_log(files: Files, folder: str, progress: Callable[[int, int], None] | None = None) -> LogScan:
    """Return a scan of the log in this folder. `progress` is called with the bytes read and the total."""
    return LogScan(files, folder, progress)


def cut_torn_tail(files: Files, scan: LogScan) -> None:
    """Truncate a torn tail and sync the last file, after a scan and before a writer begins.

    The sync matters even without a torn tail: a broker killed between write and sync leaves epochs that are readable
    now, are then acted upon, and would be gone after a power loss.
    """
    if scan.files_found:
        handle = files.open(scan.files_found[-1].path)
        try:
            if scan.torn_tail is not None:
                files.truncate(handle, scan.torn_tail.offset)
            files.sync(handle)
        finally:
            files.close(handle)
        files.sync_dir(scan.folder)
