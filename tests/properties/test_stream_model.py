"""Random lives of a stream and its readers, compared with a list after every step.

The model of a stream is the list of its bodies; the model of a reader is the offset that it must get next. Pages come
and appends are safe when the test says so, and the broker may be built anew at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.client import Client, ClientChannel, make_broker
from tests.support.outbox import Delivered
from tests.support.streams import ManualClock, StreamStorage, declare_stream, offset_of
from warrenmq.core.ports import NOTHING, SYNCED
from warrenmq.core.stream import Stream
from warrenmq.protocol.values import Timestamp

picks = st.integers(0, 1000)
offsets = st.one_of(
    st.sampled_from(["first", "last", "next", "1h", "10s"]), st.integers(-3, 60), st.sampled_from([Timestamp(0)])
)


@dataclass(eq=False)
class Reader:
    tag: str
    channel: ClientChannel
    prefetch: int
    asked: object  # where it asked to begin
    earliest: int  # it may not begin before, nor behind `latest`
    latest: int
    next: int | None = None  # known from its first delivery on
    unacked: int = 0


class StreamAndReaders(RuleBasedStateMachine):
    """Every step is done to the broker and to the model; what the broker delivers is judged by the model."""

    @initialize(
        durability_level=st.sampled_from([NOTHING, SYNCED]),
        segment=st.sampled_from([None, 300, 1000]),
        limit=st.sampled_from([None, 600, 3000]),
        age=st.sampled_from([None, "30s"]),
    )
    def begin(self, durability_level: int, segment: int | None, limit: int | None, age: str | None) -> None:
        self.clock = ManualClock()
        self.storage = StreamStorage(self.clock, is_slow=True, durability_level=durability_level)
        self.has_limits = limit is not None or age is not None
        self.arguments: dict[str, Any] = {
            key: value
            for key, value in {
                "stream_max_segment_size_bytes": segment,
                "max_length_bytes": limit,
                "max_age": age,
            }.items()
            if value is not None
        }
        self.bodies: list[bytes] = []
        self.times: list[int] = []
        self.readable = 0
        self.is_safe_at_once = durability_level == NOTHING
        self.started = 0
        self._start()

    def _start(self) -> None:
        self.readers: list[Reader] = []
        self.unacked: dict[tuple[int, int], Reader] = {}
        self.broker = make_broker(self.storage)
        self.client = Client(self.broker)
        self.channels = [self.client.channel(), self.client.channel()]
        queue = declare_stream(self.channels[0], **self.arguments)
        assert isinstance(queue, Stream)
        self.stream = queue

    # -- writing

    @rule(count=st.integers(1, 8), size=st.integers(0, 300))
    def publish(self, count: int, size: int) -> None:
        for _ in range(count):
            body = b"%d:%s" % (len(self.bodies), b"x" * size)
            self.bodies.append(body)
            self.times.append(self.clock.now)
            self.channels[0].publish(body, "s", message_id=str(size % 3) if size % 2 else None)
            if self.is_safe_at_once:
                self.readable = len(self.bodies)
        self._hear()

    @rule()
    def commit(self) -> None:
        if not self.is_safe_at_once:
            self.readable = len(self.bodies)
            self.storage.stores["s"].commit()
            self._hear()

    @rule(seconds=st.sampled_from([0.3, 2, 40]))
    def wait(self, seconds: float) -> None:
        self.clock.pass_seconds(seconds)

    # -- reading

    @rule(pick=picks, offset=offsets, prefetch=st.sampled_from([1, 2, 5, 100]))
    def start_reading(self, pick: int, offset: object, prefetch: int) -> None:
        channel = self.channels[pick % 2]
        self.started += 1
        earliest, latest = self._beginning(offset)
        reader = Reader(f"reader {self.started}", channel, prefetch, offset, earliest, latest)
        self.readers.append(reader)
        channel.consume(self.stream, reader.tag, prefetch=prefetch, arguments={"x-stream-offset": offset})
        self._hear()

    def _beginning(self, offset: object) -> tuple[int, int]:
        """Where a reader may begin that asks for this now: a time may be found a page too early."""
        end = len(self.bodies)
        if offset == "first" or isinstance(offset, Timestamp):
            return 0, 0
        if offset == "next":
            return end, end
        if offset == "last":
            return max(end - 1, 0), max(end - 1, 0)
        if isinstance(offset, int):
            return max(offset, 0), max(offset, 0)
        since = self.clock.now - {"1h": 3_600_000, "10s": 10_000}[str(offset)]
        first = next((at for at, time in enumerate(self.times) if time >= since), None)
        if first is None:
            return 0, 10**9  # whatever is published until the store answers
        page = next(at for at, time in enumerate(self.times) if time >= self.times[first] - 1000)
        return page, first

    @rule()
    def answer_the_readers(self) -> None:
        self.storage.stores["s"].answer()
        self._hear()

    @rule(pick=picks, multiple=st.booleans())
    def ack(self, pick: int, multiple: bool) -> None:
        if self.unacked:
            number, tag = list(self.unacked)[pick % len(self.unacked)]
            settled = [key for key in self.unacked if key == (number, tag) or (multiple and key < (number, tag))]
            for key in [key for key in settled if key[0] == number]:
                self.unacked.pop(key).unacked -= 1
            self.channels[number - 1].ack(tag, multiple=multiple)
            self._hear()

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        if self.readers:
            reader = self.readers.pop(pick % len(self.readers))
            reader.channel.core.cancel(reader.tag)
            self._hear()

    @rule()
    def read_slowly_for_a_while(self) -> None:
        self.client.outbox.is_congested = True
        self.publish(2, 10)
        self.answer_the_readers()
        self.broker.end_turn()
        assert not [said for said in self.client.outbox.said if isinstance(said, Delivered)]
        self.client.outbox.drain()
        self.broker.end_turn()
        self._hear()

    # -- the turn, and the end of things

    @rule()
    def end_the_turn(self) -> None:
        """Who has credit, and is not waiting for the store, has had all that is readable."""
        self.broker.end_turn()
        self._hear()
        while self.storage.stores["s"].answer():
            self.broker.end_turn()
            self._hear()
        for reader in self.readers:
            if reader.unacked < reader.prefetch:
                begun = reader.latest if reader.next is None else reader.next
                begun = max(begun, self._first())
                assert begun >= self.readable, f"{reader} waits, and could read up to {self.readable}"

    @rule()
    def restart(self) -> None:
        self.commit()
        self.client.close()
        stats = self.broker.stats
        assert (stats.held_bytes, stats.unacked, stats.consumers) == (0, 0, 0)
        self.readable = len(self.bodies)
        self._start()

    # -- what always holds

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "stream"):
            stats = self.broker.stats
            assert stats.ready == self.stream.message_count() == len(self.bodies) - self._first()
            assert stats.unacked == self.stream.unacked_count == len(self.unacked)
            assert stats.consumers == len(self.readers)
            if not self.readers:
                assert stats.held_bytes == 0
            if not self.has_limits:
                assert self._first() == 0

    # -- what the steps share

    def _first(self) -> int:
        return self.storage.stores["s"].first_position

    def _hear(self) -> None:
        said, self.client.outbox.said = self.client.outbox.said, []
        for each in said:
            if isinstance(each, Delivered):
                self._judge(each)

    def _judge(self, said: Delivered) -> None:
        (reader,) = [reader for reader in self.readers if reader.tag == said.consumer]
        offset = offset_of(said)
        assert said.body == self.bodies[offset]
        assert offset < self.readable, "it was delivered before it was safe"
        expected = reader.next
        if expected is None:
            assert reader.earliest <= offset
            assert offset <= max(reader.latest, self._first()), f"{reader} begins at {offset}"
        elif offset != expected:
            # Only what the limits have taken away may be left out.
            assert self.has_limits
            assert expected < offset <= self._first()
        reader.next = offset + 1
        reader.unacked += 1
        assert reader.unacked <= reader.prefetch
        self.unacked[(said.channel, said.tag)] = reader


StreamAndReaders.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestStreamAndReaders = StreamAndReaders.TestCase
