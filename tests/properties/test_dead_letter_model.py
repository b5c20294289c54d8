"""Random nets of queues that dead-letter into each other, with cycles, on the real storage, with crashes at any point.

After each step every message is looked for. It must be in one place, and in one that the model allows: nothing is lost,
and nothing is there twice. A crash comes between a step and any of the writes that follow from it: then each message is
where it was before the step, or where the step may have brought it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.properties.dead_letter_model import NOWHERE, Net, Node, State, gone
from tests.properties.test_queue_features import ROOMY, TICK, TINY, maybe_ticks, picks, ticks
from tests.storage.driver import Kept, body_of, number_of
from tests.support.client import PERSISTENT
from tests.support.crash import effort
from warrenmq.core.message import QueuedMessage

NAMES = ("a", "b", "c", "d", "e")


@st.composite
def nets(draw: st.DrawFn) -> list[Node]:
    names = NAMES[: draw(st.integers(2, 5))]
    targets = st.sampled_from([*names, *names, None, NOWHERE])
    overflows = st.sampled_from(["drop-head", "drop-head", "reject-publish", "reject-publish-dlx"])
    lengths = st.one_of(st.none(), st.none(), st.integers(0, 12))
    return [
        Node(name, draw(targets), draw(st.one_of(st.none(), maybe_ticks)), draw(lengths), draw(overflows))
        for name in names
    ]


class NetOfQueues(RuleBasedStateMachine):
    """`states` is where each message was seen last. `may_be` is where the present step may bring each of them."""

    @initialize(nodes=nets(), sizes=st.sampled_from([TINY, TINY, ROOMY]))
    def begin(self, nodes: list[Node], sizes: Mapping[str, Any]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kept = Kept(Path(self.folder.name), now_ms=1000 * TICK, **sizes)
        self.net = Net(nodes)
        self.net.now_ms = self.kept.now_ms
        self.states: dict[int, State] = {}
        self.may_be: dict[int, set[State]] = {}
        self.held: dict[int, QueuedMessage] = {}
        self.published = 0
        for node in nodes:
            self.kept.declare(node.name, **arguments_of(node))

    # -- steps: what is done, and what may come of it; nothing is written yet

    def _publish(self, name: str, count: int, is_persistent: bool, ttl_ms: int | None) -> None:
        given = {} if ttl_ms is None else {"expiration": str(ttl_ms)}
        for _ in range(count):
            self.published += 1
            self.may_be[self.published] = self.net.published(name, is_persistent, ttl_ms)
            mode = PERSISTENT if is_persistent else 1
            self.kept.channel.publish(body_of(self.published), name, delivery_mode=mode, **given)

    def _settle(self, picked: list[int], how: str) -> None:
        for number in dict.fromkeys(list(self.held)[pick % len(self.held)] for pick in picked):
            entry, state = self.held.pop(number), self.states[number]
            queue: Any = entry.queue
            if how == "ack":
                queue.settle(entry)
                self.may_be[number] = {gone(state)}
            elif how == "reject":
                queue.reject(entry, None)
                self.may_be[number] = self.net.rejected(state)
            else:
                queue.requeue([entry])
                self.may_be[number] = self.net.requeued(state)

    def _advance(self, milliseconds: int) -> None:
        self.kept.now_ms += milliseconds
        self.net.now_ms = self.kept.broker.turn.now_ms = self.kept.now_ms
        self.kept.broker.timers.advance(self.kept.now_ms)

    # -- steps that end well

    @rule(
        name=st.sampled_from(NAMES),
        count=st.sampled_from([1, 2, 5, 20]),
        is_persistent=st.sampled_from([True, True, True, False]),
        ttl_ms=maybe_ticks,
    )
    def publish(self, name: str, count: int, is_persistent: bool, ttl_ms: int | None) -> None:
        if name in self.net.nodes:
            self._publish(name, count, is_persistent, ttl_ms)
            self._look()

    @rule(name=st.sampled_from(NAMES), count=st.sampled_from([1, 3, 15]))
    def get(self, name: str, count: int) -> None:
        if name not in self.net.nodes:
            return
        for _ in range(count):
            entry = self.kept.get(name)
            if entry is None:
                break
            number = number_of(entry)
            assert self.states[number].place == name
            self.held[number] = entry
            self.states[number] = replace(self.states[number], is_held=True)
        self._look()

    @precondition(lambda self: bool(getattr(self, "held", None)))
    @rule(picked=st.lists(picks, min_size=1, max_size=8), how=st.sampled_from(["ack", "reject", "reject", "requeue"]))
    def settle(self, picked: list[int], how: str) -> None:
        self._settle(picked, how)
        self._look()

    @rule(milliseconds=ticks)
    def advance(self, milliseconds: int) -> None:
        self._advance(milliseconds)
        self._look()

    @rule(name=st.sampled_from(NAMES))
    def purge(self, name: str) -> None:
        if name not in self.net.nodes:
            return
        self.kept.queue(name).purge()
        for number, state in self.states.items():
            if state.place == name and not state.is_held:
                self.may_be[number] = {gone(state)}
        self._look()

    @rule(milliseconds=ticks)
    def restart(self, milliseconds: int) -> None:
        self.kept.now_ms += milliseconds
        self.kept.stop()
        self._wake(lambda state: {state})

    # -- steps that a crash interrupts

    @rule(
        name=st.sampled_from(NAMES),
        count=st.sampled_from([1, 2, 20]),
        ttl_ms=maybe_ticks,
        jobs=st.lists(st.booleans(), max_size=8),
    )
    def crash_in_a_publish(self, name: str, count: int, ttl_ms: int | None, jobs: list[bool]) -> None:
        if name in self.net.nodes:
            known = self.published
            self._publish(name, count, True, ttl_ms)
            for number in range(known + 1, self.published + 1):
                self.states[number] = gone(State(None))  # it may never have come
            self._crash(jobs)

    @precondition(lambda self: bool(getattr(self, "held", None)))
    @rule(
        picked=st.lists(picks, min_size=1, max_size=8),
        how=st.sampled_from(["ack", "reject", "reject", "requeue"]),
        jobs=st.lists(st.booleans(), max_size=8),
    )
    def crash_in_a_settlement(self, picked: list[int], how: str, jobs: list[bool]) -> None:
        self._settle(picked, how)
        self._crash(jobs)

    @rule(milliseconds=ticks, jobs=st.lists(st.booleans(), max_size=8))
    def crash_when_time_has_passed(self, milliseconds: int, jobs: list[bool]) -> None:
        self._advance(milliseconds)
        self._crash(jobs)

    def _crash(self, jobs: list[bool]) -> None:
        """Some of the work is done that threads have to do, and then the process is killed."""
        self.kept.turn()
        storage = self.kept.storage
        for is_commit in jobs:
            if is_commit:
                storage.log.flush()
                storage.committer.run_one()
            else:
                storage.pager.run_one()
        self.kept.crash()
        self._wake(lambda state: {state, *self.net.waiting(state)})

    def _wake(self, before: Callable[[State], set[State]]) -> None:
        """Start again; each message may be where the step was to bring it, or where `before` says."""
        self.net.now_ms = self.kept.now_ms
        for number, state in self.states.items():
            states = before(state) | self.may_be.get(number, set())
            self.may_be[number] = {after for each in states for after in self.net.restarted(each)}
        self.held.clear()
        self.kept.open()
        assert self.kept.storage.report == []
        self._look()

    # -- where everything is

    def _look(self) -> None:
        """All that follows is done. Each message is in one place, and may be there."""
        self.kept.advance()
        seen: dict[int, State] = {}
        for name, node in self.net.nodes.items():
            queue: Any = self.kept.queue(name)
            count = queue.message_count()
            assert not (node.drops and count > (node.max_length or 0)), f"{name} is too long: {count}"
            entries = self.kept.take_all(name)
            assert len(entries) == count, f"{name} holds {count}, and {len(entries)} can be had"
            for entry in entries:
                assert number_of(entry) not in seen, f"{number_of(entry)} is in {name}, and elsewhere"
                seen[number_of(entry)] = state_of(entry, name)
            queue.requeue(entries)
        for number in self.held:
            assert number not in seen, f"{number} is held, and waits"
            seen[number] = self.states[number]
        for number in self.states.keys() | self.may_be.keys() | seen.keys():
            allowed = self.may_be.get(number)
            if allowed is None:
                allowed = self.net.waiting(self.states[number])
            else:
                allowed = {after for state in allowed for after in self.net.waiting(state)}
            state = seen.get(number) or next((each for each in allowed if each.place is None), None)
            assert state is not None, f"{number} is lost: it should be in one of {allowed}"
            assert state in allowed, f"{number}: {state} is none of {allowed}"
            self.states[number] = state
        self.may_be.clear()
        self.kept.advance()
        assert self.kept.failures == []

    def teardown(self) -> None:
        if not hasattr(self, "net"):
            return
        try:
            self._look()
            self.kept.crash()
        finally:
            self.folder.cleanup()


def arguments_of(node: Node) -> dict[str, Any]:
    given: dict[str, Any] = {
        "x-message-ttl": node.ttl_ms,
        "x-max-length": node.max_length,
        "x-overflow": node.overflow,
        "x-dead-letter-exchange": None if node.target is None else NOWHERE if node.target == NOWHERE else "",
        "x-dead-letter-routing-key": None if node.target is None else node.target,
    }
    return {name: value for name, value in given.items() if value is not None}


def state_of(entry: QueuedMessage, place: str) -> State:
    """A waiting message as the broker has it."""
    headers = entry.message.properties.headers or {}
    deaths = tuple((death["queue"], death["reason"], death["count"]) for death in headers.get("x-death", []))
    return State(place, deaths, entry.expires_ms or None, False, entry.message.is_persistent())


NetOfQueues.TestCase.settings = settings(
    max_examples=effort(60),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
TestNetOfQueues = NetOfQueues.TestCase
