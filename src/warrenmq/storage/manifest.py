"""The manifest: which files a data folder must hold, so that a start and `warren check` can tell what is missing.

A record names a file of messages or ids with its size, its last position and how many messages are in it. Records are
definitions: they go through the commit log into the catalog (table `files`), and are replayed after a crash. Their
order with the files themselves is what makes them true at any moment:

- A segment is recorded before the next one of its queue is written, and again at a checkpoint if it has grown or has
  more deletion marks. Until the checkpoint has synced the file, the log still holds its messages.
- A record is removed in an epoch that is durable before its file is removed.
- Deletion marks, files of ids and the event log are not in the commit log in a form that could be compared. Their
  records count from the moment that the log is released up to `epoch`: then they were synced.

Owned by the loop thread. FileRecord and Loss are values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from warrenmq.storage.definition_records import Definition, Operation, encode_operation

FILE = "file"
QUEUES = "queues"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that must exist. `folder` is its place in the data folder.

    `name` is the first position of a segment in 20 digits, or the owner of ids in 16 hexadecimal digits; `generation`
    that of a segment, or the epoch in the name of a file of ids. `count` messages (or ids) are in it: `transient` of
    them are transient, and `alive` of them were not deleted when it was recorded. `marks` is the size of the file of
    deletion marks.

    All this was synced when the log is released up to `epoch`. Before, that is sure of the messages up to
    `synced_last`, which are `synced_count` persistent ones; the log has the others.
    """

    folder: str
    name: str
    generation: int
    last: int
    size: int
    count: int
    transient: int
    alive: int
    marks: int
    epoch: int
    synced_last: int
    synced_count: int

    @property
    def first(self) -> int:
        """The first position, of a segment."""
        return int(self.name)


class AnySegment(Protocol):
    """A segment of a queue or a stream."""

    first: int
    last: int
    generation: int
    size: int
    count: int
    transient: int
    marks_size: int
    record: FileRecord | None  # the last one that was made of it

    @property
    def alive(self) -> int: ...


def describe(number: int, segment: AnySegment, epoch: int, synced_last: int, synced_count: int) -> FileRecord:
    """What the manifest should say of a segment as it is now."""
    return FileRecord(
        folder_of(number),
        segment_key(segment.first),
        segment.generation,
        segment.last,
        segment.size,
        segment.count,
        segment.transient,
        segment.alive,
        segment.marks_size,
        epoch,
        synced_last,
        synced_count,
    )


def folder_of(number: int) -> str:
    """Where the segments of a queue or stream are, in the data folder."""
    return os.path.join(QUEUES, str(number))


def segment_key(first: int) -> str:
    """The name of a segment in the manifest: that of its file without the generation."""
    return f"{first:020}"


def ids_key(owner: int) -> str:
    return f"{owner:016x}"


class FileLog(Protocol):
    """The open epoch, as far as it is asked."""

    @property
    def epoch(self) -> int: ...

    def put_file_record(self, is_define: bool, encoded: bytes) -> int:
        """Put the record into the open epoch; return its number."""


class FileWriter(Protocol):
    """The catalog writer, as far as it is asked."""

    def add(self, epoch: int, operation: Operation) -> None:
        """Apply the operation to the database when the epoch is durable."""


class Manifest:
    """What the loop records. Before `begin` there is no turn to put it into: it is pending."""

    def __init__(self, log: FileLog, writer: FileWriter, released_epoch: int) -> None:
        self.released_epoch = released_epoch  # of the log
        self.checkpoint_epoch = 0  # of the one that is about to sync everything; 0: none is
        self._log = log
        self._writer = writer
        self._pending: list[Operation] | None = []
        self.unrecorded: dict[AnySegment, int] = {}  # segments that have changed since, with the number of their queue

    @property
    def epoch(self) -> int:
        """When the log is released up to this epoch, all that is recorded now will have been synced."""
        return self.checkpoint_epoch or self._log.epoch

    def begin(self) -> None:
        """The broker has a turn: log what the start had to say."""
        pending, self._pending = self._pending or [], None
        for operation in pending:
            self._put(operation)

    def begin_checkpoint(self, epoch: int) -> None:
        """What is recorded before the sync of this checkpoint will be synced when it has released the log.

        Unless the log is released up to there already: then that would not tell.
        """
        self.checkpoint_epoch = epoch if epoch > self.released_epoch else 0

    def record_segment(self, number: int, segment: AnySegment, is_synced: bool = False) -> None:
        """Record a segment of a queue or stream; `is_synced`: as it is now."""
        self.unrecorded.pop(segment, None)
        before = segment.record
        if is_synced:
            synced = segment.last, segment.count - segment.transient
        elif before is None:
            synced = segment.first - 1, 0
        elif before.epoch <= self.released_epoch:
            synced = before.last, before.count - before.transient
        else:
            synced = before.synced_last, before.synced_count
        segment.record = describe(number, segment, self.epoch, *synced)
        self.record(segment.record)

    def record_merged(self, number: int, replaced: Sequence[AnySegment], merged: AnySegment) -> None:
        """Record a synced segment that has taken the place of others, under the name of the first of them.

        Until that is durable a start finds the others missing, and knows by the span of the new one that they were
        replaced.
        """
        for segment in replaced:
            if segment.first == merged.first:
                self.unrecorded.pop(segment, None)
            else:
                self.forget_segment(number, segment)
        self.record_segment(number, merged, is_synced=True)

    def record_some(self, count: int) -> None:
        """Record up to `count` segments that have changed."""
        for segment, number in list(islice(self.unrecorded.items(), count)):
            self.record_segment(number, segment)

    def forget_segment(self, number: int, segment: AnySegment) -> None:
        """The segment is about to be removed."""
        self.unrecorded.pop(segment, None)
        if segment.record is not None:
            self.forget(folder_of(number), segment_key(segment.first))

    def record(self, record: FileRecord) -> None:
        """Record a file as it is now, in place of what was recorded of it before."""
        definition = {name: getattr(record, name) for name in FileRecord.__slots__}
        self._put(("define", FILE, (record.folder, record.name), definition))

    def forget(self, folder: str, name: str) -> None:
        """The file is about to be removed."""
        self._put(("undefine", FILE, (folder, name)))

    def _put(self, operation: Operation) -> None:
        if self._pending is not None:
            self._pending.append(operation)
            return
        definition = operation[3] if operation[0] == "define" else None
        encoded = encode_operation(FILE, operation[2], definition)
        self._writer.add(self._log.put_file_record(definition is not None, encoded), operation)


@dataclass(frozen=True, slots=True)
class Recorded:
    """All records, as a start or a check finds them, by folder and name.

    `released_epoch`: up to here the log is not needed any more; -1: the folder is of a version without a manifest.
    """

    released_epoch: int = -1
    folders: dict[str, dict[str, FileRecord]] = field(default_factory=dict)

    @classmethod
    def of(cls, definitions: Iterable[Definition], released_epoch: int) -> Recorded:
        folders: dict[str, dict[str, FileRecord]] = {}
        for definition in definitions:
            record = FileRecord(**definition)
            folders.setdefault(record.folder, {})[record.name] = record
        return cls(released_epoch, folders)

    @property
    def is_complete(self) -> bool:
        """Whether every file that was synced is recorded."""
        return self.released_epoch >= 0

    def segments(self, folder: str) -> dict[int, FileRecord]:
        """The segments of a queue or stream, by first position."""
        return {record.first: record for record in self.folders.get(folder, {}).values()}

    def is_binding(self, record: FileRecord) -> bool:
        """Whether the file had been synced as it is recorded, with its marks."""
        return self.released_epoch >= record.epoch

    def synced(self, record: FileRecord) -> tuple[int, int]:
        """Up to which position a segment has messages that the log does not have, and how many persistent ones."""
        if self.released_epoch == 0:  # the log has everything
            return record.first - 1, 0
        if self.is_binding(record):
            return record.last, record.count - record.transient
        return record.synced_last, record.synced_count


@dataclass(frozen=True, slots=True)
class Loss:
    """How many messages are lost: exactly, or at most."""

    count: int
    is_exact: bool

    def __str__(self) -> str:
        up_to = "" if self.is_exact else "up to "
        return f"{up_to}{self.count:,} message{'' if self.count == 1 else 's'}"


def count_lost(first: int, last: int, count: int, is_safe: Callable[[int], bool], record: FileRecord | None) -> Loss:
    """What is lost if `count` persistent messages of a file, at positions `first` to `last`, cannot be read.

    `is_safe`: whether the message at a position was deleted, or is in the log as well.
    """
    span = last - first + 1
    safe = sum(map(is_safe, range(first, last + 1)))
    lost = min(count, span - safe)
    is_exact = safe == 0 or count == span
    if record is not None and record.alive < lost:  # its marks are missing, too
        lost, is_exact = record.alive, is_exact and record.transient == 0
    return Loss(max(0, lost), is_exact or lost <= 0)


def is_as_recorded(record: FileRecord | None, now: AnySegment) -> bool:
    """Whether a segment needs no other record; how many of its messages are alive changes all the time."""
    if record is None:
        return False
    recorded = record.generation, record.last, record.size, record.count, record.marks
    return recorded == (now.generation, now.last, now.size, now.count, now.marks_size)
