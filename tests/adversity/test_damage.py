"""Flipped bits and cut files: a start recovers everything, or says what is lost; never a wrong message.

A disk with files of every kind is damaged in one place at a time. Then the broker must start, whatever it finds must
have been there before, in order and once, and whatever is missing must have been told. Queues whose files were not
touched hold all they held. (The catalog has its own tests: tests/storage/test_catalog.py.)
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

import pytest

from tests.adversity.crash_cycles import begin_workload, empty_start
from tests.adversity.workload import any_step
from tests.properties.storage_model import State, World
from tests.support.crash import History, effort
from tests.support.disk import Disk, RecordingFiles
from tests.support.durable import ROOT, Life
from warrenmq.journal.log_scan import read_log
from warrenmq.journal.segment_file import read_marks, walk_pages

SPOTS = effort(12)  # for each file


@dataclass(frozen=True)
class Original:
    """A disk, what it holds, and every body that was ever published, by queue."""

    disk: Disk
    state: State
    known: dict[str, list[bytes]]
    numbers: dict[str, str]  # the folder of each queue


def make_original(seed: int) -> Original:
    choice = random.Random(seed)
    before = empty_start()
    history = History.begin(before.disk)
    workload = begin_workload(history.files, history, World(), 0)
    known: dict[str, list[bytes]] = {}
    for _ in range(150):
        workload.do(any_step(choice))
        for name, bodies in workload.world.durable()[0]:
            seen = known.setdefault(name, [])
            seen += [body for body in bodies if body not in seen]
    workload.do(("settle", 0, 0))
    vhost = workload.life.broker.vhosts["/"]
    stores = {name: getattr(queue, "backlog", queue).store for name, queue in vhost.queues.items()}
    numbers = {name: store.folder for name, store in stores.items() if store is not None}
    return Original(history.files.disk.after_kill(), workload.world.durable(), known, numbers)


@pytest.fixture(scope="module", params=[3, 6, 26])
def original(request: pytest.FixtureRequest) -> Original:
    return make_original(request.param)


def files_of(original: Original, ending: str) -> list[str]:
    return [path for path, file in original.disk.walk() if path.endswith(ending) and file.current]


def damage(original: Original, path: str, choice: random.Random) -> tuple[Disk, str]:
    """One bit flipped, or the file cut, or a stretch of zeros."""
    disk = original.disk.after_kill()
    content = disk.file(path).current
    at = choice.randrange(len(content))
    how = choice.choice(("flip", "flip", "flip", "cut", "zeros"))
    if how == "flip":
        content[at] ^= 1 << choice.randrange(8)
    elif how == "cut":
        del content[at:]
    else:
        content[at : at + 64] = bytes(len(content[at : at + 64]))
    return disk, f"{path}: {how} at {at}"


def is_cut_between_records(disk: Disk, path: str) -> bool:
    """Nobody can tell such a file from one that was never longer."""
    files = RecordingFiles(disk.after_kill())
    if path.endswith(".seg"):
        return walk_pages(files, files.open_read(path)).reason is None
    if path.endswith(".dead"):
        return read_marks(files, path).reason is None
    scan = read_log(files, f"{ROOT}/log")
    return sum(1 for _ in scan) > 0 and scan.torn_tail is None and not scan.damage


def start(disk: Disk) -> tuple[Life, State]:
    life = Life(RecordingFiles(disk))
    return life, life.take_everything(is_damaged=True)


@pytest.mark.parametrize("ending", [".log", ".seg", ".dead"])
def test_damage_is_reported_and_never_makes_a_wrong_message(
    ending: str, original: Original, caplog: pytest.LogCaptureFixture
) -> None:
    choice = random.Random(1)
    for path in files_of(original, ending):
        for _ in range(SPOTS):
            disk, where = damage(original, path, choice)
            caplog.clear()
            life, found = start(disk.after_kill())
            told = [*life.storage.report, *(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)]
            require_sense(original, found, where)
            untouched = {name for name, folder in original.numbers.items() if not path.startswith(f"{folder}/")}
            if ending != ".log":
                require_whole(original, found, untouched, where)
            if found != original.state and not is_cut_between_records(disk, path):
                assert told, f"{where}: not what it was, and nothing is said"


def require_sense(original: Original, found: State, where: str) -> None:
    """Only messages that once were in that queue, once, in order."""
    for name, bodies in found[0]:
        places = [original.known.get(name, []).index(body) for body in bodies if body in original.known.get(name, [])]
        assert len(places) == len(bodies), f"{where}: {name} holds what was never sent to it"
        assert len(set(bodies)) == len(bodies), f"{where}: {name} holds a message twice"
        assert places == sorted(places), f"{where}: {name} is out of order"


def require_whole(original: Original, found: State, names: set[str], where: str) -> None:
    before, after = dict(original.state[0]), dict(found[0])
    for name in names:
        assert after.get(name) == before.get(name), f"{where}: {name} was not touched and is not what it was"


def test_originals_have_files_of_every_kind() -> None:
    endings = set()
    for seed in (3, 6, 26):
        made = make_original(seed)
        endings |= {path.rpartition(".")[2] for path, _ in made.disk.walk() if path.startswith(ROOT)}
        assert start(made.disk.after_kill())[1] == made.state
    assert endings >= {"log", "seg", "dead"}
