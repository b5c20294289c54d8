"""A segment with few living messages is written anew, and nobody notices but the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.storage.driver import Kept, QuickFiles, numbers_of
from warrenmq.core.message import QueuedMessage
from warrenmq.journal import record
from warrenmq.journal.files import SystemFiles
from warrenmq.journal.segment_file import SEGMENT_MAGIC, encode_file_head, encode_page
from warrenmq.storage.compaction import TEMPORARY, Source, copy_living


def scattered(kept: Kept) -> list[QueuedMessage]:
    """A queue whose first segment has more dead than living messages; gives those that are alive and unacked."""
    kept.declare()
    kept.publish(range(300))
    held = kept.take(300)
    kept.checkpoint()
    kept.ack(entry for entry in held if entry.position < 100 and entry.position % 5)
    return [entry for entry in held if entry.position >= 100 or entry.position % 5 == 0]


def alive() -> list[int]:
    return [number for number in range(300) if number >= 100 or number % 5 == 0]


def test_a_segment_under_half_alive_is_written_anew(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    before = len(scattered(kept))
    kept.settle()
    assert kept.storage.compaction.count > 0
    assert "00000000000000000000-1.seg" in kept.names()
    assert "00000000000000000000-0.seg" not in kept.names()
    kept.restart(clean=False)
    assert kept.queue().message_count() == before
    assert kept.drain() == alive()


def test_optional_fields_of_messages_are_copied(tmp_path: Path) -> None:
    traced = record.encode(0, record.PERSISTENT | record.TRACED, b"a", b"h", b"b", record.TRACE.pack(7, 8, 9))
    gone = record.encode(1, record.PERSISTENT, b"a", b"h", b"gone")
    expiring = record.encode(2, record.PERSISTENT | record.EXPIRY, b"a", b"h", b"bb", bytes(8))
    payload = traced + gone + expiring
    path = tmp_path / "segment"
    path.write_bytes(encode_file_head(SEGMENT_MAGIC) + encode_page(0, 2, 3, 1, 1, payload, 0, 7) + payload)
    copy = copy_living(SystemFiles(), Source(str(path), 0, path.stat().st_size, b"\x02", 0), lambda: False)
    assert (copy.count, copy.body_bytes) == (2, 3)
    assert (tmp_path / TEMPORARY).read_bytes().endswith(traced + expiring)


def test_acks_that_come_while_it_is_copied_count_for_the_copy(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    held = scattered(kept)
    kept.turn()
    kept.storage.log.flush()
    while kept.storage.committer.run_one():
        pass
    assert kept.storage.compaction.is_running
    kept.ack(held[:3])
    kept.settle()
    assert kept.storage.compaction.count > 0
    kept.checkpoint()
    kept.restart(clean=False)
    assert kept.drain() == alive()[3:]


def test_a_stop_waits_for_the_one_under_way(tmp_path: Path) -> None:
    """Else the marks of the old file would be written while a new one takes its place, and acked messages come back."""
    for steps in range(6):
        kept = Kept(tmp_path / str(steps))
        held = scattered(kept)
        kept.turn()
        kept.storage.log.flush()
        while kept.storage.committer.run_one():
            pass
        assert kept.storage.compaction.is_running
        kept.ack(held[:3])
        kept.turn()
        kept.storage.committer.run_one()
        for _ in range(steps):
            kept.storage.pager.run_one()
        kept.restart()
        assert kept.failures == []
        assert kept.storage.replayed_epochs <= 1
        assert kept.drain() == alive()[3:]


def test_a_queue_can_be_deleted_meanwhile(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    scattered(kept)
    kept.turn()
    kept.storage.log.flush()
    while kept.storage.committer.run_one():
        pass
    assert kept.storage.compaction.is_running
    folder = Path(kept.store().folder)
    kept.channel.delete(kept.queue())
    kept.settle()
    assert kept.failures == []
    assert not folder.exists()
    assert not kept.storage.compaction.is_running


def test_a_segment_that_empties_meanwhile_leaves_no_file(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    held = scattered(kept)
    kept.turn()
    kept.storage.log.flush()
    while kept.storage.committer.run_one():
        pass
    assert kept.storage.compaction.is_running
    kept.ack(held)
    kept.checkpoint()
    assert kept.names() == []


def test_what_a_crash_left_of_a_copy_is_removed(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    scattered(kept)
    kept.settle()
    folder = Path(kept.store().folder)
    kept.crash()
    (folder / TEMPORARY).write_bytes(b"half a segment")
    (folder / "00000000000000000000-0.seg").write_bytes(b"an older generation")
    (folder / "00000000000000000000-0.dead").write_bytes(b"its marks")
    kept.open()
    assert TEMPORARY not in kept.names()
    assert not [name for name in kept.names() if name.startswith("00000000000000000000-0.")]
    assert kept.storage.report == []
    assert kept.drain() == alive()


class Full(QuickFiles):
    is_full = False

    def writev(self, handle: int, pieces: object, offset: int) -> None:
        if self.is_full and os.readlink(f"/proc/self/fd/{handle}").endswith(TEMPORARY):
            raise OSError(errno.ENOSPC, "no room")
        super().writev(handle, pieces, offset)  # type: ignore[arg-type]


def test_a_full_disk_ends_it_and_holds_up_nobody(tmp_path: Path) -> None:
    files = Full()
    kept = Kept(tmp_path, files)
    files.is_full = True
    held = scattered(kept)
    kept.settle()
    assert kept.storage.compaction.count == 0
    assert TEMPORARY not in kept.names()
    kept.ack(held)
    kept.settle()
    assert (kept.names(), kept.full, kept.failures) == ([], [], [])


def test_transient_messages_of_an_earlier_life_are_not_copied(tmp_path: Path) -> None:
    """They are not alive: with them the copy would have to be copied again, and again."""
    kept = Kept(tmp_path)
    kept.declare()
    for number in range(200):
        kept.publish([number], transient=number % 8 != 0)
    kept.settle()
    kept.restart()
    taken = kept.take_all()
    assert numbers_of(taken) == list(range(0, 200, 8))
    kept.ack(taken[:1])
    kept.checkpoint()
    kept.checkpoint()
    counts = [(segment.count, segment.alive) for segment in kept.store().segments.all]
    count = kept.storage.compaction.count
    kept.ack(taken[1:2])
    kept.settle()
    assert kept.storage.compaction.count <= count + 1, counts
