"""The format of segment files: messages of one queue in pages, with increasing positions; and their deletion marks.

docs/formats/segment.md draws both. Who writes when, and which pages are alive, is up to `storage`. A page head has its
own checksum, so that recovery can read heads only; the payload is checked when it is read. A walk over a truncated file
reports where it ends, and returns whole pages only.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from warrenmq.journal.errors import BadRecord, DamagedPage, UnknownVersion
from warrenmq.journal.files import Data, Files
from warrenmq.journal.record import Record, decode_all

SEGMENT_MAGIC = b"WARRENSG"
MARKS_MAGIC = b"WARRENDD"
# Segments: version 2 added traced messages; version 3 more optional fields in records, and the bytes of bodies in page
# heads. Marks: version 2 added the bytes that were deleted. Version 4 of both is bound to its place: the checksum of
# the file head also covers the names of the file and its folder. Version 5 of segments added expiry to page heads.
VERSIONS = {SEGMENT_MAGIC: 5, MARKS_MAGIC: 4}
_BOUND_SINCE = 4
_UNBOUND = {SEGMENT_MAGIC: 3, MARKS_MAGIC: 2}
_BODY_BYTES_SINCE = 3  # earlier segments do not record the bytes of bodies
FOREIGN = "it was written under another name"
_FLIPPED_BITS = 3  # a checksum that differs in more bits was not changed by accident
PAGE_MAGIC = 0x57504733
PAGE_MAGIC_V3 = 0x57504732  # versions 3 and 4
PAGE_MAGIC_V1 = 0x57504731
BATCH_MAGIC = 0x57444432
BATCH_MAGIC_V1 = 0x57444431
UNKNOWN = -1  # bytes that were not counted
_UNKNOWN = 2**64 - 1

_FILE_HEAD = Struct("<8sII")  # magic, version, checksum of the 12 bytes before
FILE_HEAD_SIZE = _FILE_HEAD.size
# magic, payload length, count, transient count, first and last position, times of both, bytes of persistent bodies,
# earliest and latest expiry, checksum of the payload, checksum of the 76 bytes before
_PAGE_HEAD = Struct("<IIIIQQQQQQQII")
PAGE_HEAD_SIZE = _PAGE_HEAD.size
_PAGE_HEAD_V3 = Struct("<IIIIQQQQQII")  # without expiry
_PAGE_HEAD_V1 = Struct("<IIIIQQQQII")  # without the bytes of bodies, either
_PAGE_HEADS = {PAGE_MAGIC: _PAGE_HEAD, PAGE_MAGIC_V3: _PAGE_HEAD_V3, PAGE_MAGIC_V1: _PAGE_HEAD_V1}
_BATCH_HEAD = Struct("<IIIQ")  # magic, count, checksum of the rest, bytes of the bodies deleted so far
_BATCH_HEAD_V1 = Struct("<III")  # without the bytes
_U32 = Struct("<I")
_U64 = Struct("<Q")
PAGE_MAGICS = re.compile(rb"[123]GPW")
_BATCH_MAGICS = re.compile(rb"[12]DDW")
_NAME = re.compile(r"(\d{20})-(0|[1-9]\d{0,9})\.(seg|dead)")


@dataclass(frozen=True, slots=True)
class PageHead:
    """Where a page lies and what is in it. `body_bytes` counts persistent messages only, or is UNKNOWN.

    `earliest` is the first expiry in ms since 1970, 0 if no message expires. `latest` is the last one, 0 if some
    message never expires.
    """

    offset: int
    start: int  # of the payload
    length: int  # of the payload
    count: int
    transient: int  # messages that do not survive a restart
    first: int
    last: int
    time_first: int
    time_last: int
    checksum: int  # of the payload
    body_bytes: int
    earliest: int = 0
    latest: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length

    def is_stale(self, restored_below: int) -> bool:
        """Return True if it holds only transient messages of an earlier run.

        Such a page was never synced: if it is torn after a power loss, that is no damage.
        """
        return self.transient == self.count and self.last < restored_below


class PageWalk(NamedTuple):
    """The whole pages of a file. `reason` is what is wrong with it, None if it ends after the last page."""

    pages: list[PageHead]
    end: int  # of the last whole page
    size: int  # of the file
    reason: str | None
    is_old: bool = False  # of an earlier version: nothing may be appended
    lacks_body_bytes: bool = False  # of a version that does not record the bytes of bodies


class DeletionMarks(NamedTuple):
    """Deletion marks of a segment: positions relative to its first one, in the order they were written.

    `reason` is None if the file ends after a batch. Otherwise `end` is the offset of the first bad batch (0: the file
    head is bad). If `is_damaged`, whole batches follow it and are included here; if not, it is a torn tail to be cut
    off. `deleted_bytes` counts the bodies of the deleted persistent messages, or is UNKNOWN.
    """

    numbers: array[int]
    end: int
    size: int
    reason: str | None
    is_damaged: bool
    deleted_bytes: int


def segment_name(first: int, generation: int) -> str:
    """Return the name of a segment: its first position and how often it was compacted. Names sort by position."""
    return f"{first:020}-{generation}.seg"


def marks_name(first: int, generation: int) -> str:
    """Return the name of the deletion marks of a segment."""
    return f"{first:020}-{generation}.dead"


def parse_name(name: str) -> tuple[int, int, str] | None:
    """Return first position, generation, and "seg" or "dead"; None for other names."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3]) if match else None


def encode_file_head(magic: bytes, path: str = "", version: int | None = None) -> bytes:
    """Return the head of a segment (SEGMENT_MAGIC) or marks file (MARKS_MAGIC); without a path, of one that may be
    moved."""
    if version is None:
        version = VERSIONS[magic] if path else _UNBOUND[magic]
    checked = _FILE_HEAD.pack(magic, version, 0)[:-4]
    return checked + _U32.pack(_checksum_of_head(checked, version, path))


def encode_marks_head(path: str, lacks_body_bytes: bool) -> bytes:
    """Return the head of a marks file; marks of a segment before version 3 are of version 1."""
    return encode_file_head(MARKS_MAGIC, path, 1 if lacks_body_bytes else None)


def check_file_head(data: Data, magic: bytes, path: str = "") -> str | None:
    """Return what is wrong with the head, None if nothing; FOREIGN if it was written for another path.

    Raise UnknownVersion if it is intact and too new. Without a path the place is not checked.
    """
    if len(data) < FILE_HEAD_SIZE:
        return "it ends within its file head"
    found, version, checksum = _FILE_HEAD.unpack_from(data)
    is_bound = found == magic and _BOUND_SINCE <= version <= VERSIONS[magic]
    if is_bound and not path:
        return None
    expected = _checksum_of_head(bytes(data[: FILE_HEAD_SIZE - 4]), version, path)
    if checksum != expected:
        is_damaged = (checksum ^ expected).bit_count() <= _FLIPPED_BITS or _has_flipped_bit(data, checksum, path)
        return FOREIGN if is_bound and not is_damaged else "the checksum of its file head does not match"
    if found != magic:
        return f"it is a different kind of file ({found!r})"
    if not 1 <= version <= VERSIONS[magic]:
        raise UnknownVersion(path, version)
    return None


def _has_flipped_bit(data: Data, checksum: int, path: str) -> bool:
    """Return True if the checksum matches after one bit of the magic or the version is flipped."""
    head = int.from_bytes(data[: FILE_HEAD_SIZE - 4], "little")
    for bit in range(8 * (FILE_HEAD_SIZE - 4)):
        checked = (head ^ 1 << bit).to_bytes(FILE_HEAD_SIZE - 4, "little")
        if _checksum_of_head(checked, _U32.unpack_from(checked, 8)[0], path) == checksum:
            return True
    return False


def _checksum_of_head(checked: bytes, version: int, path: str) -> int:
    checksum: int = crc32c(checked)
    if version >= _BOUND_SINCE:
        checksum = crc32c("/".join(path.rsplit("/", 2)[-2:]).encode(), checksum)
    return checksum


def encode_page(
    first: int,
    last: int,
    count: int,
    time_first: int,
    time_last: int,
    payload: Data,
    transient: int = 0,
    body_bytes: int = UNKNOWN,
    earliest: int = 0,
    latest: int = 0,
) -> bytes:
    """Return the head of a page with this payload."""
    return encode_page_from_parts(
        first, last, count, time_first, time_last, [payload], transient, body_bytes, earliest, latest
    )


def encode_page_from_parts(
    first: int,
    last: int,
    count: int,
    time_first: int,
    time_last: int,
    payload: Sequence[Data],
    transient: int = 0,
    body_bytes: int = UNKNOWN,
    earliest: int = 0,
    latest: int = 0,
) -> bytes:
    """Return the head of a page whose payload is in several parts."""
    length = checksum = 0
    for piece in payload:
        length += len(piece)
        checksum = crc32c(piece, checksum)
    about = length, count, transient, first, last, time_first, time_last, body_bytes & _UNKNOWN, earliest, latest
    checked = _PAGE_HEAD.pack(PAGE_MAGIC, *about, checksum, 0)[:-4]
    return checked + _U32.pack(crc32c(checked))


def parse_page_head(data: Data, offset: int) -> PageHead | str:
    """Parse the page head that was read at `offset`; return what is wrong with it if it is damaged."""
    head = _PAGE_HEADS.get(_U32.unpack_from(data)[0], _PAGE_HEAD) if len(data) >= 4 else _PAGE_HEAD
    if len(data) < head.size:
        return "it ends within a page head"
    magic, length, count, transient, first, last, time_first, time_last, *rest = head.unpack_from(data)
    if magic not in _PAGE_HEADS:
        return "no page begins here"
    *more, checksum, own = rest
    if crc32c(bytes(data[: head.size - 4])) != own:
        return "the checksum of a page head does not match"
    if not 0 < count <= last - first + 1 or transient > count:
        return f"a page says it holds {count} messages ({transient} transient) at positions {first} to {last}"
    known = more[0] if more and more[0] != _UNKNOWN else UNKNOWN
    start = offset + head.size
    return PageHead(
        offset, start, length, count, transient, first, last, time_first, time_last, checksum, known, *more[1:]
    )


def walk_pages(files: Files, handle: int, path: str = "") -> PageWalk:
    """Find every whole page of a segment by its head.

    A damaged file head is reported, but hides no page: page heads have their own magic and checksum. The pages of a
    file that was written under another name are not returned.
    """
    size = files.size(handle)
    head = files.read(handle, FILE_HEAD_SIZE, 0)
    reason = check_file_head(head, SEGMENT_MAGIC, path)
    version = VERSIONS[SEGMENT_MAGIC] if reason is not None else _FILE_HEAD.unpack(head)[1]
    age = version < VERSIONS[SEGMENT_MAGIC], version < _BODY_BYTES_SINCE
    pages: list[PageHead] = []
    offset = min(FILE_HEAD_SIZE, size)
    if reason == FOREIGN:
        return PageWalk(pages, offset, size, reason, *age)
    named = parse_name(path.rpartition("/")[2])
    last = -1 if named is None else named[0] - 1
    while offset < size:
        page = parse_page_head(files.read(handle, PAGE_HEAD_SIZE, offset), offset)
        if isinstance(page, str):
            return PageWalk(pages, offset, size, reason or page, *age)
        if page.end > size:
            return PageWalk(pages, offset, size, reason or "it ends within a page", *age)
        if page.first <= last:
            return PageWalk(pages, offset, size, reason or f"position {page.first} follows {last}", *age)
        pages.append(page)
        last = page.last
        offset = page.end
    return PageWalk(pages, offset, size, reason, *age)


def count_messages(files: Files, folder: str) -> int:
    """Return the maximum number of messages in the segments of a folder: by page heads, minus deletion marks."""
    count = 0
    for name in files.list(folder):
        parsed = parse_name(name)
        path = f"{folder}/{name}"
        if parsed is not None and parsed[2] == "dead":
            count -= len(set(read_marks(files, path).numbers))
        elif parsed is not None:
            handle = files.open_read(path)
            try:
                count += sum(page.count - page.transient for page in walk_pages(files, handle, path).pages)
            finally:
                files.close(handle)
    return max(0, count)


def read_page(
    files: Files, handle: int, offset: int, path: str = "", restored_below: int = 0
) -> tuple[PageHead, bytes]:
    """Read and check the page at `offset`; the payload of a stale page is left out."""
    page = parse_page_head(files.read(handle, PAGE_HEAD_SIZE, offset), offset)
    if isinstance(page, str):
        raise DamagedPage(path, offset, page)
    return page, b"" if page.is_stale(restored_below) else read_payload(files, handle, page, path)


def read_payload(files: Files, handle: int, page: PageHead, path: str = "") -> bytes:
    """Read and check the payload of a page whose head is known."""
    payload = files.read(handle, page.length, page.start)
    check_payload(payload, page, path)
    return payload


def check_payload(payload: bytes, page: PageHead, path: str = "") -> None:
    """Raise DamagedPage unless the payload matches the head."""
    if len(payload) < page.length:
        raise DamagedPage(path, page.offset, "the file ends within it", page.first, page.last)
    if crc32c(payload) != page.checksum:
        raise DamagedPage(path, page.offset, "its checksum does not match", page.first, page.last)


def page_records(page: PageHead, payload: Data, path: str = "") -> list[Record]:
    """Decode the messages of a page and compare them with its head."""
    try:
        records = list(decode_all(payload))
    except BadRecord as error:
        raise DamagedPage(path, page.offset, str(error), page.first, page.last) from None
    positions = [record.position for record in records]
    if any(later <= earlier for earlier, later in pairwise(positions)):
        raise DamagedPage(path, page.offset, "its positions do not increase", page.first, page.last)
    if len(positions) != page.count or positions[0] != page.first or positions[-1] != page.last:
        raise DamagedPage(path, page.offset, "its positions differ from its head", page.first, page.last)
    return records


def encode_batch(numbers: Iterable[int], deleted_bytes: int = UNKNOWN) -> bytes:
    """Encode a batch of deletion marks: positions relative to the segment's first, and the bytes deleted so far."""
    data = _little_endian(array("I", numbers)).tobytes()
    counted = _U64.pack(deleted_bytes & _UNKNOWN)
    return _BATCH_HEAD_V1.pack(BATCH_MAGIC, len(data) // 4, crc32c(data, crc32c(counted))) + counted + data


def encode_batch_v1(numbers: Iterable[int]) -> bytes:
    """Encode a batch of a version 1 file."""
    data = _little_endian(array("I", numbers)).tobytes()
    return _BATCH_HEAD_V1.pack(BATCH_MAGIC_V1, len(data) // 4, crc32c(data)) + data


def read_marks(files: Files, path: str) -> DeletionMarks:
    """Read all deletion marks of a file."""
    handle = files.open_read(path)
    try:
        data = files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)
    reason = check_file_head(data, MARKS_MAGIC, path)
    numbers = array("I")
    if reason == FOREIGN:
        return DeletionMarks(numbers, 0, len(data), reason, False, UNKNOWN)
    offset = min(FILE_HEAD_SIZE, len(data))
    end = 0 if reason else offset
    is_damaged = False
    deleted_bytes = UNKNOWN
    while offset < len(data):
        batch = _batch_at(data, offset)
        if isinstance(batch, str):
            reason = reason or batch
            offset = _find_batch(data, offset + 1)
            continue
        is_damaged = reason is not None
        numbers += batch.numbers
        deleted_bytes = batch.deleted_bytes
        offset = batch.end
        if reason is None:
            end = offset
    return DeletionMarks(numbers, end, len(data), reason, is_damaged, deleted_bytes)


class _Batch(NamedTuple):
    numbers: array[int]
    deleted_bytes: int
    end: int


def _batch_at(data: bytes, offset: int) -> _Batch | str:
    """Return the batch at `offset`, or why there is none."""
    is_old = data[offset : offset + 4] == _U32.pack(BATCH_MAGIC_V1)
    head = _BATCH_HEAD_V1 if is_old else _BATCH_HEAD
    start = offset + head.size
    if start > len(data):
        return "it ends within the head of a batch"
    magic, count, checksum, *rest = head.unpack_from(data, offset)
    if not is_old and magic != BATCH_MAGIC:
        return "no batch begins here"
    end = start + 4 * count
    if end > len(data):
        return "it ends within a batch"
    if crc32c(data[offset + _BATCH_HEAD_V1.size : end]) != checksum:
        return "the checksum of a batch does not match"
    numbers = array("I")
    numbers.frombytes(data[start:end])
    deleted_bytes = rest[0] if rest and rest[0] != _UNKNOWN else UNKNOWN
    return _Batch(_little_endian(numbers), deleted_bytes, end)


def _find_batch(data: bytes, offset: int) -> int:
    """Return the offset of the next whole batch, or the end of the file."""
    for match in _BATCH_MAGICS.finditer(data, offset):
        if not isinstance(_batch_at(data, match.start()), str):
            return match.start()
    return len(data)


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
