"""Publishes answers: as JSON documents on the stream `warren.analysis`, each confirmed, and as Parquet files.

docs/analysis.md draws a document. A document stays under a MiB; a longer answer is split, numbered by `part` of
`parts`. Readers keep the rows of each job by their keys, and later documents win. The rows of the windows that a
document names are complete: rows of them that it does not repeat are gone.

Each document has an id in the deduplication header, so a stream that deduplicates drops one that is published again
after a crash; elsewhere readers replace rows by their keys. The connection opens with the first document and reopens
after a loss. Any thread may call.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from warrenmq import client
from warrenmq.pipeline.times import TimeRange, iso

if TYPE_CHECKING:
    import pyarrow as pa

    from warrenmq.pipeline.jobs.answers import Answer

VERSION = 1
MAX_PART_BYTES = 500_000  # of rows, and of windows, in a message: with its other fields it stays under a MiB

STREAM_NAME = "warren.analysis"
HEADER_VERSION = "x-warren-analysis-version"
HEADER_JOB = "x-warren-analysis-job"
HEADER_ID = "x-deduplication-header"
CONTENT_TYPE = "application/json"
ARGUMENTS: dict[str, Any] = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1024**3}
CONFIRM_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of `warren analyze`; a --follow that continues from its checkpoint is the same run."""

    id: str
    mode: str  # "batch" or "follow"
    started: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, slots=True)
class Document:
    """One message of the stream. `id` is the same when the same answer is published again."""

    id: str
    job: str
    body: bytes


def document_of(answer: Answer, run: Run, batch: int, covers: TimeRange, written: datetime) -> dict[str, Any]:
    """Return the whole answer as one document."""
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


def split(document: Mapping[str, Any], max_bytes: int = MAX_PART_BYTES) -> list[Document]:
    """Split a document into messages of bounded size."""
    head = {name: value for name, value in document.items() if name not in ("rows", "windows")}
    parts = list(zip_longest(_chunks(document["rows"], max_bytes), _chunks(document["windows"], max_bytes)))
    documents = []
    for number, (rows, windows) in enumerate(parts):
        opening = json.dumps(head | {"part": number, "parts": len(parts)}, separators=(",", ":"))
        body = f'{opening[:-1]},"windows":[{",".join(windows or ())}],"rows":[{",".join(rows or ())}]}}'.encode()
        documents.append(Document(f"{head['run']}/{head['batch']}/{head['job']}/{number}", head["job"], body))
    return documents


def _chunks(values: Sequence[object], max_bytes: int) -> Iterator[list[str]]:
    """Yield values as JSON; at least one chunk, which may be empty: no rows are an answer, too."""
    chunk: list[str] = []
    size = 0
    for value in values:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        if chunk and size + len(text) > max_bytes:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text) + 1
    yield chunk


class ResultWriter:
    """Publishes documents to one broker."""

    def __init__(self, url: str, name: str = "warren analyze") -> None:
        self._factory = client.ConnectionFactory(
            url, name=name, unconfirmed="resend", recovery=client.Recovery(longest=5.0)
        )
        self._opening = threading.Lock()
        self._connection: client.Connection | None = None
        self._channel: client.Channel | None = None

    def write(self, *documents: Mapping[str, Any]) -> int:
        """Publish documents and wait for all confirms; return the number of messages. Raises ClientError."""
        parts = [part for document in documents for part in split(document)]
        self._publish(parts)
        return len(parts)

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.close()

    def _publish(self, documents: Iterable[Document]) -> None:
        channel = self._open_channel()
        confirmations = [
            channel.publish("", STREAM_NAME, document.body, _properties(document), mandatory=True)
            for document in documents
        ]
        end = time.monotonic() + CONFIRM_TIMEOUT
        try:
            for confirmation in confirmations:
                confirmation.result(max(end - time.monotonic(), 0.0))
        except client.Unroutable:  # the stream was deleted: the next write declares it again
            self._close_channel()
            raise

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open_channel(self) -> client.Channel:
        """Return the channel, a new one if the broker closed the last."""
        with self._opening:
            if self._connection is None:
                self._connection = self._factory.connect()
            if self._channel is None or not self._channel.is_open:
                declare_stream(self._connection)
                channel = self._connection.channel()
                channel.confirm_select()
                self._channel = channel
            return self._channel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def declare_stream(connection: client.Connection) -> None:
    """Declare the stream; one that exists with other arguments stays as it is."""
    try:
        with connection.channel() as channel:
            channel.queue_declare(STREAM_NAME, durable=True, arguments=ARGUMENTS)
    except client.PreconditionFailed:
        pass


def _properties(document: Document) -> client.Properties:
    headers = {HEADER_VERSION: VERSION, HEADER_JOB: document.job, HEADER_ID: document.id}
    return client.Properties(content_type=CONTENT_TYPE, delivery_mode=2, headers=headers)


def write_parquet(folder: Path, job: str, table: pa.Table, run: Run) -> Path:
    """Write an answer to `FOLDER/JOB/2026-11-16T100000Z-1f0c….parquet` atomically; return the path."""
    from pyarrow import parquet

    started = run.started.astimezone(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = folder / job / f"{started}-{run.id[:8]}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    parquet.write_table(table, unfinished, compression="zstd")
    os.replace(unfinished, path)
    return path
