"""Writes deletion marks beside the segments of a queue (docs/formats/segment.md), when the log is about to forget them.

Called by the loop thread; the writing is done by the pager's thread.
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Any

from warrenmq.journal.segment_file import UNKNOWN, encode_batch, encode_batch_v1, encode_marks_head

if TYPE_CHECKING:
    from warrenmq.storage.queue_store import QueueStore


def write_marks(store: QueueStore) -> None:
    """Write the marks of a store that only the log has."""
    context = store.context
    for segment in store.segments.all:
        if segment.unwritten_marks and not segment.is_new:
            deleted = segment.body_bytes - segment.alive_bytes if segment.has_exact_bytes else UNKNOWN
            marks = segment.unwritten_marks
            batch = encode_batch_v1(marks) if segment.lacks_body_bytes else encode_batch(marks, deleted)
            is_new = segment.marks_size == 0
            path = os.path.join(store.folder, segment.marks_name)
            pieces: list[Any] = [encode_marks_head(path, segment.lacks_body_bytes), batch] if is_new else [batch]
            context.pager.write(path, segment.marks_size, pieces, is_new, _ignore_written, True)
            segment.marks_size += sum(map(len, pieces))
            store.segments.note(segment)
            segment.unwritten_marks = array("I")
            context.manifest.unrecorded[segment] = store.number


def _ignore_written() -> None:
    """Marks are only read at the next start."""
