"""Streams in files: what is written when, what is read back, what a restart finds, and what the limits take away."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Client, make_broker
from tests.support.streams import ManualClock, declare_stream, offset_of, offsets, read_stream
from warrenmq.core.ports import SYNCED, WRITTEN
from warrenmq.core.queue import Queue
from warrenmq.core.stream import Stream
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import PAGE_HEAD_SIZE, walk_pages
from warrenmq.protocol.values import Timestamp
from warrenmq.storage import stream_segments
from warrenmq.storage.check import check_folder
from warrenmq.storage.data_dir import DataDir
from warrenmq.storage.file_storage import FileStorage
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.stream_store import FileStreamStore

SMALL = StorageOptions(log_limit=64 * 1024, log_file_size=16 * 1024, page_size=2000)


class Node:
    """A broker on a folder, without threads: the test says when their work is done."""

    def __init__(self, folder: Path, clock: ManualClock, options: StorageOptions = SMALL) -> None:
        self.folder = folder
        self.storage = FileStorage.open(DataDir(folder), options)
        self.broker = make_broker(self.storage, clock.now)
        clock.drive(self.broker.turn, self.broker.timers)
        self.storage.attach(self._failed, lambda full: None)
        self.channel = Client(self.broker).channel()

    def _failed(self, reason: str) -> None:
        raise AssertionError(reason)

    @property
    def stream(self) -> Queue:
        return self.channel.vhost.queues["s"]

    @property
    def store(self) -> FileStreamStore:
        store = self.stream.store
        assert isinstance(store, FileStreamStore)
        return store

    @property
    def files(self) -> list[str]:
        return sorted(os.listdir(self.store.folder)) if os.path.isdir(self.store.folder) else []

    def publish(self, *bodies: bytes, **properties: Any) -> None:
        for body in bodies:
            self.channel.publish(body, "s", **properties)
        self.settle()

    def settle(self) -> None:
        self.broker.end_turn()
        self.storage.run_all()
        self.broker.end_turn()

    def read(self, offset: Any = "first", prefetch: int = 10_000, tag: str = "reader") -> None:
        read_stream(self.channel, self.stream, offset, tag, prefetch)
        self.settle()

    def offsets(self, tag: str | None = None) -> list[int]:
        self.settle()
        return offsets(self.channel, tag)

    def stop(self) -> None:
        self.storage.begin_stop(lambda: None)
        self.storage.run_all()
        self.storage.close()

    def crash(self) -> None:
        """Let go of the files as they are; what was not asked of the disk is not done."""
        self.storage.committer.writer.close()
        self.storage.catalog_writer.stop()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[stream_segments.BLOCK_BYTES, 3000], ids=["usual blocks", "small blocks"])
def start(
    tmp_path: Path, clock: ManualClock, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Node]:
    monkeypatch.setattr(stream_segments, "BLOCK_BYTES", request.param)
    return lambda options=SMALL: Node(tmp_path, clock, options)


@pytest.fixture
def node(start: Callable[..., Node]) -> Node:
    return start()


def numbered(count: int, size: int = 100, start: int = 0) -> list[bytes]:
    return [b"%d:" % number + bytes(size) for number in range(start, start + count)]


# -- writing ---------------------------------------------------------------------------------------------------------


def test_readers_wait_until_the_log_is_synced(node: Node) -> None:
    declare_stream(node.channel)
    node.read("next")
    node.channel.publish(b"a", "s")
    node.broker.end_turn()
    assert offsets(node.channel) == []
    assert node.storage.committer.run_one()
    assert offsets(node.channel) == [0]


def test_a_stream_that_need_not_be_synced_is_read_when_it_is_written(node: Node) -> None:
    node.channel.declare("s", durable=True, arguments={"x-queue-type": "stream", "x-durability": "os"})
    assert node.store.durability_level == WRITTEN
    node.read("next")
    node.publish(b"a")
    assert offsets(node.channel) == [0]
    assert node.storage.log.durable < node.storage.log.written


def test_a_confirm_waits_for_the_sync_whatever_the_delivery_mode(node: Node) -> None:
    declare_stream(node.channel)
    node.settle()
    assert node.store.durability_level == SYNCED
    node.channel.core.select_confirms()
    node.channel.publish(b"a", "s", delivery_mode=1)
    node.broker.end_turn()
    assert node.channel.confirms() == []
    node.settle()
    assert node.channel.confirms() == [(1, False)]


def test_pages_are_written_when_they_are_full(node: Node) -> None:
    declare_stream(node.channel)
    node.publish(b"a")
    assert node.files == []
    node.publish(*numbered(30))
    (name,) = node.files
    assert name == "00000000000000000000-0.seg"
    node.read()
    assert node.offsets() == list(range(31))


def test_a_page_that_is_left_alone_is_written_after_a_while(node: Node, clock: ManualClock) -> None:
    declare_stream(node.channel)
    node.publish(b"a")
    clock.pass_seconds(0.5)
    clock.run_timers()
    node.settle()
    assert node.files == []
    clock.pass_seconds(0.5)
    clock.run_timers()
    node.settle()
    assert len(node.files) == 1
    node.read()
    assert node.offsets() == [0]


def test_nothing_is_written_before_it_is_safe(node: Node) -> None:
    declare_stream(node.channel)
    node.settle()
    for body in numbered(30):
        node.channel.publish(body, "s")
    node.broker.end_turn()
    while node.storage.pager.run_one():
        pass
    assert node.files == []
    node.settle()
    assert len(node.files) == 1


def test_segments_are_closed_by_size(node: Node) -> None:
    declare_stream(node.channel, stream_max_segment_size_bytes=5000)
    node.publish(*numbered(200))
    assert len(node.files) >= 4
    node.read()
    assert node.offsets() == list(range(200))


def test_a_checkpoint_trims_the_log(node: Node) -> None:
    """Written in the small, over and over: the log does not grow with the stream."""
    declare_stream(node.channel)
    for at in range(60):
        node.publish(*numbered(30, start=30 * at))
    assert node.storage.checkpoint.count > 0
    assert node.storage.committer.size <= 2 * SMALL.log_limit
    node.read()
    assert node.offsets() == list(range(1800))


def test_a_checkpoint_flushes_idle_queues(start: Callable[..., Node]) -> None:
    node = start()
    declare_stream(node.channel)
    node.publish(b"lonely")
    other = declare_stream(node.channel, "busy")
    while node.storage.checkpoint.count < 2:
        node.channel.publish(bytes(500), "busy")
        node.settle()
    assert other.message_count() > 10
    node.crash()
    node = start()
    node.read()
    assert [each.body for each in node.channel.deliveries()] == [b"lonely"]


def test_a_message_in_many_queues_is_logged_once(node: Node) -> None:
    stream, classic = declare_stream(node.channel), node.channel.declare("q", durable=True)
    for queue in (stream, classic):
        node.channel.bind("amq.fanout", queue)
    node.settle()
    before = node.storage.log.buffer.size
    node.channel.publish(bytes(1000), "", "amq.fanout", delivery_mode=2)
    assert node.storage.log.buffer.size - before < 1200
    node.settle()
    node.read()
    assert node.offsets() == [0]


# -- reading ---------------------------------------------------------------------------------------------------------


def fill(node: Node, count: int, clock: ManualClock | None = None, **arguments: Any) -> None:
    """Many pages in several segments; with a clock, a minute passes between messages."""
    declare_stream(node.channel, **{"stream_max_segment_size_bytes": 5000, **arguments})
    if clock is None:
        node.publish(*numbered(count))
        return
    for body in numbered(count):
        node.publish(body)
        clock.pass_seconds(60)


def test_any_offset_is_found(node: Node) -> None:
    fill(node, 300)
    for offset in [0, 1, 17, 150, 298, 299]:
        node.read(offset, tag=str(offset))
        assert node.offsets(str(offset)) == list(range(offset, 300))
    node.publish(b"last")
    assert node.offsets() == [300] * 6


def test_bodies_and_properties_come_back_as_they_were(node: Node) -> None:
    fill(node, 100)
    node.publish(b"rich", content_type="text/plain", headers={"a": 1}, message_id="m", priority=3)
    node.publish(*numbered(60, start=101))
    node.read()
    delivered = node.channel.deliveries()
    assert [each.body for each in delivered] == [*numbered(100), b"rich", *numbered(60, start=101)]
    rich = delivered[100].message
    assert (rich.routing_key, rich.properties.content_type, rich.properties.message_id) == ("s", "text/plain", "m")
    assert rich.properties.headers == {"a": 1, "x-stream-offset": 100}


def test_a_time_is_found_without_reading_what_is_older(node: Node, clock: ManualClock) -> None:
    begin = clock.now // 1000
    fill(node, 120, clock)
    node.settle()
    for minutes in [-5, 0, 1, 59, 60, 118, 119]:
        for seconds, expected in ((0, minutes), (1, minutes + 1)):
            moment = Timestamp(begin + 60 * minutes + seconds)
            tag = f"{minutes} {seconds}"
            node.read(moment, tag=tag)
            assert node.offsets(tag) == list(range(max(0, expected), 120)), tag
    node.read(Timestamp(2**61), tag="far")
    assert node.offsets("far") == []


def test_a_time_finds_all_that_came_in_the_same_moment(node: Node, clock: ManualClock) -> None:
    fill(node, 300)
    assert len(node.files) > 5
    node.read(Timestamp(clock.now // 1000))
    assert node.offsets() == list(range(300))


def test_an_interval_reaches_over_a_restart(start: Callable[..., Node], clock: ManualClock) -> None:
    node = start()
    fill(node, 120, clock)
    node.stop()
    node = start()
    node.read("30m")
    assert node.offsets() == list(range(90, 120))


def test_readers_share_what_was_read(node: Node) -> None:
    """The second reader of the same pages asks nothing of the disk."""
    fill(node, 100)
    reads = count_reads(node)
    node.read(tag="one")
    asked = len(reads)
    node.read(tag="two")
    assert asked > 0
    assert len(reads) == asked
    assert len(node.offsets()) == 200


def count_reads(node: Node) -> list[Any]:
    reads = []
    original = node.storage.pager.read

    def read(job: Any, done: Any) -> None:
        reads.append(job)
        original(job, done)

    node.storage.pager.read = read  # type: ignore[method-assign]
    return reads


def test_readers_that_ask_together_are_answered_by_one_read(node: Node) -> None:
    fill(node, 30)
    reads = count_reads(node)
    for tag in ("one", "two", "three"):
        read_stream(node.channel, node.stream, 0, tag, 5)
    node.settle()
    assert len(reads) == 1
    assert sorted(offsets(node.channel)) == sorted(3 * [0, 1, 2, 3, 4])


def test_the_cache_does_not_grow_with_the_stream(node: Node) -> None:
    node.storage.streams.blocks._limit = 20_000
    declare_stream(node.channel, stream_max_segment_size_bytes=200_000)
    node.publish(*numbered(3000))
    node.read()
    assert node.offsets() == list(range(3000))
    assert node.storage.streams.blocks._size <= 20_000 or len(node.storage.streams.blocks) == 1


def test_few_indexes_of_closed_segments_are_kept(node: Node) -> None:
    node.storage.streams.indexes._limit = 3
    fill(node, 300)
    assert len(node.files) > 6
    assert len([each for each in node.store.segments.all if each.index is not None]) <= 4
    node.read()
    assert node.offsets() == list(range(300))
    assert len([each for each in node.store.segments.all if each.index is not None]) <= 4


def test_a_live_reader_touches_no_file(node: Node) -> None:
    declare_stream(node.channel)
    node.read("next")
    reads = count_reads(node)
    for at in range(20):
        node.publish(*numbered(20, start=20 * at))
        assert offsets(node.channel) == list(range(20 * at, 20 * at + 20))
    assert reads == []


def test_a_page_on_its_way_to_the_disk_can_be_read(node: Node) -> None:
    declare_stream(node.channel)
    node.settle()
    for body in numbered(100):
        node.channel.publish(body, "s")
    node.broker.end_turn()
    while node.storage.committer.run_one():
        pass  # safe, but the pages are not in their file yet
    assert node.files == []
    read_stream(node.channel, node.stream)
    assert offsets(node.channel) == list(range(100))
    node.settle()
    read_stream(node.channel, node.stream, tag="later")
    node.settle()
    assert offsets(node.channel, "later") == list(range(100))


def test_a_stream_that_is_deleted_while_it_is_read_says_nothing_more(node: Node) -> None:
    fill(node, 100)
    read_stream(node.channel, node.stream)
    folder = node.store.folder
    node.broker.end_turn()
    node.channel.delete(node.stream)
    node.settle()
    assert offsets(node.channel) == []
    assert not os.path.exists(folder)
    declare_stream(node.channel)
    node.publish(b"new")
    node.read(tag="other")
    assert [each.body for each in node.channel.deliveries()] == [b"new"]


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize("count", [1, 5, 100, 1000])
def test_everything_is_there_after_a_restart(end: str, count: int, start: Callable[..., Node]) -> None:
    node = start()
    fill(node, count)
    (node.stop if end == "stop" else node.crash)()
    node = start()
    assert node.stream.message_count() == count
    assert node.storage.report == []
    if end == "stop":
        assert node.storage.replayed_epochs == 0
    node.read()
    delivered = node.channel.deliveries()
    assert [each.body for each in delivered] == numbered(count)
    assert [offset_of(each) for each in delivered] == list(range(count))
    node.publish(b"next")
    assert node.offsets() == [count]


def test_restarts_one_after_the_other(start: Callable[..., Node], clock: ManualClock) -> None:
    count = 0
    choose = random.Random(4)
    for life in range(12):
        node = start()
        if life == 0:
            declare_stream(node.channel, stream_max_segment_size_bytes=4000)
        for _ in range(choose.randrange(4)):
            more = choose.randrange(1, 60)
            node.publish(*numbered(more, start=count))
            count += more
            clock.pass_seconds(choose.choice([0, 0.3, 5]))
            clock.run_timers()
        node.settle()
        node.read(choose.randrange(count) if count else "first", tag="some")
        node.read(tag="all")
        delivered = node.channel.deliveries()
        assert [each.body for each in delivered if each.consumer == "all"] == numbered(count)
        (node.stop if choose.random() < 0.5 else node.crash)()


def test_an_old_stream_starts_without_looking_at_all_of_it(start: Callable[..., Node]) -> None:
    node = start()
    fill(node, 1000)
    files = len(node.files)
    node.stop()
    node = start()
    assert files > 20
    assert len([each for each in node.store.segments.all if each.index is not None]) == 1
    node.read(995)
    assert node.offsets() == list(range(995, 1000))
    node.read(500, tag="middle", prefetch=5)
    assert node.offsets("middle") == list(range(500, 505))
    assert len([each for each in node.store.segments.all if each.index is not None]) <= 3


def test_times_are_kept_over_a_crash(start: Callable[..., Node], clock: ManualClock) -> None:
    node = start()
    declare_stream(node.channel)
    node.publish(b"old")
    node.crash()
    clock.pass_seconds(3600)
    node = start()
    node.publish(b"new")
    node.read("1h", tag="both")
    assert node.offsets("both") == [0, 1]
    node.read("59m", tag="new")
    assert node.offsets("new") == [1]


def test_transactions_are_whole_after_a_crash(start: Callable[..., Node]) -> None:
    node = start()
    declare_stream(node.channel)
    node.settle()
    node.channel.core.select_transactions()
    node.channel.publish_all("abc", "s")
    node.channel.core.rollback()
    node.channel.publish_all("de", "s")
    node.channel.core.commit()
    node.settle()
    node.crash()
    node = start()
    node.read()
    assert node.channel.bodies() == "de"


# -- damage ----------------------------------------------------------------------------------------------------------


def damage(node: Node, segment: int, page: int, in_head: bool = False) -> tuple[int, int]:
    """Change a byte of a page; the positions in it."""
    path = os.path.join(node.store.folder, node.files[segment])
    files = Files()
    handle = files.open(path)
    try:
        head = walk_pages(files, handle).pages[page]
        place = head.offset + 20 if in_head else head.offset + PAGE_HEAD_SIZE + 40
        byte = files.read(handle, 1, place)
        files.write(handle, bytes((byte[0] ^ 255,)), place)
        return head.first, head.last
    finally:
        files.close(handle)


def test_a_damaged_page_is_skipped(start: Callable[..., Node], caplog: pytest.LogCaptureFixture) -> None:
    node = start()
    fill(node, 300)
    first, last = damage(node, 2, 1)
    node.stop()
    node = start()
    node.read()
    assert node.offsets() == [at for at in range(300) if not first <= at <= last]
    assert "are skipped" in caplog.text
    for offset in (first, last, last + 3):
        node.read(offset, tag=str(offset))
        assert node.offsets(str(offset)) == list(range(max(offset, last + 1), 300))


def test_a_damaged_page_head_costs_no_more_than_its_segment(start: Callable[..., Node]) -> None:
    node = start()
    fill(node, 300)
    first, _ = damage(node, 2, 1, in_head=True)
    behind = node.store.segments.all[3].first
    node.stop()
    node = start()
    node.read()
    assert node.offsets() == [at for at in range(300) if not first <= at < behind]


def test_a_damaged_last_page_is_skipped_to_the_end(start: Callable[..., Node]) -> None:
    """A read that finds nothing behind it must come to an end."""
    node = start()
    fill(node, 300)
    node.stop()
    first, last = damage(node, -1, -1)
    assert last == 299
    node = start()
    node.read()
    assert node.offsets() == list(range(first))
    node.read(last, tag="late")
    assert node.offsets("late") == []
    fill(node, 5)
    assert node.offsets("late") == list(range(300, 305))


def test_a_segment_that_vanished_is_skipped(node: Node) -> None:
    fill(node, 300)
    gone = node.store.segments.all[2]
    os.unlink(os.path.join(node.store.folder, gone.name))
    node.read()
    behind = node.store.segments.all[3].first
    assert node.offsets() == [at for at in range(300) if not gone.first <= at < behind]


@pytest.mark.parametrize("how", ["cut", "other bytes"])
def test_a_torn_page_is_restored_from_the_log(how: str, start: Callable[..., Node]) -> None:
    node = start()
    fill(node, 40)
    path = os.path.join(node.store.folder, node.files[0])
    if how == "cut":
        os.truncate(path, os.path.getsize(path) - 7)
    else:
        damage(node, 0, 0)
    node.crash()
    node = start()
    node.read()
    assert node.offsets() == list(range(40))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_segment_whose_name_was_not_synced_is_restored_from_the_log(missing: int, start: Callable[..., Node]) -> None:
    node = start()
    fill(node, 120)
    assert len(node.files) >= 3
    path = os.path.join(node.store.folder, node.files[missing])
    node.crash()
    os.unlink(path)
    node = start()
    assert node.stream.message_count() == 120
    node.read()
    assert node.offsets() == list(range(120))


# -- limits ----------------------------------------------------------------------------------------------------------


def test_old_segments_go_when_a_stream_is_too_long(start: Callable[..., Node]) -> None:
    node = start()
    declare_stream(node.channel, max_length_bytes=20_000, stream_max_segment_size_bytes=5000)
    for at in range(20):
        node.publish(*numbered(50, start=50 * at))
    size = sum(os.path.getsize(os.path.join(node.store.folder, name)) for name in node.files)
    assert size <= 27_000
    first = node.store.first_position
    assert node.stream.message_count() == 1000 - first
    assert node.broker.stats.ready == 1000 - first
    node.read()
    assert node.offsets() == list(range(first, 1000))
    node.stop()
    node = start()
    assert (node.store.first_position, node.stream.message_count()) == (first, 1000 - first)
    node.read(3)
    assert node.offsets() == list(range(first, 1000))


def test_old_segments_go_when_they_are_too_old_though_nothing_comes(
    start: Callable[..., Node], clock: ManualClock
) -> None:
    node = start()
    declare_stream(node.channel, max_age="1h")
    for at in range(60):
        node.publish(*numbered(1, start=at))
        clock.pass_seconds(600)
    clock.run_timers()
    node.settle()
    assert 6 <= node.stream.message_count() <= 8
    clock.pass_seconds(36_000)
    clock.run_timers()
    node.settle()
    assert node.stream.message_count() == 1, "the newest segment stays"
    assert len(node.files) == 1
    node.read()
    assert node.offsets() == [59]


def test_limits_that_are_set_at_run_time_count_from_then_on(start: Callable[..., Node], clock: ManualClock) -> None:
    node = start()
    declare_stream(node.channel, stream_max_segment_size_bytes=1)
    for at in range(3):
        node.publish(*numbered(1, start=at))
        clock.pass_seconds(600)
    options = node.stream.options
    node.channel.vhost.apply(node.stream, replace(options, max_age_ms=1000))
    clock.run_timers()
    node.settle()
    assert node.stream.message_count() == 1
    node.channel.vhost.apply(node.stream, options)
    node.publish(*numbered(1, start=3))
    clock.pass_seconds(600)
    clock.run_timers()
    node.settle()
    assert node.stream.message_count() == 2


@pytest.mark.parametrize(
    "limits", [{"max_age_ms": 1000}, {"max_length_bytes": 500}, {"max_age_ms": 1000, "max_length_bytes": 500}]
)
def test_a_limit_that_is_set_at_run_time_trims_at_once(
    start: Callable[..., Node], clock: ManualClock, limits: dict[str, int]
) -> None:
    node = start()
    declare_stream(node.channel, stream_max_segment_size_bytes=1)
    for at in range(10):
        node.publish(*numbered(1, start=at))
        clock.pass_seconds(600)
    clock.run_timers()
    node.settle()
    assert node.stream.message_count() == 10
    node.channel.vhost.apply(node.stream, replace(node.stream.options, **limits))
    count = node.stream.message_count()
    assert count == (1 if "max_age_ms" in limits else 2)
    node.settle()
    assert len(node.files) == count
    node.read()
    assert node.offsets() == list(range(10 - count, 10))
    node.crash()
    again = start()
    assert again.stream.message_count() == count, "what was removed came back"


def test_a_segment_size_that_is_set_at_run_time_counts_from_the_next_page_on(
    start: Callable[..., Node], clock: ManualClock
) -> None:
    node = start()
    declare_stream(node.channel)
    counts = []
    for size in (None, 1, None):
        node.channel.vhost.apply(node.stream, replace(node.stream.options, segment_bytes=size))
        for _ in range(5):
            node.publish(*numbered(30, 100))
            clock.pass_seconds(2)
            clock.run_timers()
            node.settle()
        counts.append(len(node.files))
    assert counts[0] == 1
    assert counts[1] > 5
    assert counts[2] == counts[1], "the newest segment has room again"
    node.read()
    assert node.offsets() == list(range(450))


def test_a_reader_of_what_goes_away_continues_after_it(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    declare_stream(node.channel, max_length_bytes=10_000, stream_max_segment_size_bytes=3000)
    node.publish(*numbered(50))
    node.read(prefetch=1)
    assert node.offsets() == [node.store.first_position]
    node.publish(*numbered(300, start=50))
    node.channel.core.limit_prefetch(1000, False)
    read_stream(node.channel, node.stream, 3, "late")
    node.broker.end_turn()
    node.publish(*numbered(100, start=350))  # while its page is asked for, which goes meanwhile
    late = node.offsets("late")
    assert late == list(range(late[0], 450))
    assert 3 < late[0] <= node.store.first_position
    told = [record for record in caplog.records if record.name.startswith("warrenmq")]
    assert told == [], "what the limits take away is no trouble"


def test_the_message_count_is_that_of_what_is_kept(node: Node) -> None:
    declare_stream(node.channel, max_length_bytes=10_000, stream_max_segment_size_bytes=3000)
    node.publish(*numbered(500))
    assert isinstance(node.stream, Stream)
    assert 0 < node.stream.message_count() < 150
    assert node.channel.delete(node.stream) > 0
    assert node.broker.stats.ready == 0


@pytest.mark.parametrize("end", ["stop", "crash"])
@pytest.mark.parametrize("arguments", [{}, {"max_length_bytes": 10_000}])
def test_a_look_from_outside_counts_the_same(end: str, arguments: dict[str, Any], start: Callable[..., Node]) -> None:
    node = start()
    fill(node, 400, **arguments)
    count = node.stream.message_count()
    (node.stop if end == "stop" else node.crash)()
    report = check_folder(str(node.folder))
    assert [(queue.type, queue.messages) for queue in report.queues] == [("stream", count)]
    assert report.findings == []
    node = start()
    assert node.stream.message_count() == count


def test_big_messages_make_big_pages(start: Callable[..., Node]) -> None:
    node = start(replace(SMALL, log_file_size=1 << 20))
    declare_stream(node.channel)
    node.publish(bytes(300_000), b"small", bytes(100_000))
    node.settle()
    node.stop()
    node = start()
    node.read()
    assert [len(each.body) for each in node.channel.deliveries()] == [300_000, 5, 100_000]


def test_records_have_the_time_of_the_first_turn_of_their_epoch(start: Callable[..., Node], clock: ManualClock) -> None:
    node = start()
    declare_stream(node.channel)
    node.settle()
    begin = clock.now
    node.channel.publish(b"first", "s")
    node.broker.end_turn()  # handed over: the next epoch begins with the next turn
    clock.pass_seconds(5)
    node.channel.publish(b"second", "s")
    node.broker.end_turn()
    clock.pass_seconds(5)
    node.channel.publish(b"third", "s")  # waits with the second for the committer
    node.settle()
    assert node.store.last_append_ms() == begin + 5000
    node.crash()
    clock.pass_seconds(5)
    node = start()
    assert node.store.last_append_ms() == begin + 5000


def test_a_stream_that_is_deleted_leaves_no_timers(node: Node, clock: ManualClock) -> None:
    declare_stream(node.channel, max_age="1h", stream_max_segment_size_bytes=3000)
    for at in range(20):
        node.publish(*numbered(20, start=20 * at))
        clock.pass_seconds(1)
    assert len(node.broker.timers) == 2
    node.channel.delete(node.stream)
    assert len(node.broker.timers) == 0
