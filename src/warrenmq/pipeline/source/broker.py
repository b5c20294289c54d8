"""What the driver asks the broker: which streams there are, where they begin and end, where a reader started.

For one thread, over one connection.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from typing import Any

from warrenmq import client
from warrenmq.pipeline.errors import BadOption, BrokerUnreachable, NotAStream
from warrenmq.pipeline.source.access import BrokerAccess, ReconnectingClient
from warrenmq.pipeline.source.offsets import EARLIEST, LATEST, Offsets, StreamPosition, Timestamp
from warrenmq.pipeline.source.options import ReadOptions

OFFSET = "x-stream-offset"

# How long to wait for the first message from a timestamp on before it is taken to be missing.
TIMESTAMP_TIMEOUT = 5.0
HTTP_TIMEOUT = 10.0

SAVED_START_PREFIX = "warren.reader."


class StreamOffsets:
    """Finds where streams begin and end.

    AMQP has no method for this, so one message is read: the last one tells where the stream ends (exactly, as readers
    only get durable messages), the first one where it begins. The message count, which costs no read, tells whether the
    stream has changed since.
    """

    def __init__(self, access: BrokerAccess, name: str = "planning") -> None:
        self.client = ReconnectingClient(access, name)
        self._access = access
        self._counts: dict[str, int] = {}  # messages when the end was last read
        self._ends: dict[str, int] = {}

    def end(self, stream: str, *, is_exact: bool = False) -> int:
        """Return the offset after the last message.

        Unless `is_exact`, a stream with the same message count as before is taken to be unchanged: if it gained and
        lost the same number of messages, the next call finds out.
        """
        count = self._count(stream)
        if not is_exact and self._counts.get(stream) == count:
            return self._ends[stream]
        end = 0 if count == 0 else self._read_offset(stream, "last", self._access.retry_timeout) + 1
        self._counts[stream] = count
        self._ends[stream] = end
        return end

    def first(self, stream: str) -> int:
        """Return the offset of the oldest message; 0 if there is none."""
        return 0 if self._count(stream) == 0 else self._read_offset(stream, "first", self._access.retry_timeout)

    def resolve(self, stream: str, position: StreamPosition) -> int:
        """Return the offset of a position."""
        if position == EARLIEST:
            return self.first(stream)
        if position == LATEST:
            return self.end(stream, is_exact=True)
        if isinstance(position, Timestamp):
            return self._at_timestamp(stream, position)
        assert isinstance(position, int)
        self._count(stream)  # raises if there is no such stream
        return position

    def close(self) -> None:
        self.client.close()

    def _at_timestamp(self, stream: str, timestamp: Timestamp) -> int:
        end = self.end(stream, is_exact=True)
        if end == 0:
            return 0
        start = datetime.fromtimestamp(timestamp.ms // 1000, UTC)
        try:
            return min(end, self._read_offset(stream, start, TIMESTAMP_TIMEOUT))
        except client.CallTimedOut:
            return end  # all messages are older

    def _count(self, stream: str) -> int:
        return self.client.call(lambda connection: _message_count(connection, stream))

    def _read_offset(self, stream: str, start: object, timeout: float) -> int:
        """Return the offset of the first message from `start` on; raise CallTimedOut if none comes."""
        offset = self.client.call(lambda connection: _first_offset(connection, stream, start, timeout))
        if offset is None:
            raise client.CallTimedOut(f"no message of the stream {stream!r} came within {timeout:g} s")
        return offset


def _message_count(connection: client.Connection, stream: str) -> int:
    with connection.channel() as channel:
        try:
            return channel.queue_declare(stream, passive=True).message_count
        except client.NotFound as error:
            raise NotAStream(f"there is no stream {stream!r}: {error}") from None


def _first_offset(connection: client.Connection, stream: str, start: object, timeout: float) -> int | None:
    with connection.channel() as channel:
        channel.qos(prefetch_count=1)
        consumer = consume_from(channel, stream, start, timeout)  # referenced until the channel is closed
        for delivery in consumer:
            return offset_of(delivery, stream)
        return None


def consume_from(channel: client.Channel, stream: str, start: object, timeout: float) -> client.Consumer:
    """Start to read a stream.

    Keep a reference to the consumer until the channel is closed: garbage collection cancels it, and the close then
    waits for its timeout.
    """
    try:
        return channel.consume(stream, arguments={OFFSET: start}, timeout=timeout)
    except client.NotFound as error:
        raise NotAStream(f"there is no stream {stream!r}: {error}") from None
    except client.PreconditionFailed:  # classic queues refuse the argument
        raise _classic(stream) from None


def offset_of(delivery: client.Delivery, stream: str) -> int:
    """Return the offset of a message in its stream."""
    offset: Any = delivery.headers.get(OFFSET)
    if not isinstance(offset, int):
        raise _classic(stream)
    return offset


def _classic(name: str) -> NotAStream:
    return NotAStream(
        f"{name!r} is a classic queue, not a stream: "
        "use warrenmq.pipeline.drain(spark, url, queue, function), which acks after the function has returned"
    )


# -- names of streams --------------------------------------------------------------------------------------------------


def streams_of(options: ReadOptions) -> tuple[str, ...]:
    """Return the streams to read: those named, or those that match the pattern, sorted."""
    if options.pattern is None:
        return options.streams
    names = [name for name in list_streams(options) if re.fullmatch(options.pattern, name)]
    return tuple(sorted(names))


def list_streams(options: ReadOptions) -> list[str]:
    """Return all streams of the virtual host, from the HTTP API: AMQP cannot list queues."""
    assert options.http_url is not None
    factory = options.access.factory("lists streams")
    query = urllib.parse.urlencode({"vhost": factory.virtual_host})
    address = f"{options.http_url.rstrip('/')}/api/streams?{query}"
    login = base64.b64encode(f"{factory.username}:{factory.password}".encode()).decode()
    body = _get(address, login)
    try:
        return [str(stream["name"]) for stream in json.loads(body)["streams"]]
    except (ValueError, KeyError, TypeError):
        raise NotAStream(f"{address} does not answer as WarrenMQ does: name the streams by `stream`") from None


def _get(address: str, login: str) -> bytes:
    if not address.startswith(("http://", "https://")):
        raise BadOption(f"the option httpUrl begins with http:// or https://: {address}")
    request = urllib.request.Request(address, headers={"Authorization": f"Basic {login}"})
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        raise BadOption(f"the broker's HTTP port refuses to list streams: {error.code} {error.reason}") from None
    except OSError as error:
        raise BrokerUnreachable(f"the broker's HTTP port (option httpUrl) does not answer: {error}") from None


# -- where a reader started --------------------------------------------------------------------------------------------


class SavedStart:
    """The initial offsets of a streaming read, saved on the broker until Spark has them in its checkpoint.

    Spark asks a source for its initial offset again if the first batch did not finish, and offers no place to store
    it; "latest" would then mean another offset. So the offsets are the first message of a queue, `warren.reader.NAME`,
    which is deleted once the first batch is committed.
    """

    def __init__(self, reconnecting: ReconnectingClient, name: str) -> None:
        self._client = reconnecting
        self._queue = SAVED_START_PREFIX + name

    def load(self) -> Offsets | None:
        return self._client.call(self._load)

    def save(self, offsets: Offsets) -> None:
        """Save offsets durably; if some are saved already, those stay first and count."""
        self._client.call(lambda connection: self._save(connection, offsets))

    def delete(self) -> None:
        self._client.call(self._delete)

    def _load(self, connection: client.Connection) -> Offsets | None:
        try:
            with connection.channel() as channel:
                delivery = channel.get(self._queue)  # not acked: it is requeued when the channel closes
                return None if delivery is None else json.loads(delivery.body)
        except client.NotFound:
            return None

    def _save(self, connection: client.Connection, offsets: Offsets) -> None:
        with connection.channel() as channel:
            channel.queue_declare(self._queue, durable=True)
            channel.confirm_select()
            properties = client.Properties(content_type="application/json", delivery_mode=2)
            channel.publish("", self._queue, json.dumps(offsets), properties).result()

    def _delete(self, connection: client.Connection) -> None:
        with connection.channel() as channel:
            channel.queue_delete(self._queue)
