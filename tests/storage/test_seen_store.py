"""Ids on disk: in the log with their messages, in files when the log forgets, and what a start makes of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.client import PERSISTENT
from tests.support.disk import RecordingFiles
from tests.support.durable import ROOT, TINY, Life
from warrenmq.journal.ids_file import ids_name, parse_ids_name, read_ids
from warrenmq.storage.seen_store import owner_of_exchange

ON = {"x-message-deduplication": True}
WINDOW = {**ON, "x-cache-size": 1000}
STREAM = {**ON, "x-queue-type": "stream"}
FILES = replace(TINY, relog_below=0)


@pytest.fixture
def files() -> RecordingFiles:
    files = RecordingFiles()
    files.make_dirs(ROOT)
    return files


def again(life: Life) -> Life:
    """Another life on what the first has left, without a word."""
    files: Any = life.storage.files
    return Life(RecordingFiles(files.disk.after_kill()), options=life.storage.options)


def publish(life: Life, ids: range, key: str = "q", exchange: str = "", **properties: Any) -> None:
    properties.setdefault("delivery_mode", PERSISTENT)
    for id in ids:
        headers = {"x-deduplication-header": f"id {id}"}
        life.publisher.publish(b"%d" % id, key, exchange, headers=headers, **properties)
        if id % 5 == 4:
            life.settle()
    life.settle()


def drain(life: Life, name: str) -> None:
    while (got := life.get(name)) is not None:
        life.channel.ack(got.tag)
    life.channel.core.commit()
    life.settle()


def names(life: Life) -> list[str]:
    return life.storage.files.list(f"{ROOT}/seen")


def length(life: Life, queue: str = "q") -> int:
    return life.queue(queue).message_count()


@pytest.mark.parametrize("arguments", [ON, WINDOW, STREAM], ids=["present", "window", "stream"])
@pytest.mark.parametrize("options", [TINY, FILES], ids=["carried", "files"])
@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_what_was_confirmed_is_known_after_a_restart(
    files: RecordingFiles, arguments: dict[str, Any], options: Any, ending: str
) -> None:
    life = Life(files, options=options)
    life.publisher.declare("q", durable=True, arguments=arguments)
    publish(life, range(100))
    assert life.storage.checkpoint.count > 0
    if ending == "stop":
        life.stop()
    life = again(life)
    publish(life, range(110))
    assert length(life) == 110
    assert life.broker.stats.deduplicated == 100
    assert life.storage.report == []


@pytest.mark.parametrize("options", [TINY, FILES], ids=["carried", "files"])
def test_ids_outlive_their_messages_and_the_log(files: RecordingFiles, options: Any) -> None:
    life = Life(files, options=options)
    life.publisher.declare("q", durable=True, arguments=WINDOW)
    publish(life, range(20))
    drain(life, "q")
    assert length(life) == 0
    life.publisher.declare("other", durable=True)
    for _ in range(3):  # the log forgets all of this
        publish(life, range(100), "other")
    assert life.storage.committer.writer.files_in_use[0].first > 10
    life = again(life)
    publish(life, range(20))
    assert length(life) == 0


def test_without_a_file_a_queue_that_is_drained_remembers_nothing(files: RecordingFiles) -> None:
    life = Life(files, options=FILES)
    life.publisher.declare("q", durable=True, arguments=ON)
    publish(life, range(60))
    assert names(life) != []
    drain(life, "q")
    life.stop()
    assert names(life) == []
    life = again(life)
    publish(life, range(60))
    assert length(life) == 60


def test_what_passed_to_a_consumer_without_acks_is_known_when_it_is_confirmed(files: RecordingFiles) -> None:
    life = Life(files)
    queue = life.publisher.declare("q", durable=True, arguments=WINDOW)
    life.settle()
    life.publisher.core.select_confirms()
    life.publisher.consume(queue, no_ack=True)
    life.publisher.publish(b"1", "q", headers={"x-deduplication-header": "id 1"}, delivery_mode=PERSISTENT)
    life.end_turn()
    assert life.publisher.confirms() == []
    life.settle()
    assert life.publisher.confirms() == [(1, False)]
    life = again(life)
    publish(life, range(1, 2))
    assert length(life) == 0


def test_the_id_of_a_transient_message_goes_with_it(files: RecordingFiles) -> None:
    life = Life(files)
    life.publisher.declare("q", durable=True, arguments=WINDOW)
    publish(life, range(5), delivery_mode=1)
    life = again(life)
    publish(life, range(5))
    assert length(life) == 5


@pytest.mark.parametrize("options", [TINY, FILES], ids=["carried", "files"])
def test_an_exchange_knows_what_it_has_routed(files: RecordingFiles, options: Any) -> None:
    life = Life(files, options=options)
    queue = life.publisher.declare("q", durable=True)
    life.publisher.vhost.declare_exchange("x", "fanout", True, False, False, ON)
    life.publisher.bind("x", queue)
    publish(life, range(80), "", "x")
    life.publisher.vhost.delete_exchange("x", False)
    life.publisher.vhost.declare_exchange("x", "fanout", True, False, False, ON)
    life.publisher.bind("x", queue)
    publish(life, range(40), "", "x")
    life = again(life)
    publish(life, range(50), "", "x")
    assert length(life) == 130
    assert all(parse_ids_name(name)[0] == owner_of_exchange("/", "x") for name in names(life))  # type: ignore[index]


def test_files_of_what_was_deleted_go(files: RecordingFiles) -> None:
    life = Life(files, options=FILES)
    queue = life.publisher.declare("q", durable=True, arguments=WINDOW)
    publish(life, range(100))
    assert len(names(life)) == 1
    life.publisher.delete(queue)
    life.settle()
    assert names(life) == []


def test_files_without_an_owner_are_deleted_at_the_next_start(files: RecordingFiles) -> None:
    life = Life(files)
    life.settle()
    files.make_dirs(f"{ROOT}/seen")
    for name in (ids_name(99, 5), "stranger"):
        files.close(files.create(f"{ROOT}/seen/{name}"))
    assert names(again(life)) == []


def test_a_damaged_file_is_copied_aside_and_reported_and_no_message_is_lost(files: RecordingFiles) -> None:
    life = Life(files, options=FILES)
    life.publisher.declare("q", durable=True, arguments=WINDOW)
    publish(life, range(100))
    life.stop()
    (name,) = names(life)
    handle = files.open(f"{ROOT}/seen/{name}")
    files.write(handle, b"?", 100)
    files.close(handle)
    assert read_ids(files, f"{ROOT}/seen/{name}").fault == "the checksum of its ids does not match"
    life = again(life)
    assert len(life.storage.report) == 1
    assert "up to 100 ids seen by queue 'q' in vhost '/' are lost" in life.storage.report[0]
    assert life.storage.files.list(f"{ROOT}/lost+damaged") == [f"seen-{name}"]
    publish(life, range(100))
    assert length(life) == 200


def test_a_torn_file_does_not_matter(files: RecordingFiles) -> None:
    life = Life(files, options=FILES)
    life.publisher.declare("q", durable=True, arguments=WINDOW)
    publish(life, range(100))
    publish(life, range(100, 103))
    (name,) = names(life)
    owner, epoch = parse_ids_name(name)  # type: ignore[misc]
    handle = files.create(f"{ROOT}/seen/{ids_name(owner, epoch + 50)}")
    files.write(handle, b"WARR", 0)
    files.close(handle)
    life = again(life)
    assert len(life.storage.report) == 1
    assert "was being written when the broker ended" in life.storage.report[0]
    publish(life, range(103))
    assert length(life) == 103


def test_a_file_that_a_killed_broker_left_is_certain_after_the_start(files: RecordingFiles) -> None:
    life = Life(files, options=FILES)
    life.publisher.declare("q", durable=True, arguments=WINDOW)
    publish(life, range(100))
    disk = files.disk.after_kill()
    file = disk.file(f"{ROOT}/seen/{names(life)[0]}")
    file.durable, file.pending = bytearray(), [(0, bytes(file.current))]  # as if it had not been synced yet
    Life(RecordingFiles(disk), options=FILES)
    assert file.durable == file.current
