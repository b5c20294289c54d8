"""The commit log alone, under power loss: what was synced is read back, in order, and nothing that was never written.

Random lives of a `LogWriter` with tiny files: appends, syncs, rolls, spares, files let go. The power fails at random
operations; the next life begins on one of the disks that may be found then, and may end the same way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.support.crash import Crash, History, effort
from tests.support.disk import Disk, RecordingFiles
from warrenmq.journal.files import Files
from warrenmq.journal.log_scan import cut_torn_tail, read_log
from warrenmq.journal.log_writer import LogWriter

FOLDER = "/data/log"
FILE_SIZE = 2048


@dataclass
class Truth:
    """What was written, what of it is safe, and what nobody needs any more."""

    written: dict[int, bytes] = field(default_factory=dict)
    synced: int = 0
    forgotten: int = 0


def live(files: Files, history: History, choice: random.Random, truth: Truth, gathers: bool) -> None:
    """One life of the log after what was found. With `gathers`, several epochs may wait for one sync."""
    scan = read_log(files, FOLDER)
    for _ in scan:
        pass
    cut_torn_tail(files, scan)
    salt = choice.getrandbits(32) | 1
    log = LogWriter(files, FOLDER, scan.last_sequence + 1, FILE_SIZE, scan.files_found, salt)
    for _ in range(choice.randint(1, 25)):
        what = choice.random()
        if what < 0.7:
            payload = choice.randbytes(choice.choice((1, 20, 200, 200, 700, 5000)))
            log.append(payload, log.next_sequence, 0)
            truth.written[log.next_sequence - 1] = payload
            history.record(("written", log.next_sequence - 1, payload))
            if not gathers or choice.random() < 0.4:
                log.sync()
                truth.synced = log.next_sequence - 1
                history.record(("synced", truth.synced))
        elif what < 0.85:
            truth.forgotten = up_to = choice.randint(truth.forgotten, truth.synced)
            history.record(("forgotten", up_to))
            log.remove_up_to(up_to)
        elif what < 0.95:
            log.prepare_spare_step()
        else:
            log.sync()
            truth.synced = log.next_sequence - 1
            history.record(("synced", truth.synced))


def truth_at(crash: Crash) -> Truth:
    truth = Truth()
    for what, sequence, *rest in crash.facts:
        if what == "written":
            truth.written[sequence] = rest[0]
        elif what == "synced":
            truth.synced = max(truth.synced, sequence)
        else:
            truth.forgotten = max(truth.forgotten, sequence)
    return truth


def check(crash: Crash) -> list[str]:
    """What is wrong with the log that is found after the crash."""
    truth = truth_at(crash)
    scan = read_log(RecordingFiles(crash.disk), FOLDER)
    found = {epoch.sequence: bytes(epoch.payload) for epoch in scan}
    wrong = []
    if any(truth.written.get(sequence) != payload for sequence, payload in found.items()):
        wrong.append("an epoch that was never written")
    if list(found) != sorted(found):
        wrong.append("out of order")
    missing = [sequence for sequence in range(truth.forgotten + 1, truth.synced + 1) if sequence not in found]
    if missing:
        wrong.append(f"synced and lost: {missing}; found {list(found)}")
    if scan.damage:
        wrong.append(f"a crash is no damage: {scan.damage}")
    if found and list(found) != list(range(min(found), max(found) + 1)):
        wrong.append(f"a gap: {list(found)}")
    if scan.last_sequence < truth.synced:
        wrong.append(f"sequences after {truth.synced} would be given away twice: {scan.last_sequence}")
    return wrong


def find_failures(histories: int, gathers: bool = False, make: type[RecordingFiles] = RecordingFiles) -> list[str]:
    failures: list[str] = []
    for seed in range(histories):
        choice = random.Random(seed)
        disk, facts = empty_disk(), []
        for _ in range(3):
            history = History(make(disk), disk.after_kill(), [(0, fact) for fact in facts])
            crash = Crash(0, facts, disk, killed=True)
            live(history.files, history, choice, truth_at(crash), gathers)
            crashes = list(history.crashes(choice, 4, 2))
            wrongs = [f"seed {seed}, after {crash.after}: {wrong}" for crash in crashes for wrong in check(crash)]
            if wrongs:
                failures += wrongs
                break
            last = choice.choice(crashes)
            disk, facts = last.disk, believed(last)
    return failures


def empty_disk() -> Disk:
    files = RecordingFiles()
    files.make_dirs("/data")
    files.sync_dir("/")
    return files.disk


def believed(crash: Crash) -> list[object]:
    """What the next life starts from: after a power loss, epochs that are not there will never be."""
    if crash.killed:
        return crash.facts
    found = {epoch.sequence for epoch in read_log(RecordingFiles(crash.disk.after_kill()), FOLDER)}
    return [fact for fact in crash.facts if fact[0] != "written" or fact[1] in found]


def test_nothing_synced_is_lost() -> None:
    assert find_failures(effort(250)) == []


def test_epochs_that_wait_for_one_sync_are_there_up_to_one_of_them() -> None:
    assert find_failures(effort(80), gathers=True) == []


class SyncsNothing(RecordingFiles):
    def sync(self, handle: int) -> None:
        pass


class SyncsNoFolder(RecordingFiles):
    def sync_dir(self, path: str) -> None:
        pass


@pytest.mark.parametrize("make", [SyncsNothing, SyncsNoFolder])
def test_a_broken_sync_is_found_out(make: type[RecordingFiles]) -> None:
    assert find_failures(20, make=make) != []
