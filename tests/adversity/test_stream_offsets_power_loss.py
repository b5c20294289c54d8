"""Power loss while tracked consumers read: an offset that was durable never goes back, and none is ahead of the acks.

Through the real storage code on a simulated disk, with checkpoints, log files that roll and clean stops between. What a
start finds for a tag must be at least what was durable, and at most what was acked without a gap.

WARREN_TEST_EFFORT=20 tries twenty times as many.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.client import ClientChannel
from tests.support.crash import Crash, History, effort
from tests.support.disk import RecordingFiles
from tests.support.durable import ROOT, TINY, Life
from tests.support.outbox import Delivered
from tests.support.streams import declare_stream, offset_of
from warrenmq.core.stream import Stream

CRASHES = 4
STATES = 2
OPTIONS = replace(TINY, page_size=400)
TAGS = ("one", "two", "three")

Step = tuple[str, int]
kinds = ["publish"] * 3 + ["ack"] * 6 + ["ack many", "transaction", "reopen", "end turn", "commit", "commit", "commit"]
kinds += ["page", "page", "settle", "noise"]
histories = st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 99)), min_size=5, max_size=60)


class TrackedLife:
    """One run of a broker with one stream and a few tracked consumers; tells the history what was promised."""

    def __init__(self, history: History, number: int) -> None:
        self.life = Life(history.files, number, OPTIONS)
        self.history = history
        stream = declare_stream(self.life.publisher)
        assert isinstance(stream, Stream)
        self.stream = stream
        self.life.publisher.declare("noise", durable=True)
        self.life.settle()
        self.offsets = dict.fromkeys(TAGS, 0) | dict(stream.offsets.stored if stream.offsets is not None else {})
        self.at_end: dict[int, dict[str, int]] = {}  # by epoch: the offsets at its end
        self._promise(dict(self.offsets))
        self.life.on_durable = self._durable
        self.channels: dict[str, ClientChannel] = {}
        self.unacked: dict[str, dict[int, int]] = {}  # offsets by delivery tag
        for tag in TAGS:
            self._open(tag)
        self._publish(3)
        self._publish(3)
        self.life.settle()
        self._hear()

    def _open(self, tag: str) -> None:
        channel = self.channels[tag] = self.life.publisher.client.channel()
        self.unacked[tag] = {}
        arguments = {"x-stream-automatic-offset-tracking": True}
        channel.consume(self.stream, tag, prefetch=20, arguments=arguments)

    def do(self, step: Step) -> None:
        kind, pick = step
        getattr(self, "_" + kind.replace(" ", "_"))(pick)
        assert self.life.failure is None, self.life.failure
        self._hear()

    def _publish(self, pick: int) -> None:
        for _ in range(1 + pick % 4):
            self.life.publisher.publish(bytes(pick), "s")

    def _noise(self, pick: int) -> None:
        """The log grows and is trimmed."""
        for _ in range(pick // 4):
            self.life.publisher.publish(bytes(200), "noise", delivery_mode=2)

    def _ack(self, pick: int, multiple: bool = False) -> None:
        tag = TAGS[pick % 3]
        unacked = self.unacked[tag]
        if unacked:
            delivery = list(unacked)[pick % len(unacked)]
            for each in [each for each in unacked if each == delivery or (multiple and each < delivery)]:
                del unacked[each]
            self._move(tag)
            self.channels[tag].ack(delivery, multiple=multiple)

    def _ack_many(self, pick: int) -> None:
        self._ack(pick, multiple=True)

    def _transaction(self, pick: int) -> None:
        """A publish and an ack together: the offset is there if and only if the message is."""
        tag = TAGS[pick % 3]
        if self.unacked[tag]:
            channel = self.channels[tag]
            channel.close()
            channel = self.channels[tag] = self.life.publisher.client.channel()
            channel.core.select_transactions()
            channel.consume(self.stream, tag, prefetch=20, arguments={"x-stream-automatic-offset-tracking": True})
            self.unacked[tag] = {}
            self.life.settle()
            self._hear()
            if self.unacked[tag]:
                delivery = next(iter(self.unacked[tag]))
                channel.publish(b"in", "s")
                channel.ack(delivery)
                del self.unacked[tag][delivery]
                self._move(tag)
                channel.core.commit()
            self._reopen(pick)

    def _reopen(self, pick: int) -> None:
        tag = TAGS[pick % 3]
        self.channels[tag].close()
        self._open(tag)

    def _end_turn(self, pick: int) -> None:
        self.life.end_turn()

    def _commit(self, pick: int) -> None:
        self.life.commit_one(is_heard=pick % 3 != 0)

    def _page(self, pick: int) -> None:
        self.life.page_one()
        if pick % 2:
            self.life.apply_one()

    def _settle(self, pick: int) -> None:
        self.life.settle()

    def _move(self, tag: str) -> None:
        """The consumer has acked: the first that it has not acked is where it goes on."""
        cursors = [cursor for consumer, cursor in self.stream.cursors.items() if consumer.tag == tag]
        first = min(self.unacked[tag].values(), default=cursors[0].position)
        if first > self.offsets[tag]:
            self.offsets[tag] = first
            self.history.record(("acked", tag, first))
        self.at_end[self.life.epoch] = dict(self.offsets)

    def _durable(self, epoch: int) -> None:
        known = [each for each in self.at_end if each <= epoch]
        if known:
            self._promise(self.at_end[max(known)])

    def _promise(self, offsets: dict[str, int]) -> None:
        self.history.record(("promised", dict(offsets)))

    def _hear(self) -> None:
        outbox = self.life.publisher.client.outbox
        said, outbox.said = outbox.said, []
        numbers = {channel.number: tag for tag, channel in self.channels.items()}
        for each in said:
            if isinstance(each, Delivered) and each.channel in numbers:
                assert offset_of(each) >= self.offsets[each.consumer], "what was dealt with came again"
                self.unacked[each.consumer][each.tag] = offset_of(each)


def judge(crash: Crash, found: dict[str, int]) -> str | None:
    promised = dict.fromkeys(TAGS, 0)
    acked = dict.fromkeys(TAGS, 0)
    for fact in crash.facts:
        if fact[0] == "promised":
            promised = {tag: max(offset, promised[tag]) for tag, offset in fact[1].items()}
        else:
            acked[fact[1]] = max(fact[2], acked[fact[1]])
    for tag in TAGS:
        if not promised[tag] <= found.get(tag, 0) <= max(acked[tag], promised[tag]):
            return f"{tag} goes on at {found.get(tag, 0)}: {promised[tag]} was durable, {acked[tag]} was acked"
    return None


def find_failure(lives: list[list[Step]], is_stopped: bool, seed: int) -> str | None:
    """Live, crash, recover, and so on; the first thing that is wrong."""
    choice = random.Random(seed)
    files = RecordingFiles()
    files.make_dirs(ROOT)
    files.sync_dir("/")
    before = Crash(0, [], files.disk)
    for number, steps in enumerate(lives):
        history = History(RecordingFiles(before.disk), before.disk.after_kill(), [(0, fact) for fact in before.facts])
        story = TrackedLife(history, number)
        for step in steps:
            story.do(step)
        if is_stopped:
            for channel in story.channels.values():
                channel.close()
            story.life.stop()
            story._promise(story.offsets)
        outcomes = []
        end = len(history.files.operations)
        for crash in [*history.crashes(choice, CRASHES, STATES), *history.crashes(choice, 1, STATES, first=end)]:
            life = Life(RecordingFiles(crash.disk.after_kill()), 0, OPTIONS)
            stream = life.publisher.vhost.queues.get("s")
            offsets = getattr(stream, "offsets", None)
            wrong = judge(crash, offsets.stored if offsets is not None else {})
            if wrong is None and life.storage.has_damage:
                wrong = "damage is reported, and there was only a crash"
            if wrong is not None:
                how = "kill" if crash.killed else "power loss"
                return f"life {number}, {how} after operation {crash.after}: {wrong}\n  report {life.storage.report}"
            outcomes.append(crash)
        before = choice.choice(outcomes)
    return None


@settings(
    max_examples=effort(100), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(lives=st.lists(histories, min_size=1, max_size=3), is_stopped=st.booleans(), seed=st.integers(0, 2**32))
def test_no_offset_goes_back_or_runs_ahead(lives: list[list[Step]], is_stopped: bool, seed: int) -> None:
    failure = find_failure(lives, is_stopped, seed)
    assert failure is None, failure
