"""What checkpoints and compaction do to the segments of one queue: write deletion marks, choose and replace runs.

Functions over one store, which owns the state; called by the loop thread. Runs (neighbouring segments that become one
file) are copied by compaction.py.
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

from warrenmq.journal.segment_file import UNKNOWN, encode_batch, encode_batch_v1, encode_marks_head

if TYPE_CHECKING:
    from warrenmq.storage.queue_store import QueueStore
    from warrenmq.storage.segments import Segment

_REQUESTED = 1 << 62  # above any excess, so compaction is not requested twice


def write_marks(store: QueueStore) -> None:
    """Write the deletion marks that only the log has beside their segments (docs/formats/segment.md)."""
    context = store.context
    for segment in store.segments.all:
        if segment.unwritten_marks and not segment.is_new:
            deleted = segment.body_bytes - segment.alive_bytes if segment.has_exact_bytes else UNKNOWN
            marks = segment.unwritten_marks
            batch = encode_batch_v1(marks) if segment.lacks_body_bytes else encode_batch(marks, deleted)
            is_new = segment.marks_size == 0
            path = os.path.join(store.folder, segment.marks_name)
            pieces: list[Any] = [encode_marks_head(path, segment.lacks_body_bytes), batch] if is_new else [batch]
            context.pager.write(path, segment.marks_size, pieces, is_new, _ignore_written)
            segment.marks_size += sum(map(len, pieces))
            store.segments.note(segment)
            segment.unwritten_marks = array("I")
            context.manifest.unrecorded[segment] = store.number


def _ignore_written() -> None:
    """Marks are read at the next start only."""


def request_compaction(store: QueueStore) -> None:
    if store.context.on_compactable is not None:
        store.compact_above = _REQUESTED
        store.context.on_compactable(store)


def consider_compaction(store: QueueStore) -> None:
    """Request compaction if there is anything to do and it is not requested already."""
    if store.compact_above != _REQUESTED:
        segments, context = store.segments, store.context
        store.compact_above = context.dead_allowance
        if segments.excess() > context.dead_allowance or segments.has_many_small(context.segment_size):
            request_compaction(store)


def choose_run(store: QueueStore) -> list[Segment]:
    """Return the neighbours to compact next, none of them open for writing; empty if there is no need."""
    size, allowance = store.context.segment_size, store.context.dead_allowance
    run = store.segments.choose_run(store.open_segment, size, allowance)
    if not run and store.open_segment is not None:
        run = store.segments.choose_run(None, size, allowance)
        if store.open_segment in run:
            store.close_segment(store.open_segment)
            store.open_segment = None
    if not run:
        end_compaction(store, False)
    return run


def end_compaction(store: QueueStore, may_continue: bool) -> None:
    """Request the next run if there is more to do; if it may not continue, wait for more dead bytes than now."""
    store.compact_above = store.context.dead_allowance
    if may_continue:
        consider_compaction(store)
    else:
        store.compact_above += max(store.segments.excess() - store.context.dead_allowance * 3 // 4, 0)


def replace_run(store: QueueStore, run: list[Segment], merged: Segment) -> None:
    """Put the merged segment in place of a run, some of which may have been dropped meanwhile."""
    left = [segment for segment in run if not segment.is_dropped]
    if not left:
        store.context.pager.remove(store.folder, [merged.name, merged.marks_name], store.number != 0)
        return
    store.segments.replace(left, merged)
    if store.number:
        store.context.manifest.record_merged(store.number, left, merged)
    if merged.unwritten_marks:
        store.context.marked_stores[store] = None
    if store.segments.reading in left:
        store.reader.restart_at(merged)


def end_run(store: QueueStore, run: list[Segment]) -> None:
    """Allow reads again, of the run or of the segment that replaced it."""
    for segment in run:
        segment.is_compacting = False
    if store.is_reading:
        store.reader.read()
    store.resume_fetches()
