"""Reads the pages of a segment that a queue asks for, in the reading thread."""

from __future__ import annotations

from warrenmq.journal.errors import DamagedPage
from warrenmq.journal.files import Files
from warrenmq.journal.segment_file import PAGE_HEAD_SIZE, PageHead, parse_page_head, read_page, read_payload

Pages = tuple[list[tuple[PageHead, bytes]], str | None, PageHead | None]


def read_pages(files: Files, path: str, offset: int, end: int, read_size: int, restored_below: int) -> Pages:
    """In the reading thread: the pages from there on, about so many bytes.

    And what is wrong with the next one, with its head, if that is whole: then reading can go on behind it.
    """
    pages: list[tuple[PageHead, bytes]] = []
    handle = files.open_read(path)
    try:
        stop = min(end, offset + read_size)
        while offset < stop:
            try:
                page = parse_page_head(files.read(handle, PAGE_HEAD_SIZE, offset), offset)
            except OSError as error:
                return pages, str(error), None
            if isinstance(page, str):
                return pages, f"at offset {offset}: {page}", None
            try:
                is_stale = page.is_stale(restored_below)
                pages.append((page, b"" if is_stale else read_payload(files, handle, page, path)))
            except (DamagedPage, OSError) as error:
                return pages, str(error), page
            offset = page.end
    finally:
        files.close(handle)
    return pages, None, None


def read_some_pages(files: Files, path: str, offsets: list[int]) -> list[bytes | str]:
    """In the reading thread: the payloads of the pages at these offsets; of one that is damaged, what is wrong."""
    found: list[bytes | str] = []
    handle = files.open_read(path)
    try:
        for offset in offsets:
            try:
                found.append(read_page(files, handle, offset, path)[1])
            except (DamagedPage, OSError) as error:
                found.append(str(error))
    finally:
        files.close(handle)
    return found
