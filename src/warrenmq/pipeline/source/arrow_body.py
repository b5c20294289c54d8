"""Message bodies that are Arrow IPC streams, such as those of the event log.

Columns are selected first, then dictionaries decoded and types cast to the schema, as Spark requires. Small batches are
concatenated: a batch costs Spark as much as a few thousand rows. For one thread.
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

BATCH_ROWS = 8192


def batches_in(body: bytes, offset: int, stream: str) -> list[pa.RecordBatch]:
    """Return the batches of one message; offset and stream are for the error text."""
    try:
        with pa.ipc.open_stream(body) as reader:
            return list(reader)
    except pa.ArrowInvalid as error:
        raise BadPayload(f"the message at offset {offset} of {stream!r} is not an Arrow IPC stream: {error}") from None


class ArrowBatches:
    """Decodes Arrow bodies into batches of this schema. `is_event_log`: adds the names of kinds and reasons."""

    def __init__(
        self, schema: pa.Schema, stream: str, conditions: Sequence[Condition] = (), is_event_log: bool = False
    ) -> None:
        self._schema = schema
        self._stream = stream
        self._conditions = conditions
        self._is_event_log = is_event_log

    def decode(self, records: Iterable[tuple[int, client.Delivery]]) -> Iterator[pa.RecordBatch]:
        """Yield batches of about BATCH_ROWS rows."""
        pending: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._batches(records):
            if pending and rows + batch.num_rows > BATCH_ROWS:
                yield self._concat(pending)
                pending = []
                rows = 0
            pending.append(batch)
            rows += batch.num_rows
        if pending:
            yield self._concat(pending)

    def _batches(self, records: Iterable[tuple[int, client.Delivery]]) -> Iterator[pa.RecordBatch]:
        for offset, delivery in records:
            for batch in batches_in(delivery.body, offset, self._stream):
                converted = self._convert(batch, offset)
                if converted.num_rows:
                    yield converted

    def _convert(self, batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
        """Filter the rows, and return the columns of the schema."""
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
                f"which cannot be cast to {field.type}: {error}"
            ) from None

    def _column(self, batch: pa.RecordBatch, name: str, offset: int) -> pa.Array:
        index = batch.schema.get_field_index(name)
        if index >= 0:
            return batch.column(index)
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
        return pa.nulls(batch.num_rows)  # missing in events of an older version

    def _concat(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


_CODES = range(events.MAX_CODE + 1)
_KIND_NAMES = pa.array([events.kind_name(code) for code in _CODES], pa.string())
_REASON_NAMES = pa.array([events.reason_name(code) for code in _CODES], pa.string())
