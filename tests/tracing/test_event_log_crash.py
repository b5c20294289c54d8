"""Batches go past the commit log: after a crash each event with a durable cause is there, and none is there twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.client import PERSISTENT
from tests.support.disk import RecordingFiles
from tests.tracing.test_event_log import TracedLife, a_disk, durable_queue
from warrenmq.events import schema
from warrenmq.events.rows import NAME_LIMIT
from warrenmq.journal.segment_file import FILE_HEAD_SIZE, PAGE_HEAD_SIZE, parse_page_head
from warrenmq.protocol import properties


def publish(life: TracedLife, *ids: str) -> None:
    """Durable messages whose turn is safe; their rows are in no batch yet."""
    for each in ids:
        life.publisher.publish(b"x", "q", delivery_mode=PERSISTENT, message_id=each)
    life.settle()


def make_batch(life: TracedLife) -> None:
    life.traced.make_batch()
    life.settle()


def published(life: TracedLife) -> Counter[str | None]:
    return Counter(event.message_id for event in life.events() if event.kind == schema.PUBLISHED)


def after_kill(files: RecordingFiles, number: int = 1) -> TracedLife:
    life = TracedLife(RecordingFiles(files.disk.after_kill()), number)
    life.begin()
    return life


def segment_of(life: TracedLife) -> str:
    """The path of the only file of the event log."""
    store: Any = life.broker.vhosts["/"].queues[schema.STREAM_NAME].store
    (segment,) = store.segments.all
    return f"{store.folder}/{segment.name}"


def pages_of(content: bytearray) -> list[int]:
    """Where the pages of a segment begin."""
    found, at = [], FILE_HEAD_SIZE
    while at < len(content):
        page = parse_page_head(bytes(content[at : at + PAGE_HEAD_SIZE]), at)
        assert not isinstance(page, str)
        found.append(at)
        at = page.end
    return found


def three_batches() -> tuple[RecordingFiles, str]:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    for each in "abc":
        publish(life, each)
        make_batch(life)
    publish(life, "d")  # in no batch
    return files, segment_of(life)


def test_batches_are_not_in_the_commit_log() -> None:
    files, segment = three_batches()
    in_log = b"".join(bytes(file.current) for path, file in files.disk.walk() if "/log/" in path)
    assert b"x-warren-events-rows" not in in_log
    assert bytes(files.disk.file(segment).current).count(b"x-warren-events-rows") == 3


@pytest.mark.parametrize("page", [0, 1, 2])
def test_a_batch_that_is_damaged_is_made_again_of_what_the_log_has(page: int) -> None:
    """As after a power loss, which may take any of the pages that were not synced, with whole ones behind them."""
    files, segment = three_batches()
    content = files.disk.file(segment).current
    at = pages_of(content)[page] + PAGE_HEAD_SIZE + 300
    content[at] ^= 1
    life = after_kill(files)
    assert published(life) == Counter("abcd")


@pytest.mark.parametrize("left", [1, PAGE_HEAD_SIZE, PAGE_HEAD_SIZE + 200])
def test_a_batch_that_was_being_written_is_made_again(left: int) -> None:
    """A kill may cut a write short."""
    files, segment = three_batches()
    content = files.disk.file(segment).current
    del content[pages_of(content)[-1] + left :]
    life = after_kill(files)
    assert published(life) == Counter("abcd")
    publish(life, "e")
    assert published(life) == Counter("abcde")


def test_what_was_made_again_is_not_made_a_third_time() -> None:
    files, segment = three_batches()
    content = files.disk.file(segment).current
    content[pages_of(content)[1] + PAGE_HEAD_SIZE + 300] ^= 1
    for number in range(1, 4):
        life = after_kill(files, number)
        assert published(life) == Counter("abcd")
        make_batch(life)
        files = life.storage.files


def test_numbers_go_on_after_an_orderly_stop() -> None:
    """The commit log is empty then: without the batches rows would be counted from 1 again, and seem to be known."""
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    publish(life, *"abc")
    make_batch(life)
    life.stop()
    life = after_kill(files)
    publish(life, "d")
    life = after_kill(life.storage.files, 2)
    assert published(life) == Counter("abcd")


def test_readers_get_a_batch_when_it_is_written() -> None:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    publish(life, "a")
    life.traced.make_batch()
    stream: Any = life.broker.vhosts["/"].queues[schema.STREAM_NAME]
    assert (stream.next_position, stream.readable) == (1, 0)
    assert life.traced.tracing.log.waiting_bytes > 0
    life.settle()
    assert stream.readable == 1
    assert life.traced.tracing.log.waiting_bytes == 0


def test_what_others_publish_there_keeps_its_place() -> None:
    files = a_disk()
    life = TracedLife(files)
    durable_queue(life)
    publish(life, "a")
    make_batch(life)
    life.publisher.publish_to_own(b"not a batch", schema.STREAM_NAME)
    life.settle()
    publish(life, "b")
    make_batch(life)
    life = after_kill(files)
    stream: Any = life.broker.vhosts["/"].queues[schema.STREAM_NAME]
    bodies = life._read_stream(stream)
    assert [body == b"not a batch" for body in bodies] == [False, True, False]
    first = [properties.headers(message.header) or {} for message in stream.store.read_backwards()]
    assert [schema.HEADER_TO in headers for headers in first] == [True, False, True]


def test_names_that_do_not_fit_in_one_batch_are_in_several() -> None:
    files = a_disk()
    life = TracedLife(files)
    channel = life.publisher
    channel.declare_exchange("e", "fanout")
    channel.bind("e", channel.declare("q"))
    recorder = life.traced.tracing.recorder
    for number in range(NAME_LIMIT + 10):
        channel.publish(b"", f"key-{number}", "e")
        if number % 1000 == 999:
            life.broker.end_turn()
    recorder.hand_over()
    life.settle()
    stream: Any = life.broker.vhosts["/"].queues[schema.STREAM_NAME]
    assert stream.next_position > 1
    assert life.traced.tracing.log.dropped == 0
