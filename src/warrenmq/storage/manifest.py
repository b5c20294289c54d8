"""The manifest lists the files that a data folder must hold, so that a start and `warren check` notice missing ones.

A record has the size of a file of messages or ids, its last position and its number of messages. Records are
definitions: they pass through the commit log into the catalog (table `files`), and are replayed after a crash. They are
true at any moment because of their order with the files:

- A segment is recorded before the next one of its queue is written, and again at a checkpoint if it has grown or has
  more deletion marks. Until the checkpoint has synced the file, the log still holds its messages.
- A record is removed in an epoch that is durable before its file is removed.
- Deletion marks, files of ids and the event log cannot be compared with the commit log. Their records are binding once
  the log is released up to `epoch`: then the files were synced.

Owned by the loop thread. FileRecord and Loss are values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from warrenmq.storage.definition_records import Definition, Operation, encode_operation

FILE = "file"
QUEUES = "queues"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that must exist, in `folder` of the data folder.

    `name` is the first position of a segment in 20 digits, or the owner of ids in 16 hexadecimal digits; `generation`
    that of a segment, or the epoch in the name of a file of ids. It holds `count` messages or ids, `transient` of them
    transient; `alive` were not deleted when it was recorded. `marks` is the size of the file of deletion marks.

    All this is synced once the log is released up to `epoch`. Before that, only the messages up to `synced_last`
    (`synced_count` persistent ones) are; the log has the others.
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
        """The first position of a segment."""
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
    record: FileRecord | None  # the newest one

    @property
    def alive(self) -> int: ...


def describe(number: int, segment: AnySegment, epoch: int, synced_last: int, synced_count: int) -> FileRecord:
    """Return the record of a segment as it is now."""
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
    """Return the folder of a queue's or stream's segments, in the data folder."""
    return f"{QUEUES}/{number}"


def segment_key(first: int) -> str:
    """Return the name of a segment in the manifest: that of its file without the generation."""
    return f"{first:020}"


def ids_key(owner: int) -> str:
    return f"{owner:016x}"


class FileLog(Protocol):
    """The part of the log that the manifest uses."""

    @property
    def epoch(self) -> int: ...

    def put_file_record(self, is_define: bool, encoded: bytes) -> int:
        """Put the record into the open epoch; return the epoch."""


class FileWriter(Protocol):
    """The part of the catalog writer that the manifest uses."""

    def add(self, epoch: int, operation: Operation) -> None:
        """Apply the operation to the database when the epoch is durable."""


class Manifest:
    """Records files. Before `begin` there is no turn, so records are held back."""

    def __init__(self, log: FileLog, writer: FileWriter, released_epoch: int) -> None:
        self.released_epoch = released_epoch  # of the log
        self.checkpoint_epoch = 0  # of the checkpoint that is about to sync everything; 0: none
        self._log = log
        self._writer = writer
        self._pending: list[Operation] | None = []
        self.unrecorded: dict[AnySegment, int] = {}  # changed segments, with the number of their queue

    @property
    def epoch(self) -> int:
        """Everything recorded now will be synced when the log is released up to this epoch."""
        return self.checkpoint_epoch or self._log.epoch

    def begin(self) -> None:
        """Log what the start recorded; the broker has a turn now."""
        pending, self._pending = self._pending or [], None
        for operation in pending:
            self._put(operation)

    def begin_checkpoint(self, epoch: int) -> None:
        """Records made before the sync of this checkpoint become binding when it releases the log.

        Unless the log is already released up to there: then its release would prove nothing.
        """
        self.checkpoint_epoch = epoch if epoch > self.released_epoch else 0

    def record_segment(self, number: int, segment: AnySegment, is_synced: bool = False) -> None:
        """Record a segment of a queue or stream; `is_synced`: it is synced as it is now."""
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
        """Record a synced segment that replaced others, under the name of the first of them.

        Until that is durable, a start finds the others missing and knows by the span of the new one that they were
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
        """Forget a segment that is about to be removed."""
        self.unrecorded.pop(segment, None)
        if segment.record is not None:
            self.forget(folder_of(number), segment_key(segment.first))

    def record(self, record: FileRecord) -> None:
        """Record a file, replacing its earlier record."""
        definition = {name: getattr(record, name) for name in FileRecord.__slots__}
        self._put(("define", FILE, (record.folder, record.name), definition))

    def forget(self, folder: str, name: str) -> None:
        """Forget a file that is about to be removed."""
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
    """All records of a data folder, by folder and name.

    The log is not needed up to `released_epoch`; -1: the folder was written by a version without a manifest.
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
        """Return True if every synced file is recorded."""
        return self.released_epoch >= 0

    def segments(self, folder: str) -> dict[int, FileRecord]:
        """Return the segments of a queue or stream, by first position."""
        return {record.first: record for record in self.folders.get(folder, {}).values()}

    def is_binding(self, record: FileRecord) -> bool:
        """Return True if the file was synced as recorded, including its marks."""
        return self.released_epoch >= record.epoch

    def synced(self, record: FileRecord) -> tuple[int, int]:
        """Return the last position that a segment holds and the log does not, and how many persistent messages up to
        there."""
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
    """Return the loss if `count` persistent messages at positions `first` to `last` of a file are unreadable.

    `is_safe` returns True if the message at a position was deleted or is in the log as well.
    """
    span = last - first + 1
    safe = sum(map(is_safe, range(first, last + 1)))
    lost = min(count, span - safe)
    is_exact = safe == 0 or count == span
    if record is not None and record.alive < lost:  # its marks are missing, too
        lost, is_exact = record.alive, is_exact and record.transient == 0
    return Loss(max(0, lost), is_exact or lost <= 0)


def is_as_recorded(record: FileRecord | None, now: AnySegment) -> bool:
    """Return True if the record is up to date; the number of live messages changes all the time and is not compared."""
    if record is None:
        return False
    recorded = record.generation, record.last, record.size, record.count, record.marks
    return recorded == (now.generation, now.last, now.size, now.count, now.marks_size)
