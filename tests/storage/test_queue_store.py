"""The store of one queue: messages leave memory and come back, each once, in order, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import KIB, Kept, QuickFiles, numbers_of
from warrenmq.core.message import enqueue_as, make_message
from warrenmq.journal.files import Data
from warrenmq.journal.segment_file import walk_pages
from warrenmq.storage.segments import SEGMENT_SPAN


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def spoil(kept: Kept, position: int, in_head: bool = False) -> None:
    """Flip a bit of the page that holds this position."""
    segment = kept.store().segments.find(position)
    assert segment is not None
    path = os.path.join(kept.store().folder, segment.name)
    files = kept.files
    handle = files.open(path)
    (page,) = [page for page in walk_pages(files, handle).pages if page.first <= position <= page.last]
    at = page.offset + 8 if in_head else page.end - 1
    byte = files.read(handle, 1, at)[0]
    files.write(handle, bytes((byte ^ 4,)), at)
    files.close(handle)


# -- out and back ----------------------------------------------------------------------------------------------------


def test_paged_out_messages_return_in_order(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    assert queue.backlog.paged > 200
    assert kept.segment_count() > 1
    assert kept.drain() == list(range(300))
    assert queue.backlog.paged == 0


def test_nothing_is_written_for_a_short_queue(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(20))
    kept.settle()
    assert kept.names() == []


def test_a_queue_that_is_not_durable_is_paged_out_too(kept: Kept) -> None:
    queue = kept.declare(durable=False)
    kept.publish(range(150))
    kept.publish(range(150, 300), transient=True)
    kept.run()
    assert queue.backlog.paged > 200
    assert kept.drain() == list(range(300))
    kept.settle()
    assert kept.names() == []


def test_segments_of_a_drained_queue_are_removed(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    kept.drain()
    kept.settle()
    assert kept.names() == []


def test_transient_messages_of_a_durable_queue_free_their_segments_too(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300), transient=True)
    kept.settle()
    assert kept.segment_count() > 1
    assert kept.drain() == list(range(300))
    kept.settle()
    assert kept.names() == []


def test_transient_and_persistent_messages_keep_their_order_on_disk(kept: Kept) -> None:
    kept.declare()
    for number in range(300):
        kept.publish([number], transient=number % 3 == 0)
    kept.settle()
    assert kept.drain() == list(range(300))


def test_transient_messages_that_were_paged_out_are_gone_after_a_restart_and_not_counted(kept: Kept) -> None:
    kept.declare()
    for number in range(300):
        kept.publish([number], transient=number % 3 == 0)
    kept.settle()
    kept.restart()
    persistent = [number for number in range(300) if number % 3]
    assert kept.queue().message_count() == len(persistent)
    kept.publish([300], transient=True)
    assert kept.drain() == [*persistent, 300]
    kept.settle()
    assert kept.names() == []


def test_what_is_unacked_when_others_are_paged_out_returns_to_its_place(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(30))
    held = kept.take(20)
    kept.publish(range(30, 300))
    kept.settle()
    assert queue.backlog.paged > 200
    kept.ack(held[::2])
    queue.requeue(held[1::2])
    assert kept.drain() == [*range(1, 20, 2), *range(20, 300)]


def test_what_is_unacked_when_others_are_paged_out_survives_a_restart(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(30))
    held = kept.take(20)
    kept.publish(range(30, 300))
    kept.settle()
    kept.ack(held[:10])
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain() == list(range(10, 300))


def test_what_came_back_and_was_requeued_is_delivered_once(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    held = kept.take(150)
    kept.publish(range(300, 400))
    queue.requeue(held)
    kept.settle()
    assert kept.drain() == list(range(400))


def test_messages_that_arrive_while_pages_are_read_follow_them(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(200))
    taken: list[int] = []
    for number in range(200, 400):
        kept.publish([number])
        kept.run()
        taken += numbers_of(kept.take(1))
    assert taken + kept.drain() == list(range(400))


def test_a_queue_that_never_gets_shorter_than_its_window_does_not_grow_in_memory(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    held_bytes = kept.broker.stats.held_bytes
    for first in range(300, 2300, 100):
        kept.publish(range(first, first + 100))
        kept.ack(kept.take(100))
        kept.settle()
    assert kept.broker.stats.held_bytes < 2 * held_bytes
    assert kept.drain() == list(range(2000, 2300))


def test_sums_are_zero_when_everything_is_deleted(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    kept.restart(clean=False)
    kept.publish(range(300, 400))
    kept.settle()
    kept.drain()
    stats = kept.broker.stats
    assert (stats.ready, stats.unacked, stats.held_bytes) == (0, 0, 0)


def test_positions_that_lie_far_apart_do_not_share_a_segment(kept: Kept) -> None:
    """A segment has a bit for every position that it spans."""
    kept.declare(durable=False)
    positions = [0, 1, SEGMENT_SPAN, SEGMENT_SPAN + 1, 1 << 40]
    message = make_message(b"", b"", b"")
    kept.store().page_out([enqueue_as(message, position) for position in positions])
    spans = [(segment.first, segment.last) for segment in kept.store().segments.all]
    assert spans == [(0, 1), (SEGMENT_SPAN, SEGMENT_SPAN + 1), (1 << 40, 1 << 40)]


# -- the log comes first ---------------------------------------------------------------------------------------------


def test_no_page_is_written_before_its_epoch_is_durable(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.turn()
    kept.storage.pager.run_all()
    assert kept.names() == []
    kept.storage.committer.run_one()
    kept.storage.pager.run_all()
    assert kept.segment_count() > 1


def test_no_segment_is_removed_before_its_acks_are_durable(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    before = kept.names()
    kept.drain()
    kept.turn()
    kept.storage.pager.run_all()
    assert kept.names() == before
    kept.settle()
    assert kept.names() == []


def test_a_queue_that_was_acked_before_its_pages_were_written_leaves_no_file(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(60))
    kept.turn()
    kept.drain()
    kept.settle()
    assert kept.drain() == []
    assert kept.names() == []


def test_pages_are_written_whatever_the_durability(tmp_path: Path) -> None:
    """With "os" nobody else would ever ask for a sync."""
    from warrenmq.core.durability import parse_durability

    for mode in ("os", "interval=60000"):
        kept = Kept(tmp_path / mode, durability=parse_durability(mode))
        kept.declare()
        kept.publish(range(300))
        kept.run()
        assert kept.storage.pager.pending_bytes == 0
        assert kept.segment_count() > 1
        assert kept.drain() == list(range(300))


def test_the_folder_of_a_deleted_queue_stays_until_the_deletion_is_durable(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(10))
    kept.checkpoint()
    held = kept.take(10)  # so that there is nothing else to say than that the queue is gone
    before = kept.names()
    folder = Path(kept.store().folder)
    kept.channel.delete(queue)
    kept.storage.pager.run_all()
    assert sorted(path.name for path in folder.iterdir()) == before
    kept.settle()
    assert not folder.exists()
    kept.ack(held)


# -- purge and delete ------------------------------------------------------------------------------------------------


def test_a_purge_drops_what_is_on_disk_too(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    assert queue.purge() == 300
    kept.settle()
    assert kept.names() == []
    kept.publish(range(300, 500))
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain() == list(range(300, 500))


def test_a_purge_leaves_what_is_unacked(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    held = kept.take(100)
    assert queue.purge() == 200
    kept.settle()
    queue.requeue(held)
    kept.publish(range(300, 500))
    kept.settle()
    assert kept.drain() == [*range(100), *range(300, 500)]


def test_a_purge_leaves_what_is_unacked_also_for_the_next_start(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    kept.take(100)
    queue.purge()
    kept.settle()
    kept.restart(clean=False)
    assert kept.queue().message_count() == 100
    kept.restart()
    assert kept.drain() == list(range(100))


def test_a_page_that_was_requested_before_a_purge_does_not_come(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    queue.get()
    assert kept.store().is_reading
    queue.purge()
    kept.publish(range(300, 310))
    kept.settle()
    assert kept.drain() == list(range(300, 310))


def test_a_purge_answers_pending_page_requests(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    kept.restart()
    queue = kept.queue()
    heard: list[bool] = []
    assert queue.needs_page()
    queue.await_page(lambda: heard.append(queue.needs_page()))
    queue.purge()
    assert heard == [False]


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_queue_can_be_deleted_while_its_pages_are_written_and_read(kept: Kept, is_durable: bool) -> None:
    for steps in range(8):
        queue = kept.declare(durable=is_durable)
        kept.publish(range(300))
        kept.turn()
        while not kept.storage.committer._jobs.empty():
            kept.storage.committer.run_one()
        kept.storage.pager.run_one()
        queue.get()
        for _ in range(steps):
            kept.storage.pager.run_one()
        folder = Path(kept.store().folder)
        kept.channel.delete(queue)
        kept.settle()
        assert not folder.exists()
    stats = kept.broker.stats
    assert stats.ready == 0
    assert kept.failures == []


def test_the_folder_of_a_transient_queue_goes_with_it_also_when_it_was_drained(kept: Kept) -> None:
    queue = kept.declare(durable=False)
    kept.publish(range(300))
    kept.run()
    kept.drain()
    kept.run()
    folder = Path(kept.store().folder)
    kept.channel.delete(queue)
    kept.settle()
    assert not folder.exists()


def test_a_deleted_queue_leaves_nothing_behind(kept: Kept) -> None:
    for number in range(5):
        queue = kept.declare()
        kept.publish(range(300))
        kept.settle()
        kept.ack(kept.take(20))
        kept.channel.delete(queue)
        kept.settle()
        del queue, number
    context = kept.storage.context
    assert len(context.unflushed) == len(context.marked_stores) == 0
    assert os.listdir(os.path.join(kept.folder, "queues")) == []


# -- reading what is damaged -----------------------------------------------------------------------------------------


def test_a_damaged_page_loses_its_own_messages_only(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    spoil(kept, 150)
    numbers = kept.drain()
    missing = sorted(set(range(300)) - set(numbers))
    assert numbers == sorted(numbers)
    assert 150 in missing
    assert len(missing) < 30
    assert missing == list(range(missing[0], missing[-1] + 1))
    kept.settle()
    assert kept.names() == []
    assert (queue.message_count(), kept.broker.stats.ready, kept.broker.stats.held_bytes) == (0, 0, 0)


def test_a_damaged_page_head_loses_no_other_segment(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    damaged = kept.store().segments.find(150)
    assert damaged is not None
    spoil(kept, 150, in_head=True)
    missing = sorted(set(range(300)) - set(kept.drain()))
    assert 150 in missing
    assert missing[-1] <= damaged.last
    assert kept.queue().message_count() == 0
    assert kept.queue().backlog.body_bytes == 0


def test_a_damaged_file_is_copied_aside_before_it_is_removed(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    segment = kept.store().segments.find(150)
    assert segment is not None
    spoil(kept, 150)
    damaged = (Path(kept.store().folder) / segment.name).read_bytes()
    kept.drain()
    kept.settle()
    (aside,) = (kept.folder / "lost+damaged").iterdir()
    assert aside.read_bytes() == damaged


def test_losses_are_reported_once(kept: Kept) -> None:
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    spoil(kept, 150)
    taken = kept.take_all()
    kept.restart()
    assert kept.queue().message_count() == len(taken)
    assert kept.drain() == numbers_of(taken)


def test_a_requeue_after_a_damaged_page_finds_its_place(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    spoil(kept, 150)
    taken = kept.take_all()
    queue.requeue(taken[::2])
    kept.ack(taken[1::2])
    assert kept.drain() == numbers_of(taken[::2])


class ShortOfHandles(QuickFiles):
    """Opening a file fails for a while."""

    failures = 0
    number = errno.EMFILE

    def open_read(self, path: str) -> int:
        self._fail(path)
        return super().open_read(path)

    def create(self, path: str) -> int:
        self._fail(path)
        return super().create(path)

    def _fail(self, path: str) -> None:
        if self.failures and path.endswith(".seg"):
            self.failures -= 1
            raise OSError(self.number, os.strerror(self.number), path)


def test_too_many_open_files_lose_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warrenmq.storage.full_disk.FULL_DISK_RETRY", 0.0)
    files = ShortOfHandles()
    kept = Kept(tmp_path, files)
    kept.declare()
    kept.publish(range(200))
    files.failures = 2
    kept.settle()
    kept.take(20)
    files.failures = 3
    assert kept.drain() == list(range(20, 200))
    assert kept.failures == []


# -- which segment comes next ----------------------------------------------------------------------------------------


def test_a_segment_that_empties_while_it_is_read_does_not_confuse_the_reader(kept: Kept) -> None:
    """Its first page is alive, those behind it are dead: the read of them is under way when the last of it is acked."""
    kept.declare()
    kept.publish(range(300))
    held = kept.take(300)
    kept.checkpoint()
    segments = kept.store().segments.all
    assert len(segments) > 2
    second = segments[1]
    kept.ack(entry for entry in held if 5 < entry.position < second.first)
    kept.settle()
    kept.restart(clean=False)
    kept.queue().await_page(lambda: None)
    kept.storage.pager.run_one()
    first = kept.take(6)
    assert numbers_of(first) == list(range(6))
    assert kept.store().is_reading
    kept.ack(first)
    assert kept.store().segments.all[0].first == second.first
    kept.settle()
    assert kept.drain() == list(range(second.first, 300))


def test_a_page_is_read_as_soon_as_it_is_written(kept: Kept) -> None:
    """A queue may be drained down to pages that are still on their way to the disk."""
    queue = kept.declare()
    kept.publish(range(300))
    got: list[int] = []
    heard: list[bool] = []
    while (entry := queue.get()) is not None:
        got.append(int(entry.message.body[:8]))
    assert queue.needs_page()
    queue.await_page(lambda: heard.append(True))
    assert heard == []
    kept.settle()
    assert heard == [True]
    assert got + kept.drain() == list(range(300))


class Recorded(QuickFiles):
    """Notes what is done to which file."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self._paths: dict[int, str] = {}

    def create(self, path: str) -> int:
        handle = super().create(path)
        self._paths[handle] = path
        self.done.append(("create", path))
        return handle

    def open(self, path: str) -> int:
        handle = super().open(path)
        self._paths[handle] = path
        return handle

    def writev(self, handle: int, pieces: Any, offset: int) -> None:
        super().writev(handle, pieces, offset)
        self.done.append(("write", self._paths[handle]))

    def write(self, handle: int, data: Data, offset: int) -> None:
        super().write(handle, data, offset)
        self.done.append(("write", self._paths[handle]))

    def sync(self, handle: int) -> None:
        self.done.append(("sync", self._paths[handle]))

    def sync_dir(self, path: str) -> None:
        self.done.append(("sync_dir", path))

    def remove(self, path: str) -> None:
        super().remove(path)
        self.done.append(("remove", path))


def test_a_segment_is_durable_before_the_next_one_begins(tmp_path: Path) -> None:
    """So that only the last one can be torn: what lies in it the log still has."""
    files = Recorded()
    kept = Kept(tmp_path, files)
    kept.declare()
    kept.publish(range(400))
    kept.settle()
    folder = kept.store().folder
    segments = [os.path.join(folder, segment.name) for segment in kept.store().segments.all]
    assert len(segments) > 2
    for earlier, later in pairwise(segments):
        begun = files.done.index(("create", later))
        last_write = max(at for at, step in enumerate(files.done) if step == ("write", earlier))
        synced = files.done.index(("sync", earlier), last_write)
        assert last_write < synced < files.done.index(("sync_dir", folder), synced) < begun


def test_marks_outlive_their_segment(tmp_path: Path) -> None:
    """Without them a segment whose removal a power loss undoes would be alive again."""
    files = Recorded()
    kept = Kept(tmp_path, files, dead_allowance=1 << 30)
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    kept.ack(kept.take(100))
    kept.checkpoint()
    (marks,) = [name for name in kept.names() if name.endswith(".dead")][-1:]
    path = os.path.join(kept.store().folder, marks)
    kept.drain()
    kept.checkpoint()
    assert kept.names() == []
    removed = files.done.index(("remove", path.replace(".dead", ".seg")))
    synced = files.done.index(("sync_dir", kept.store().folder), removed)
    assert removed < synced < files.done.index(("remove", path))


def test_files_that_need_not_survive_are_not_synced(tmp_path: Path) -> None:
    files = Recorded()
    kept = Kept(tmp_path, files)
    kept.declare(durable=False)
    kept.publish(range(300))
    kept.run()
    assert kept.segment_count() > 1
    kept.checkpoint()
    kept.drain()
    kept.checkpoint()
    assert [step for step in files.done if "sync" in step[0] and "transient" in step[1]] == []


def test_a_message_bigger_than_a_page_is_paged_out(kept: Kept) -> None:
    queue = kept.declare()
    for letter in b"abcdef":
        kept.channel.publish(bytes((letter,)) * 10 * KIB, "q", delivery_mode=2)
    kept.settle()
    assert queue.backlog.paged > 0
    bodies = [entry.message.body[:1] for entry in kept.take_all()]
    assert bodies == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_two_queues_do_not_disturb_each_other(kept: Kept) -> None:
    kept.declare("a")
    kept.declare("b")
    kept.channel.declare_exchange("all", "fanout", durable=True)
    for name in "ab":
        kept.channel.bind("all", kept.queue(name))
    kept.publish(range(300), "", exchange="all")
    kept.settle()
    kept.ack(kept.take(200, "a"))
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain("b") == list(range(300))
    assert kept.drain("a") == list(range(200, 300))


def test_a_page_that_is_read_back_comes_in_a_turn(kept: Kept) -> None:
    queue = kept.declare()
    kept.publish(range(300))
    kept.settle()
    while not queue.needs_page():
        assert queue.get() is not None
    order: list[str] = []
    kept.broker.turn.begin = lambda: order.append("turn")
    queue.await_page(lambda: order.append("page"))
    kept.settle()
    assert order[:2] == ["turn", "page"]
