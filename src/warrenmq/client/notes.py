"""Notes: lines that an application adds to the biography of a message, for `warren trace`.

A note is published to the default exchange of a broker with the capability `warrenmq.notes`. It names a delivery by its
tag while that is unsettled, and otherwise the message by its header x-message-uid or its message_id. Pure; any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warrenmq.client.errors import MalformedMessage, Misuse
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery

CAPABILITY: Final = "warrenmq.notes"
_LIMIT: Final = 1000  # bytes
_MESSAGE_UID: Final = "x-message-uid"


def encode_note(text: str) -> bytes:
    """Return the text in UTF-8; raise Misuse if the broker would refuse it."""
    body = text.encode("utf-8", "replace")
    if not 0 < len(body) <= _LIMIT:
        raise Misuse(f"a note must have 1 to {_LIMIT:,} bytes, this one has {len(body):,}")
    return body


def shorten_note(text: str) -> str:
    """Cut the text so that it can be a note."""
    return text.encode("utf-8", "replace")[:_LIMIT].decode("utf-8", "ignore")


def names_of(delivery: Delivery) -> BasicProperties | None:
    """Return the properties that name the message without its delivery tag; None if it has no id."""
    try:
        properties = delivery.properties
    except MalformedMessage:
        return None
    uid = (properties.headers or {}).get(_MESSAGE_UID)
    if isinstance(uid, str) and uid:
        return BasicProperties(headers={_MESSAGE_UID: uid})
    return BasicProperties(message_id=properties.message_id) if properties.message_id else None
