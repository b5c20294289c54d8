"""Writes deletion marks beside the segments of a queue (docs/formats/segment.md), when the log is about to forget them.

Called by the loop thread; the writing is done by the pager's thread.
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

from warrenmq.journal.segment_file import UNKNOWN, encode_batch, encode_dead_head, encode_old_batch

if TYPE_CHECKING:
    from warrenmq.storage.queue_store import QueueStore


def write_marks(store: QueueStore) -> None:
    """Write the marks of a store that only the log has."""
    context = store.context
    for segment in store.segments.all:
        if segment.unwritten_marks and not segment.is_new:
            deleted = segment.body_bytes - segment.alive_bytes if segment.is_counted else UNKNOWN
            marks = segment.unwritten_marks
            batch = encode_old_batch(marks) if segment.is_uncounted else encode_batch(marks, deleted)
            is_new = segment.dead_size == 0
            path = os.path.join(store.folder, segment.dead_name)
            pieces: list[Any] = [encode_dead_head(path, segment.is_uncounted), batch] if is_new else [batch]
            context.pager.write(path, segment.dead_size, pieces, is_new, _ignore_written, True)
            segment.dead_size += sum(map(len, pieces))
            store.segments.note(segment)
            segment.unwritten_marks = array("I")
            context.manifest.unrecorded[segment] = store.number


def _ignore_written() -> None:
    """Marks are only read at the next start."""
