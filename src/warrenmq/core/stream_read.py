"""Reading a stream inside the broker's process: `Stream.read` reads one page at a time.

Tracing and the analysis read their streams this way. Such a reader sees what a consumer sees: only readable messages,
skipping what retention removed or a damaged file lost.

Owned by the loop thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from warrenmq.core.message import Message
    from warrenmq.core.stream import Stream

# Called with the offset of the first message, and the messages from there on.
Receive: TypeAlias = "Callable[[int, list[Message]], None]"


class PendingRead:
    """A call of `Stream.read` that the store has not answered yet."""

    __slots__ = ("_offset", "_receive", "_stream")

    def __init__(self, stream: Stream, offset: int, receive: Receive) -> None:
        self._stream = stream
        self._offset = offset
        self._receive = receive

    def page_arrived(self, first: int, messages: list[Message]) -> None:
        """Pass on the readable part of the store's page, unless the stream was deleted meanwhile."""
        if self not in self._stream.reads:
            return
        del self._stream.reads[self]
        begin = max(first, self._offset)
        readable = messages[begin - first : max(0, self._stream.readable - first)]
        self._receive(begin if readable else max(begin, self._offset + 1), readable)

    def abort(self) -> None:
        """End the read without messages: the store of a deleted stream never answers."""
        self._receive(self._offset, [])
