"""A page goes bad while the broker runs: it is reported, counted and kept aside, and everything else is delivered."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.storage.driver import Kept, QuickFiles
from tests.support.client import Client
from tests.support.waiting import wait_until
from warrenmq.client import Properties, connect
from warrenmq.core.stream import Stream
from warrenmq.embedded import Broker
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import PageHead, walk_pages
from warrenmq.storage.check import check_folder
from warrenmq.storage.options import StorageOptions

SMALL = {"window": 4096, "page": 2048, "page_size": 1024, "segment_size": 64 * 1024, "read_size": 1024}
COUNT = 200


def segments_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("queues/*/*.seg"))


def pages_of(path: Path) -> list[PageHead]:
    files = Files()
    handle = files.open_read(str(path))
    try:
        return walk_pages(files, handle).pages
    finally:
        files.close(handle)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def spoil_middle_page(folder: Path, in_head: bool = False) -> PageHead:
    """Damage a page that is not in memory."""
    (path,) = segments_of(folder)
    pages = pages_of(path)
    page = pages[len(pages) // 2]
    flip(path, page.offset + 20 if in_head else page.start + page.length // 2)
    return page


def require_in_order(found: list[int], lost: set[int]) -> None:
    assert found == [number for number in range(COUNT) if number not in lost]


def test_a_real_broker_continues_and_counts_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "data"
    with Broker(data_dir=folder, http=True, storage=StorageOptions(**SMALL)) as broker:
        with connect(broker.url) as connection:
            channel = connection.channel()
            channel.confirm_select()
            channel.queue_declare("orders", durable=True)
            for number in range(COUNT):
                channel.publish("", "orders", b"%08d" % number + b"." * 60, Properties(delivery_mode=2))
            channel.wait_for_confirms()
            # Pages are written soon after the confirms.
            wait_until(lambda: segments_of(folder) and pages_of(segments_of(folder)[0])[-1].last > 150)
            page = spoil_middle_page(folder)
            lost = set(range(page.first, page.last + 1))
            found = []
            for delivery in channel.consume("orders", timeout=20):
                found.append(int(delivery.body[:8]))
                delivery.ack()
                if found[-1] == COUNT - 1:
                    break
            require_in_order(found, lost)
            assert channel.queue_declare("orders", passive=True).message_count == 0
        metrics = urlopen(f"{broker.http_url}/metrics").read().decode()
        assert "warren_damaged_pages_total 1\n" in metrics
        assert f"warren_lost_messages_total {len(lost)}\n" in metrics
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert any(
        f"offset {page.offset}" in line and f"{len(lost)} messages of queue 'orders' in vhost '/' lost" in line
        for line in told
    ), told
    assert list((folder / "lost+damaged").iterdir())
    report = check_folder(str(folder))
    assert (report.damage, report.messages) == ([], 0)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    kept = Kept(tmp_path / "data", **SMALL)
    kept.declare()
    kept.publish(range(COUNT))
    kept.settle()
    return kept


def test_a_bad_page_costs_its_messages_and_the_counts_stay_right(kept: Kept) -> None:
    page = spoil_middle_page(kept.folder)
    lost = set(range(page.first, page.last + 1))
    require_in_order(kept.drain(), lost)
    assert len(kept.queue().backlog) == 0
    assert kept.queue().backlog.body_bytes == 0
    assert kept.storage.figures()["damaged_pages"] == 1
    assert kept.storage.figures()["lost_messages"] == len(lost)
    assert kept.failures == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_agrees_with_what_was_given_up(kept: Kept, clean: bool) -> None:
    page = spoil_middle_page(kept.folder)
    lost = set(range(page.first, page.last + 1))
    taken = kept.take_all()
    kept.settle()
    assert len(taken) == COUNT - len(lost)
    kept.restart(clean)
    assert kept.storage.report == []
    assert len(kept.queue().backlog) == len(taken)
    require_in_order(kept.drain(), lost)
    assert kept.storage.figures()["lost_messages"] == 0
    kept.stop()
    assert check_folder(str(kept.folder)).damage == []


def test_a_check_before_anyone_reads_the_page_says_what_is_lost(kept: Kept) -> None:
    page = spoil_middle_page(kept.folder)
    kept.stop()
    (finding,) = check_folder(str(kept.folder)).damage
    assert finding.queue == "q"
    assert finding.lost == f"{page.count} messages, at positions {page.first} to {page.last}"


def test_a_bad_page_head_costs_what_follows_in_its_segment_and_nothing_later(kept: Kept) -> None:
    """Pages behind it are not searched for: a message body could look like one."""
    page = spoil_middle_page(kept.folder, in_head=True)
    found = kept.drain()
    lost = kept.storage.figures()["lost_messages"]
    assert found == [*range(page.first), *range(page.first + lost, COUNT)]
    assert len(kept.queue().backlog) == 0
    kept.publish(range(COUNT, COUNT + 100))
    kept.settle()
    assert kept.drain() == list(range(COUNT, COUNT + 100))


class Unreadable(QuickFiles):
    """Reads of segments fail between two offsets."""

    first = last = -1

    def read(self, handle: int, size: int, offset: int) -> bytes:
        if self.first <= offset <= self.last and os.readlink(f"/proc/self/fd/{handle}").endswith(".seg"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(handle, size, offset)


def test_a_page_that_the_disk_cannot_read_is_given_up_too(tmp_path: Path) -> None:
    files = Unreadable()
    kept = Kept(tmp_path / "data", files, **SMALL)
    kept.declare()
    kept.publish(range(COUNT))
    kept.settle()
    (path,) = segments_of(kept.folder)
    pages = pages_of(path)
    page = pages[len(pages) // 2]
    files.first, files.last = page.start, page.end - 1
    require_in_order(kept.drain(), set(range(page.first, page.last + 1)))
    assert kept.failures == []
    assert kept.storage.figures()["damaged_pages"] == 1


def test_a_segment_that_cannot_be_opened_is_given_up_and_the_next_one_read(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "data", **{**SMALL, "segment_size": 4096})
    kept.declare()
    kept.publish(range(COUNT))
    kept.settle()
    path = segments_of(kept.folder)[1]
    lost = {number for page in pages_of(path) for number in range(page.first, page.last + 1)}
    path.unlink()
    path.symlink_to("/dev/null")  # which is not followed
    require_in_order(kept.drain(), lost)
    assert kept.failures == []
    assert kept.storage.figures()["lost_messages"] == len(lost)


def test_compaction_leaves_a_segment_alone_that_cannot_be_read(tmp_path: Path) -> None:
    files = Unreadable()
    kept = Kept(tmp_path / "data", files, **{**SMALL, "segment_size": 4096})
    kept.declare()
    kept.publish(range(COUNT))
    kept.settle()
    page = pages_of(segments_of(kept.folder)[0])[1]
    taken = kept.take(120)
    files.first, files.last = page.start, page.end - 1
    kept.ack(entry for number, entry in enumerate(taken) if number % 4)
    kept.settle()
    kept.checkpoint()
    assert kept.failures == []
    assert kept.storage.compaction.count == 0
    files.last = -1
    kept.restart()
    assert len(kept.queue().backlog) == COUNT - 90


def test_readers_of_a_stream_pass_over_a_bad_page(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept(tmp_path / "data", page_size=1024)
    stream = kept.declare("s", **{"x-queue-type": "stream"})
    assert isinstance(stream, Stream)
    kept.publish(range(COUNT), "s")
    kept.checkpoint()
    page = spoil_middle_page(kept.folder)
    for _ in range(2):  # it is counted once, however many read it
        channel = Client(kept.broker).channel()
        channel.consume(stream, prefetch=1000, arguments={"x-stream-offset": "first"})
        numbers: list[int] = []
        for _ in range(20):
            kept.settle()
            numbers += [int(delivery.body[:8]) for delivery in channel.deliveries()]
        require_in_order(numbers, set(range(page.first, page.last + 1)))
    assert kept.storage.figures()["damaged_pages"] == 1
    assert kept.storage.figures()["lost_messages"] == page.count
    assert f"{page.count} messages of queue 's' in vhost '/' cannot be read" in caplog.text
