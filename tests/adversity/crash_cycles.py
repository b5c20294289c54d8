"""Runs of a broker on one simulated disk, each ended by a crash and followed by another.

`find_failure` executes the steps, simulates a power loss at some of the recorded file operations, recovers from disks
that are possible then, and checks their content. The next run starts from one of these disks.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.adversity.workload import QUEUES, STREAM, Step, Workload, judge
from tests.properties.storage_model import ModelMessage, ModelQueue, State, World
from tests.support.crash import Crash, History
from tests.support.disk import Disk, RecordingFiles
from tests.support.durable import ROOT, CatalogOnFiles, Life
from warrenmq.journal.files import Files
from warrenmq.journal.log_scan import read_log


@dataclass(frozen=True)
class Plan:
    """The steps of one run, and whether it stops in order."""

    steps: list[Step]
    is_stopped: bool = False


@dataclass(frozen=True)
class Found:
    """What a start found and reported."""

    state: State
    report: list[str]
    has_damage: bool


def new_disk() -> Disk:
    """An empty data folder whose name is synced."""
    files = RecordingFiles()
    files.make_dirs(ROOT)
    files.sync_dir("/")
    return files.disk


def empty_start() -> Crash:
    return Crash(0, [("state", World().durable())], new_disk())


def run_plan(
    before: Crash, world: World, plan: Plan, number: int, make: type[RecordingFiles] = RecordingFiles
) -> History:
    """Record one run. It begins with recovery, which a power loss may interrupt: then the earlier promises hold."""
    history = History(make(before.disk), before.disk.after_kill(), [(0, fact) for fact in before.facts])
    workload = begin_workload(history.files, history, world, number)
    for step in plan.steps:
        workload.do(step)
    if plan.is_stopped:
        workload.stop()
    return history


def begin_workload(files: Files, history: History, world: World, number: int) -> Workload:
    workload = Workload(Life(files, number), world, history)
    workload.begin()
    if not number:
        for name in (*QUEUES, STREAM):
            workload.declare(name)
            workload.note_state()
    return workload


def recover(disk: Disk) -> Found:
    """Start on a copy of the disk and look at everything."""
    require_catalog_not_ahead(disk)
    life = Life(RecordingFiles(disk.after_kill()))
    return Found(life.take_everything(), life.storage.report, life.storage.has_damage)


def require_catalog_not_ahead(disk: Disk) -> None:
    """What the catalog holds must be in the log, if the log holds anything."""
    files = RecordingFiles(disk.after_kill())
    scan = read_log(files, f"{ROOT}/log")
    if sum(1 for _ in scan):
        applied = CatalogOnFiles(files, ROOT).applied_epoch
        assert applied <= scan.last_sequence, f"the catalog is at {applied}, the log at {scan.last_sequence}"


def world_of(state: State) -> World:
    world = World()
    for name, bodies in state[0]:
        messages = [ModelMessage(body, True) for body in bodies]
        world.queues[name] = ModelQueue(is_stream=name == STREAM, messages=messages)
    world.bound = set(state[1])
    world.restart()
    return world


def find_failure(
    plans: list[Plan], seed: int, crashes: int = 4, states: int = 2, make: type[RecordingFiles] = RecordingFiles
) -> str | None:
    """Run, crash, recover, and so on; return the first fault."""
    choice = random.Random(seed)
    before, world = empty_start(), World()
    for number, plan in enumerate(plans):
        history = run_plan(before, world, plan, number, make)
        outcomes = []
        for crash in history.crashes(choice, crashes, states):
            with errors_raised():
                found = recover(crash.disk)
            wrong = judge(crash, found.state)
            if wrong is None and found.has_damage:
                wrong = "damage is reported, and there was only a crash"
            if wrong is not None:
                how = "kill" if crash.killed else "power loss"
                return f"life {number}, {how} after operation {crash.after}: {wrong}\n  report   {found.report}"
            outcomes.append((crash, found.state))
        before, state = choice.choice(outcomes)
        world = world_of(state)
    return None


@contextmanager
def errors_raised() -> Iterator[None]:
    """What the storage logs as an error is one: a crash damages nothing."""
    handler = _Raise(logging.ERROR)
    logger = logging.getLogger("warrenmq.storage")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Raise(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise AssertionError(record.getMessage())
