"""A batch of events as NumPy arrays, with names dictionary-encoded: the form in which events are counted.

The event log has a dictionary of names per batch. Names stay codes until events are grouped, so a few hundred strings
are made instead of a few hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.facts import INTERNAL_STREAMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

BATCH_ROWS = 32_768  # small batches are concatenated to this size: each batch has a fixed cost of some milliseconds
NULL_CODE = -1

_NAME = pa.dictionary(pa.int32(), pa.string())
_TYPES = {
    schema.TIME: pa.timestamp("us", "UTC"),
    schema.INT8: pa.int8(),
    schema.INT32: pa.int32(),
    schema.INT64: pa.int64(),
    schema.NAME: _NAME,
    schema.TEXT: pa.string(),
}
_COLUMNS = {column.name: _TYPES[column.type] for column in schema.COLUMNS}


class EncodedNames(NamedTuple):
    """A dictionary-encoded column: codes into `dictionary`, NULL_CODE for null."""

    codes: NDArray[np.int32]
    dictionary: pa.Array

    @classmethod
    def of(cls, column: pa.Array) -> EncodedNames:
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        indices = encoded.indices.fill_null(NULL_CODE) if encoded.indices.null_count else encoded.indices
        return cls(np.asarray(indices), encoded.dictionary)

    def take(self, rows: NDArray[Any]) -> EncodedNames:
        """Return these rows, given as indices or as a mask."""
        return EncodedNames(self.codes[rows], self.dictionary)

    def decode(self, codes: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Return the names of these codes, '' for null."""
        values = np.asarray(codes)
        return self.dictionary.take(pa.array(values, mask=values == NULL_CODE)).fill_null("")

    def is_in(self, names: Sequence[str]) -> Mask:
        is_match = np.append(np.asarray(pc.is_in(self.dictionary, pa.array(names, pa.string()))), False)  # [-1]: null
        found: Mask = is_match[self.codes]
        return found


class EventArrays:
    """Columns of a batch of events as arrays. Times are us since 1970."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.rows: int = batch.num_rows
        self.time = self.ints("time")
        self.kind = self.ints("kind")
        self.uid = self.ints("uid")

    def filter(self, mask: Mask) -> EventArrays:
        return self if mask.all() else EventArrays(self._batch.filter(pa.array(mask)))

    def ints(self, name: str) -> Ints:
        """Return the values of a column, with 0 for null."""
        column = self._batch.column(name)
        filled = column.fill_null(0) if column.null_count else column
        found: Ints = np.asarray(filled.cast(pa.int64()))
        return found

    def is_valid(self, name: str) -> Mask:
        """Return which rows have a value in this column."""
        column = self._batch.column(name)
        found: Mask = np.asarray(column.is_valid()) if column.null_count else np.ones(self.rows, np.bool_)
        return found

    def has_any(self, name: str) -> bool:
        """Return True if some row has a value in this column."""
        return bool(self._batch.column(name).null_count < self.rows)

    def column(self, name: str) -> pa.Array:
        return self._batch.column(name)

    def names(self, name: str) -> EncodedNames:
        return EncodedNames.of(self._batch.column(name))


def event_arrays_from(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[EventArrays]:
    """Yield these columns in batches of BATCH_ROWS, without events about the streams that the analysis itself uses."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(_conform(batch, columns))
        rows += batch.num_rows
        if rows >= BATCH_ROWS:
            yield _without_internal_streams(EventArrays(_concat(pending)))
            pending, rows = [], 0
    if rows:
        yield _without_internal_streams(EventArrays(_concat(pending)))


def _conform(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Cast columns to the types of the schema; columns that an older broker did not write are null."""
    arrays = [_column(batch, name, _COLUMNS[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    index = batch.schema.get_field_index(name)
    column: Any = pa.nulls(batch.num_rows, pa.string() if kind == _NAME else kind) if index < 0 else batch.column(index)
    if column.type == kind:
        return column
    if kind != _NAME:
        return column.cast(kind)
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    # Wider codes: several batches together may have more names than one of them can.
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(pa.int32()), encoded.dictionary.cast(pa.string()))


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    return whole


def _without_internal_streams(events: EventArrays) -> EventArrays:
    exchange = events.names("exchange")
    is_default = (exchange.codes == NULL_CODE) | exchange.is_in([""])
    is_publish = is_default & events.names("routing_key").is_in(INTERNAL_STREAMS)
    return events.filter(~(is_publish | events.names("queue").is_in(INTERNAL_STREAMS)))
