"""ENOSPC, EMFILE and EIO at every operation that may meet them: the broker waits for room, or stops and says why.

One history that does everything is lived again and again, with the n-th operation failing, for every n. Whatever
happens, nothing that was promised is missing after the next start, be it after a kill or after a power loss.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass

import pytest

from tests.adversity.crash_cycles import begin_workload, empty_start, recover
from tests.adversity.workload import Step, Workload, any_step, judge
from tests.properties.storage_model import World
from tests.support.crash import Crash, History, effort
from tests.support.faults import SHORTAGES, FaultyFiles
from warrenmq.storage import full_disk

STEPS = 200
STRIDE = max(1, round(4 / effort(1)))  # of the sites that are tried; WARREN_TEST_EFFORT=4 tries them all


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is tried again at once."""
    monkeypatch.setattr(full_disk, "FULL_DISK_RETRY", 0)


def everything(seed: int = 29) -> list[Step]:
    choice = random.Random(seed)
    return [any_step(choice) for _ in range(STEPS)] + [("settle", 0, 0)]


@dataclass
class Outcome:
    files: FaultyFiles
    history: History
    workload: Workload | None
    failure: str | None  # why the broker stopped


class BrieflyShort(FaultyFiles):
    """There is room, or a descriptor, again after some attempts."""

    attempts = 3

    def _pass(self, operation: str, where: str) -> None:
        try:
            super()._pass(operation, where)
        except OSError:
            self.attempts -= 1
            if self.attempts == 0:
                self.give_back()
            raise


def live_with(make: type[FaultyFiles], fail_at: int, number: int, leaves_half: bool = False) -> Outcome:
    before = empty_start()
    history = History.begin(before.disk)
    history.facts = [(0, fact) for fact in before.facts]
    files = make(history.files, fail_at, number, leaves_half)
    try:
        workload = begin_workload(files, history, World(), 0)
    except OSError as error:
        return Outcome(files, history, None, str(error))  # the start says why it cannot be
    for step in everything():
        try:
            workload.do(step)
        except AssertionError:  # the broker stopped in the middle of a step
            if workload.life.failure is None:
                raise
        if workload.life.failure is not None:
            break
    return Outcome(files, history, workload, workload.life.failure)


def require_nothing_lost(outcome: Outcome, seed: int) -> None:
    """After the failure: the process is gone, or the power."""
    disk = outcome.history.files.disk
    facts = [fact for _, fact in outcome.history.facts]
    for name, found in (("kill", disk.after_kill()), ("power loss", disk.after_power_loss(random.Random(seed)))):
        wrong = judge(Crash(0, facts, found), recover(found).state)
        assert wrong is None, f"operation {outcome.files.fail_at}, {name}: {wrong}"


def sites(number: int) -> list[int]:
    operations = live_with(FaultyFiles, 0, number).files.sites
    found = [at for at, name in enumerate(operations, 1) if name in SHORTAGES.get(number, (name,))]
    return found[::STRIDE] + found[-3:]


def test_history_of_the_faults_does_everything() -> None:
    outcome = live_with(FaultyFiles, 0, errno.EIO)
    assert outcome.failure is None
    assert set(outcome.files.sites) >= {"create", "open", "write", "sync", "rename", "remove", "make_dirs", "sync_dir"}
    assert outcome.workload is not None
    storage = outcome.workload.life.storage
    assert (storage.checkpoint.count > 0, storage.compaction.count > 0) == (True, True)
    assert any(path.endswith(".dead") for path, _ in outcome.history.files.disk.walk())


def test_an_error_of_the_disk_stops_the_broker_and_loses_nothing() -> None:
    for at in sites(errno.EIO):
        outcome = live_with(FaultyFiles, at, errno.EIO, leaves_half=at % 2 == 0)
        assert outcome.files.has_failed
        require_nothing_lost(outcome, at)
        if outcome.failure is not None:
            assert "nput/output error" in outcome.failure, f"operation {at}: {outcome.failure}"
            assert outcome.workload is None or outcome.workload.life.broker.failure is not None


@pytest.mark.parametrize("number", SHORTAGES, ids=errno.errorcode.get)
def test_a_shortage_blocks_and_nothing_is_lost(number: int) -> None:
    for at in sites(number):
        outcome = live_with(BrieflyShort, at, number, leaves_half=at % 2 == 0)
        require_nothing_lost(outcome, at)
        if outcome.workload is None:
            continue  # it could not start: there is nobody to wait yet
        assert outcome.failure is None, f"operation {at}: {outcome.failure}"
        told = outcome.workload.life.full
        assert told[::2] == [True] * (len(told) // 2), f"operation {at}: {told}"
        assert told[1::2] == [False] * (len(told) // 2), f"operation {at}: {told}"
        kept = recover(outcome.history.files.disk.after_power_loss(random.Random(at))).state
        assert kept == outcome.workload.world.durable(), f"operation {at}: not all of it is there after it went on"
