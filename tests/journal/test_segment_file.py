"""Segments and deletion marks: pages come back whole or are named as damaged, whatever happened to the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.disk import RecordingFiles
from warrenmq.journal import segment_file
from warrenmq.journal.errors import DamagedPage, JournalError, UnknownVersion
from warrenmq.journal.record import PERSISTENT, encode
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    FOREIGN,
    MARKS_MAGIC,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    UNKNOWN,
    DeletionMarks,
    PageHead,
    check_file_head,
    encode_batch,
    encode_file_head,
    encode_page,
    marks_name,
    page_records,
    parse_name,
    read_marks,
    read_page,
    read_payload,
    segment_name,
    walk_pages,
)

PATH = "/file"


@dataclass
class Stored:
    """A file in memory with these bytes."""

    raw: bytes

    def __post_init__(self) -> None:
        self.files = RecordingFiles()
        self.handle = self.files.create(PATH)
        self.files.write(self.handle, self.raw, 0)
        self.current = self.files.disk.file(PATH).current


def a_page(positions: list[int], body: bytes = b"body") -> bytes:
    payload = b"".join(encode(position, PERSISTENT, b"a", b"h", body) for position in positions)
    return encode_page(positions[0], positions[-1], len(positions), 100, 200, payload) + payload


def a_segment(*pages: list[int]) -> Stored:
    return Stored(encode_file_head(SEGMENT_MAGIC) + b"".join(map(a_page, pages)))


def a_dead_file(*batches: list[int]) -> Stored:
    return Stored(encode_file_head(MARKS_MAGIC) + b"".join(map(encode_batch, batches)))


def joined(lists: list[list[int]]) -> list[int]:
    return [number for each in lists for number in each]


def positions_in(segment: Stored) -> tuple[list[int], list[str]]:
    """Every position that can be read, and everything that is said to be wrong."""
    walk = walk_pages(segment.files, segment.handle, PATH)
    troubles = [walk.reason] if walk.reason else []
    positions: list[int] = []
    for page in walk.pages:
        try:
            head, payload = read_page(segment.files, segment.handle, page.offset, PATH)
            assert head == page
            positions += [record.position for record in page_records(page, payload)]
        except DamagedPage as error:
            troubles.append(str(error))
    return positions, troubles


pages_of_positions = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=30, unique=True).map(sorted)


@given(pages_of_positions, st.integers(1, 10), st.binary(max_size=50))
def test_pages_are_read_as_they_were_written(positions: list[int], size: int, body: bytes) -> None:
    groups = [positions[start : start + size] for start in range(0, len(positions), size)]
    segment = Stored(encode_file_head(SEGMENT_MAGIC) + b"".join(a_page(group, body) for group in groups))
    walk = walk_pages(segment.files, segment.handle)
    assert [(page.first, page.last, page.count) for page in walk.pages] == [
        (group[0], group[-1], len(group)) for group in groups
    ]
    assert (walk.end, walk.size, walk.reason) == (len(segment.raw), len(segment.raw), None)
    assert all((page.time_first, page.time_last) == (100, 200) for page in walk.pages)
    found = [page_records(page, read_payload(segment.files, segment.handle, page)) for page in walk.pages]
    assert [[record.position for record in records] for records in found] == groups
    assert all(record.body == body for records in found for record in records)


def test_a_walk_reads_heads_only() -> None:
    class Counting(RecordingFiles):
        bytes_read = 0

        def read(self, handle: int, size: int, offset: int) -> bytes:
            data = super().read(handle, size, offset)
            self.bytes_read += len(data)
            return data

    segment = Stored(encode_file_head(SEGMENT_MAGIC) + a_page([1], bytes(10_000)) + a_page([2], bytes(10_000)))
    files = Counting(segment.files.disk)
    assert len(walk_pages(files, files.open(PATH)).pages) == 2
    assert files.bytes_read == FILE_HEAD_SIZE + 2 * PAGE_HEAD_SIZE


def test_every_cut_leaves_the_pages_before_it() -> None:
    groups = [[1, 2], [3], [7, 9]]
    segment = a_segment(*groups)
    ends = [page.end for page in walk_pages(segment.files, segment.handle).pages]
    while segment.current:
        segment.current.pop()
        walk = walk_pages(segment.files, segment.handle)
        size = len(segment.current)
        whole = [end for end in ends if end <= size]
        assert [page.end for page in walk.pages] == whole
        assert walk.end == max([min(size, FILE_HEAD_SIZE), *whole])
        assert (walk.reason is None) == (size in (FILE_HEAD_SIZE, *ends))
        assert positions_in(segment)[0] == joined(groups[: len(whole)])


def flips(stored: Stored) -> Iterator[int]:
    for offset in range(len(stored.current)):
        for bit in range(8):
            stored.current[offset] ^= 1 << bit
            yield offset
            stored.current[offset] ^= 1 << bit


def test_every_flipped_bit_is_detected() -> None:
    segment = a_segment([1, 2], [3], [7, 9])
    for offset in flips(segment):
        positions, troubles = positions_in(segment)
        assert troubles, offset
        assert positions == [position for position in (1, 2, 3, 7, 9) if position in positions]
        if offset < FILE_HEAD_SIZE:
            assert positions == [1, 2, 3, 7, 9], "a bad file head hides no page"


def test_without_the_checksum_flips_would_be_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "crc32c", lambda data, before=0: 0)
    segment = a_segment([1, 2], [3])
    unseen = 0
    for _ in flips(segment):
        try:
            unseen += not positions_in(segment)[1]
        except JournalError:
            pass
    assert unseen > 100


def test_a_damaged_page_is_named_with_what_was_in_it() -> None:
    segment = a_segment([1, 2], [30, 44])
    page = walk_pages(segment.files, segment.handle).pages[1]
    segment.current[page.offset + PAGE_HEAD_SIZE] ^= 1
    with pytest.raises(DamagedPage) as error:
        read_page(segment.files, segment.handle, page.offset, "queues/3/x.seg")
    assert (error.value.path, error.value.offset, error.value.first, error.value.last) == (
        "queues/3/x.seg",
        page.offset,
        30,
        44,
    )
    assert str(error.value) == (
        f"queues/3/x.seg: the page at offset {page.offset} (positions 30 to 44) is damaged: its checksum does not match"
    )
    segment.current[page.offset] ^= 4
    with pytest.raises(DamagedPage, match=r"a segment: the page at offset \d+ is damaged: no page begins here"):
        read_page(segment.files, segment.handle, page.offset)
    del segment.current[page.offset + PAGE_HEAD_SIZE :]
    with pytest.raises(DamagedPage, match="the file ends within it"):
        read_payload(segment.files, segment.handle, page)


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ([[1, 5], [5, 6]], "position 5 follows 5"),
        ([[10], [1]], "position 1 follows 10"),
    ],
)
def test_pages_that_go_back_end_the_walk(groups: list[list[int]], reason: str) -> None:
    segment = a_segment(*groups)
    walk = walk_pages(segment.files, segment.handle)
    assert (len(walk.pages), walk.end, walk.reason) == (1, walk.pages[0].end, reason)


@pytest.mark.parametrize(
    ("first", "last", "count", "transient", "reason"),
    [
        (5, 6, 1, 2, "a page says it holds 1 messages (2 transient) at positions 5 to 6"),
        (5, 4, 1, 0, "a page says it holds 1 messages (0 transient) at positions 5 to 4"),
        (5, 6, 3, 0, "a page says it holds 3 messages (0 transient) at positions 5 to 6"),
        (5, 5, 0, 0, "a page says it holds 0 messages (0 transient) at positions 5 to 5"),
    ],
)
def test_a_page_that_cannot_be_ends_the_walk(first: int, last: int, count: int, transient: int, reason: str) -> None:
    segment = Stored(encode_file_head(SEGMENT_MAGIC) + encode_page(first, last, count, 0, 0, b"", transient))
    assert walk_pages(segment.files, segment.handle)[:2] == ([], FILE_HEAD_SIZE)
    assert walk_pages(segment.files, segment.handle).reason == reason


@pytest.mark.parametrize(
    ("positions", "payload", "why"),
    [
        ((1, 2, 2), b"", "differ from its head"),
        ((1, 2, 2), encode(1, 0, b"", b"", b"") + encode(3, 0, b"", b"", b""), "differ from its head"),
        ((1, 2, 2), encode(2, 0, b"", b"", b"") + encode(1, 0, b"", b"", b""), "do not increase"),
        ((1, 2, 2), encode(1, 0, b"", b"", b"")[:-1], "no message record at offset 0"),
    ],
)
def test_records_that_contradict_their_page_are_damage(
    positions: tuple[int, int, int], payload: bytes, why: str
) -> None:
    first, last, count = positions
    page = PageHead(16, 80, len(payload), count, 0, first, last, 0, 0, 0, 0)
    with pytest.raises(DamagedPage, match=why):
        page_records(page, payload)


def test_an_empty_file_and_one_of_another_kind_are_reported() -> None:
    empty, other = Stored(b""), a_dead_file([1])
    assert walk_pages(empty.files, empty.handle) == ([], 0, 0, "it ends within its file head", False, False)
    assert walk_pages(other.files, other.handle).reason == "it is a different kind of file (b'WARRENDD')"
    assert check_file_head(encode_file_head(SEGMENT_MAGIC), SEGMENT_MAGIC) is None


def test_a_file_of_a_newer_version_is_refused() -> None:
    segment = Stored(encode_file_head(SEGMENT_MAGIC, PATH, 6) + a_page([1]))
    dead = Stored(encode_file_head(MARKS_MAGIC, PATH, 5) + encode_batch([1]))
    with pytest.raises(UnknownVersion, match="/file has format version 6"):
        walk_pages(segment.files, segment.handle, PATH)
    with pytest.raises(UnknownVersion, match="/file has format version 5"):
        read_marks(dead.files, PATH)


@pytest.mark.parametrize("version", [4, 5])
def test_a_single_flipped_bit_of_a_file_head_hides_no_page(version: int) -> None:
    written = encode_file_head(SEGMENT_MAGIC, PATH, version) + a_page([1])
    for bit in range(8 * FILE_HEAD_SIZE):
        damaged = bytearray(written)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        segment = Stored(bytes(damaged))
        walk = walk_pages(segment.files, segment.handle, PATH)
        assert (len(walk.pages), walk.reason) == (1, "the checksum of its file head does not match"), bit


def test_a_file_that_was_written_under_another_name_is_reported_and_not_read() -> None:
    for elsewhere in ("/queues/7/file", "/other"):
        segment = Stored(encode_file_head(SEGMENT_MAGIC, elsewhere) + a_page([1]))
        dead = Stored(encode_file_head(MARKS_MAGIC, elsewhere) + encode_batch([1]))
        walk = walk_pages(segment.files, segment.handle, PATH)
        assert (walk.pages, walk.end, walk.reason) == ([], FILE_HEAD_SIZE, FOREIGN)
        marks = read_marks(dead.files, PATH)
        assert (list(marks.numbers), marks.end, marks.reason) == ([], 0, FOREIGN)


def test_a_segment_that_is_not_bound_to_its_name_holds_no_positions_before_it() -> None:
    segment = a_segment([1], [2])
    walk = walk_pages(segment.files, segment.handle, f"/queues/7/{segment_name(2, 0)}")
    assert (walk.pages, walk.reason) == ([], "position 1 follows 1")


def test_a_folder_that_holds_all_may_move() -> None:
    head = encode_file_head(SEGMENT_MAGIC, "/here/queues/7/file")
    assert check_file_head(head, SEGMENT_MAGIC, "/there/queues/7/file") is None


def test_a_flipped_bit_in_a_head_that_is_bound_to_its_place_hides_nothing() -> None:
    segment = Stored(encode_file_head(SEGMENT_MAGIC, PATH) + a_page([1]))
    for offset in flips(segment):
        walk = walk_pages(segment.files, segment.handle, PATH)
        if offset < FILE_HEAD_SIZE:
            assert (len(walk.pages), walk.reason) == (1, "the checksum of its file head does not match")


def test_names_of_segments() -> None:
    assert segment_name(5000, 0) == "00000000000000005000-0.seg"
    assert marks_name(5000, 12) == "00000000000000005000-12.dead"
    assert parse_name(segment_name(2**64 - 1, 7)) == (2**64 - 1, 7, "seg")
    assert parse_name(marks_name(1, 0)) == (1, 0, "dead")
    for name in ("5000-0.seg", "00000000000000005000-00.seg", "00000000000000005000-0.seg.new", "x"):
        assert parse_name(name) is None
    names = [segment_name(first, 0) for first in (0, 9, 10, 2**63, 2**64 - 1)]
    assert names == sorted(names)


# -- deletion marks


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=20), max_size=8))
def test_marks_are_read_as_they_were_written(batches: list[list[int]]) -> None:
    dead = a_dead_file(*batches)
    marks = read_marks(dead.files, PATH)
    assert list(marks.numbers) == joined(batches)
    assert marks[1:] == (len(dead.raw), len(dead.raw), None, False, UNKNOWN)
    assert dead.files.open_paths() == 1  # that of the test


def read_positions(dead: Stored) -> tuple[list[int], DeletionMarks]:
    marks = read_marks(dead.files, PATH)
    return list(marks.numbers), marks


def test_a_torn_batch_is_reported_and_those_before_it_count() -> None:
    batches = [[1], [2, 3], [4, 5, 6]]
    dead = a_dead_file(*batches)
    ends = [FILE_HEAD_SIZE]
    for batch in batches:
        ends.append(ends[-1] + 20 + 4 * len(batch))
    while dead.current:
        dead.current.pop()
        size = len(dead.current)
        numbers, marks = read_positions(dead)
        whole = [end for end in ends if end <= size]
        assert numbers == joined(batches[: max(0, len(whole) - 1)])
        assert (marks.end, marks.is_damaged) == (max(whole, default=0), False)
        assert (marks.reason is None) == (size in ends)


def test_a_flipped_bit_costs_one_batch_at_most_and_is_reported() -> None:
    batches = [[1], [2, 3], [4, 5, 6]]
    dead = a_dead_file(*batches)
    starts = [FILE_HEAD_SIZE, FILE_HEAD_SIZE + 24, FILE_HEAD_SIZE + 24 + 28]
    last = starts[-1]
    for offset in flips(dead):
        numbers, marks = read_positions(dead)
        assert marks.reason is not None
        assert marks.is_damaged == (offset < last)
        assert marks.end == max([0, *(start for start in starts if start <= offset)])
        assert numbers in [joined([batch for batch in batches if batch is not lost]) for lost in (None, *batches)]
        assert (numbers == [1, 2, 3, 4, 5, 6]) == (offset < FILE_HEAD_SIZE)


def test_marks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OverflowError):
        encode_batch([2**32])
