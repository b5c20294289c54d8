"""Reads blocks of a stream's segments, in the reading thread.

A block is a few adjacent pages. Its messages are decoded, with their offsets in their headers, in runs of consecutive
positions: more than one run only if something between them is unreadable.

Touches nothing but the given file. Compiled when the package is built (stream_blocks.pxd).
"""

from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.number_header import NumberHeader
from warrenmq.journal.errors import DamagedPage, JournalError
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    PAGE_HEAD_SIZE,
    PageHead,
    check_payload,
    parse_page_head,
    walk_pages,
)
from warrenmq.storage.codec import BadPage, decode_records
from warrenmq.storage.page_cache import Page
from warrenmq.storage.stream_segments import BlockIndex


class Block:
    """The messages between two offsets of a file; `problems` lists what was unreadable.

    `lost` messages were in pages with intact heads. `is_cut`: a page head is damaged, and nothing after it was read.
    `is_filtered_out`: it contains nothing that was searched for, and was not decoded.
    """

    __slots__ = ("is_cut", "is_filtered_out", "lost", "problems", "runs", "size")

    def __init__(self) -> None:
        self.runs: list[Page] = []
        self.size = 0  # of memory
        self.problems: list[str] = []
        self.lost = 0
        self.is_cut = False
        self.is_filtered_out = False

    def find(self, position: int) -> "Page | None":
        """Return the run with this position, or else the next one."""
        for run in self.runs:
            if position < run.first + len(run.messages):
                return run
        return None


def read_block(files: Files, path: str, offset: int, end: int, needles: "tuple[bytes, ...] | None" = None) -> Block:
    """Read all pages from one offset to another; decode them if any of the needles occurs."""
    data = _read(files, path, offset, end)
    block = Block()
    if needles is not None and not _has_any(data, needles):
        block.is_filtered_out = True
        return block
    stamps = NumberHeader()
    messages: list[Message] = []
    expected = -1
    at = 0
    while at < len(data):
        page = parse_page_head(data[at : at + PAGE_HEAD_SIZE], offset + at)
        if isinstance(page, str):
            block.problems.append(f"{path}: the page at offset {offset + at}: {page}")
            block.is_cut = True
            break
        start = page.start - offset
        at = page.end - offset
        try:
            entries = _decode(data[start:at], page, path)
        except JournalError as error:
            block.problems.append(str(error))
            block.lost += page.count
            continue
        for entry in entries:
            if entry.position != expected:
                messages = []
                block.runs.append(Page(entry.position, messages))
            expected = entry.position + 1
            message = stamps.stamp(entry.message, entry.position)
            messages.append(message)
            block.size += message.footprint()
    return block


def stamp_all(entries: list[QueuedMessage]) -> list[Message]:
    """Return the messages with their offsets in their headers."""
    stamps = NumberHeader()
    messages: list[Message] = []
    for entry in entries:
        messages.append(stamps.stamp(entry.message, entry.position))
    return messages


def find_page_of_time(files: Files, path: str, offset: int, end: int, time_ms: int) -> int:
    """Return the first position of the first page with a message of that time or later; -1 if there is none."""
    data = _read(files, path, offset, end)
    at = 0
    while at < len(data):
        page = parse_page_head(data[at : at + PAGE_HEAD_SIZE], offset + at)
        if isinstance(page, str):
            break
        if page.time_last >= time_ms:
            return page.first
        at = page.end - offset
    return -1


def load_index(files: Files, path: str, end: int) -> BlockIndex:
    """Build the index of a segment from its page heads."""
    index = BlockIndex()
    handle = files.open_read(path)
    try:
        for page in walk_pages(files, handle, path).pages:
            if page.end <= end:
                index.add_page(page.offset, page.first, page.time_first)
    finally:
        files.close(handle)
    if not len(index):
        index.add_page(FILE_HEAD_SIZE, 0, 0)  # reading it will report what is wrong
    return index


def _has_any(data: bytes, needles: "tuple[bytes, ...]") -> bool:
    return any(needle in data for needle in needles)


def _decode(payload: bytes, page: PageHead, path: str) -> list[QueuedMessage]:
    check_payload(payload, page, path)
    try:
        return decode_records(payload, -1, 0, None, 0)
    except BadPage as error:
        raise DamagedPage(path, page.offset, str(error), page.first, page.last) from None


def _read(files: Files, path: str, offset: int, end: int) -> bytes:
    handle = files.open_read(path)
    try:
        return files.read(handle, end - offset, offset)
    finally:
        files.close(handle)
