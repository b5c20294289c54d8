"""What the driver asks the broker: how far a stream goes, where it begins, what lies where at a time.

AMQP has no method for this, so it is asked by reading one message: the last one says where the stream ends (and is
safe, as readers get nothing else), the first one where it begins. The number of messages, which costs no message, tells
whether anything has changed since. One connection, one thread.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from warrenmq import client
from warrenmq.pipeline.errors import NotAStream
from warrenmq.pipeline.source.access import Access, Link
from warrenmq.pipeline.source.places import EARLIEST, LATEST, Moment, Place

OFFSET = "x-stream-offset"

# How long the first message of a time is waited for, before it is taken that there is none yet.
LOOK_TIMEOUT = 5.0


class StreamAsker:
    """Answers where streams begin and end."""

    def __init__(self, access: Access, name: str = "planning") -> None:
        self._link = Link(access, name)
        self._access = access
        self._counts: dict[str, int] = {}  # of messages, when a stream's end was last looked for
        self._ends: dict[str, int] = {}

    def end(self, stream: str, *, is_exact: bool = False) -> int:
        """The offset that comes after the last message.

        Unless it has to be exact, a stream with as many messages as before is taken to be as it was: one that gains
        and loses the same number between two questions is found out by the next.
        """
        count = self._count(stream)
        if not is_exact and self._counts.get(stream) == count:
            return self._ends[stream]
        end = 0 if count == 0 else self._look(stream, "last", self._access.retry_timeout) + 1
        self._counts[stream] = count
        self._ends[stream] = end
        return end

    def first(self, stream: str) -> int:
        """The offset of the oldest message that is kept; 0 where none ever was."""
        return 0 if self._count(stream) == 0 else self._look(stream, "first", self._access.retry_timeout)

    def at(self, stream: str, place: Place) -> int:
        """The offset that a place means."""
        if place == EARLIEST:
            return self.first(stream)
        if place == LATEST:
            return self.end(stream, is_exact=True)
        if isinstance(place, Moment):
            return self._at_time(stream, place)
        assert isinstance(place, int)
        self._count(stream)  # tells where there is no such stream
        return place

    def close(self) -> None:
        self._link.close()

    @property
    def link(self) -> Link:
        return self._link

    def _at_time(self, stream: str, moment: Moment) -> int:
        end = self.end(stream, is_exact=True)
        if end == 0:
            return 0
        where = datetime.fromtimestamp(moment.ms // 1000, UTC)
        try:
            return min(end, self._look(stream, where, LOOK_TIMEOUT))
        except client.CallTimedOut:
            return end  # nothing is as young as that

    def _count(self, stream: str) -> int:
        return self._link.call(lambda connection: _message_count(connection, stream))

    def _look(self, stream: str, where: object, timeout: float) -> int:
        """The offset of the first message from there on; raises CallTimedOut where none comes."""
        found = self._link.call(lambda connection: _first_offset(connection, stream, where, timeout))
        if found is None:
            raise client.CallTimedOut(f"no message of the stream {stream!r} came within {timeout:g} s")
        return found


def _message_count(connection: client.Connection, stream: str) -> int:
    with connection.channel() as channel:
        try:
            return channel.queue_declare(stream, passive=True).message_count
        except client.NotFound as error:
            raise NotAStream(f"there is no stream {stream!r}: {error}") from None


def _first_offset(connection: client.Connection, stream: str, where: object, timeout: float) -> int | None:
    with connection.channel() as channel:
        channel.qos(prefetch_count=1)
        consumer = consume_from(channel, stream, where, timeout)  # held until the channel is closed
        for delivery in consumer:
            return offset_of(delivery, stream)
        return None


def consume_from(channel: client.Channel, stream: str, where: object, timeout: float) -> client.Consumer:
    """Begin to read a stream.

    Hold the consumer until the channel is closed: one that is garbage before is cancelled in that very moment, and the
    close then waits for its time-out.
    """
    try:
        return channel.consume(stream, arguments={OFFSET: where}, timeout=timeout)
    except client.NotFound as error:
        raise NotAStream(f"there is no stream {stream!r}: {error}") from None
    except client.PreconditionFailed:  # the argument is for streams only
        raise _classic(stream) from None


def offset_of(delivery: client.Delivery, stream: str) -> int:
    """Where in its stream a message stands."""
    offset: Any = delivery.headers.get(OFFSET)
    if not isinstance(offset, int):
        raise _classic(stream)
    return offset


def _classic(name: str) -> NotAStream:
    return NotAStream(
        f"{name!r} is a classic queue, not a stream: "
        "use warrenmq.pipeline.drain(spark, url, queue, function), which acks after the function has returned"
    )
