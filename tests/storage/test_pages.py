"""Pages of a segment that are read again: what nobody had to sync may be torn, and that is no damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.record import encode
from warrenmq.journal.segment_file import FILE_HEAD_SIZE, SEGMENT_MAGIC, encode_file_head, encode_page
from warrenmq.storage.compaction import SegmentCopy, Source
from warrenmq.storage.page_reader import read_pages
from warrenmq.storage.replay import PERSISTENT

RESTORED_BELOW = 100


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three pages of two messages each; those of the second are transient, and it is torn."""
    data = encode_file_head(SEGMENT_MAGIC)
    for first, flags in ((10, PERSISTENT), (12, 0), (14, PERSISTENT)):
        records = b"".join(encode(position, flags, b"\0\1q", b"header", b"body") for position in (first, first + 1))
        head = encode_page(first, first + 1, 2, 1, 1, records, 0 if flags else 2)
        data += head + (records if flags else bytes(len(records)))
    path = tmp_path / "segment"
    path.write_bytes(data)
    return path


def test_a_torn_page_of_transient_messages_of_an_earlier_run_is_skipped(segment: Path) -> None:
    size = segment.stat().st_size
    pages, problem, bad = read_pages(Files(), str(segment), FILE_HEAD_SIZE, size, size, RESTORED_BELOW)
    assert [page.first for page, _ in pages] == [10, 12, 14]
    assert pages[1][1] == b""
    assert (problem, bad) == (None, None)


def test_a_torn_page_of_this_run_is_damage(segment: Path) -> None:
    size = segment.stat().st_size
    pages, problem, bad = read_pages(Files(), str(segment), FILE_HEAD_SIZE, size, size, 13)
    assert [page.first for page, _ in pages] == [10]
    assert bad is not None
    assert bad.first == 12
    assert "checksum" in str(problem)


def test_a_copy_leaves_it_out(segment: Path) -> None:
    size = segment.stat().st_size
    copy = SegmentCopy(Files(), [Source(str(segment), 10, size, None)], "new", RESTORED_BELOW, size)
    assert copy.copy_some(size)
    assert copy.count == 4
    with pytest.raises(DamagedPage):
        SegmentCopy(Files(), [Source(str(segment), 10, size, None)], "new", 0, size).copy_some(size)
