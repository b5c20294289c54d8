"""Power loss at any moment of generated histories, through the real storage code on a simulated disk.

Every history is lived once, with its file operations recorded. Then the power fails at some of them, the disk is left
in one of the states that POSIX allows, a new broker recovers from it, and what it holds must be the state after some
step: not before the last one that was promised, and no mixture of two. The next life goes on from one of these disks.

WARREN_TEST_EFFORT=20 tries twenty times as many.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adversity.crash_cycles import Plan, find_failure
from tests.adversity.workload import Step, any_step, histories
from tests.support.crash import effort
from tests.support.disk import RecordingFiles
from warrenmq.storage.compaction import Compaction

plans = st.lists(st.builds(Plan, histories, st.booleans()), min_size=1, max_size=3)


@settings(
    max_examples=effort(80),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(plans=plans, seed=st.integers(0, 2**32))
def test_nothing_confirmed_is_lost(plans: list[Plan], seed: int) -> None:
    failure = find_failure(plans, seed)
    assert failure is None, failure


def thinned_out(seed: int) -> Plan:
    """A queue of several segments, most of whose messages are acked, in any order, while its files are compacted."""
    choice = random.Random(seed)
    fill: list[Step] = [("publish many", 3, choice.randrange(30, 90)) for _ in range(8)]
    acks: list[Step] = [("ack", choice.randrange(100), 0) for _ in range(30)]
    busy: list[Step] = []
    for ack in acks[22:]:
        busy += [ack, ("end turn", 0, 0), ("commit", 1, 0), ("page", choice.randrange(3), 0)]
    return Plan([*fill, ("settle", 0, 0), *[("get", 3, 0)] * 36, ("settle", 0, 0), *acks[:22], *busy, ("settle", 0, 0)])


def test_segments_that_are_merged_lose_and_repeat_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []
    submit = Compaction._submit

    def count_and_submit(self: Compaction, run: Any, epoch: int | None) -> None:
        merged.append(len(run.segments))
        submit(self, run, epoch)

    monkeypatch.setattr(Compaction, "_submit", count_and_submit)
    for seed in range(effort(8)):
        failure = find_failure([thinned_out(seed), thinned_out(seed + 1000)], seed, crashes=10)
        assert failure is None, f"seed {seed}: {failure}"
    assert max(merged) > 1, "no segments were merged"


class Sabotage(RecordingFiles):
    """A disk that says it has synced, and has not, where the name tells."""

    where = ""

    def sync(self, handle: int) -> None:
        if self.where not in self.path_of(handle):
            super().sync(handle)

    def sync_dir(self, path: str) -> None:
        if self.where not in f"{path}/":
            super().sync_dir(path)


class NothingIsSynced(Sabotage):
    where = "/"


class LogIsNotSynced(Sabotage):
    where = ".log"


class SegmentsAreNotSynced(Sabotage):
    where = ".seg"


class MarksAreNotSynced(Sabotage):
    where = ".dead"


class QueueFoldersAreNotSynced(Sabotage):
    where = "/queues/"


class CatalogIsNotSynced(Sabotage):
    where = "catalog"


@pytest.mark.parametrize(
    ("make", "histories"),
    [
        (NothingIsSynced, 5),
        (LogIsNotSynced, 5),
        (SegmentsAreNotSynced, 40),
        (MarksAreNotSynced, 80),
        (QueueFoldersAreNotSynced, 40),
        (CatalogIsNotSynced, 80),
    ],
)
def test_a_sync_that_does_nothing_is_found_out(make: type[RecordingFiles], histories: int) -> None:
    assert any(find_failure_of_seed(seed, make) for seed in range(histories))


def find_failure_of_seed(seed: int, make: type[RecordingFiles] = RecordingFiles) -> str | None:
    """The same without hypothesis, which would go on to look for the smallest history."""
    choice = random.Random(seed)
    plans = [
        Plan([any_step(choice) for _ in range(choice.randint(20, 80))], choice.random() < 0.3)
        for _ in range(choice.randint(1, 3))
    ]
    try:
        return find_failure(plans, seed, make=make)
    except (AssertionError, LookupError) as error:  # what is found may make no sense at all
        return str(error)
