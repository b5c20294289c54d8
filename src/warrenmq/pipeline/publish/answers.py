"""Answers of jobs as plain rows, and as the JSON documents that the stream `warren.analysis` holds.

Pure: no Spark, no broker. docs/analysis.md draws a document. A document stays under a MiB: an answer that is longer is
several, numbered by `part` of `parts`. A reader keeps the rows of each job by their keys, and a later document wins;
the windows that a document names are answered whole by it, so what it does not repeat of them is gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from warrenmq.pipeline.times import Range, iso

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
LONGEST = 500_000  # bytes of rows, and of windows, in a message: with its head it stays under a MiB
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job found: rows of plain values, and the windows that they answer whole."""

    job: str
    title: str
    chart: str
    keys: tuple[str, ...]
    rows: list[Row]
    windows: tuple[str, ...] = ()
    window_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One call of `warren analyze`; a --follow that goes on from its checkpoint is the same run."""

    id: str
    mode: str  # "batch" or "follow"
    started: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Document:
    """One message of the stream. `id` is the same when the same answer is told again."""

    id: str
    job: str
    body: bytes


def plain_rows(table: pa.Table) -> list[Row]:
    """Rows of values that JSON has: times as texts, what is no number as null."""
    columns = [_plain_column(column) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def document_of(answer: Answer, run: Run, batch: int, covers: Range, written: datetime) -> dict[str, Any]:
    """The whole answer as one document."""
    return {
        "version": VERSION,
        "job": answer.job,
        "title": answer.title,
        "chart": answer.chart,
        "mode": run.mode,
        "run": run.id,
        "batch": batch,
        "written": iso(written),
        "range": covers.as_iso(),
        "keys": list(answer.keys),
        "windows": list(answer.windows),
        "window_seconds": answer.window_seconds,
        "rows": answer.rows,
    }


def split(document: Mapping[str, Any], longest: int = LONGEST) -> list[Document]:
    """The document as messages of a bounded length."""
    head = {name: value for name, value in document.items() if name not in ("rows", "windows")}
    parts = list(zip_longest(_portions(document["rows"], longest), _portions(document["windows"], longest)))
    told = []
    for number, (rows, windows) in enumerate(parts):
        opening = json.dumps(head | {"part": number, "parts": len(parts)}, separators=(",", ":"))
        body = f'{opening[:-1]},"windows":[{",".join(windows or ())}],"rows":[{",".join(rows or ())}]}}'.encode()
        told.append(Document(f"{head['run']}/{head['batch']}/{head['job']}/{number}", head["job"], body))
    return told


def _portions(rows: Sequence[object], longest: int) -> Iterator[list[str]]:
    """As JSON. At least one portion, which may be empty: no rows is an answer, too."""
    portion: list[str] = []
    size = 0
    for row in rows:
        text = json.dumps(row, separators=(",", ":"), allow_nan=False)
        if portion and size + len(text) > longest:
            yield portion
            portion, size = [], 0
        portion.append(text)
        size += len(text) + 1
    yield portion


def _plain_column(column: pa.ChunkedArray) -> list[Any]:
    """The values of a column; those of most kinds at once, as answers may be long."""
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type
    if pa.types.is_timestamp(kind):
        times = column.cast(pa.timestamp("us", "UTC"))
        each = compute.unique(times)  # few windows have many rows
        found = compute.strftime(each, "%Y-%m-%dT%H:%M:%SZ").take(compute.index_in(times, each))
    elif pa.types.is_floating(kind):
        found = compute.if_else(compute.is_finite(column), column, None)
    elif pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        found = column
    else:
        return [_plain(value) for value in column.to_pylist()]
    values: list[Any] = found.to_pylist()
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"a job answered with {type(value).__name__}: answers hold text, numbers, times and lists of them")
