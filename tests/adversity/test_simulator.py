"""The crash simulator itself: it forgets what a disk may forget, keeps what a disk must keep, and catches a bad log."""

from __future__ import annotations

import errno
import os
import random
import struct
import zlib
from pathlib import Path

import pytest

from tests.support.crash import History
from tests.support.disk import SECTOR, RecordingFiles
from tests.support.faults import FaultyFiles
from warrenmq.journal.files import Files

STATES = 200


def after_power_loss(files: RecordingFiles, seed: int) -> RecordingFiles:
    return RecordingFiles(files.disk.after_power_loss(random.Random(seed)))


def contents(files: Files, path: str) -> bytes | None:
    if not files.exists(path):
        return None
    handle = files.open_read(path)
    data = files.read(handle, files.size(handle), 0)
    files.close(handle)
    return data


def possible(files: RecordingFiles, path: str) -> set[bytes | None]:
    """All contents that the file was found with in many crashes."""
    return {contents(after_power_loss(files, seed), path) for seed in range(STATES)}


def synced_file(files: RecordingFiles, path: str, data: bytes) -> int:
    handle = files.create(path)
    files.write(handle, data, 0)
    files.sync(handle)
    files.sync_dir(os.path.dirname(path))
    return handle


# -- data ------------------------------------------------------------------------------------------------------------


def test_synced_data_stays() -> None:
    files = RecordingFiles()
    synced_file(files, "/a", b"kept" * 1000)
    assert possible(files, "/a") == {b"kept" * 1000}


def test_unsynced_data_may_be_there_or_not() -> None:
    files = RecordingFiles()
    handle = synced_file(files, "/a", b"old")
    files.write(handle, b"new", 0)
    assert possible(files, "/a") == {b"old", b"new"}


def test_a_later_write_may_survive_an_earlier_one() -> None:
    files = RecordingFiles()
    handle = synced_file(files, "/a", bytes(2 * SECTOR))
    files.write(handle, b"first", 0)
    files.write(handle, b"second", SECTOR)
    found = {(data[:5], data[SECTOR : SECTOR + 6]) for data in possible(files, "/a") if data is not None}
    assert found == {(a, b) for a in (bytes(5), b"first") for b in (bytes(6), b"second")}


def test_writes_to_one_sector_do_not_overtake_each_other() -> None:
    files = RecordingFiles()
    handle = synced_file(files, "/a", bytes(SECTOR))
    files.write(handle, b"A", 0)
    files.write(handle, b"B", 1)
    assert {data[:2] for data in possible(files, "/a") if data} == {b"\0\0", b"A\0", b"AB"}


def test_a_large_write_is_torn_at_sectors() -> None:
    files = RecordingFiles()
    handle = synced_file(files, "/a", bytes(3 * SECTOR))
    files.write(handle, b"x" * (3 * SECTOR), 0)
    found = {bytes(data[start] for start in range(0, 3 * SECTOR, SECTOR)) for data in possible(files, "/a") if data}
    assert len(found) == 8
    for data in possible(files, "/a"):
        assert data is not None
        for start in range(0, 3 * SECTOR, SECTOR):
            assert data[start : start + SECTOR] in (bytes(SECTOR), b"x" * SECTOR)


def test_an_unsynced_size_may_be_any_that_the_file_had() -> None:
    files = RecordingFiles()
    handle = synced_file(files, "/a", b"x" * 100)
    files.write(handle, b"y" * 100, 100)
    files.truncate(handle, 50)
    sizes = {len(data) for data in possible(files, "/a") if data is not None}
    assert sizes == {50, 100, 200}


def test_size_may_survive_without_the_data() -> None:
    files = RecordingFiles()
    handle = synced_file(files, "/a", b"")
    files.write(handle, b"x" * SECTOR, 0)
    assert bytes(SECTOR) in possible(files, "/a")


def test_a_kill_loses_nothing_that_was_written() -> None:
    files = RecordingFiles()
    handle = files.create("/a")
    files.write(handle, b"written", 0)
    after = RecordingFiles(files.disk.after_kill())
    assert contents(after, "/a") == b"written"
    assert None in possible(after, "/a"), "it is as little durable as before the kill"


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_name_needs_its_folder_synced_even_if_the_file_was() -> None:
    files = RecordingFiles()
    handle = files.create("/a")
    files.write(handle, b"data", 0)
    files.sync(handle)
    assert possible(files, "/a") == {None, b"data"}
    files.sync_dir("/")
    assert possible(files, "/a") == {b"data"}


def test_a_folder_needs_its_parent_synced() -> None:
    files = RecordingFiles()
    files.make_dirs("/log")
    synced_file(files, "/log/1", b"data")
    assert possible(files, "/log/1") == {None, b"data"}
    files.sync_dir("/")
    assert possible(files, "/log/1") == {b"data"}


def test_a_rename_happens_wholly_or_not_at_all() -> None:
    files = RecordingFiles()
    synced_file(files, "/new", b"new")
    synced_file(files, "/old", b"old")
    files.rename("/new", "/old")
    states = [after_power_loss(files, seed) for seed in range(STATES)]
    found = {(contents(state, "/new"), contents(state, "/old")) for state in states}
    assert found == {(b"new", b"old"), (None, b"new")}


def test_a_rename_between_folders_never_loses_the_file() -> None:
    files = RecordingFiles()
    files.make_dirs("/a")
    files.make_dirs("/b")
    files.sync_dir("/")
    synced_file(files, "/a/x", b"data")
    files.rename("/a/x", "/b/x")
    for seed in range(STATES):
        state = after_power_loss(files, seed)
        assert {contents(state, "/a/x"), contents(state, "/b/x")} == {None, b"data"}
    files.sync_dir("/a")
    assert possible(files, "/b/x") == {b"data"}


def test_a_removed_name_may_come_back_until_the_folder_is_synced() -> None:
    files = RecordingFiles()
    synced_file(files, "/a", b"data")
    files.remove("/a")
    assert possible(files, "/a") == {None, b"data"}
    files.sync_dir("/")
    assert possible(files, "/a") == {None}


def test_names_may_overtake_each_other() -> None:
    files = RecordingFiles()
    for name in "12":
        synced_file(files, f"/{name}", b"")
    files.remove("/1")
    files.remove("/2")
    found = {tuple(after_power_loss(files, seed).list("/")) for seed in range(STATES)}
    assert found == {(), ("1",), ("2",), ("1", "2")}


def test_removing_a_tree_may_stop_half_way() -> None:
    files = RecordingFiles()
    files.make_dirs("/q")
    files.sync_dir("/")
    for name in "12":
        synced_file(files, f"/q/{name}", b"")
    files.remove_tree("/q")
    assert not files.exists("/q")
    found = {tuple(after_power_loss(files, seed).list("/q")) for seed in range(STATES)}
    assert found == {(), ("1",), ("2",), ("1", "2")}


# -- as the real one -------------------------------------------------------------------------------------------------


def make_use_of(files: Files, root: str) -> list[object]:
    """A bit of everything; what was seen."""
    seen: list[object] = []
    files.make_dirs(f"{root}/one/two")
    handle = files.create(f"{root}/one/a")
    files.write(handle, b"hello", 0)
    files.write(handle, b"world", 10)
    files.writev(handle, [b"12", b"34"], 3)
    files.write_direct(handle, [b"5", b"678"], 7)
    seen += [files.read(handle, 100, 0), files.read(handle, 3, 4), files.read(handle, 5, 99), files.size(handle)]
    files.truncate(handle, 4)
    files.truncate(handle, 6)
    files.sync(handle)
    seen += [files.read(handle, 100, 0)]
    files.close(handle)
    files.rename(f"{root}/one/a", f"{root}/one/two/b")
    files.sync_dir(f"{root}/one")
    seen += [files.list(f"{root}/one"), files.list(f"{root}/one/two"), files.list(f"{root}/none")]
    handle = files.open(f"{root}/one/two/b")
    files.write(handle, b"!", 2)
    again = files.open_read(f"{root}/one/two/b")
    seen += [files.read(again, 9, 0), files.exists(f"{root}/one/a"), files.exists(f"{root}/one/two")]
    files.remove(f"{root}/one/two/b")
    seen += [files.read(again, 9, 0), files.list(f"{root}/one/two")]
    files.close(handle)
    files.close(again)
    files.close(files.create(f"{root}/one/two/c"))
    files.remove_tree(f"{root}/one")
    return [*seen, files.list(root)]


def refusals(files: Files, root: str) -> list[int | None]:
    """How it answers to nonsense."""
    numbers = []
    for wrong in (
        lambda: files.open(f"{root}/none"),
        lambda: files.open_read(f"{root}/none"),
        lambda: files.create(f"{root}/none/file"),
        lambda: files.rename(f"{root}/none", f"{root}/other"),
        lambda: files.remove(f"{root}/none"),
        lambda: files.sync_dir(f"{root}/none"),
    ):
        with pytest.raises(FileNotFoundError) as refused:
            wrong()
        numbers.append(refused.value.errno)
    return numbers


def test_disk_in_memory_behaves_as_the_real_one(tmp_path: Path) -> None:
    assert make_use_of(RecordingFiles(), "") == make_use_of(Files(), str(tmp_path))
    assert make_use_of(FaultyFiles(RecordingFiles()), "") == make_use_of(Files(), str(tmp_path))
    assert refusals(RecordingFiles(), "") == refusals(Files(), str(tmp_path))


def test_replay_brings_another_disk_to_the_same_state() -> None:
    files, again = RecordingFiles(), RecordingFiles()
    make_use_of(files, "")
    synced_file(files, "/a", b"data")
    again.replay(files.operations)
    assert [(path, file.current, file.durable) for path, file in again.disk.walk()] == [
        (path, file.current, file.durable) for path, file in files.disk.walk()
    ]


# -- faults ----------------------------------------------------------------------------------------------------------


def test_every_operation_can_fail_once() -> None:
    counted = FaultyFiles(RecordingFiles())
    make_use_of(counted, "")
    for number in range(1, len(counted.sites) + 1):
        faulty = FaultyFiles(RecordingFiles(), number, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            make_use_of(faulty, "")
        assert len(faulty.sites) == number


def test_full_disk_stays_full_until_space_is_given_back() -> None:
    files = FaultyFiles(RecordingFiles(), 2, errno.ENOSPC, leaves_half=True)
    handle = files.create("/a")
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            files.write(handle, b"abcd", 0)
    assert files.read(handle, 9, 0) == b"ab"
    files.truncate(handle, 0)
    files.give_back()
    files.write(handle, b"abcd", 0)
    assert files.read(handle, 9, 0) == b"abcd"


def test_data_of_a_failed_sync_is_never_durable() -> None:
    disk = RecordingFiles()
    files = FaultyFiles(disk, 4, errno.EIO)
    handle = files.create("/a")
    files.sync_dir("/")
    files.write(handle, b"lost", 0)
    with pytest.raises(OSError, match="Input/output"):
        files.sync(handle)
    files.sync(handle)
    assert files.read(handle, 9, 0) == b"lost"
    assert contents(after_power_loss(disk, 1), "/a") == b""


# -- a toy log: right, and wrong in all the usual ways ---------------------------------------------------------------


class ToyLog:
    """Numbered entries with a checksum, one file per three entries; the pattern that the real log follows."""

    def __init__(self, files: Files, without: str = "") -> None:
        self.files = files
        self.without = without  # the step that is left out
        self.count = 0
        self.handle = 0
        self.end = 0
        if not files.exists("/log"):
            files.make_dirs("/log")
            files.sync_dir("/")

    def append(self, data: bytes) -> None:
        if self.count % 3 == 0:
            self.handle, self.end = self.files.create(f"/log/{self.count:04}"), 0
            if self.without != "sync_dir":
                self.files.sync_dir("/log")
        self.count += 1
        entry = struct.pack("<II", self.count, len(data)) + data
        entry += struct.pack("<I", zlib.crc32(entry))
        self.files.write(self.handle, entry, self.end)
        self.end += len(entry)
        if self.without != "sync":
            self.files.sync(self.handle)

    def recover(self) -> list[bytes]:
        found: list[bytes] = []
        for name in self.files.list("/log"):
            data = contents(self.files, f"/log/{name}") or b""
            while len(data) >= 12:
                number, size = struct.unpack_from("<II", data)
                whole, checksum = data[: 8 + size], data[8 + size : 12 + size]
                if self.without != "checksum" and checksum != struct.pack("<I", zlib.crc32(whole)):
                    break
                if number != len(found) + 1:
                    return found
                found.append(whole[8:])
                data = data[12 + size :]
        return found


def find_failures(without: str, histories: int) -> list[str]:
    """Live through histories of the toy log, crash, and compare with what was promised."""
    failures = []
    for seed in range(histories):
        choice = random.Random(seed)
        history = History.begin()
        log = ToyLog(history.files, without)
        entries = [choice.randbytes(choice.choice((3, 100, 1200))) for _ in range(choice.randint(1, 8))]
        for number, data in enumerate(entries, 1):
            log.append(data)
            history.record(number)
        for crash in history.crashes(choice, 4):
            found = ToyLog(RecordingFiles(crash.disk), without).recover()
            promised = max(crash.facts, default=0)
            if found != entries[: len(found)]:
                failures.append(f"seed {seed} after {crash.after}: wrong entries")
            elif len(found) < promised:
                failures.append(f"seed {seed} after {crash.after}: {promised} promised, {len(found)} found")
    return failures


def test_right_log_loses_nothing() -> None:
    assert find_failures("", 300) == []


@pytest.mark.parametrize("without", ["sync", "sync_dir", "checksum"])
def test_wrong_log_is_caught(without: str) -> None:
    assert find_failures(without, 60) != []


def test_history_contains_facts_up_to_the_crash_only() -> None:
    history = History.begin()
    for number in range(5):
        history.files.make_dirs(f"/{number}")
        history.record(number)
    for crash in history.crashes(random.Random(1), 100):
        assert crash.facts == list(range(crash.after))
        if crash.killed:
            assert RecordingFiles(crash.disk).list("/") == [str(number) for number in range(crash.after)]


def test_crash_may_follow_a_crash() -> None:
    first = RecordingFiles()
    synced_file(first, "/a", b"one")
    history = History.begin(first.disk.after_power_loss(random.Random(1)))
    synced_file(history.files, "/b", b"two")
    found = {tuple(RecordingFiles(crash.disk).list("/")) for crash in history.crashes(random.Random(2), 100, 20)}
    assert found == {("a",), ("a", "b")}
