"""A chunk of events as arrays: names as numbers, with their texts beside them. What counting works on.

The event log holds names by a dictionary per batch; they stay numbers until the events are counted, and then some
hundred texts are made instead of some hundred thousand. Texts of Spark's rows are numbered here.

Nothing is owned here: a chunk is made, asked and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.facts import OWN_STREAMS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Truths = NDArray[np.bool_]

CHUNK_ROWS = 32_768  # so many are counted at once: small batches are joined, as each costs some milliseconds
NO_NAME = -1

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


class Names(NamedTuple):
    """Names as numbers (NO_NAME where there is none), and their texts."""

    codes: NDArray[np.int32]
    texts: pa.Array

    @classmethod
    def of(cls, column: pa.Array) -> Names:
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        indices = coded.indices.fill_null(NO_NAME) if coded.indices.null_count else coded.indices
        return cls(np.asarray(indices), coded.dictionary)

    def at(self, rows: NDArray[Any]) -> Names:
        """Those of some rows: their places, or which are wanted."""
        return Names(self.codes[rows], self.texts)

    def named(self, codes: pa.Array | pa.ChunkedArray) -> pa.Array:
        """The texts of some codes, '' where there is no name."""
        some = np.asarray(codes)
        return self.texts.take(pa.array(some, mask=some == NO_NAME)).fill_null("")

    def is_one_of(self, texts: Sequence[str]) -> Truths:
        known = np.append(np.asarray(pc.is_in(self.texts, pa.array(texts, pa.string()))), False)  # at -1: no name
        found: Truths = known[self.codes]
        return found


class Chunk:
    """Events as arrays. Times are us since 1970."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.rows: int = batch.num_rows
        self.time = self.numbers("time")
        self.kind = self.numbers("kind")
        self.uid = self.numbers("uid")

    def where(self, is_wanted: Truths) -> Chunk:
        return self if is_wanted.all() else Chunk(self._batch.filter(pa.array(is_wanted)))

    def numbers(self, name: str) -> Numbers:
        """The values of a column, 0 where there is none."""
        column = self._batch.column(name)
        whole = column.fill_null(0) if column.null_count else column
        found: Numbers = np.asarray(whole.cast(pa.int64()))
        return found

    def has(self, name: str) -> Truths:
        """Which rows have a value in this column."""
        column = self._batch.column(name)
        found: Truths = np.asarray(column.is_valid()) if column.null_count else np.ones(self.rows, np.bool_)
        return found

    def has_any(self, name: str) -> bool:
        """Return True if some row has a value in this column."""
        return bool(self._batch.column(name).null_count < self.rows)

    def texts(self, name: str) -> pa.Array:
        return self._batch.column(name)

    def names(self, name: str) -> Names:
        return Names.of(self._batch.column(name))


def chunks_of(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[Chunk]:
    """These columns of the events, without what concerns the streams that the analysis reads and writes."""
    gathered: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        gathered.append(_typed(batch, columns))
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield _without_own(Chunk(_joined(gathered)))
            gathered, rows = [], 0
    if rows:
        yield _without_own(Chunk(_joined(gathered)))


def _typed(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Columns of exactly the types of the schema; what an earlier broker did not tell is null."""
    arrays = [_column(batch, name, _COLUMNS[name]) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    at = batch.schema.get_field_index(name)
    column: Any = pa.nulls(batch.num_rows, pa.string() if kind == _NAME else kind) if at < 0 else batch.column(at)
    if column.type == kind:
        return column
    if kind != _NAME:
        return column.cast(kind)
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    # Wider numbers: several batches may have more names than one can have.
    return pa.DictionaryArray.from_arrays(coded.indices.cast(pa.int32()), coded.dictionary.cast(pa.string()))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [whole] = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    return whole


def _without_own(events: Chunk) -> Chunk:
    exchange = events.names("exchange")
    is_default = (exchange.codes == NO_NAME) | exchange.is_one_of([""])
    is_own = is_default & events.names("routing_key").is_one_of(OWN_STREAMS)
    return events.where(~(is_own | events.names("queue").is_one_of(OWN_STREAMS)))
