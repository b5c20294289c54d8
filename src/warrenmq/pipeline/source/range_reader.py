"""Reads an offset range of a stream over AMQP, on an executor: each record once, in order, or an error.

A lost connection is reopened, and reading resumes after the last record. Credit is limited so that the broker sends
nothing beyond the end. Missing records raise DataLost, or are skipped with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

from warrenmq import client
from warrenmq.pipeline.errors import BrokerUnreachable, DataLost
from warrenmq.pipeline.source.access import BrokerAccess, RetryDeadline, is_outage
from warrenmq.pipeline.source.broker import consume_from, offset_of
from warrenmq.pipeline.source.offsets import OffsetRange

log = logging.getLogger("warrenmq.pipeline")

PREFETCH_MESSAGES = 1000
PREFETCH_BATCHES = 16  # Arrow messages of about a MiB each

Record: TypeAlias = tuple[int, client.Delivery]


def read_range(span: OffsetRange, access: BrokerAccess, prefetch: int, fail_on_data_loss: bool) -> Iterator[Record]:
    """Yield the records of a range with their offsets."""
    reader = _RangeReader(span, access, prefetch, fail_on_data_loss)
    retry = RetryDeadline(access)
    while reader.position < span.end:
        before = reader.position
        try:
            yield from reader.records()
        except client.ConsumerCancelled:
            raise DataLost(f"the stream {span.stream!r} was deleted while it was read") from None
        except client.ClientError as failure:
            if not is_outage(failure):
                raise
            if reader.position > before:
                retry.reset()
            retry.wait(failure)


class _RangeReader:
    """Reads one range; `position` is the next offset to read."""

    def __init__(self, span: OffsetRange, access: BrokerAccess, prefetch: int, fail_on_data_loss: bool) -> None:
        self.position = span.start
        self._span = span
        self._access = access
        self._prefetch = prefetch
        self._fail_on_data_loss = fail_on_data_loss

    def records(self) -> Iterator[Record]:
        """Yield the rest of the range, over one connection."""
        with self._access.connect(f"reads {self._span.stream}") as connection, connection.channel() as channel:
            remaining = self._span.end - self.position
            prefetch = min(self._prefetch, remaining)
            channel.qos(prefetch_count=prefetch)
            consumer = consume_from(channel, self._span.stream, self.position, self._access.retry_timeout)
            acked = 0
            for tag, delivery in enumerate(consumer, 1):  # delivery tags count from 1
                offset = offset_of(delivery, self._span.stream)
                self._advance(offset)
                if offset < self._span.end:
                    yield offset, delivery
                if self.position >= self._span.end:
                    return
                # Each ack grants credit for one message: the last ones are not acked, so none beyond the end is sent.
                ackable = remaining - prefetch
                settled = min(tag, ackable)
                if settled - acked >= max(1, prefetch // 2) or (settled == ackable and settled > acked):
                    channel.ack(settled, multiple=True)
                    acked = settled
            raise BrokerUnreachable(
                f"no message of the stream {self._span.stream!r} came from offset {self.position} on for "
                f"{self._access.retry_timeout:g} s (option retryTimeout), though it was there when the read was planned"
            )

    def _advance(self, offset: int) -> None:
        """Advance past this record, and report the gap before it, if any."""
        if offset > self.position:
            self._report_loss(self.position, min(offset, self._span.end))
        self.position = min(offset + 1, self._span.end)

    def _report_loss(self, first: int, end: int) -> None:
        text = (
            f"{end - first} records of the stream {self._span.stream!r} are gone, from offset {first} to {end - 1}: "
            "removed by its limits of size or age before they were read, or damaged"
        )
        if self._fail_on_data_loss:
            raise DataLost(
                f"{text}. Give the stream more room (x-max-age, x-max-length-bytes), start after them "
                "(startingOffsets), or skip lost records with failOnDataLoss=false"
            )
        log.warning("%s; skipped, as failOnDataLoss is false", text)
