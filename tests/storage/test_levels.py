"""Priorities of a queue: each has a store of its own, found again at a start, checked and deleted with the queue."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.crash_cycles import new_disk
from tests.storage.driver import Kept, body_of, numbers_of
from tests.support.client import PERSISTENT
from tests.support.crash import History, effort
from tests.support.disk import RecordingFiles
from tests.support.durable import Life
from warrenmq.core.backlog import Backlog
from warrenmq.core.message import address_of, enqueue_as, make_message
from warrenmq.core.options import QueueOptions, queue_options
from warrenmq.core.stats import Stats
from warrenmq.journal.segment_file import segment_name
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.check import check_folder
from warrenmq.storage.file_storage import FileStorage
from warrenmq.storage.memory_store import MemoryStorage

# A queue with priorities opens the stores of its levels itself. Here it has none, and the tests open them.
ARGUMENTS: dict[str, Any] = {}
OPTIONS = queue_options(True, ARGUMENTS)


class Level:
    """The backlog of one level, as a queue would hold it."""

    def __init__(self, storage: FileStorage, level: int, name: str = "q", options: QueueOptions = OPTIONS) -> None:
        self.storage = storage
        self.backlog = Backlog(Stats(), storage.message_store("/", name, options, level), options.is_durable)
        self.backlog.restore()

    @property
    def store(self) -> Any:
        return self.backlog.store

    def put(self, *numbers: int) -> None:
        """Append messages; the position of each is its number."""
        for number in numbers:
            body = body_of(number)
            header = content_header(len(body), BasicProperties(delivery_mode=PERSISTENT))
            entry = enqueue_as(make_message(address_of("", "q"), header, body), number)
            self.backlog.next_position = number + 1
            self.backlog.persist(entry)
            self.backlog.append(entry)

    def drop(self, *numbers: int) -> None:
        for number in numbers:
            entry = self.backlog.take()
            assert entry is not None
            assert entry.position == number
            self.backlog.settle(entry)

    def drop_first(self) -> None:
        entry = self.backlog.take()
        if entry is not None:
            self.backlog.settle(entry)

    def numbers(self) -> list[int]:
        """All that wait, read back into memory."""
        while self.backlog.paged:
            self.store.page_in()
            self.storage.log.flush()
            self.storage.run_all()
        return numbers_of(self.backlog)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path / "data")
    kept.declare(**ARGUMENTS)
    return kept


@pytest.mark.parametrize("clean", [True, False])
def test_each_level_keeps_its_own_messages(kept: Kept, clean: bool) -> None:
    kept.publish([0])
    three, nine = Level(kept.storage, 3), Level(kept.storage, 9)
    three.put(1, 3, 5)
    nine.put(2, 4)
    three.drop(1)
    kept.settle()
    kept.restart(clean)
    assert kept.storage.report == []
    assert kept.storage.stored_levels("/", "q") == [3, 9]
    three, nine = Level(kept.storage, 3), Level(kept.storage, 9)
    assert (three.numbers(), nine.numbers()) == ([3, 5], [2, 4])
    assert (three.backlog.next_position, nine.backlog.next_position) == (6, 5)
    assert kept.drain() == [0]
    assert kept.storage.context.describe_queue(nine.store.number) == "queue 'q' in vhost '/', priority 9"


def test_a_level_that_was_never_used_costs_nothing(kept: Kept) -> None:
    Level(kept.storage, 3).put(1)
    kept.declare("other")
    kept.checkpoint()
    kept.restart()
    assert kept.storage.stored_levels("/", "q") == [3]
    assert kept.storage.stored_levels("/", "other") == []
    numbers = [kept.store("q").number, Level(kept.storage, 3).store.number, kept.store("other").number]
    assert numbers == [1, 2, 3]
    assert sorted(path.name for path in (kept.folder / "queues").iterdir()) == ["2"]


def test_a_level_is_paged_out_to_a_folder_of_its_own(kept: Kept) -> None:
    three = Level(kept.storage, 3)
    three.put(*range(300))
    kept.settle()
    assert three.backlog.paged > 0
    kept.restart(clean=False)
    assert Level(kept.storage, 3).numbers() == list(range(300))


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_is_deleted_with_its_levels(kept: Kept, clean: bool) -> None:
    three = Level(kept.storage, 3)
    three.put(*range(300))
    kept.checkpoint()
    used = three.store.number
    three.backlog.delete()
    kept.channel.delete(kept.queue())
    kept.settle()
    assert list((kept.folder / "queues").iterdir()) == []
    kept.restart(clean)
    assert kept.storage.stored_levels("/", "q") == []
    kept.declare(**ARGUMENTS)
    three = Level(kept.storage, 3)
    assert three.numbers() == []
    assert three.store.number > used, "a number was used twice"


def test_numbers_of_levels_are_never_reused_by_queues(kept: Kept) -> None:
    number = Level(kept.storage, 7).store.number
    kept.settle()
    kept.restart(clean=False)
    kept.declare("later")
    assert kept.store("later").number > number


def test_levels_of_a_queue_that_is_not_durable_are_paged_apart_and_gone_with_it(kept: Kept) -> None:
    options = queue_options(False, ARGUMENTS)
    levels = [Level(kept.storage, level, "t", options) for level in range(3)]
    for level in levels:
        level.put(*range(300))
    kept.settle()
    folders = {level.store.folder for level in levels}
    assert len(folders) == 3
    assert all(Path(folder).exists() for folder in folders)
    assert kept.storage.stored_levels("/", "t") == []
    for level in levels:
        level.backlog.delete()
    kept.settle()
    assert not any(Path(folder).exists() for folder in folders)


def test_a_check_counts_all_levels_as_one_queue_and_names_what_is_lost(kept: Kept) -> None:
    kept.publish(range(2))
    three = Level(kept.storage, 3)
    three.put(*range(300))
    kept.stop()
    report = check_folder(str(kept.folder))
    assert report.damage == []
    assert [(queue.name, queue.messages) for queue in report.queues] == [("q", 302)]
    folder = kept.folder / "queues" / str(three.store.number)
    first = min(path for path in folder.iterdir() if path.suffix == ".seg")
    first.unlink()
    (loss,) = check_folder(str(kept.folder)).damage
    assert (loss.queue, loss.file) == ("q", f"queues/{three.store.number}/{segment_name(0, 0)}")
    assert loss.lost_messages > 0
    kept.open()
    told = [line for line in kept.storage.report if "queue 'q' in vhost '/', priority 3 lost" in line]
    assert len(told) == 1
    assert Level(kept.storage, 3).backlog.waiting == 300 - loss.lost_messages


def test_a_level_without_its_queue_is_reported(kept: Kept) -> None:
    three = Level(kept.storage, 3)
    three.put(*range(300))
    kept.checkpoint()
    catalog = kept.storage.catalog
    catalog._levels.clear()
    three.backlog.delete()
    kept.channel.delete(kept.queue())
    kept.settle()
    kept.crash()
    (problem,) = check_folder(str(kept.folder)).damage
    assert "queue 'q' in vhost '/', priority 3: its queue does not exist" in problem.text


def test_an_old_queue_with_priorities_that_were_ignored_gets_levels_when_they_are_used(kept: Kept) -> None:
    """Before there were levels a queue with x-max-priority had one number, and all its messages there."""
    kept.publish(range(5))
    kept.declare("neighbour")
    kept.settle()
    kept.restart(clean=False)
    assert kept.storage.stored_levels("/", "q") == []
    nine = Level(kept.storage, 9)
    nine.put(7)
    assert nine.store.number not in (kept.store("q").number, kept.store("neighbour").number)
    assert kept.drain() == list(range(5))
    assert nine.numbers() == [7]


def test_ids_of_messages_that_left_a_level_are_forgotten(kept: Kept) -> None:
    arguments = {**ARGUMENTS, "x-message-deduplication": True}
    kept.declare("once", **arguments)
    storage = kept.storage
    level = Level(storage, 4, "once")
    seen: Any = storage.seen_store("queue", "/", "once")
    for number in (10, 11):
        level.put(number)
        seen.save(b"%016d" % number, number)
    level.drop(10)
    kept.settle()
    kept.crash()
    # As a start does it, but before the queue has taken its ids.
    kept._data_dir.lock()
    storage = FileStorage.open(kept._data_dir, kept.options, files=kept.files)
    assert [number for _, number in storage.seen_store("queue", "/", "once").recover()] == [11]
    storage.close()


def test_memory_storage_has_levels(kept: Kept) -> None:
    storage: Any = MemoryStorage()
    Level(storage, 0).put(1)
    Level(storage, 5).put(2, 3)
    Level(storage, 6)
    assert storage.stored_levels("/", "q") == [5]
    assert (Level(storage, 0).numbers(), Level(storage, 5).numbers()) == ([1], [2, 3])


@pytest.mark.parametrize("seed", range(effort(3)))
def test_power_loss_leaves_whole_epochs_of_all_levels(seed: int) -> None:
    """Each turn puts a message into three levels: after a crash all three have it, or none."""
    choice = random.Random(seed)
    history = History.begin(new_disk())
    life = Life(history.files)
    life.publisher.declare("q", durable=True, arguments=ARGUMENTS)
    life.settle()
    levels = [Level(life.storage, level) for level in (1, 2, 3)]
    for turn in range(40):
        for at, level in enumerate(levels):
            level.put(3 * turn + at)
            if turn >= 10 and turn % 2:
                level.drop_first()
        life.end_turn()
        for _ in range(choice.randrange(4)):
            choice.choice((life.commit_one, life.page_one, life.apply_one))()
        history.record(("durable", life.durable, turn))
    life.settle()
    for crash in history.crashes(choice, 25, 2):
        after = Life(RecordingFiles(crash.disk.after_kill()))
        known = after.storage.stored_levels("/", "q")
        assert known in ([], [1, 2, 3])
        found = [[number // 3 for number in Level(after.storage, level).numbers()] for level in known]
        assert all(each == found[0] for each in found), (crash.after, found)
        assert not after.storage.has_damage


def test_a_folder_can_be_copied_with_its_levels(kept: Kept, tmp_path: Path) -> None:
    Level(kept.storage, 3).put(*range(300))
    kept.checkpoint()
    kept.stop()
    shutil.copytree(kept.folder, tmp_path / "copy")
    assert check_folder(str(tmp_path / "copy")).messages == 300
