"""Reading a stream inside the broker's process, beside its consumers: `Stream.read` asks for one page at a time.

Tracing and the analysis read their streams this way. Like a consumer, such a reader gets only what is readable, and
goes on behind what retention removed or a damaged file lost.

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
    """One call of `Stream.read` that the store has not answered yet."""

    __slots__ = ("_offset", "_receive", "_stream")

    def __init__(self, stream: Stream, offset: int, receive: Receive) -> None:
        self._stream = stream
        self._offset = offset
        self._receive = receive

    def page_arrived(self, first: int, messages: list[Message]) -> None:
        """Pass on what is readable of the store's page, unless the stream was deleted meanwhile."""
        if self not in self._stream.reads:
            return
        del self._stream.reads[self]
        begin = max(first, self._offset)
        readable = messages[begin - first : max(0, self._stream.readable - first)]
        self._receive(begin if readable else max(begin, self._offset + 1), readable)

    def stream_is_deleted(self) -> None:
        """The store of a deleted stream never answers: end the read without messages."""
        self._receive(self._offset, [])
