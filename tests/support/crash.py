"""Crashes at any moment of a recorded history.

A history is the operations of storage code on a `RecordingFiles`, and between them the facts that clients have seen:
"published", "confirmed". `History.crashes` chooses moments of it, simulates a power loss, and yields the facts up to
then with a possible content of the disk. The test recovers from that disk and compares.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.disk import Disk, RecordingFiles

# The suite runs a small part; WARREN_TEST_EFFORT=20 runs twenty times as much.
EFFORT = float(os.environ.get("WARREN_TEST_EFFORT", "1"))


def effort(count: int) -> int:
    """Return this number of tries, or the one set for the run."""
    return max(1, round(count * EFFORT))


@dataclass(frozen=True, slots=True)
class Crash:
    """The power failed after N operations; `facts` were reported before."""

    after: int
    facts: list[Any]
    disk: Disk
    killed: bool = False  # only the process died


@dataclass
class History:
    """`start` is the disk before the first operation."""

    files: RecordingFiles
    start: Disk = field(default_factory=Disk)
    facts: list[tuple[int, Any]] = field(default_factory=list)  # with the number of operations done before

    @classmethod
    def begin(cls, disk: Disk | None = None) -> History:
        disk = disk or Disk()
        return cls(RecordingFiles(disk), disk.after_kill())

    def record(self, fact: Any) -> None:
        self.facts.append((len(self.files.operations), fact))

    def crashes(self, choice: random.Random, count: int, states: int = 1, first: int = 0) -> Iterator[Crash]:
        """Up to `count` moments from the `first` operation on, and N possible disks for each."""
        operations = self.files.operations
        moments = range(first, len(operations) + 1)
        chosen = sorted(choice.sample(moments, min(count, len(moments))))
        past = RecordingFiles(self.start.after_kill())
        done = 0
        for moment in chosen:
            past.replay(operations[done:moment])
            done = moment
            facts = [fact for before, fact in self.facts if before <= moment]
            yield Crash(moment, facts, past.disk.after_kill(), killed=True)
            for _ in range(states):
                yield Crash(moment, facts, past.disk.after_power_loss(choice))
