"""Streams for tests: stores that answer when the test says so, and words for what was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.client import ClientChannel
from tests.support.outbox import Delivered
from warrenmq.core.consumer import Consumer
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.options import QueueOptions
from warrenmq.core.ports import SYNCED
from warrenmq.core.queue import Queue
from warrenmq.core.timers import RESOLUTION_MS, Timers
from warrenmq.core.turn import Turn
from warrenmq.storage.memory_store import MemoryStorage
from warrenmq.storage.memory_stream import MemoryStream, MemoryStreamStore
from warrenmq.storage.page_cache import PageCache

STREAM = {"x-queue-type": "stream"}


class ManualClock:
    """Milliseconds that pass when the test says so, for the broker whose turn it drives."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self._turn = Turn()
        self._timers = Timers()

    def drive(self, turn: Turn, timers: Timers) -> None:
        """A broker begins."""
        self._turn, self._timers = turn, timers
        turn.now_ms = self.now

    def pass_seconds(self, seconds: float) -> None:
        self.now += int(seconds * 1000)
        self._turn.now_ms = self.now

    def run_timers(self) -> None:
        """Run what is due, however late in the last moment."""
        self._timers.advance(self.now + RESOLUTION_MS)


class SlowStreamStore(MemoryStreamStore):
    """As files would: what is asked for comes later, and what is appended is safe later."""

    def __init__(self, *arguments: Any, durability_level: int) -> None:
        super().__init__(*arguments)
        self.durability_level = durability_level
        self.asked: list[Callable[[], None]] = []
        self._appended = 0

    def append(self, entry: QueuedMessage) -> None:
        super().append(entry)
        self._appended = entry.position + 1

    def read(
        self,
        position: int,
        receive: Callable[[int, list[Message]], None],
        needles: tuple[bytes, ...] | None = None,
    ) -> None:
        self.asked.append(lambda: super(SlowStreamStore, self).read(position, receive))

    def find_time(self, time_ms: int, receive: Callable[[int], None]) -> None:
        self.asked.append(lambda: super(SlowStreamStore, self).find_time(time_ms, receive))

    def answer(self) -> int:
        """Answer all reads so far; return their number."""
        asked, self.asked = self.asked, []
        for each in asked:
            each()
        return len(asked)

    def commit(self) -> None:
        """All that was appended is safe now."""
        assert self._stream is not None
        self._stream.make_readable(self._appended)


class StreamStorage(MemoryStorage):
    """In memory, with a clock of the test's, and stores that are slow if it asks for that."""

    def __init__(
        self, clock: ManualClock | None = None, *, is_slow: bool = False, durability_level: int = SYNCED
    ) -> None:
        super().__init__()
        self._clock = clock or ManualClock()
        self.stores: dict[str, SlowStreamStore] = {}
        self._is_slow = is_slow
        self._durability_level = durability_level

    def begin(self, turn: Turn, timers: Timers) -> None:
        super().begin(turn, timers)
        self._clock.drive(turn, timers)

    def stream_store(self, vhost: str, queue: str, options: QueueOptions) -> MemoryStreamStore:
        if not self._is_slow:
            return super().stream_store(vhost, queue, options)
        kept = self._streams.setdefault((vhost, queue), MemoryStream())
        store = SlowStreamStore(kept, options, PageCache(), self.log, durability_level=self._durability_level)
        self.stores[queue] = store
        return store


def declare_stream(channel: ClientChannel, name: str = "s", **arguments: Any) -> Queue:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.declare(name, durable=True, arguments={**STREAM, **named})


def read_stream(
    channel: ClientChannel, queue: Queue, offset: Any = "first", tag: str = "reader", prefetch: int = 1000
) -> Consumer:
    """Start a reader at that offset; None: where one begins who does not say."""
    arguments = {} if offset is None else {"x-stream-offset": offset}
    return channel.consume(queue, tag, prefetch=prefetch, arguments=arguments)


def offset_of(delivered: Delivered) -> int:
    headers = delivered.message.properties.headers
    assert headers is not None
    offset = headers["x-stream-offset"]
    assert isinstance(offset, int)
    return offset


def offsets(channel: ClientChannel, tag: str | None = None) -> list[int]:
    """End the turn; the offsets that came since the last time, for one reader if a tag is given."""
    return [offset_of(each) for each in channel.deliveries() if tag is None or each.consumer == tag]
