"""Notes: lines that applications add to the biographies of messages (docs/tracing.md).

A client publishes the text to the default exchange with the routing key `warren.notes`, and names the message by the
header `x-delivery-tag` (an unacked delivery of the same channel) or `x-message-uid`, or by the property message_id. The
note becomes an event of that message and is not routed to any queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.message import QueuedMessage
from warrenmq.core.publish_rules import MESSAGE_UID
from warrenmq.core.routing.erlang_text import field_type, is_integer
from warrenmq.events import schema
from warrenmq.events.ids import parse_uid
from warrenmq.protocol import properties

if TYPE_CHECKING:
    from warrenmq.core.channel import Channel
    from warrenmq.core.queue import Queue

MAX_SIZE = 1000  # bytes
DELIVERY_TAG = "x-delivery-tag"


@dataclass(frozen=True, slots=True)
class Note:
    """A text, and the message that it is about: a delivery and its queue, or a uid (0: unknown), or a message id."""

    text: bytes
    entry: QueuedMessage | None = None
    queue: Queue | None = None
    uid: int = 0
    message_id: str | None = None

    def write(self, channel: Channel) -> None:
        """Emit the event; nothing for a delivery that is not traced."""
        events = channel.events
        if self.entry is None:
            fields = {
                "uid": self.uid,
                "message_id": self.message_id,
                "note": self.text.decode(),
                "connection": channel.connection_name,
                "channel": channel.number,
            }
            events.resource_event(schema.NOTED, channel.vhost_name, fields)
        elif self.entry.message.uid != 0 and self.queue is not None:
            events.detailed_event(schema.NOTED, self.entry, self.queue, channel, 0, 0, 0, self.text)


def parse_note(header: bytes, body: bytes, channel: Channel) -> Note:
    """Return the note in this content; 406 if it is invalid or names no message."""
    if not 0 < len(body) <= MAX_SIZE:
        raise PreconditionFailed(f"a note must have 1 to {MAX_SIZE:,} bytes, this one has {len(body):,}")
    try:
        body.decode()
    except UnicodeDecodeError:
        raise PreconditionFailed("a note must be UTF-8 text") from None
    headers = properties.headers(header) or {}
    if DELIVERY_TAG in headers:
        tag = headers[DELIVERY_TAG]
        if not is_integer(tag):
            raise PreconditionFailed(f"invalid header '{DELIVERY_TAG}': expected a number, got {field_type(tag)}")
        entry = channel.ledger.unacked.get(tag)
        if entry is None:
            raise PreconditionFailed(f"unknown delivery tag {tag}")
        queue: Queue = entry.queue  # type: ignore[assignment]
        return Note(body, entry, queue)
    name = headers.get(MESSAGE_UID) or properties.message_id(header)
    if not name or not isinstance(name, str):
        raise PreconditionFailed(
            f"a note needs '{DELIVERY_TAG}', '{MESSAGE_UID}' or the property message_id, to name its message"
        )
    uid = parse_uid(name)
    return Note(body, message_id=name) if uid is None else Note(body, uid=uid)
