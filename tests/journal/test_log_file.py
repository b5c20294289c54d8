"""The commit log: epochs come back as they were appended, over rolls, spares, big epochs, full disks and restarts."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.journal.logs import FOLDER, SALT, History, a_log
from tests.support.disk import RecordingFiles
from tests.support.faults import FaultyFiles
from warrenmq.journal import log_file, log_writer
from warrenmq.journal.errors import JournalError, SyncFailed, UnknownVersion
from warrenmq.journal.files import Files
from warrenmq.journal.log_file import (
    EPOCH_HEAD_SIZE,
    FILE_HEAD_SIZE,
    LogFile,
    encode_epoch_head,
    encode_file_head,
    log_name,
    parse_log_name,
)
from warrenmq.journal.log_scan import Damage, TornTail, cut_torn_tail, read_log
from warrenmq.journal.log_writer import LogWriter


@given(st.lists(st.binary(max_size=400), max_size=20), st.integers(100, 1000))
def test_epochs_are_read_as_they_were_written(payloads: list[bytes], file_size: int) -> None:
    history = a_log(payloads, file_size)
    scan, found = history.scan()
    assert found == history.written
    assert (scan.last_sequence, scan.torn_tail, scan.damage) == (len(payloads), None, [])


def test_epochs_survive_on_real_files(tmp_path: Path) -> None:
    files = Files()
    choice = random.Random(4)
    payloads = [choice.randbytes(size) for size in (0, 1, 500, 65536, 65537, 300_000, 10, 200_000)]
    writer = LogWriter(files, str(tmp_path / "log"), 7, file_size=256 * 1024)
    writer.prepare_spare()
    for sequence, payload in enumerate(payloads, start=7):
        writer.append(bytearray(payload), sequence, sequence)
        writer.sync()
    in_use = writer.files_in_use
    writer.close()
    heard: list[tuple[int, int]] = []
    scan = read_log(files, str(tmp_path / "log"), lambda done, total: heard.append((done, total)))
    assert [(sequence, bytes(payload)) for sequence, _, payload, _ in scan] == list(enumerate(payloads, start=7))
    assert scan.files_found == in_use
    total = sum(path.stat().st_size for path in tmp_path.glob("log/*.log"))
    assert len(heard) == len(in_use) == 3
    assert heard[-1] == (total, total)


def test_an_empty_folder_and_none_are_empty_logs() -> None:
    history = History()
    for _ in range(2):
        scan, found = history.scan()
        assert (found, scan.last_sequence, scan.torn_tail, scan.damage, scan.files_found) == ({}, 0, None, [], [])
        cut_torn_tail(history.files, scan)
        history.files.make_dirs(FOLDER)


def test_an_epoch_and_its_end_are_written_in_one_call() -> None:
    history = a_log([b"a", bytes(70_000)], file_size=2**20)
    sizes = [len(operation[2]) for operation in history.files.operations if operation[0] == "write"]
    assert sizes == [FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 1 + 40, EPOCH_HEAD_SIZE + 70_000 + 40]


def test_sequences_have_no_gaps() -> None:
    writer = History().writer(next_sequence=5)
    with pytest.raises(ValueError, match="epoch 6 cannot follow epoch 4"):
        writer.append(b"", 6, 0)
    writer.append(b"", 5, 0)
    with pytest.raises(ValueError, match="epoch 5 cannot follow epoch 5"):
        writer.append(b"", 5, 0)


def test_an_epoch_too_long_for_its_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "MAX_PAYLOAD", 10)
    with pytest.raises(JournalError, match="an epoch of 11 bytes is too long"):
        History().writer().append(bytes(11), 1, 0)


def test_names_of_files() -> None:
    assert log_name(17) == "00000000000000000017.log"
    assert parse_log_name(log_name(2**64 - 1)) == 2**64 - 1
    assert [parse_log_name(name) for name in ("17.log", "spare-1", "0000000000000000001x.log", "x")] == [None] * 4


# -- rolling


def test_a_file_ends_before_its_size_and_the_next_is_named_by_its_first_epoch() -> None:
    history = a_log([bytes(100)] * 7, file_size=FILE_HEAD_SIZE + 3 * (EPOCH_HEAD_SIZE + 100) + 40)
    assert history.names() == [log_name(1), log_name(4), log_name(7)]
    scan, _ = history.scan()
    size = FILE_HEAD_SIZE + 3 * (EPOCH_HEAD_SIZE + 100)
    assert scan.files_found[:2] == [
        LogFile(1, 3, f"{FOLDER}/{log_name(1)}", size),
        LogFile(4, 6, f"{FOLDER}/{log_name(4)}", size),
    ]


def test_an_epoch_bigger_than_a_file_has_one_to_itself() -> None:
    history = a_log([b"a", bytes(5000), b"b", b"c"], file_size=512)
    assert history.names() == [log_name(1), log_name(2), log_name(3)]
    assert history.scan()[1] == history.written


def test_a_roll_syncs_the_old_file_and_the_folder_before_the_new_one_is_written() -> None:
    history = History()
    writer = history.writer()
    history.append(writer, bytes(300))
    history.files.operations.clear()
    history.append(writer, bytes(300))
    operations = [operation[0] for operation in history.files.operations]
    assert operations == ["sync", "create", "sync_dir", "close", "write"]


def test_nothing_is_synced_twice() -> None:
    history = History()
    writer = history.writer()
    writer.sync()
    history.append(writer, b"a")
    writer.sync()
    writer.sync()
    assert [operation[0] for operation in history.files.operations].count("sync") == 1


def test_a_start_that_wrote_nothing_leaves_a_file_that_is_used_by_the_next() -> None:
    history = a_log([b"a"])
    history.files.close(history.files.create(f"{FOLDER}/{log_name(2)}"))
    scan, _ = history.scan()
    assert scan.files_found[1:] == [LogFile(2, 1, f"{FOLDER}/{log_name(2)}", 0)]
    writer = LogWriter(history.files, FOLDER, scan.last_sequence + 1, 512, scan.files_found)
    history.append(writer, b"b")
    assert [(file.first, file.last) for file in writer.files_in_use] == [(1, 1), (2, 2)]
    assert history.scan()[1] == history.written


# -- letting go, spares


def test_files_whose_epochs_are_not_needed_are_removed_oldest_first() -> None:
    history = History()
    writer = history.writer()
    for _ in range(5):
        history.append(writer, bytes(300))
    writer.sync()
    history.files.operations.clear()
    writer.remove_up_to(2)
    assert [file.first for file in writer.files_in_use] == [3, 4, 5]
    changes = [
        operation[:2] for operation in history.files.operations if operation[0] in ("remove", "rename", "sync_dir")
    ]
    removed = [(kind, path) for kind, path in changes if kind != "sync_dir"]
    assert [path for _, path in removed] == [f"{FOLDER}/{log_name(1)}", f"{FOLDER}/{log_name(2)}"]
    assert (
        changes[1::2] == [("sync_dir", FOLDER)] * 2
    )  # one at a time: the disk never has the second gone without the first
    writer.remove_up_to(99)
    assert [file.first for file in writer.files_in_use] == [5]
    assert [name for name in history.names() if name.endswith(".log")] == [log_name(5)]


def test_the_newest_file_stays_so_that_the_numbers_do() -> None:
    history = a_log([bytes(300)] * 3)
    scan, _ = history.scan()
    writer = LogWriter(history.files, FOLDER, 4, 512, scan.files_found)
    writer.remove_up_to(99)
    assert history.scan()[0].last_sequence == 3


def drop_all(writer: LogWriter) -> None:
    writer.begin_file()
    writer.remove_up_to(writer.written)


def test_a_log_that_is_dropped_keeps_its_numbers_and_nothing_else() -> None:
    history = History()
    writer = history.writer()
    drop_all(writer)
    assert history.names() == []
    for _ in range(3):
        history.append(writer, bytes(300))
    for _ in range(2):
        drop_all(writer)
        assert [name for name in history.names() if name.endswith(".log")] == [log_name(4)]
    writer.close()
    scan, found = history.scan()
    assert (found, scan.last_sequence, scan.damage, scan.torn_tail) == ({}, 3, [], None)
    writer = LogWriter(history.files, FOLDER, 4, 512, scan.files_found)
    drop_all(writer)
    history.append(writer, b"four")
    assert list(history.scan()[1]) == [4]


def test_at_most_two_spares_are_kept_and_only_of_about_the_right_size() -> None:
    history = History()
    writer = history.writer(file_size=512)
    for size in (5000, 10, 400, 400, 400, 400):
        history.append(writer, bytes(size))
        history.append(writer, bytes(600))  # bigger than a file: it has one to itself
    writer.sync()
    writer.remove_up_to(12)
    assert history.names() == [log_name(12), "spare-1", "spare-2"]
    assert all(384 <= len(history.file(name)) <= 512 for name in ("spare-1", "spare-2"))


def test_a_file_reused_shows_nothing_of_its_former_use() -> None:
    history = History()
    writer = history.writer(file_size=512)
    for number in range(60):
        history.append(writer, bytes([number]) * (10 + number * 7 % 90))
        writer.sync()
        if number > 20:
            writer.remove_up_to(number - 10)
            for sequence in [each for each in history.written if each < writer.files_in_use[0].first]:
                del history.written[sequence]
            scan, found = history.scan()
            assert found == history.written
            assert (scan.damage, scan.torn_tail) == ([], None)
    renames = [operation for operation in history.files.operations if operation[0] == "rename"]
    assert len(renames) > 10


def test_a_spare_is_zeros_in_whole_and_the_next_roll_takes_it() -> None:
    history = History()
    writer = history.writer(file_size=2**20 + 100)
    assert writer.prepare_spare_step()
    assert history.names() == ["spare-new"]
    assert not writer.prepare_spare_step()
    assert history.names() == ["spare-1"]
    assert history.file("spare-1") == bytes(2**20 + 100)
    writer.prepare_spare()
    assert history.names() == ["spare-1"]
    history.append(writer, b"a")
    assert history.names() == [log_name(1)]
    assert len(history.file(log_name(1))) == 2**20 + 100
    assert history.scan()[1] == history.written


def test_spares_of_the_last_run_are_found_and_half_ones_removed() -> None:
    history = History()
    writer = history.writer(file_size=4096)
    writer.prepare_spare()
    for name, size in (("spare-7", 100), ("spare-8", 4000), ("spare-new", 4096)):
        handle = history.files.create(f"{FOLDER}/{name}")
        history.files.write(handle, bytes(size), 0)
        history.files.close(handle)
    history.writer(file_size=4096)
    assert history.names() == ["spare-1", "spare-8"]


def test_a_failed_spare_is_removed_from_a_full_disk() -> None:
    inner = RecordingFiles()
    files = FaultyFiles(inner)
    writer = LogWriter(files, FOLDER, 1, file_size=3 * 2**20)
    assert writer.prepare_spare_step()
    files.fail_at, files.number, files.leaves_half = len(files.sites) + 1, errno.ENOSPC, True
    with pytest.raises(OSError, match="No space left"):
        writer.prepare_spare()
    assert inner.list(FOLDER) == []
    files.give_back()
    writer.prepare_spare()
    assert inner.list(FOLDER) == ["spare-1"]
    assert inner.open_paths() == 0


def test_closing_leaves_no_handle_and_no_half_spare() -> None:
    history = History()
    writer = history.writer(file_size=2 * 2**20)
    history.append(writer, b"a")
    writer.prepare_spare_step()
    writer.close()
    assert history.names() == [log_name(1)]
    assert history.files.open_paths() == 0


# -- a former life that tries to look like the next epoch


def test_an_older_epoch_is_a_clean_end() -> None:
    history = History()
    writer = history.writer(next_sequence=10)
    history.append(writer, b"ten")
    file = history.file(log_name(10))
    del file[FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 3 :]
    for sequence in (9, 8):
        file += encode_epoch_head(b"older", sequence, sequence - 1, 0, SALT) + b"older"
    scan = history.check()
    assert (scan.last_sequence, scan.torn_tail, scan.damage) == (10, None, [])


def test_a_file_renamed_for_its_reuse_is_empty_until_its_first_epoch() -> None:
    history = a_log([bytes(180)] * 3)
    history.files.rename(f"{FOLDER}/{log_name(1)}", f"{FOLDER}/spare-1")
    history.files.rename(f"{FOLDER}/spare-1", f"{FOLDER}/{log_name(4)}")
    del history.written[1], history.written[2]
    scan = history.check()
    assert (scan.last_sequence, scan.torn_tail, scan.damage) == (3, None, [])
    assert scan.files_found[-1] == LogFile(4, 3, f"{FOLDER}/{log_name(4)}", 0)


def test_a_body_that_looks_like_later_epochs_is_never_taken_for_them() -> None:
    forged = b"".join(encode_epoch_head(b"forged", sequence, 9, 0, 12345) + b"forged" for sequence in range(1, 9))
    history = a_log([forged, forged, b"end"], file_size=2000)
    whole = bytes(history.file(log_name(1)))
    for offset in range(len(whole)):
        history.file(log_name(1))[:] = whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :]
        history.check()
        history.file(log_name(1))[:] = whole[:offset] + forged
        history.scan()


def test_salts_differ() -> None:
    assert len({log_file.random_salt() for _ in range(10)}) > 1


# -- crashes and full disks


def torn(history: History, payload: bytes, kept: int) -> History:
    """Let the next append stop after some bytes."""
    scan, _ = history.scan()
    name = log_name(scan.files_found[-1].first)
    end = scan.files_found[-1].size
    data = encode_epoch_head(payload, scan.last_sequence + 1, scan.last_sequence, 0, SALT) + payload
    history.file(name)[end:] = data[:kept]
    return history


@pytest.mark.parametrize("kept", [1, 31, 39, 40, 41, 139])
def test_a_torn_tail_is_reported_and_cut(kept: int) -> None:
    history = torn(a_log([b"a", b"b"]), b"x" * 100, kept)
    kept = len(history.file(log_name(1)).rstrip(b"\0")) - FILE_HEAD_SIZE - 2 * EPOCH_HEAD_SIZE - 2
    scan = history.check()
    reason = "it ends within an epoch" if kept >= EPOCH_HEAD_SIZE else "it ends within the head of an epoch"
    assert scan.torn_tail == TornTail(log_name(1), FILE_HEAD_SIZE + 2 * EPOCH_HEAD_SIZE + 2, kept, reason)
    assert scan.last_sequence == 2
    cut_torn_tail(history.files, scan)
    again, found = history.scan()
    assert (again.torn_tail, again.damage, list(found)) == (None, [], [1, 2])


def test_a_torn_tail_before_a_later_file_is_not_reported() -> None:
    history = torn(a_log([b"a", b"b"]), b"x" * 100, 50)
    writer = LogWriter(history.files, FOLDER, 3)
    history.append(writer, b"c")
    scan = history.check()
    assert (scan.last_sequence, scan.torn_tail, scan.damage) == (3, None, [])


def test_the_end_of_the_log_is_synced_even_if_nothing_is_torn() -> None:
    for seed in range(20):
        history = History()
        writer = history.writer()
        history.append(writer, b"never synced")
        scan, _ = history.scan()
        cut_torn_tail(history.files, scan)
        history.files.disk = history.files.disk.after_power_loss(random.Random(seed))
        assert history.scan()[1] == history.written, seed


def a_gathered_log(synced: int) -> History:
    """Six epochs in one file, of which the first ones were synced together; the rest was not."""
    history = History()
    writer = history.writer(file_size=4096)
    for number in range(1, 7):
        history.append(writer, bytes([number]) * 50)
        if number == synced:
            writer.sync()
    return history


def lose_epoch(history: History, number: int) -> int:
    """Put zeros where an epoch was; returns where."""
    offset = FILE_HEAD_SIZE + (number - 1) * (EPOCH_HEAD_SIZE + 50)
    history.file(log_name(1))[offset : offset + EPOCH_HEAD_SIZE + 50] = bytes(EPOCH_HEAD_SIZE + 50)
    return offset


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("synced", [0, 2, 3])
def test_a_hole_is_damage_only_where_a_later_epoch_knows_it_was_synced(lost: int, synced: int) -> None:
    history = a_gathered_log(synced)
    offset = lose_epoch(history, lost)
    scan, found = history.scan()
    if lost <= synced:
        assert scan.damage == [Damage(log_name(1), offset, "an epoch is missing", (lost, lost))]
        assert list(found) == [number for number in range(1, 7) if number != lost]
        assert scan.torn_tail is None
    else:
        assert scan.damage == []
        assert list(found) == list(range(1, lost))
        assert scan.torn_tail is not None
        assert (scan.torn_tail.offset, scan.torn_tail.reason) == (offset, "an epoch is missing")
        cut_torn_tail(history.files, scan)
        scan, again = history.scan()
        assert (again, scan.torn_tail, scan.last_sequence) == (found, None, lost - 1)


def test_a_hole_before_a_roll_is_damage() -> None:
    history = a_gathered_log(0)
    writer = LogWriter(history.files, FOLDER, 7)
    history.append(writer, b"seven")
    lose_epoch(history, 4)
    scan = history.check()
    assert [each.lost for each in scan.damage] == [(4, 4)]


@pytest.mark.parametrize(("number", "size", "at_least"), [(errno.ENOSPC, 100, 6), (errno.EMFILE, 200, 4)])
def test_an_append_that_met_a_shortage_can_be_tried_again(number: int, size: int, at_least: int) -> None:
    failed = 0
    for fail_at in range(1, 20):
        inner = RecordingFiles()
        files = FaultyFiles(inner, number=number, leaves_half=True)
        writer = LogWriter(files, FOLDER, 1, file_size=512)
        files.sites.clear()
        files.fail_at = fail_at
        for sequence in range(1, 6):
            try:
                writer.append(bytes([sequence]) * 200, sequence, 0)
            except OSError:
                writer.cut()
                scan = read_log(inner, FOLDER)
                assert [epoch.sequence for epoch in scan] == list(range(1, sequence))
                assert (scan.torn_tail, scan.damage) == (None, [])
                files.give_back()
                writer.append(bytes([sequence]) * size, sequence, 0)
        writer.close()
        failed += files.has_failed
        scan = read_log(inner, FOLDER)
        assert [bytes(payload[:1]) for _, _, payload, _ in scan] == [bytes([number]) for number in range(1, 6)]
        assert (scan.torn_tail, scan.damage) == (None, [])
        assert inner.open_paths() == 0
    assert failed >= at_least


def test_the_folder_is_synced_after_each_removal_also_where_no_descriptor_was_free_for_it() -> None:
    """The disk may keep the later removal without the earlier one: a gap in the log."""
    files = FaultyFiles(RecordingFiles(), number=errno.EMFILE)
    writer = LogWriter(files, FOLDER, 1, file_size=128)
    for sequence in range(1, 5):
        writer.append(bytes(60), sequence, 0)
        writer.sync()
    files.sites.clear()
    files.fail_at = 2
    with pytest.raises(OSError, match="Too many open files"):
        writer.remove_up_to(2)
    files.give_back()
    writer.remove_up_to(2)
    assert files.sites == ["remove", "sync_dir", "sync_dir", "remove", "sync_dir"]
    writer.append(b"still good", 5, 0)
    writer.close()


def test_after_a_failed_sync_nothing_is_confirmed() -> None:
    for site in ("sync", "sync_dir"):
        files = FaultyFiles(RecordingFiles())
        writer = LogWriter(files, FOLDER, 1, file_size=512)
        writer.append(bytes(300), 1, 0)
        files.fail_at = len(files.sites) + (1 if site == "sync" else 3)  # of the roll: sync, create, sync_dir
        with pytest.raises(SyncFailed, match="could not be synced: Input/output error") as failure:
            writer.append(bytes(300), 2, 0)
        assert files.sites[-1] == site
        assert isinstance(failure.value.cause, OSError)
        with pytest.raises(SyncFailed):
            writer.append(bytes(300), 2, 0)
        with pytest.raises(SyncFailed):
            writer.sync()
        writer.close()


# -- what is not a crash


def test_a_missing_file_is_damage() -> None:
    history = a_log([bytes(300)] * 4)
    history.files.remove(f"{FOLDER}/{log_name(2)}")
    scan = history.check()
    assert scan.damage == [Damage(log_name(3), 0, "epochs are missing before this file", (2, 2))]
    assert scan.last_sequence == 4


def test_a_cut_file_that_another_follows_is_damage_even_if_that_one_is_empty() -> None:
    history = a_log([b"a", b"b", bytes(500)])
    name = log_name(1)
    del history.file(name)[FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 5 :]
    history.file(log_name(3))[:] = b""
    del history.written[3]
    scan = history.check()
    offset = FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 1
    assert scan.damage == [Damage(name, offset, "it ends within the head of an epoch", (2, 2))]
    assert (scan.last_sequence, scan.torn_tail) == (2, None)


def test_a_bad_epoch_that_good_ones_follow_is_damage() -> None:
    history = a_log([b"a", b"b", b"c"])
    history.file(log_name(1))[FILE_HEAD_SIZE + 2 * EPOCH_HEAD_SIZE + 1] ^= 1  # the payload of the second
    scan, found = history.scan()
    offset = FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 1
    assert scan.damage == [Damage(log_name(1), offset, "the checksum of an epoch does not match", (2, 2))]
    assert list(found) == [1, 3]


def test_a_bad_file_head_costs_no_epoch() -> None:
    history = a_log([b"a", b"b"])
    history.file(log_name(1))[9] ^= 1
    scan, found = history.scan()
    assert scan.damage == [Damage(log_name(1), 0, "its file head is damaged", None)]
    assert found == history.written


def test_with_head_and_first_epoch_gone_the_rest_is_found_by_the_salt_of_other_files() -> None:
    history = a_log([b"a" * 60, b"b" * 60, b"c" * 60, b"d" * 400])
    history.file(log_name(1))[: FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 10] = bytes(FILE_HEAD_SIZE + EPOCH_HEAD_SIZE + 10)
    scan = history.check()
    assert scan.damage == [Damage(log_name(1), 0, "its file head is damaged", (1, 1))]


def test_a_file_with_a_foreign_name_is_not_read() -> None:
    history = a_log([b"a" * 300, b"b" * 300, b"c" * 300])
    history.files.rename(f"{FOLDER}/{log_name(3)}", f"{FOLDER}/{log_name(2)}")
    scan, found = history.scan()
    assert list(found) == [1]
    assert scan.damage == [Damage(log_name(2), 0, "its head says that it begins with epoch 3", None)]


def test_a_file_that_repeats_epochs_is_not_read() -> None:
    history = a_log([b"a", b"b", b"c"])
    data = encode_file_head(2, SALT) + encode_epoch_head(b"other", 2, 1, 0, SALT) + b"other"
    handle = history.files.create(f"{FOLDER}/{log_name(2)}")
    history.files.write(handle, data, 0)
    scan = history.check()
    reason = "it begins with epoch 2 instead of 4 and was skipped"
    assert scan.damage == [Damage(log_name(2), 0, reason, None)]


def test_a_file_of_a_newer_version_is_refused() -> None:
    history = a_log([b"a"])
    head = bytearray(encode_file_head(1, SALT))
    head[8] = log_file.VERSION + 1
    head[28:] = log_file.crc32c(bytes(head[:28])).to_bytes(4, "little")
    history.file(log_name(1))[:FILE_HEAD_SIZE] = head
    text = f"has format version {log_file.VERSION + 1}, which this version of WarrenMQ cannot read"
    with pytest.raises(UnknownVersion, match=text):
        history.scan()
