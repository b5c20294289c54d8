"""What the index of the event log knows of a batch, and what it can be asked for.

Pure: entries are made from the bytes of a batch, or from the rows that were just encoded.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace

from crc32c import crc32c

from warrenmq.events import schema
from warrenmq.events.batch import EventBatch, RowFilter
from warrenmq.events.codec import decode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.errors import BadEvents
from warrenmq.events.ids import uid_key
from warrenmq.events.rows import Rows
from warrenmq.tracing.keys import keys_of, keys_of_uids

log = logging.getLogger("warrenmq.tracing")

QUEUE = "q"  # prefix of a queue's name
EXCHANGE = "e"
# Each message that names its source has an event of this kind, and few messages do.
MADE_FROM_ANOTHER = RowFilter(kinds=frozenset({schema.REPUBLISHED}))

_CHECKSUM_BYTES = 16 * 1024  # of a batch: its names and times come first
_HIGHEST_BIT = 63


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

    def at(self, offset: int) -> IndexEntry:
        return replace(self, offset=offset)


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """Which batches to look for: start <= time < end, a kind, all of these names. None matches any."""

    start: int | None = None
    end: int | None = None
    kind: int | None = None
    names: frozenset[str] = frozenset()

    def overlaps(self, first_time: int, last_time: int, kinds: int) -> bool:
        """Return False if no event in this time range, of these kinds, can match."""
        if self.start is not None and last_time < self.start:
            return False
        if self.end is not None and first_time >= self.end:
            return False
        return self.kind is None or kinds & kind_bit(self.kind) != 0


def kind_bit(kind: int) -> int:
    """Kinds of far later versions share the last bit."""
    return 1 << min(kind, _HIGHEST_BIT)


def kinds_mask(kinds: Iterable[int]) -> int:
    mask = 0
    for kind in kinds:
        mask |= kind_bit(kind)
    return mask


def checksum_of(data: bytes) -> int:
    """Identify a batch by its first bytes."""
    return crc32c(data[:_CHECKSUM_BYTES])


def entry_of(data: bytes, is_trusted: bool = False) -> IndexEntry:
    """Make the entry of a batch, at offset 0. `is_trusted`: see `decode`. Raises BadEvents."""
    batch = decode(data, is_trusted)
    kinds = batch.used_kinds()
    keys = keys_of(batch)
    if schema.REPUBLISHED in kinds:
        keys = array("Q", sorted({*keys, *_source_keys(batch)}))
    names = _prefixed_names(batch)
    return IndexEntry(0, *batch.time_range(), kinds_mask(kinds), checksum_of(data), len(data), names, keys)


def entry_of_written(rows: Rows, writer: ColumnWriter, data: bytes) -> IndexEntry:
    """Make the same entry from the rows that `writer` just encoded, without decoding where possible."""
    if rows.has_message_ids:
        return entry_of(data, is_trusted=True)
    keys = keys_of_uids(data, writer.uids_offset(), rows.count)
    times, kinds = (rows.first_time, rows.last_time), kinds_mask(writer.used_kinds())
    return IndexEntry(0, *times, kinds, checksum_of(data), len(data), _prefixed_names(writer), keys)


def entry_of_stored(offset: int, data: bytes) -> IndexEntry:
    """Make the entry of a batch read from the log; an unreadable batch gets one without keys and names."""
    try:
        return entry_of(data).at(offset)
    except BadEvents as error:
        log.warning("batch %d of the event log is not indexed, as it cannot be read: %s", offset, error)
        return IndexEntry(offset, 0, 0, 0, checksum_of(data), len(data), frozenset(), array("Q"))


def _prefixed_names(source: EventBatch | ColumnWriter) -> frozenset[str]:
    queues, exchanges = source.used_names("queue"), source.used_names("exchange")
    return frozenset([*(QUEUE + name for name in queues), *(EXCHANGE + name for name in exchanges)])


def _source_keys(batch: EventBatch) -> list[int]:
    """Return the keys of the messages that others in this batch were made from."""
    made = batch.events(batch.select(MADE_FROM_ANOTHER))
    return [uid_key(event.source_uid) for event in made if event.source_uid is not None]
