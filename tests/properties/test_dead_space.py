"""Random lives of one queue with messages of very different sizes: what is dead does not stay on the disk.

Messages are published, taken, acked in any order and purged, the log is trimmed, the broker is restarted or killed.
Whenever nothing is left to do, the queue's files are less than twice its living messages and one segment; and its
messages are those of a plain list, in order.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.storage.driver import Kept
from tests.support.client import PERSISTENT
from tests.support.crash import effort
from warrenmq.core.message import QueuedMessage

SEGMENT = 32 * 1024
OPTIONS = {
    "segment_size": SEGMENT,
    "dead_allowance": SEGMENT * 3 // 4,
    "page_size": 4096,
    "read_size": 8192,
    "window": 16 * 1024,
    "page": 4096,
    "log_limit": 256 * 1024,
}
# Beside its body a record has its head, the address and the header; pages have heads, too.
OVERHEAD = 100

sizes = st.sampled_from([20, 100, 1000, 5000, 20_000])


class DeadSpace(RuleBasedStateMachine):
    """`waiting` is the model: bodies by position, those that are held left out."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.kept = Kept(Path(self.folder.name), **OPTIONS)
        self.kept.declare()
        self.waiting: list[tuple[int, bytes, bool]] = []
        self.held: list[tuple[QueuedMessage, bool]] = []
        self.published = 0

    @rule(several=st.lists(sizes, min_size=1, max_size=4), count=st.integers(1, 30), transient=st.booleans())
    def publish(self, several: list[int], count: int, transient: bool) -> None:
        for _ in range(count):
            for size in several:
                body = (b"%08d" % self.published).ljust(size, b".")
                is_persistent = not (transient and size == several[0])
                self.kept.channel.publish(body, "q", delivery_mode=PERSISTENT if is_persistent else 1)
                self.waiting.append((self.published, body, is_persistent))
                self.published += 1

    @rule(count=st.integers(1, 200))
    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.waiting))):
            number, body, is_persistent = self.waiting.pop(0)
            (entry,) = self.kept.take(1)
            assert entry.message.body == body, f"{entry.message.body[:8]!r} came instead of {number}"
            self.held.append((entry, is_persistent))

    @rule(step=st.integers(1, 200), start=st.integers(0, 5), stays=st.booleans())
    def ack(self, step: int, start: int, stays: bool) -> None:
        """All but one of some, or one of some."""
        chosen = {index for index in range(len(self.held)) if (index % step == start % step) is not stays}
        self.kept.ack(entry for index, (entry, _) in enumerate(self.held) if index in chosen)
        self.held = [each for index, each in enumerate(self.held) if index not in chosen]

    @rule()
    def ack_large(self) -> None:
        self.kept.ack(entry for entry, _ in self.held if entry.message.size >= 1000)
        self.held = [each for each in self.held if each[0].message.size < 1000]

    @rule()
    def purge(self) -> None:
        self.kept.queue().purge()
        self.waiting.clear()

    @rule(carry=st.booleans())
    def checkpoint(self, carry: bool) -> None:
        self.kept.checkpoint(carry)

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.kept.settle()
        self.kept.restart(clean)
        held = [(int(entry.message.body[:8]), entry.message.body, kept) for entry, kept in self.held]
        self.waiting = sorted(each for each in held + self.waiting if each[2])
        self.held = []

    @invariant()
    def little_is_dead(self) -> None:
        if not hasattr(self, "kept"):
            return
        self.kept.settle()
        living = [body for _, body, _ in self.waiting] + [entry.message.body for entry, _ in self.held]
        live = sum(map(len, living)) + OVERHEAD * len(living)
        folder = Path(self.kept.store().folder)
        found = {path.name: path.stat().st_size for path in folder.iterdir()} if folder.exists() else {}
        assert sum(found.values()) <= 2 * live + SEGMENT, (live, found)
        assert self.kept.failures == []

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.restart(False)
            assert [entry.message.body for entry in self.kept.take_all()] == [body for _, body, _ in self.waiting]
            self.kept.crash()
            self.folder.cleanup()


DeadSpace.TestCase.settings = settings(
    max_examples=effort(25), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestDeadSpace = DeadSpace.TestCase
