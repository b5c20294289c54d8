"""Random lives of a durable queue with automatic retry, compared with a plain model.

The storage is the real one, and so small that messages are paged out and the log is trimmed. Attempts never go back, no
persistent message is lost by a restart, none returns before its time, and after its last attempt each is in `q.dead`.
Messages that return together return in any order: some may have to be read from disk first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.test_queue_features import ROOMY, TICK, TINY
from tests.storage.driver import Kept, number_of
from tests.support.crash import effort
from warrenmq.core.message import QueuedMessage, ended_attempts

picks = st.integers(0, 1000)


@dataclass(frozen=True)
class Settings:
    max: int
    delay: int  # ticks
    backoff: str
    type: str

    def arguments(self) -> dict[str, Any]:
        return {
            "x-queue-type": self.type,
            "x-retry-max": self.max,
            "x-retry-delay": self.delay * TICK,
            "x-retry-backoff": self.backoff,
        }

    def delay_after(self, attempts: int) -> int:
        factor = {"exponential": 2 ** (attempts - 1), "linear": attempts, "fixed": 1}[self.backoff]
        return self.delay * TICK * factor


@dataclass(eq=False)
class Waiting:
    """A message; `turn` is its place in the queue, or in the line of those that wait for their next attempt."""

    number: int
    is_persistent: bool
    turn: int
    attempts: int = 0
    due_ms: int = 0
    returned: int = 0  # with which others: the time


class OneQueue(RuleBasedStateMachine):
    @initialize(
        chosen=st.builds(
            Settings,
            max=st.integers(0, 3),
            delay=st.integers(0, 3),
            backoff=st.sampled_from(["exponential", "linear", "fixed"]),
            type=st.sampled_from(["classic", "quorum"]),
        ),
        sizes=st.sampled_from([TINY, TINY, ROOMY]),
    )
    def begin(self, chosen: Settings, sizes: Mapping[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kept = Kept(Path(self.folder.name), now_ms=1000 * TICK, **sizes)
        self.settings = chosen
        self.kept.declare(**chosen.arguments())
        self.turns = 0
        self.published = 0
        self.waiting: list[Waiting] = []
        self.retrying: list[Waiting] = []
        self.held: dict[int, tuple[Waiting, QueuedMessage]] = {}
        self.dead: list[Waiting] = []

    @rule(count=st.sampled_from([1, 2, 25]), is_persistent=st.sampled_from([True, True, False]))
    def publish(self, count: int, is_persistent: bool) -> None:
        numbers = range(self.published, self.published + count)
        self.published += count
        self.kept.publish(numbers, transient=not is_persistent)
        self.waiting += [Waiting(number, is_persistent, self._next_turn()) for number in numbers]
        self._work()

    @rule(count=st.sampled_from([1, 3, 20]))
    def get(self, count: int) -> None:
        for _ in range(count):
            entry = self.kept.get()
            if not self.waiting:
                assert entry is None
                break
            assert entry is not None
            expected = self._take(number_of(entry))
            assert ended_attempts(entry) == expected.attempts
            self.held[expected.number] = expected, entry
        self._work()

    def _take(self, number: int) -> Waiting:
        """The message at the head, or one of those that returned together with it."""
        first = self.waiting[0]
        (found,) = [message for message in self.waiting if message.number == number]
        assert found is first or (found.returned and found.returned == first.returned)
        self.waiting.remove(found)
        return found

    @precondition(lambda self: bool(getattr(self, "held", None)))
    @rule(picked=st.lists(picks, min_size=1, max_size=8), how=st.sampled_from(["ack", "reject", "requeue"]))
    def settle(self, picked: list[int], how: str) -> None:
        numbers = dict.fromkeys(list(self.held)[pick % len(self.held)] for pick in picked)
        chosen = [self.held.pop(number) for number in numbers]
        queue: Any = self.kept.queue()
        if how == "requeue":
            queue.requeue([entry for _, entry in chosen])
        for message, entry in chosen:
            if how == "ack":
                queue.settle(entry)
            else:
                if how == "reject":
                    queue.reject(entry, None)
                self._fail(message)
        self._work()

    def _fail(self, message: Waiting) -> None:
        message.attempts += 1
        if message.attempts > self.settings.max:
            self.dead.append(message)
            return
        message.due_ms = self.kept.now_ms + self.settings.delay_after(message.attempts)
        message.turn = self._next_turn()
        self.retrying.append(message)

    @rule(ticks=st.integers(0, 6))
    def advance(self, ticks: int) -> None:
        self.kept.now_ms += ticks * TICK
        self._work()

    @rule(is_clean=st.booleans(), pages=st.integers(0, 10), ticks=st.integers(0, 6))
    def restart(self, is_clean: bool, pages: int, ticks: int) -> None:
        """Time goes on while the broker is down."""
        if not is_clean:
            self.kept.write_log(pages)
        self.kept.now_ms += ticks * TICK
        self.kept.restart(is_clean)
        self.waiting += [message for message, _ in self.held.values()]
        self.held.clear()
        for line in (self.waiting, self.retrying, self.dead):
            line[:] = [message for message in line if message.is_persistent]
        self.waiting.sort(key=lambda message: message.turn)
        self._work()
        assert self.kept.storage.report == []

    @invariant()
    def the_queue_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "waiting"):
            return
        queue = self.kept.queue()
        counts = len(self.waiting), len(self.retrying), len(self.held)
        assert (queue.message_count(), queue.retrying(), queue.unacked_count) == counts
        dead = self.kept.broker.vhosts["/"].queues.get("q.dead")
        assert (0 if dead is None else dead.message_count()) == len(self.dead)
        assert self.kept.failures == []

    def teardown(self) -> None:
        """All return, and then nothing is left."""
        if not hasattr(self, "waiting"):
            return
        try:
            self.kept.ack([entry for _, entry in self.held.values()])
            self.held.clear()
            self.advance(100)
            assert sorted(self.kept.drain()) == sorted(message.number for message in self.waiting)
            if self.dead:
                found = self.kept.take_all("q.dead")
                assert sorted(number_of(entry) for entry in found) == sorted(message.number for message in self.dead)
                for entry in found:
                    (death,) = entry.message.properties.headers["x-death"]
                    assert (death["queue"], death["reason"], death["count"]) == ("q", "delivery_limit", 1)
                self.kept.ack(found)
            self.kept.advance(10 * TICK)
            stats = self.kept.broker.stats
            assert (stats.ready, stats.unacked, stats.held_bytes, stats.expiry_bytes) == (0, 0, 0, 0)
            self.kept.crash()
        finally:
            self.folder.cleanup()

    def _work(self) -> None:
        self.kept.advance()
        due = [message for message in self.retrying if message.due_ms <= self.kept.now_ms]
        for message in sorted(due, key=lambda message: (message.due_ms, message.turn)):
            self.retrying.remove(message)
            message.turn = self._next_turn()
            message.returned = self.kept.now_ms
            self.waiting.append(message)

    def _next_turn(self) -> int:
        self.turns += 1
        return self.turns


OneQueue.TestCase.settings = settings(
    max_examples=effort(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
TestRetriedQueue = OneQueue.TestCase
