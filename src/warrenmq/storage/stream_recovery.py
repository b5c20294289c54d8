"""Finds the segments of a stream at a start.

All page heads are read of the newest segment and of those that the log still holds, one of the others: so the start
does not take longer for a long history.

Runs before the threads, in the caller's thread.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from warrenmq.journal.segment_file import (
    FILE_HEAD_SIZE,
    FOREIGN,
    PAGE_HEAD_SIZE,
    SEGMENT_MAGIC,
    check_file_head,
    parse_name,
    parse_page_head,
    segment_name,
)
from warrenmq.storage.manifest import FileRecord, folder_of
from warrenmq.storage.recovery import FoundPages, Recovery
from warrenmq.storage.stream_segments import BlockIndex, StreamSegment


class FoundStream(NamedTuple):
    """The segments of a stream on disk; `last` is the last position, -1 if there is none."""

    segments: list[StreamSegment]
    last: int


def find_stream_segments(
    recovery: Recovery, number: int, folder: str, queue: str, bypasses_log: bool = False
) -> FoundStream:
    """Return the segments of a stream and remove unusable ones; `queue` is its description."""
    files = recovery.files
    recorded = recovery.recorded
    records = recorded.segments(folder_of(number))
    if bypasses_log:
        records = {first: record for first, record in records.items() if recorded.is_binding(record)}
    removed_below = recovery.removed_below(number)
    firsts: list[int] = []
    for name in files.list(folder):
        parsed = parse_name(name)
        if parsed is None or parsed[1:] != (0, "seg"):
            files.remove(os.path.join(folder, name))
        else:
            firsts.append(parsed[0])
    logged_from = recovery.logged_from(number)
    segments: list[StreamSegment] = []
    last = -1
    is_cut = False
    for first in sorted({*firsts, *records}):
        record = records.get(first)
        if first not in firsts:
            if record is not None and not is_cut and record.last >= removed_below:
                recovery.report_missing_segment(folder, record, logged_from, removed_below, queue)
                is_cut = 0 <= logged_from <= record.last
            continue
        at = firsts.index(first)
        if is_cut:
            recovery.remove_segment(folder, first, 0)
            continue
        if first > last + 1 and 0 <= logged_from <= (last + 1 if segments else first - 1):
            # An earlier file was written but not synced: the log has its messages and all that follow.
            is_cut = True
            recovery.remove_segment(folder, first, 0)
            continue
        following = firsts[at + 1] if at + 1 < len(firsts) else None
        path = os.path.join(folder, segment_name(first, 0))
        is_synced = following is not None and (logged_from < 0 or following <= logged_from)
        segment = _check_closed(recovery, path, first, record) if is_synced else None
        if segment is not None:
            assert following is not None
            last = segment.last = following - 1 if record is None else record.last
            segment.count = last - first + 1 if record is None else record.count
        else:
            found = recovery.read_pages(path, first, logged_from, queue, record, bypasses_log)
            is_cut = found.is_cut
            if not found.pages:
                recovery.remove_segment(folder, first, 0)
                continue
            segment = _describe(first, found)
            last = found.pages[-1].last
        segment.record = record
        if segments:
            segments[-1].time_last = max(segments[-1].time_last, segment.time_first)
        segments.append(segment)
    while len(segments) > 1 and segments[1].first <= removed_below:  # the broker ended before it removed the file
        recovery.remove_segment(folder, segments.pop(0).first, 0)
    if segments and segments[-1].index is None:
        # Newer segments were unusable: this one is written to from now on.
        first = segments[-1].first
        path = os.path.join(folder, segments[-1].name)
        found = recovery.read_pages(path, first, logged_from, queue, records.get(first))
        segments[-1] = _describe(first, found)
        segments[-1].record = records.get(first)
        last = found.pages[-1].last
    return FoundStream(segments, last)


def _check_closed(recovery: Recovery, path: str, first: int, record: FileRecord | None) -> StreamSegment | None:
    """Describe a closed segment by its first page and its size; None if they are not as expected."""
    files = recovery.files
    handle = files.open_read(path)
    try:
        size = files.size(handle)
        heads = files.read(handle, FILE_HEAD_SIZE + PAGE_HEAD_SIZE, 0)
        page = parse_page_head(heads[FILE_HEAD_SIZE:], FILE_HEAD_SIZE)
    finally:
        files.close(handle)
    if isinstance(page, str) or page.first != first or page.end > size:
        return None
    if check_file_head(heads, SEGMENT_MAGIC, path) == FOREIGN:
        return None
    if record is not None and size < record.size:
        return None
    segment = StreamSegment(first, page.time_first)
    segment.time_last = page.time_last  # minimum; updated from the next segment
    segment.size = segment.written = size
    segment.is_new = False
    return segment


def _describe(first: int, found: FoundPages) -> StreamSegment:
    pages = found.pages
    segment = StreamSegment(first, pages[0].time_first)
    segment.is_closed = found.is_old
    segment.time_last = pages[-1].time_last
    segment.pages = len(pages)
    segment.last = pages[-1].last
    segment.count = sum(page.count for page in pages)
    segment.size = segment.written = found.end
    segment.is_new = False
    segment.index = BlockIndex()
    for page in pages:
        segment.index.add_page(page.offset, page.first, page.time_first)
    return segment
