"""The length limit of a queue: x-max-length, x-max-length-bytes and x-overflow.

Only waiting messages count, not unacked ones; bytes are those of bodies. A queue above its limit drops its first
messages, unless it rejects publishes at the limit.

Compiled when the package is built (length_limit.pxd).
"""

from warrenmq.core.backlog import Backlog
from warrenmq.core.message import Message
from warrenmq.core.options import DROP_HEAD, REJECT_PUBLISH_DLX, QueueOptions

_NONE = 1 << 62


class LengthLimit:
    """`rejects`: publishes are rejected at the limit; `dead_letters`: and dead-lettered."""

    __slots__ = ("_max_bytes", "_max_length", "dead_letters", "rejects")

    def __init__(self, options: QueueOptions) -> None:
        self._max_length = _NONE if options.max_length is None else options.max_length
        self._max_bytes = _NONE if options.max_length_bytes is None else options.max_length_bytes
        self.rejects = options.overflow != DROP_HEAD
        self.dead_letters = options.overflow == REJECT_PUBLISH_DLX

    def is_exceeded(self, backlog: Backlog) -> bool:
        """Return True if messages have to be dropped. A queue that rejects publishes keeps what is requeued."""
        if self.rejects:
            return False
        return backlog.waiting > self._max_length or backlog.body_bytes > self._max_bytes

    def has_room_for(self, message: Message, backlog: Backlog) -> bool:
        """Return True if the message may wait there."""
        return backlog.waiting < self._max_length and backlog.body_bytes + message.size <= self._max_bytes

    def is_exceeded_without(self, backlog: Backlog, count: int, size: int) -> bool:
        """Return True if the limit is reached even without this many messages, with this many bytes."""
        return backlog.waiting - count >= self._max_length or backlog.body_bytes - size >= self._max_bytes


class ExcessPages:
    """Finds pages on disk that contain only excess messages (`MessageStore.forget_first_pages`)."""

    __slots__ = ("_backlog", "_count", "_limit", "_size")

    def __init__(self, limit: LengthLimit, backlog: Backlog) -> None:
        self._limit = limit
        self._backlog = backlog
        self._count = 0
        self._size = 0

    def is_next(self, count: int, size: int, latest_ms: int) -> bool:
        """Return True if the next page is to be removed, too."""
        if not self._limit.is_exceeded_without(self._backlog, self._count + count, self._size + size):
            return False
        self._count += count
        self._size += size
        return True


def length_limit(options: QueueOptions) -> LengthLimit | None:
    """Return the limit that a queue with these options has, if any."""
    if options.max_length is None and options.max_length_bytes is None:
        return None
    return LengthLimit(options)
