"""Bodies that are Arrow IPC streams, as the event log has them: batches pass as they came, but for what Spark refuses.

Dictionaries are decoded, types made exactly those of the schema, columns that nobody wants left out before any of that.
Small batches are joined: a batch costs Spark as much as some thousand rows. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq import client
from warrenmq.events import schema as events
from warrenmq.pipeline.errors import BadPayload
from warrenmq.pipeline.source.columns import ARROW_EXTRAS, KIND_NAME, REASON_NAME
from warrenmq.pipeline.source.filters import Condition

JOINED_ROWS = 8192


def batches_in(body: bytes, offset: int, stream: str) -> list[pa.RecordBatch]:
    """The batches of one message; its offset and the name of the stream are for the error."""
    try:
        with pa.ipc.open_stream(body) as reader:
            return list(reader)
    except pa.ArrowInvalid as error:
        raise BadPayload(f"the message at offset {offset} of {stream!r} is no Arrow IPC stream: {error}") from None


class ArrowBatches:
    """Makes batches of this schema of messages whose bodies are Arrow. `is_event_log`: kinds and reasons have names."""

    def __init__(
        self, schema: pa.Schema, stream: str, conditions: Sequence[Condition] = (), is_event_log: bool = False
    ) -> None:
        self._schema = schema
        self._stream = stream
        self._conditions = conditions
        self._is_event_log = is_event_log

    def of(self, records: Iterable[tuple[int, client.Delivery]]) -> Iterator[pa.RecordBatch]:
        """Batches of about JOINED_ROWS rows; a batch of half of that or more is passed alone."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._batches(records):
            if waiting and rows + batch.num_rows > JOINED_ROWS:
                yield self._join(waiting)
                waiting = []
                rows = 0
            waiting.append(batch)
            rows += batch.num_rows
        if waiting:
            yield self._join(waiting)

    def _batches(self, records: Iterable[tuple[int, client.Delivery]]) -> Iterator[pa.RecordBatch]:
        for offset, delivery in records:
            for batch in batches_in(delivery.body, offset, self._stream):
                made = self._convert(batch, offset)
                if made.num_rows:
                    yield made

    def _convert(self, batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
        """The columns that are wanted, of the rows that the filter takes."""
        for condition in self._conditions:
            if batch.num_rows:
                batch = batch.filter(condition.mask(_decoded(self._column(batch, condition.field, offset))))
        arrays = [self._typed(batch, field, offset) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _typed(self, batch: pa.RecordBatch, field: pa.Field, offset: int) -> pa.Array:
        column = _decoded(self._column(batch, field.name, offset))
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadPayload(
                f"the column {field.name!r} at offset {offset} of {self._stream!r} is {column.type}, "
                f"which cannot be made {field.type}: {error}"
            ) from None

    def _column(self, batch: pa.RecordBatch, name: str, offset: int) -> pa.Array:
        at = batch.schema.get_field_index(name)
        if at >= 0:
            return batch.column(at)
        if name in ARROW_EXTRAS:
            value = offset if name == "offset" else self._stream
            return pa.repeat(value, batch.num_rows)
        if self._is_event_log:
            return self._event_column(batch, name)
        raise BadPayload(
            f"the message at offset {offset} of {self._stream!r} has no column {name!r}: "
            f"it has {', '.join(batch.schema.names)}"
        )

    def _event_column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name == KIND_NAME:
            return pc.take(_KIND_NAMES, batch.column("kind"))
        if name == REASON_NAME:
            return pc.take(_REASON_NAMES, batch.column("reason"))
        return pa.nulls(batch.num_rows)  # events of an earlier version have not got it

    def _join(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


_CODES = range(events.MAX_CODE + 1)
_KIND_NAMES = pa.array([events.kind_name(code) for code in _CODES], pa.string())
_REASON_NAMES = pa.array([events.reason_name(code) for code in _CODES], pa.string())
