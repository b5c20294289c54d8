"""Writes answers to the broker: documents on the stream `warren.analysis`, each confirmed.

The stream is declared if it is missing. A document carries its id in the header that deduplication looks at, so that a
batch which is told again after a crash is not there twice where the stream is set up for that; readers keep rows by
their keys and do not mind it anyway. Documents that are written together wait for the broker's disk once. The
connection is made when the first document is written, and comes back by itself when it is lost. Any thread may call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from warrenmq import client
from warrenmq.pipeline.publish.answers import VERSION, Document, split

STREAM_NAME = "warren.analysis"
HEADER_VERSION = "x-warren-analysis-version"
HEADER_JOB = "x-warren-analysis-job"
HEADER_ID = "x-deduplication-header"
CONTENT_TYPE = "application/json"
ARGUMENTS: dict[str, Any] = {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1024**3}
CONFIRM_LIMIT = 15.0


class ResultWriter:
    """The way of answers to one broker."""

    def __init__(self, url: str, name: str = "warren analyze") -> None:
        self._factory = client.ConnectionFactory(
            url, name=name, unconfirmed="resend", recovery=client.Recovery(longest=5.0)
        )
        self._opening = threading.Lock()
        self._connection: client.Connection | None = None
        self._channel: client.Channel | None = None

    def write(self, *documents: Mapping[str, Any]) -> int:
        """Returns when the broker has all of them; how many messages it was. Raises ClientError."""
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
        end = time.monotonic() + CONFIRM_LIMIT
        try:
            for confirmation in confirmations:
                confirmation.result(max(end - time.monotonic(), 0.0))
        except client.Unroutable:
            self._forget_channel()
            raise

    def _forget_channel(self) -> None:
        """Somebody deleted the stream: the next write declares it anew."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _open_channel(self) -> client.Channel:
        """The channel; a new one after the broker has closed the last."""
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
    """Make the stream if it is missing; one that somebody has set up otherwise stays as it is."""
    try:
        with connection.channel() as channel:
            channel.queue_declare(STREAM_NAME, durable=True, arguments=ARGUMENTS)
    except client.PreconditionFailed:
        pass  # it is there, with other limits: those of whoever made it


def _properties(document: Document) -> client.Properties:
    headers = {HEADER_VERSION: VERSION, HEADER_JOB: document.job, HEADER_ID: document.id}
    return client.Properties(content_type=CONTENT_TYPE, delivery_mode=2, headers=headers)
