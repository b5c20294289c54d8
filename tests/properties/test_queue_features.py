"""Random lives of a durable queue with expiry, limits, priorities and dead letters, compared with a plain model.

The storage is the real one, and so small that messages are paged out, segments come and go and the log is trimmed. The
clock belongs to the test. After each step the threads' work is done, timers have run, and the queue must hold what the
model says; what died must be in the dead-letter queue, with its reason. A kill comes after the log is written, with the
segments in any state.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.queue_features_model import EXPIRED, Features, ModelQueue
from tests.storage.driver import Kept, body_of, number_of
from tests.support.client import PERSISTENT, Client
from tests.support.crash import effort
from tests.support.outbox import Confirmed, Nacked
from warrenmq.core.message import QueuedMessage
from warrenmq.core.timers import RESOLUTION_MS

TICK = RESOLUTION_MS
GRAVE = "grave"
# A dozen messages are more than memory may hold.
TINY: Mapping[str, Any] = {
    "window": 3000,
    "page": 1000,
    "log_limit": 20_000,
    "log_file_size": 5000,
    "segment_size": 4000,
    "page_size": 700,
    "read_size": 1200,
    "dead_allowance": 600,
    "relog_below": 1000,
}

# All of it stays in memory, and the log is never trimmed.
ROOMY: Mapping[str, Any] = {"window": 1 << 20}

ticks = st.integers(0, 6).map(lambda count: count * TICK)
maybe_ticks = st.one_of(st.none(), ticks)
picks = st.integers(0, 1000)
features = st.builds(
    Features,
    ttl_ms=st.one_of(st.none(), st.none(), ticks),
    max_length=st.one_of(st.none(), st.integers(0, 40)),
    max_bytes=st.one_of(st.none(), st.none(), st.integers(0, 4000)),
    overflow=st.sampled_from(["drop-head", "drop-head", "reject-publish", "reject-publish-dlx"]),
    max_priority=st.sampled_from([0, 0, 1, 3]),
    has_dead_letters=st.booleans(),
    delivery_limit=st.sampled_from([None, None, 0, 1, 2]),
).filter(lambda chosen: not (chosen.ttl_ms == 0 and chosen.gives_way))


class OneQueue(RuleBasedStateMachine):
    @initialize(chosen=features, sizes=st.sampled_from([TINY, TINY, ROOMY]))
    def begin(self, chosen: Features, sizes: Mapping[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kept = Kept(Path(self.folder.name), now_ms=1000 * TICK, **sizes)
        self.model = ModelQueue(chosen, self.kept.now_ms)
        self.held: dict[int, QueuedMessage] = {}
        self.buried: list[tuple[int, str, bool]] = []  # in the dead-letter queue: number, reason, is persistent
        self.published = 0
        self.kept.declare(GRAVE)
        self.kept.declare(**chosen.arguments(GRAVE))
        self._open_publisher()

    # -- messages in and out

    @rule(
        count=st.sampled_from([1, 1, 2, 5, 25]),
        is_persistent=st.sampled_from([True, True, True, False]),
        priority=st.sampled_from([0, 0, 1, 2, 3, 9]),
        ttl_ms=maybe_ticks,
    )
    def publish(self, count: int, is_persistent: bool, priority: int, ttl_ms: int | None) -> None:
        if ttl_ms == 0 and self.model.features.gives_way:
            return  # whether it pushes others out depends on what is in memory
        given: dict[str, Any] = {"priority": priority} if priority else {}
        if ttl_ms is not None:
            given["expiration"] = str(ttl_ms)
        nacked = []
        for number in range(1, count + 1):
            self.published += 1
            if not self.model.publish(self.published, is_persistent, priority, ttl_ms):
                nacked.append(number)
            mode = PERSISTENT if is_persistent else 1
            self.publisher.publish(body_of(self.published), "q", delivery_mode=mode, **given)
        self._work()
        assert self._hear_nacks(count) == nacked

    @rule(count=st.sampled_from([1, 3, 20]))
    def get(self, count: int) -> None:
        for _ in range(count):
            entry, expected = self.kept.get(), self.model.get()
            if expected is None:
                assert entry is None
                break
            assert entry is not None
            assert (number_of(entry), entry.redelivered) == (expected.number, expected.is_redelivered)
            self.held[expected.number] = entry
        self._work()

    @precondition(lambda self: bool(getattr(self, "held", None)))
    @rule(picked=st.lists(picks, min_size=1, max_size=8), how=st.sampled_from(["ack", "reject", "requeue", "requeue"]))
    def settle(self, picked: list[int], how: str) -> None:
        numbers = list(dict.fromkeys(list(self.held)[pick % len(self.held)] for pick in picked))
        entries = [self.held.pop(number) for number in numbers]
        queue: Any = self.kept.queue()
        if how == "requeue":
            queue.requeue(entries)
            self.model.requeue(numbers)
        for number, entry in zip(numbers, entries, strict=True):
            if how == "ack":
                queue.settle(entry)
                self.model.ack(number)
            elif how == "reject":
                queue.reject(entry, None)
                self.model.reject(number)
        self._work()

    @rule(milliseconds=ticks)
    def advance(self, milliseconds: int) -> None:
        self.model.advance(milliseconds)
        self.kept.advance(milliseconds)

    @rule()
    def purge(self) -> None:
        assert self.kept.queue().purge() == self.model.purge()
        self._work()

    # -- restarts

    @rule(is_clean=st.booleans(), pages=st.integers(0, 10), milliseconds=ticks)
    def restart(self, is_clean: bool, pages: int, milliseconds: int) -> None:
        """Time goes on while the broker is down."""
        if not is_clean:
            self.kept.write_log(pages)
        self._bury()
        self.buried = [each for each in self.buried if each[2]]
        self.kept.now_ms += milliseconds
        self.kept.restart(is_clean)
        self.model.now_ms = self.kept.now_ms
        self.held.clear()
        self.model.restart()
        self._open_publisher()
        self._work()
        assert self.kept.storage.report == []

    # -- what must hold

    @invariant()
    def the_queue_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "model"):
            return
        backlog: Any = self.kept.queue().backlog
        assert backlog.waiting == len(self.model.waiting)
        assert backlog.body_bytes == sum(message.size for message in self.model.waiting)
        assert self.kept.queue().unacked_count == len(self.model.unacked)
        if backlog.paged == 0:
            found = [(number_of(entry), entry.redelivered) for entry in backlog]
            assert found == [(message.number, message.is_redelivered) for message in self.model.waiting]
        assert self.kept.failures == []
        self._bury()
        assert self.kept.queue(GRAVE).message_count() == len(self.buried)

    @rule()
    def look_into_the_grave(self) -> None:
        """What died is there, once, with the reason; in order, but for those that expired together."""
        self._bury()
        found = []
        while (entry := self.kept.get(GRAVE)) is not None:
            (death,) = entry.message.properties.headers["x-death"]
            found.append((number_of(entry), death["reason"], entry.message.is_persistent()))
            assert (death["queue"], death["count"]) == ("q", 1)
            assert entry.message.properties.expiration is None
            self.kept.ack([entry])
        assert sorted(found) == sorted(self.buried)
        assert [each for each in found if each[1] != EXPIRED] == [each for each in self.buried if each[1] != EXPIRED]
        self.buried.clear()
        self._work()

    def teardown(self) -> None:
        """Everything is found again, and then nothing is left."""
        if not hasattr(self, "model"):
            return
        try:
            numbers = list(self.held)
            self.kept.queue().requeue([self.held.pop(number) for number in numbers])
            self.model.requeue(numbers)
            self._work()
            self.look_into_the_grave()
            assert self.kept.drain() == [message.number for message in self.model.waiting]
            self.kept.advance(10 * TICK)
            stats = self.kept.broker.stats
            assert (stats.ready, stats.unacked, stats.held_bytes) == (0, 0, 0)
            self.kept.crash()
        finally:
            self.folder.cleanup()

    # -- what the steps share

    def _work(self) -> None:
        self.kept.advance()

    def _bury(self) -> None:
        """What died in the model since the last time is in the dead-letter queue."""
        self.buried += [(message.number, reason, message.is_persistent) for message, reason in self.model.died]
        self.model.died.clear()

    def _open_publisher(self) -> None:
        self.publisher = Client(self.kept.broker).channel()
        self.publisher.core.select_confirms()
        self.answered = 0  # publishes of this channel

    def _hear_nacks(self, count: int) -> list[int]:
        """The last publishes were answered once each: those that were nacked, counted from 1."""
        outbox, first = self.publisher.client.outbox, self.answered + 1
        answers: dict[int, bool] = {}
        for said in outbox.said:
            assert isinstance(said, Confirmed | Nacked)
            for tag in range(max(answers, default=first - 1) + 1 if said.multiple else said.tag, said.tag + 1):
                assert tag not in answers
                answers[tag] = isinstance(said, Nacked)
        outbox.said.clear()
        self.answered += count
        assert sorted(answers) == list(range(first, first + count))
        return [tag - first + 1 for tag, is_nacked in sorted(answers.items()) if is_nacked]


OneQueue.TestCase.settings = settings(
    max_examples=effort(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
TestOneQueue = OneQueue.TestCase
