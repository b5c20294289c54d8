"""Random schedules, compared with a plain model: never early, never lost, cancelled means never.

The storage is the real one, and so small that scheduled messages are only on disk. The clock belongs to the test; it
goes on while the broker is down.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.properties.test_queue_features import ROOMY, TICK, TINY
from tests.storage.driver import Kept, body_of, numbers_of
from tests.support.client import PERSISTENT
from tests.support.crash import effort
from warrenmq.core.delayed import Cursor
from warrenmq.core.schedule import Schedule, ScheduledMessage


@dataclass(eq=False)
class Scheduled:
    number: int
    due_ms: int
    is_persistent: bool


class OneSchedule(RuleBasedStateMachine):
    @initialize(sizes=st.sampled_from([TINY, TINY, ROOMY]))
    def begin(self, sizes: Mapping[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kept = Kept(Path(self.folder.name), now_ms=1000 * TICK, **sizes)
        self.kept.declare()
        self.published = 0
        self.scheduled: list[Scheduled] = []
        self.released: list[Scheduled] = []

    @property
    def schedule(self) -> Schedule:
        found: Schedule = self.kept.broker.vhosts["/"].schedule
        return found

    @rule(
        delays=st.lists(st.integers(1, 40), min_size=1, max_size=30),
        is_persistent=st.sampled_from([True, True, True, False]),
    )
    def publish(self, delays: list[int], is_persistent: bool) -> None:
        for delay in delays:
            mode = PERSISTENT if is_persistent else 1
            self.kept.channel.publish(
                body_of(self.published), "q", delivery_mode=mode, headers={"x-delay": delay * TICK}
            )
            self.scheduled.append(Scheduled(self.published, self.kept.now_ms + delay * TICK, is_persistent))
            self.published += 1
        self._work()

    @rule(ticks=st.integers(0, 20))
    def advance(self, ticks: int) -> None:
        self.kept.now_ms += ticks * TICK
        self._work()

    @precondition(lambda self: bool(getattr(self, "scheduled", None)))
    @rule(pick=st.integers(0, 1000))
    def cancel(self, pick: int) -> None:
        chosen = self.scheduled.pop(pick % len(self.scheduled))
        (found,) = [each for each in self._list() if each.body == body_of(chosen.number)]
        cancelled = self._ask(lambda receive: self.schedule.cancel(found.id, receive))
        assert cancelled == found
        again = self._ask(lambda receive: self.schedule.cancel(found.id, receive))
        assert again is None
        self._work()

    @rule()
    def list_all(self) -> None:
        """In the order of their times; equal times in the order of publishing."""
        expected = sorted(self.scheduled, key=lambda each: each.due_ms)
        assert [(each.body, each.due_ms) for each in self._list()] == [
            (body_of(each.number), each.due_ms) for each in expected
        ]

    @rule(is_clean=st.booleans(), pages=st.integers(0, 10), ticks=st.integers(0, 6))
    def restart(self, is_clean: bool, pages: int, ticks: int) -> None:
        if not is_clean:
            self.kept.write_log(pages)
        self.kept.now_ms += ticks * TICK
        self.kept.restart(is_clean)
        self.scheduled = [each for each in self.scheduled if each.is_persistent]
        self.released = [each for each in self.released if each.is_persistent]
        self._work()
        assert self.kept.storage.report == []

    @invariant()
    def the_schedule_holds_what_the_model_says(self) -> None:
        if hasattr(self, "scheduled"):
            assert (len(self.schedule), self.kept.queue().message_count()) == (len(self.scheduled), len(self.released))
            assert self.kept.failures == []

    def teardown(self) -> None:
        """All are released."""
        if not hasattr(self, "scheduled"):
            return
        try:
            self.advance(50)
            found = self.kept.take_all()
            assert sorted(numbers_of(found)) == sorted(each.number for each in self.released)
            self.kept.ack(found)
            self.kept.advance(10 * TICK)
            stats = self.kept.broker.stats
            assert (stats.ready, stats.unacked, stats.held_bytes, stats.expiry_bytes) == (0, 0, 0, 0)
            self.kept.crash()
        finally:
            self.folder.cleanup()

    def _work(self) -> None:
        self.kept.advance()
        due = [each for each in self.scheduled if each.due_ms <= self.kept.now_ms]
        self.released += due
        self.scheduled = [each for each in self.scheduled if each not in due]

    def _list(self) -> list[ScheduledMessage]:
        """All scheduled messages, three at a time."""
        found: list[ScheduledMessage] = []
        after: Cursor | None = None
        while True:
            page, after = self._ask(lambda receive, at=after: self.schedule.list_from(at, 3, lambda *got: receive(got)))
            found += page
            if after is None or not page:
                return found

    def _ask(self, question: Callable[[Callable[[Any], None]], None]) -> Any:
        answers: list[Any] = []
        question(answers.append)
        for _ in range(100):
            if answers:
                break
            self.kept.settle()
        (answer,) = answers
        return answer


OneSchedule.TestCase.settings = settings(
    max_examples=effort(60),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
TestOneSchedule = OneSchedule.TestCase
