"""Encodes rows as one batch, an Arrow IPC stream (docs/formats/events.md), and decodes batches.

Any thread may call it, on rows that do not change meanwhile; the pass over the rows runs without the interpreter lock.
"""

import struct
from array import array
from itertools import accumulate, pairwise

from warrenmq.events.arrow import BATCHES, DICTIONARY, END_OF_STREAM, Body, padded, schema_message
from warrenmq.events.batch import EventBatch
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.errors import BadEvents
from warrenmq.events.rows import Rows
from warrenmq.events.schema import COLUMNS_OF_VERSION, VERSION

SCHEMA = schema_message()
_SCHEMAS = {version: schema_message(version) for version in sorted(COLUMNS_OF_VERSION, reverse=True)}


def encode(rows: Rows, writer: ColumnWriter | None = None) -> bytes:
    """Encode all rows as one batch. For many batches pass the same writer: it reuses its memory."""
    writer = writer or ColumnWriter()
    head = SCHEMA + _encode_names(rows.names[1:])
    writer.write(rows, len(head) + BATCHES[VERSION].size, len(END_OF_STREAM))
    head += BATCHES[VERSION].fill(rows.count, writer.nulls, writer.buffers, writer.size)
    return writer.finish(head, END_OF_STREAM)


def decode(data: bytes, is_trusted: bool = False) -> EventBatch:
    """Return a batch that reads its columns in place. BadEvents: it is damaged, or of an unknown version.

    `is_trusted`: the caller has just encoded it, so the values in its columns need no check.
    """
    version = next((known for known, schema in _SCHEMAS.items() if data.startswith(schema)), None)
    if version is None:
        raise BadEvents(f"not a batch of events with a schema of version {VERSION} or earlier")
    try:
        names = DICTIONARY.read(data, len(_SCHEMAS[version]))
        body = BATCHES[version].read(data, names.end)
        return EventBatch(data, body, _decode_names(data, names), COLUMNS_OF_VERSION[version], is_trusted)
    except (struct.error, ValueError, OverflowError) as problem:
        raise BadEvents(f"a batch of events is damaged: {problem}") from problem


def _encode_names(names: list[bytes]) -> bytes:
    """Encode the dictionary: all names, one after the other."""
    ends = array("i", accumulate([len(name) for name in names], initial=0)).tobytes()
    texts = b"".join(names)
    texts_at = padded(len(ends))
    size = padded(texts_at + len(texts))
    message = DICTIONARY.fill(len(names), [0], [0, 0, 0, len(ends), texts_at, len(texts)], size)
    return message + ends.ljust(texts_at, b"\0") + texts.ljust(size - texts_at, b"\0")


def _decode_names(data: bytes, body: Body) -> list[str]:
    if body.buffers[1].size < 4 * (body.count + 1):
        raise BadEvents("the names of a batch are incomplete")
    _, ends_buffer, texts = body.buffers
    ends_at, texts_at = body.start + ends_buffer.at, body.start + texts.at
    ends = struct.unpack_from(f"<{body.count + 1}i", data, ends_at)
    if any(end < start for start, end in pairwise(ends)) or ends[0] != 0 or ends[-1] > texts.size:
        raise BadEvents("the names of a batch overlap")
    return [data[texts_at + start : texts_at + end].decode() for start, end in pairwise(ends)]
