"""Random lives of queues and streams on the real storage, with restarts, compared with a plain model.

Every step is done to the broker and to the model. What is fetched must be what the model says comes next. A clean
restart brings back everything durable; after a kill, the world is set back to a state that it had, and to none before
the last that was promised. Files are simulated (tests/support/disk.py), and threads are driven by hand.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.adversity.crash_cycles import begin_workload, empty_start, errors_raised, recover, world_of
from tests.adversity.workload import Step, judge, steps
from tests.properties.storage_model import World
from tests.support.crash import Crash, History, effort


class QueuesStreamsAndRestarts(RuleBasedStateMachine):
    """The steps are those of tests/adversity/workload.py: publishes, gets, acks, transactions, definitions, threads."""

    @initialize()
    def begin(self) -> None:
        self.lives = 0
        self._live(empty_start(), World())

    @rule(several=st.lists(steps, min_size=1, max_size=10))
    def live(self, several: list[Step]) -> None:
        with errors_raised():
            for step in several:
                self.workload.do(step)

    @rule()
    def restart_in_order(self) -> None:
        """Nothing durable is missing, and nothing has to be replayed."""
        self.workload.stop()
        crash, expected = self._crash(), self.workload.world.durable()
        assert recover(crash.disk).state == expected
        self._live(crash, world_of(expected))
        assert self.workload.life.storage.replayed_epochs <= 1  # with the positions

    @rule()
    def kill(self) -> None:
        crash = self._crash()
        found = recover(crash.disk).state
        wrong = judge(crash, found)
        assert wrong is None, wrong
        self._live(crash, world_of(found))

    def teardown(self) -> None:
        if hasattr(self, "workload"):
            self.restart_in_order()

    def _crash(self) -> Crash:
        facts = [fact for _, fact in self.history.facts]
        return Crash(0, facts, self.history.files.disk.after_kill(), killed=True)

    def _live(self, before: Crash, world: World) -> None:
        self.history = History.begin(before.disk.after_kill())
        self.history.facts = [(0, fact) for fact in before.facts]
        with errors_raised():
            self.workload = begin_workload(self.history.files, self.history, world, self.lives)
        self.lives += 1


QueuesStreamsAndRestarts.TestCase.settings = settings(
    max_examples=effort(120), stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestQueuesStreamsAndRestarts = QueuesStreamsAndRestarts.TestCase
