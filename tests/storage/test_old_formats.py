"""Data folders of older versions open, keep what they hold, and take new messages from then on."""

from __future__ import annotations

import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from tests.journal.fixtures import ADDRESS, PERSISTENT_HEADER, TIME_MS, u32
from tests.storage.driver import Kept, body_of
from tests.support.client import PERSISTENT, Client
from tests.support.tracing import ALL, TracedBroker, story
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.journal import log_file, log_writer, segment_file
from warrenmq.journal.files import SystemFiles
from warrenmq.journal.record import PERSISTENT as KEPT
from warrenmq.journal.record import encode
from warrenmq.storage.catalog import MIGRATIONS, CatalogFile
from warrenmq.storage.check import check_folder
from warrenmq.storage.data_dir import DataDir
from warrenmq.storage.definition_records import Operation
from warrenmq.storage.file_storage import FileStorage
from warrenmq.storage.options import StorageOptions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As a broker of before left it: a queue and a stream, with messages in segments and in the log."""
    folder = tmp_path / "data"
    first_migration = tmp_path / "migrations"
    first_migration.mkdir()
    shutil.copy(MIGRATIONS / "0001_definitions.sql", first_migration)
    with monkeypatch.context() as old:
        old.setattr(segment_file, "VERSIONS", dict.fromkeys(segment_file.VERSIONS, 1))
        old.setattr(log_file, "VERSION", 1)
        folder.mkdir()
        catalog = CatalogFile.open(folder / "catalog.sqlite", first_migration)
        catalog.apply(1, [vhost(), queue("q", 7), queue("s", 8, **{"x-queue-type": "stream"})])
        catalog.sync()
        catalog.close()
        for number in (7, 8):
            write_segment(folder / "queues" / str(number), 0, [b"old-0", b"old-1"])
        files = SystemFiles()
        writer = log_writer.LogWriter(files, str(folder / "log"), 2)
        for number in (7, 8):
            writer.append(
                b"\x01" + u32(number) + encode(2, KEPT, ADDRESS, PERSISTENT_HEADER, b"old-2"), number - 5, TIME_MS
            )
        writer.sync()
        writer.close()
    (folder / "version").write_text("1\n")
    return folder


def vhost() -> Operation:
    return ("define", "vhost", ("/",), {"name": "/"})


def queue(name: str, number: int, **arguments: Any) -> Operation:
    definition = {
        "vhost": "/",
        "name": name,
        "durable": True,
        "auto_delete": False,
        "arguments": arguments,
        "id": number,
    }
    return ("define", "queue", ("/", name), definition)


def write_segment(folder: Path, first: int, bodies: list[bytes]) -> None:
    folder.mkdir(parents=True)
    records = [encode(first + at, KEPT, ADDRESS, PERSISTENT_HEADER, body) for at, body in enumerate(bodies)]
    payload = b"".join(records)
    last = first + len(bodies) - 1
    head = old_page_head(first, last, len(bodies), payload)
    file_head = segment_file.encode_file_head(segment_file.SEGMENT_MAGIC, version=1)
    (folder / segment_file.segment_name(first, 0)).write_bytes(file_head + head + payload)


def old_page_head(first: int, last: int, count: int, payload: bytes) -> bytes:
    numbers = len(payload), count, 0, first, last, TIME_MS, TIME_MS, crc32c(payload)
    checked = struct.pack("<IIIIQQQQI", segment_file.PAGE_MAGIC_V1, *numbers)
    return checked + u32(crc32c(checked))


class Opened:
    """A broker on the folder, without threads."""

    def __init__(self, folder: Path) -> None:
        self.data_dir = DataDir(folder)
        self.data_dir.lock()
        self.storage = FileStorage.open(self.data_dir, StorageOptions())
        assert self.storage.report == []
        self.traced = TracedBroker([ALL], self.storage)
        broker = self.traced.broker
        self.storage.attach(fail, fail)
        self.client = Client(broker)

    def bodies(self, name: str) -> list[bytes]:
        found = self.client.vhost.queues[name]
        channel = self.client.channel()
        is_stream = "x-queue-type" in found.arguments
        channel.consume(found, prefetch=100, arguments={"x-stream-offset": "first"} if is_stream else {})
        bodies: list[bytes] = []
        for _ in range(5):
            bodies += [delivery.body for delivery in channel.deliveries()]
            self.storage.run_all()
        channel.close()
        return bodies

    def close(self) -> None:
        self.traced.make_batch()
        self.storage.log.flush()
        done: list[bool] = []
        self.storage.begin_stop(lambda: done.append(True))
        self.storage.run_all()
        assert done
        self.storage.close()
        self.data_dir.unlock()


def fail(reason: object) -> None:
    raise AssertionError(reason)


def test_a_folder_of_version_1_opens_and_continues(folder: Path) -> None:
    opened = Opened(folder)
    for name in ("q", "s"):
        assert opened.bodies(name) == [b"old-0", b"old-1", b"old-2"]
        opened.client.channel().publish(b"new", name, delivery_mode=PERSISTENT, message_id=f"new {name}")
    opened.close()
    for number in (7, 8):
        versions = {path.name: path.read_bytes()[8] for path in (folder / "queues" / str(number)).glob("*.seg")}
        assert versions[segment_file.segment_name(0, 0)] == 1, "an old segment was written to"
        assert set(versions.values()) == {1, 5}
    again = Opened(folder)
    for name in ("q", "s"):
        assert again.bodies(name) == [b"old-0", b"old-1", b"old-2", b"new"]
    again.traced.make_batch()
    batches = again.bodies(schema.STREAM_NAME)
    told = [event for data in batches for event in decode(data).events() if event.uid and event.queue == "q"]
    assert {event.message_id for event in told} == {"new q"}
    assert story(told) == ["enqueued q", "delivered q", "requeued q"]
    again.close()


FOLDERS = Path(__file__).resolve().parents[1] / "fixtures" / "folders"


def test_a_folder_of_version_3_opens_with_all_it_holds(tmp_path: Path) -> None:
    """Written by a broker that was killed: paged out messages, some acked, a stream, ids that were seen, and a log."""
    with tarfile.open(FOLDERS / "v3.tar.gz") as archive:
        archive.extractall(tmp_path / "data", filter="data")
    kept = Kept(tmp_path / "data")
    assert kept.storage.report == []
    waiting = [*range(1, 40, 2), *range(41, 120)]
    assert len(kept.queue().backlog) == len(waiting)
    assert kept.queue().backlog.body_bytes == sum(len(body_of(number)) for number in waiting)
    kept.publish(range(120, 130))
    kept.settle()
    kept.restart(clean=False)
    assert kept.queue().backlog.body_bytes == sum(len(body_of(number)) for number in [*waiting, *range(120, 130)])
    assert kept.drain() == [*waiting, *range(120, 130)]
    assert kept.drain("emptied") == []
    kept.channel.publish(b"again", "once", delivery_mode=PERSISTENT, headers={"x-deduplication-header": "id-1"})
    assert len(kept.queue("once").backlog) == 3
    stream = kept.broker.vhosts["/"].queues["s"]
    assert stream.message_count() == 25
    kept.restart()
    assert kept.storage.report == []


def test_a_folder_without_a_manifest_opens_and_has_one_after_the_next_checkpoint(tmp_path: Path) -> None:
    """Format 4, written by a broker that was killed after its log was trimmed; catalog version 2."""
    folder = tmp_path / "data"
    with tarfile.open(FOLDERS / "v4.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    before = check_folder(str(folder))
    assert (before.damage, before.has_manifest) == ([], False)
    kept = Kept(folder)
    assert kept.storage.report == []
    waiting = [*range(1, 40, 2), *range(40, 125)]
    assert len(kept.queue().backlog) == len(waiting)
    kept.checkpoint()
    kept.crash()
    after = check_folder(str(folder))
    assert (after.damage, after.has_manifest) == ([], True)
    assert after.recorded_files == sum(path.suffix in (".seg", ".ids") for path in folder.rglob("*"))
    (folder / "queues" / "1" / segment_file.segment_name(0, 0)).unlink()
    kept = Kept(folder)
    assert any("messages of queue 'q' in vhost '/' lost" in line for line in kept.storage.report)
    kept.stop()


def test_a_log_from_before_offsets_were_tracked_opens_with_all_it_holds(tmp_path: Path) -> None:
    """Log version 4, written by a broker that was killed; what comes now goes to another file."""
    folder = tmp_path / "data"
    with tarfile.open(FOLDERS / "v5-streams.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    kept = Kept(folder)
    assert kept.storage.report == []
    assert [path.read_bytes()[8] for path in sorted((folder / "log").glob("0*.log"))] == [4]
    assert kept.drain() == list(range(12, 70))
    channel = kept.channel.client.channel()
    tracked = {"x-stream-automatic-offset-tracking": True}
    channel.consume(kept.queue("s"), "t", prefetch=100, arguments=tracked)
    kept.settle()
    channel.ack(25, multiple=True)
    kept.settle()
    assert [path.read_bytes()[8] for path in sorted((folder / "log").glob("0*.log"))] == [4, 5]
    kept.restart(clean=False)
    assert kept.storage.report == []
    assert kept.queue("s").offsets.stored == {"t": 25}
    assert kept.drain() == []
    kept.stop()
