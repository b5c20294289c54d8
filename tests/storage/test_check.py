"""`check_folder` on folders written byte by byte: what is alive, what is damaged, what a crash may leave."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.client import Client, make_broker
from warrenmq.journal import segment_file
from warrenmq.journal.files import Files
from warrenmq.journal.log_file import log_name
from warrenmq.journal.log_writer import LogWriter
from warrenmq.journal.record import PERSISTENT, encode
from warrenmq.storage.catalog import CatalogFile
from warrenmq.storage.check import CheckError, CheckReport, check_folder
from warrenmq.storage.codec import AGAIN, APPEND, DEFINE, FORGET, FORGET_RANGE, UNDEFINE
from warrenmq.storage.data_dir import DataDir
from warrenmq.storage.definition_records import Operation, encode_operation
from warrenmq.storage.file_storage import FileStorage
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.positions import Positions

QUEUE = 7
CARRIED = 2


def u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def record(position: int, flags: int = PERSISTENT) -> bytes:
    return encode(position, flags, b"\0\1q", b"header", b"body %d" % position)


def append(position: int, queue: int = QUEUE, flags: int = PERSISTENT) -> bytes:
    return bytes([APPEND]) + u32(queue) + record(position, flags)


def again(position: int, queue: int) -> bytes:
    return bytes([AGAIN]) + u32(queue) + u64(position) + bytes([PERSISTENT])


def forget(position: int, queue: int = QUEUE) -> bytes:
    return bytes([FORGET]) + u32(queue) + u64(position)


def forget_range(first: int, last: int, queue: int = QUEUE) -> bytes:
    return bytes([FORGET_RANGE]) + u32(queue) + u64(first) + u64(last)


def queue_definition(name: str, id: int, **arguments: Any) -> Operation:
    definition = {"vhost": "/", "name": name, "durable": True, "auto_delete": False, "arguments": arguments, "id": id}
    return ("define", "queue", ("/", name), definition)


def definition_record(operation: Operation) -> bytes:
    definition = operation[3] if operation[0] == "define" else None
    encoded = encode_operation(operation[1], operation[2], definition)
    return bytes([DEFINE if definition is not None else UNDEFINE]) + u32(len(encoded)) + encoded


class Folder:
    """A data folder in the making: one virtual host and, unless told otherwise, the queue `orders`."""

    def __init__(self, path: Path, queues: Iterable[Operation] = (queue_definition("orders", QUEUE),)) -> None:
        self.path = path
        data_dir = DataDir(path)
        data_dir.lock()
        data_dir.require_version()
        data_dir.unlock()
        self.catalog = path / "catalog.sqlite"
        catalog = CatalogFile.open(self.catalog)
        catalog.apply(1, [("define", "vhost", ("/",), {"name": "/"}), *queues])
        catalog.fill(1, [], 1, released_epoch=-1)  # without a manifest, as of an older version
        catalog.close()
        (path / "log").mkdir()
        (path / "log" / log_name(2)).touch()

    def log(self, *epochs: bytes, first: int = 2) -> Path:
        """Write epochs into a log file of their own."""
        writer = LogWriter(Files(), str(self.path / "log"), first, salt=0x12345678)
        for number, payload in enumerate(epochs, start=first):
            writer.append(payload, number, 1000 + number)
            writer.sync()
        path = Path(writer.files_in_use[-1].path)
        writer.close()
        return path

    def segment(self, *pages: list[int], generation: int = 0, queue: int = QUEUE, transient: bool = False) -> Path:
        """Write a segment with these positions in its pages."""
        folder = self.path / "queues" / str(queue)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / segment_file.segment_name(pages[0][0], generation)
        content = segment_file.encode_file_head(segment_file.SEGMENT_MAGIC)
        for positions in pages:
            payload = b"".join(record(position, 0 if transient else PERSISTENT) for position in positions)
            of_page = (positions[0], positions[-1], len(positions), 1, 2, payload, len(positions) * transient)
            content += segment_file.encode_page(*of_page) + payload
        path.write_bytes(content)
        return path

    def marks(self, segment: Path, *batches: list[int]) -> Path:
        path = segment.with_suffix(".dead")
        content = segment_file.encode_file_head(segment_file.MARKS_MAGIC)
        path.write_bytes(content + b"".join(map(segment_file.encode_batch, batches)))
        return path

    def check(self) -> CheckReport:
        return check_folder(str(self.path))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data")


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


def alive(report: CheckReport) -> dict[str, int]:
    return {queue.name: queue.messages for queue in report.queues}


def told(report: CheckReport) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.is_damage) for finding in report.findings]


# -- what is alive ---------------------------------------------------------------------------------------------------


def test_a_new_folder_is_clean(folder: Folder) -> None:
    report = folder.check()
    assert (report.version, report.findings, alive(report)) == ("1", [], {"orders": 0})
    assert report.definitions["queue"] == 1


def test_messages_of_segments_count_unless_marked_or_forgotten_in_the_log(folder: Folder) -> None:
    segment = folder.segment([0, 1, 2], [5, 6, 9])
    folder.marks(segment, [1], [5, 4])
    folder.log(forget(9))
    report = folder.check()
    assert report.findings == []
    assert alive(report) == {"orders": 3}


def test_messages_that_only_the_log_has_count_unless_forgotten(folder: Folder) -> None:
    folder.log(append(0) + append(1) + append(2), forget(1), append(3))
    assert alive(folder.check()) == {"orders": 3}


def test_the_log_counts_only_after_the_last_position_on_disk(folder: Folder) -> None:
    folder.segment([0, 1, 4])
    folder.log(b"".join(append(position) for position in range(7)))
    assert alive(folder.check()) == {"orders": 5}


def test_a_forgotten_range_takes_from_segments_and_log(folder: Folder) -> None:
    folder.segment(list(range(3000)))
    folder.log(append(3000) + append(3001), forget_range(10, 3000))
    assert alive(folder.check()) == {"orders": 11}


def test_a_relogged_message_counts_once(folder: Folder) -> None:
    folder.log(append(4), append(4, flags=PERSISTENT | CARRIED))
    assert alive(folder.check()) == {"orders": 1}


def test_a_message_of_a_fanout_counts_in_each_queue(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data", [queue_definition("a", 1), queue_definition("b", 2)])
    folder.log(append(0, queue=1) + again(0, queue=2))
    assert alive(folder.check()) == {"a": 1, "b": 1}


def test_transient_messages_in_pages_do_not_count(folder: Folder) -> None:
    folder.segment([0, 1], transient=True)
    report = folder.check()
    assert (report.findings, alive(report)) == ([], {"orders": 0})


def test_definitions_of_the_log_count_where_the_catalog_is_behind(folder: Folder) -> None:
    folder.log(
        definition_record(queue_definition("late", 8)) + append(0, queue=8) + append(0),
        definition_record(("undefine", "queue", ("/", "orders"))),
    )
    report = folder.check()
    assert report.findings == []
    assert alive(report) == {"late": 1}


def test_definitions_that_the_catalog_has_are_not_applied_again(folder: Folder) -> None:
    folder.log(definition_record(("undefine", "queue", ("/", "orders"))), first=1)
    assert alive(folder.check()) == {"orders": 0}


def test_queues_are_sorted_by_what_they_hold_and_say_their_type(tmp_path: Path) -> None:
    stream = queue_definition("events", 2, **{"x-queue-type": "stream"})
    folder = Folder(tmp_path / "data", [queue_definition("a", 1), stream])
    folder.segment([0, 1, 2], queue=2)
    assert [(queue.name, queue.type) for queue in folder.check().queues] == [("events", "stream"), ("a", "classic")]


def test_files_are_counted_by_kind(folder: Folder) -> None:
    folder.marks(folder.segment([0]), [0])
    log = folder.log(append(1))
    (log.parent / "spare-1").write_bytes(bytes(1000))
    (folder.path / "transient" / "3").mkdir(parents=True)
    (folder.path / "transient" / "3" / "x.seg").write_bytes(b"?")
    counted = {kind.name: (kind.files, kind.size) for kind in folder.check().kinds}
    assert counted["segment"][0] == counted["deletion marks"][0] == counted["log"][0] == 1
    assert counted["log spare"] == (1, 1000)
    assert counted["transient"] == (1, 1)
    assert counted["folder"][0] == 2


# -- damage ----------------------------------------------------------------------------------------------------------


def test_a_damaged_page_costs_its_positions_and_no_others(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3, 4], [5])
    flip(segment, segment.stat().st_size - segment_file.PAGE_HEAD_SIZE - 3 * len(record(0)))
    report = folder.check()
    (finding,) = report.damage
    assert (finding.file, finding.queue) == (str(segment.relative_to(folder.path)), "orders")
    assert finding.lost == "3 messages, at positions 2 to 4"
    assert "checksum" in finding.text
    assert alive(report) == {"orders": 3}


@pytest.mark.parametrize("appended", [b"", append(1) + append(2)], ids=["no log", "log"])
def test_a_damaged_page_of_transient_messages_costs_nothing(folder: Folder, appended: bytes) -> None:
    segment = folder.segment([0, 1], transient=True)
    folder.log(appended)
    flip(segment, segment.stat().st_size - 1)
    report = folder.check()
    assert told(report) == [("segment", False)]
    assert report.damage == []


def test_a_damaged_page_head_costs_the_rest_of_its_segment(folder: Folder) -> None:
    first = folder.segment([0, 1], [2, 3])
    folder.segment([10, 11])
    flip(first, segment_file.FILE_HEAD_SIZE + segment_file.PAGE_HEAD_SIZE + 2 * len(record(0)) + 8)
    report = folder.check()
    assert [finding.lost for finding in report.damage] == ["up to 8 messages, at positions 2 to 9"]
    assert alive(report) == {"orders": 4}


def test_damage_below_what_the_log_holds_is_not_taken_for_a_crash(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3], [4, 5])
    folder.log(append(100))
    flip(segment, segment_file.FILE_HEAD_SIZE + 8)
    assert [finding.lost for finding in folder.check().damage] == ["up to 2 messages, at positions 0 to 1"]


def test_a_stream_has_no_gaps(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data", [queue_definition("events", QUEUE, **{"x-queue-type": "stream"})])
    folder.segment([20, 21])
    folder.segment([22, 23])
    assert folder.check().findings == []  # what was before is gone by its limits
    folder.segment([30, 31])
    assert [finding.lost for finding in folder.check().damage] == ["up to 6 messages, at positions 24 to 29"]
    folder.log(b"".join(append(position) for position in range(23, 33)))
    report = folder.check()
    assert told(report) == [("segment", False)]
    assert alive(report) == {"events": 13}


def test_segments_that_overlap_are_damage(folder: Folder) -> None:
    folder.segment([0, 5])
    folder.segment([3, 7])
    assert [finding.is_damage for finding in folder.check().findings] == [True]


def test_a_page_that_contradicts_its_head_is_damage(folder: Folder) -> None:
    segment = folder.segment([0])
    payload = record(1)
    head = segment_file.encode_page(0, 0, 1, 1, 1, payload)
    segment.write_bytes(segment_file.encode_file_head(segment_file.SEGMENT_MAGIC) + head + payload)
    assert "differ from its head" in folder.check().damage[0].text


def test_a_damaged_batch_of_marks_is_reported_when_others_follow(folder: Folder) -> None:
    segment = folder.segment([0, 1, 2, 3])
    marks = folder.marks(segment, [0], [1])
    flip(marks, segment_file.FILE_HEAD_SIZE + 12)
    report = folder.check()
    assert [(finding.kind, finding.lost) for finding in report.damage] == [
        ("deletion marks", "marks: messages that were acknowledged may be delivered again")
    ]
    assert alive(report) == {"orders": 3}


def test_a_damaged_epoch_is_reported_with_the_epochs_that_are_lost(folder: Folder) -> None:
    log = folder.log(append(0), append(1), append(2))
    flip(log, 32 + 32 + len(append(0)) + 40)
    report = folder.check()
    assert [(finding.kind, finding.lost) for finding in report.damage] == [
        ("log", "epochs 3 to 3"),
        ("log", "up to 1 message"),
    ]
    assert alive(report) == {"orders": 2}


def test_an_epoch_that_cannot_be_decoded_is_reported(folder: Folder) -> None:
    folder.log(append(0), b"\x63", again(0, 1), forget(1)[:-1])
    report = folder.check()
    assert told(report) == [("log", True)] * 3
    assert "unknown record kind 99" in report.damage[0].text


def test_a_catalog_that_is_not_a_database_is_reported_and_queue_folders_with_it(folder: Folder) -> None:
    folder.segment([0, 1])
    folder.catalog.write_bytes(b"not a database" * 100)
    report = folder.check()
    assert {finding.kind for finding in report.damage} == {"catalog", "segment"}
    assert [finding.lost for finding in report.damage if finding.kind == "segment"] == ["up to 2 messages"]


def test_definitions_that_do_not_fit_together_are_reported(tmp_path: Path) -> None:
    stray = queue_definition("stray", 3)
    folder = Folder(tmp_path / "data", [("define", "queue", ("nowhere", "stray"), stray[3] | {"vhost": "nowhere"})])
    assert "there is no such vhost" in folder.check().damage[0].text


def test_a_catalog_that_is_missing_is_reported(folder: Folder) -> None:
    folder.log(append(0))
    folder.catalog.unlink()
    assert ("catalog", True) in told(folder.check())


def test_a_catalog_ahead_of_the_log_is_reported(folder: Folder) -> None:
    catalog = CatalogFile.open(folder.catalog)
    catalog.apply(50, [])
    catalog.close()
    folder.log(append(0))
    assert "there were epochs up to 50" in folder.check().damage[0].text


def test_a_version_that_is_missing_or_unreadable_is_reported(folder: Folder) -> None:
    (folder.path / "version").write_bytes(b"\xff?\n")
    assert told(folder.check()) == [("folder", True)]
    (folder.path / "version").unlink()
    assert told(folder.check()) == [("folder", True)]


# -- what a crash leaves ---------------------------------------------------------------------------------------------


def test_a_torn_tail_of_the_log_is_a_remark(folder: Folder) -> None:
    log = folder.log(append(0), append(1))
    content = log.read_bytes().rstrip(b"\0")
    log.write_bytes(content[:-3])
    report = folder.check()
    assert told(report) == [("log", False)]
    assert alive(report) == {"orders": 1}


def test_a_torn_segment_is_a_remark_where_the_log_has_it_all(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3])
    later = folder.segment([4, 5])
    folder.log(b"".join(append(position) for position in range(1, 6)))
    segment.write_bytes(segment.read_bytes()[:-1])
    report = folder.check()
    assert told(report) == [("segment", False), ("segment", False)]
    assert report.remarks[1].file == str(later.relative_to(folder.path))
    assert alive(report) == {"orders": 6}


def test_a_page_that_was_not_synced_is_a_remark_where_the_log_has_it_all(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3])
    folder.log(append(2) + append(3))
    flip(segment, segment.stat().st_size - 1)
    report = folder.check()
    assert told(report) == [("segment", False)]
    assert alive(report) == {"orders": 4}


def test_pages_after_one_that_was_not_synced_are_taken_from_the_log(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3], [6])
    folder.log(append(2) + append(3) + append(6))
    flip(segment, segment_file.FILE_HEAD_SIZE + 2 * (segment_file.PAGE_HEAD_SIZE + 2 * len(record(0))) - 1)
    report = folder.check()
    assert told(report) == [("segment", False)]
    assert alive(report) == {"orders": 5}


def test_a_relogged_message_does_not_cover_later_ones(folder: Folder) -> None:
    segment = folder.segment([5, 6])
    folder.log(append(3, flags=PERSISTENT | CARRIED))
    flip(segment, segment.stat().st_size - 1)
    assert [finding.lost for finding in folder.check().damage] == ["2 messages, at positions 5 to 6"]


def test_a_page_that_the_log_has_only_the_end_of_is_damage(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3, 4])
    folder.log(append(4) + append(5))
    flip(segment, segment.stat().st_size - 1)
    report = folder.check()
    assert [finding.lost for finding in report.damage] == ["2 messages, at positions 2 to 4"]
    assert alive(report) == {"orders": 4}


def test_a_torn_batch_of_marks_is_a_remark(folder: Folder) -> None:
    marks = folder.marks(folder.segment([0, 1, 2]), [0], [1])
    marks.write_bytes(marks.read_bytes()[:-1])
    report = folder.check()
    assert told(report) == [("deletion marks", False)]
    assert alive(report) == {"orders": 2}


def test_leftovers_of_a_compaction_are_remarks_and_the_newest_generation_counts(folder: Folder) -> None:
    old = folder.segment([0, 1, 2, 3])
    folder.marks(old, [0, 1])
    folder.segment([0, 2, 3], generation=1)
    (old.parent / "compacting.tmp").write_bytes(b"half")
    report = folder.check()
    assert report.damage == []
    assert len(report.remarks) == 3
    assert alive(report) == {"orders": 3}


def test_the_folder_of_a_deleted_queue_is_a_remark(folder: Folder) -> None:
    folder.segment([0, 1], queue=99)
    report = folder.check()
    assert [(finding.file, finding.is_damage) for finding in report.findings] == [("queues/99", False)]
    assert report.messages == 0


def test_moved_files_and_unknown_files_are_remarks(folder: Folder) -> None:
    (folder.path / "lost+damaged").mkdir()
    (folder.path / "lost+damaged" / "old").write_bytes(b"?")
    (folder.path / "notes.txt").write_text("mine")
    assert told(folder.check()) == [("unknown", False), ("set aside", False)]


# -- the folder as a whole -------------------------------------------------------------------------------------------


def test_a_folder_in_use_is_refused_and_the_owner_named(folder: Folder) -> None:
    owner = DataDir(folder.path)
    owner.lock()
    with pytest.raises(CheckError, match=rf"in use by a broker \(process {os.getpid()}\)"):
        folder.check()
    owner.unlock()
    assert folder.check().damage == []


def test_no_broker_starts_while_it_looks(folder: Folder) -> None:
    from warrenmq.storage.data_dir import DataDirError

    refused = []

    def try_to_lock(*_: object) -> None:
        try:
            DataDir(folder.path).lock()
        except DataDirError:
            refused.append(True)

    check_folder(str(folder.path), try_to_lock)
    assert refused


def test_a_folder_without_data_or_of_a_newer_version_is_refused(folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="is not a folder"):
        check_folder(str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckError, match="is not a WarrenMQ data folder"):
        check_folder(str(tmp_path / "empty"))
    (folder.path / "version").write_text("2\n")
    with pytest.raises(CheckError, match="format version 2"):
        folder.check()


def test_a_segment_of_a_newer_version_is_refused(folder: Folder) -> None:
    path = folder.segment([0])
    head = segment_file.encode_file_head(segment_file.SEGMENT_MAGIC, str(path), 6)
    path.write_bytes(head + path.read_bytes()[segment_file.FILE_HEAD_SIZE :])
    with pytest.raises(CheckError, match="format version 6"):
        folder.check()


def test_nothing_is_changed(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3])
    folder.marks(segment, [0])
    log = folder.log(append(4), definition_record(queue_definition("late", 8)), append(5))
    log.write_bytes(log.read_bytes().rstrip(b"\0")[:-2])
    (segment.parent / "compacting.tmp").write_bytes(b"half")
    flip(segment, segment.stat().st_size - 1)

    def content() -> dict[str, tuple[bytes, int]]:
        found = {}
        for path in sorted(folder.path.rglob("*")):
            if path.is_file():
                found[str(path)] = (path.read_bytes(), path.stat().st_mtime_ns)
        return found

    before = content()
    folder.check()
    assert content() == before


def test_progress_grows_to_the_whole(folder: Folder) -> None:
    folder.marks(folder.segment([0, 1], [2]), [0])
    folder.log(append(3))
    heard: list[tuple[str, int, int]] = []
    check_folder(str(folder.path), lambda *told: heard.append(told))
    done = [data for _, data, _ in heard]
    assert done == sorted(done)
    (total,) = {data for _, _, data in heard}
    assert 0.9 * total <= done[-1] <= total


# -- sets of positions -----------------------------------------------------------------------------------------------

places = st.integers(0, 5000)


@given(st.sets(places), st.sets(places), places, places, places)
def test_positions_are_a_set(members: set[int], others: set[int], edge: int, first: int, last: int) -> None:
    positions, removed = Positions(), Positions()
    for place in members:
        positions.add(place)
    for place in others:
        removed.add(place)
    assert positions.count() == len(members)
    above = positions.above(edge)
    assert {place for place in members if place in above} == {place for place in members if place > edge}
    assert above.count() == sum(place > edge for place in members)
    positions.remove_all(removed)
    positions.remove_range(first, last)
    expected = {place for place in members - others if not first <= place <= last}
    assert positions.count() == len(expected)
    positions.add_all(removed)
    assert positions.count() == len(expected | others)
    positions.discard(edge)
    assert positions.count() == len((expected | others) - {edge})


# -- beside the real storage -----------------------------------------------------------------------------------------

NAMES = ("a", "b", "c")
# So small that some hundred messages roll the log, page out, begin segments and compact them.
TINY = StorageOptions(log_limit=20_000, log_file_size=6000, window=6000, page=2000, memory_budget=40_000)


class Life:
    """A broker on a folder, without threads: work is done when the test says so."""

    def __init__(self, folder: Path) -> None:
        self._folder = DataDir(folder)
        self._folder.lock()
        self.storage = FileStorage.open(self._folder, TINY)
        self.broker = make_broker(self.storage)
        nothing = (lambda _: None,) * 2
        self.storage.attach(*nothing)
        self.channel = Client(self.broker).channel()
        for name in NAMES:
            self.channel.declare(name, durable=True)

    def waiting(self) -> dict[str, int]:
        return {name: len(self.channel.vhost.queues[name].backlog) for name in NAMES}

    def act(self, choice: random.Random) -> None:
        name = choice.choice(NAMES)
        queue = self.channel.vhost.queues[name]
        what = choice.random()
        if what < 0.55:
            for _ in range(choice.randrange(1, 12)):
                mode = 2 if choice.random() < 0.9 else 1
                self.channel.publish(choice.randbytes(choice.randrange(200)), name, delivery_mode=mode)
        elif what < 0.85:
            for _ in range(choice.randrange(1, 12)):
                if queue.needs_page():
                    break
                self.channel.get(queue)
        elif what < 0.87:
            queue.purge()
        elif what < 0.89:
            self.channel.delete(queue)
            self.channel.declare(name, durable=True)
        else:
            self.work(choice.randrange(5))

    def work(self, jobs: int) -> None:
        self.broker.end_turn()
        for _ in range(jobs):
            self.storage.committer.run_one()
            self.storage.pager.run_one()

    def end(self) -> None:
        """As a kill would: what was not written is gone."""
        self.storage.close()
        self._folder.unlock()


@pytest.mark.parametrize("seed", [1, 2, 112, 134])
def test_it_counts_what_the_next_start_finds(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)
    for _ in range(4):
        life = Life(tmp_path)
        for _ in range(choice.randrange(300)):
            life.act(choice)
        life.work(choice.randrange(50))
        life.end()
        report = check_folder(str(tmp_path))
        assert report.damage == []
        life = Life(tmp_path)
        assert alive(report) == life.waiting()
        life.end()
