"""Reads a range of a stream over AMQP, on an executor: each record once, in order, or a clear error.

A connection that is lost is made again, and the reading goes on behind what was read. Credit is counted so that the
broker sends nothing beyond the end. Records that are gone raise DataLost, or are passed over with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

from warrenmq import client
from warrenmq.pipeline.errors import BrokerUnreachable, DataLost
from warrenmq.pipeline.source.access import Access, Patience, is_outage
from warrenmq.pipeline.source.broker import consume_from, offset_of
from warrenmq.pipeline.source.ranges import Range

log = logging.getLogger("warrenmq.pipeline")

PREFETCH_MESSAGES = 1000
PREFETCH_BATCHES = 16  # of Arrow, of about a MiB each

Record: TypeAlias = tuple[int, client.Delivery]


def read_range(span: Range, access: Access, prefetch: int, fail_on_data_loss: bool) -> Iterator[Record]:
    """The records of a range with their offsets."""
    reading = _Reading(span, access, prefetch, fail_on_data_loss)
    patience = Patience(access)
    while reading.position < span.end:
        before = reading.position
        try:
            yield from reading.records()
        except client.ConsumerCancelled:
            raise DataLost(f"the stream {span.stream!r} was deleted while it was read") from None
        except client.ClientError as failure:
            if not is_outage(failure):
                raise
            if reading.position > before:
                patience.progressed()
            patience.wait(failure)


class _Reading:
    """How far a range was read. `position` is the next offset that is wanted."""

    def __init__(self, span: Range, access: Access, prefetch: int, fail_on_data_loss: bool) -> None:
        self.position = span.start
        self._span = span
        self._access = access
        self._prefetch = prefetch
        self._fails = fail_on_data_loss

    def records(self) -> Iterator[Record]:
        """What is left of the range, over one connection."""
        with self._access.connect(f"reads {self._span.stream}") as connection, connection.channel() as channel:
            wanted = self._span.end - self.position
            prefetch = min(self._prefetch, wanted)
            channel.qos(prefetch_count=prefetch)
            consumer = consume_from(channel, self._span.stream, self.position, self._access.retry_timeout)
            acked = 0
            for tag, delivery in enumerate(consumer, 1):  # tags of a channel count from 1
                offset = offset_of(delivery, self._span.stream)
                self._advance(offset)
                if offset < self._span.end:
                    yield offset, delivery
                if self.position >= self._span.end:
                    return
                # An ack asks for one message more: the last ones are not acked, so none comes from behind the end.
                most = wanted - prefetch
                settled = min(tag, most)
                if settled - acked >= max(1, prefetch // 2) or (settled == most and settled > acked):
                    channel.ack(settled, multiple=True)
                    acked = settled
            raise BrokerUnreachable(
                f"nothing came of the stream {self._span.stream!r} from offset {self.position} on for "
                f"{self._access.retry_timeout:g} s (option retryTimeout), though it was there when the read was planned"
            )

    def _advance(self, offset: int) -> None:
        """This record came: is it the one that was wanted?"""
        if offset > self.position:
            self._lose(self.position, min(offset, self._span.end))
        self.position = min(offset + 1, self._span.end)

    def _lose(self, first: int, end: int) -> None:
        text = (
            f"{end - first} records of the stream {self._span.stream!r} are gone, from offset {first} to {end - 1}: "
            "removed by its limits of size or age before they were read, or damaged"
        )
        if self._fails:
            raise DataLost(
                f"{text}. Give the stream more room (x-max-age, x-max-length-bytes), begin behind them "
                "(startingOffsets), or pass over what is lost with failOnDataLoss=false"
            )
        log.warning("%s; passed over, as failOnDataLoss is false", text)
