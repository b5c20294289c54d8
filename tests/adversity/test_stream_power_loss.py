"""Power loss at any moment of a stream's life, through the real storage code on a simulated disk.

What a start finds must be the stream as it was after some step: an offset that was confirmed, or that a reader has
seen, means the same message for ever; a transaction is there as a whole or not at all; and only what the limits had
taken away may be missing at the front.

WARREN_TEST_EFFORT=20 tries twenty times as many.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.crash import Crash, History, effort
from tests.support.disk import RecordingFiles
from tests.support.durable import ROOT, TINY, Life
from tests.support.outbox import Delivered
from tests.support.streams import ManualClock, declare_stream, offset_of, read_stream
from warrenmq.storage.stream_store import FileStreamStore

CRASHES = 4
STATES = 2
OPTIONS = replace(TINY, page_size=400)
SEGMENT = 800
RECORD = 40  # what a message takes beside its body

Step = tuple[str, int]
kinds = ["publish"] * 6 + ["burst", "transaction", "end turn", "end turn", "commit", "commit", "commit", "page", "page"]
kinds += ["wait", "sweep", "settle"]
histories = st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 99)), min_size=1, max_size=60)
limits = st.sampled_from([{}, {"max_length_bytes": 1500}, {"max_age": "30s"}])


class StreamLife:
    """One run of a broker with one stream and one reader; tells the history what was promised."""

    def __init__(self, history: History, number: int, arguments: dict[str, Any], clock: ManualClock) -> None:
        self.life = Life(history.files, number, OPTIONS)
        clock.drive(self.life.broker.turn, self.life.broker.timers)
        self.clock = clock
        self.history = history
        self.number = number
        self.count = 0
        self.stream = declare_stream(self.life.publisher, stream_max_segment_size_bytes=SEGMENT, **arguments)
        self.life.settle()
        assert isinstance(self.stream.store, FileStreamStore)
        self.store = self.stream.store
        self.next = self.stream.next_position
        history.record(("first", self.store.first_position))
        history.record(("promised", self.next))
        self.life.on_durable = self._durable
        self.ends = {self.life.epoch - 1: self.next}  # by epoch: what is appended up to its end
        read_stream(self.life.publisher, self.stream, "next", prefetch=60_000)

    def do(self, step: Step) -> None:
        kind, pick = step
        getattr(self, "_" + kind.replace(" ", "_"))(pick)
        assert self.life.failure is None, self.life.failure
        self._hear()
        self.history.record(("first", self.store.first_position))

    def _append(self, bodies: list[bytes]) -> None:
        """They come together, or not at all."""
        self.history.record(("append", self.next, bodies))
        self.next += len(bodies)
        self.ends[self.life.epoch] = self.next

    def _body(self, size: int) -> bytes:
        self.count += 1
        return b"%d.%d:" % (self.number, self.count) + b"x" * size

    def _publish(self, pick: int) -> None:
        body = self._body(pick)
        self.life.publisher.publish(body, "s", delivery_mode=1 + pick % 2)
        self._append([body])

    def _burst(self, pick: int) -> None:
        for _ in range(8):
            self._publish(pick)

    def _transaction(self, pick: int) -> None:
        bodies = [self._body(pick) for _ in range(2 + pick % 4)]
        for body in bodies:
            self.life.channel.publish(body, "s")
        if pick % 4:
            self.life.channel.core.commit()
            self._append(bodies)
        else:
            self.life.channel.core.rollback()

    def _end_turn(self, pick: int) -> None:
        self.life.end_turn()

    def _commit(self, pick: int) -> None:
        self.life.commit_one(is_heard=pick % 3 != 0)

    def _page(self, pick: int) -> None:
        for _ in range(1 + pick % 3):
            self.life.page_one()
        if pick % 2:
            self.life.apply_one()

    def _settle(self, pick: int) -> None:
        self.life.settle()

    def _wait(self, pick: int) -> None:
        self.clock.pass_seconds(pick / 10)

    def _sweep(self, pick: int) -> None:
        self.clock.run_timers()

    def _durable(self, epoch: int) -> None:
        self.history.record(("promised", max(end for each, end in self.ends.items() if each <= epoch)))

    def _hear(self) -> None:
        """What a reader has seen is promised, too."""
        outbox = self.life.publisher.client.outbox
        said, outbox.said = outbox.said, []
        for each in said:
            if isinstance(each, Delivered):
                self.history.record(("promised", offset_of(each) + 1))


Found = dict[int, bytes]


def read_all(life: Life) -> Found:
    """Everything in the stream, by offset."""
    channel = life.publisher
    queue = channel.vhost.queues.get("s")
    if queue is None:
        return {}
    read_stream(channel, queue, "first", prefetch=60_000, tag="all")
    life.settle()
    return {offset_of(each): each.body for each in channel.deliveries()}


def judge(crash: Crash, found: Found, arguments: dict[str, Any]) -> str | None:
    """What is wrong with what was found, if anything is.

    Recovery makes other pages of what it finds in the log, so the limits may take away a little more then.
    """
    promised = max((fact[1] for fact in crash.facts if fact[0] == "promised"), default=0)
    first = max((fact[1] for fact in crash.facts if fact[0] == "first"), default=0)
    bodies: Found = {}
    ends = {0}
    for fact in crash.facts:
        if fact[0] == "append":
            bodies.update(zip(range(fact[1], fact[1] + len(fact[2])), fact[2], strict=True))
            ends = {end for end in ends if end <= fact[1]} | {fact[1] + len(fact[2])}
    if not found:
        return None if promised == 0 else f"nothing is left, but {promised} were promised"
    begin, end = min(found), max(found) + 1
    if sorted(found) != list(range(begin, end)):
        return f"there are gaps: {sorted(found)}"
    is_short = sum(len(body) + RECORD for body in found.values()) < arguments.get("max_length_bytes", 10**9) - SEGMENT
    if end < promised or (begin > first and is_short and "max_age" not in arguments):
        return f"{begin} to {end} is left, but {first} to {promised} was promised"
    if end not in ends:
        return f"{end} is in the middle of a transaction"
    wrong = [at for at, body in found.items() if bodies.get(at) != body]
    return f"other messages at {wrong}" if wrong else None


def find_failure(
    lives: list[list[Step]], arguments: dict[str, Any], seed: int, make: type[RecordingFiles] = RecordingFiles
) -> str | None:
    """Live, crash, recover, and so on; the first thing that is wrong.

    A life begins with recovery, in which the power may fail again: then the old promises hold.
    """
    choice = random.Random(seed)
    clock = ManualClock()
    files = RecordingFiles()
    files.make_dirs(ROOT)
    files.sync_dir("/")
    before = Crash(0, [], files.disk)
    for number, steps in enumerate(lives):
        history = History(make(before.disk), before.disk.after_kill(), [(0, fact) for fact in before.facts])
        story = StreamLife(history, number, arguments, clock)
        for step in steps:
            story.do(step)
        outcomes = []
        for crash in history.crashes(choice, CRASHES, STATES):
            life = Life(RecordingFiles(crash.disk.after_kill()), 0, OPTIONS)
            clock.drive(life.broker.turn, life.broker.timers)
            found = read_all(life)
            wrong = judge(crash, found, arguments)
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
@given(lives=st.lists(histories, min_size=1, max_size=3), arguments=limits, seed=st.integers(0, 2**32))
def test_no_offset_that_was_promised_changes(lives: list[list[Step]], arguments: dict[str, Any], seed: int) -> None:
    failure = find_failure(lives, arguments, seed)
    assert failure is None, failure


class ForgetfulFiles(RecordingFiles):
    """Says that it has synced, and has not."""

    def sync(self, handle: int) -> None:
        pass


def test_a_disk_that_does_not_sync_is_found_out() -> None:
    steps: list[Step] = [("publish", 50), ("end turn", 0), ("commit", 1), ("burst", 90), ("settle", 0)] * 4
    failures = [find_failure([steps], {}, seed, ForgetfulFiles) for seed in range(20)]
    assert any(failures)
