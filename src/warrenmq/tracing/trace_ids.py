"""Reads the ids of a message from its content header.

A message carries the uid that the broker gave it. The ids that its publisher set in the properties, and the priority,
are read from the header when there is an event to record (`message_ids_of`).

Compiled when the package is built (trace_ids.pxd).
"""

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.warrenmq.events.ids import hash_bytes
else:
    from warrenmq.events.ids import hash_bytes

from warrenmq.core.publish_rules import MESSAGE_UID
from warrenmq.events.ids import parse_traceparent, parse_uid
from warrenmq.events.message_ids import pack_message_ids

_CONTENT_TYPE = 0x8000
_HEADERS = 0x2000
_PRIORITY = 0x0800
_CORRELATION_ID = 0x0400
_MESSAGE_ID = 0x0080
_BYTES = 0x1800  # delivery mode and priority are one byte
_LIST_OFFSET = 14

# Headers as encoded in a field table: the name as a short string, then the type of a long string.
_TRACEPARENT = b"\x0btraceparentS"
# The uid of the message that this one was made from; set by clients that publish a message again.
SOURCE_HEADER = "x-warren-source-id"
_SOURCE = bytes((len(SOURCE_HEADER),)) + SOURCE_HEADER.encode() + b"S"
_DEATH = b"\x07x-deathA"
# An id that the publisher set; the broker sets it to the uid of the message, which is no id of the publisher's.
_OWN_ID = bytes((len(MESSAGE_UID),)) + MESSAGE_UID.encode() + b"S"


def message_ids_of(header: bytes) -> bytes | None:
    """Return the packed ids of a message with this content header, whose property list is well formed."""
    flags = header[12] << 8 | header[13]
    if flags & (_HEADERS | _CORRELATION_ID | _MESSAGE_ID) == 0:
        return None
    message_id = _short_string(header, flags, _MESSAGE_ID)
    correlation_id = _short_string(header, flags, _CORRELATION_ID)
    trace_id: bytes | None = None
    span_id: bytes | None = None
    source = 0
    if flags & _HEADERS:
        parent = _long_string(header, _TRACEPARENT)
        ids = parse_traceparent(parent) if parent else None
        if ids is not None:
            trace_id, span_id = ids
        source = source_of(header)
        if message_id is None:
            message_id = _own_id(header)
    return pack_message_ids(source, message_id, correlation_id, trace_id, span_id)


def priority_of(header: bytes) -> int:
    """Return the priority of a message with this content header, 0 without one."""
    flags = header[12] << 8 | header[13]
    return header[_offset_of(header, flags, _PRIORITY)] if flags & _PRIORITY else 0


def sampling_hash(header: bytes, space: int) -> int:
    """Return the hash of the message id, else of the correlation id; the header has one of them."""
    flags = header[12] << 8 | header[13]
    wanted = _MESSAGE_ID if flags & _MESSAGE_ID else _CORRELATION_ID
    offset = _offset_of(header, flags, wanted)
    found: int = hash_bytes(space, header, offset + 1, offset + 1 + header[offset])
    return found


def is_republished(header: bytes) -> bool:
    """Return True if the message was in the broker before: it is a dead letter, or names its source."""
    return bool(header[12] << 8 & _HEADERS) and (_DEATH in header or source_of(header) != 0)


def source_of(header: bytes) -> int:
    """Return the uid of the message that this one was made from, 0 without one."""
    text = _long_string(header, _SOURCE)
    return parse_uid(text.decode("ascii", "replace")) or 0 if text else 0


def _own_id(header: bytes) -> bytes | None:
    """Return the id in the header x-message-uid, None if it is empty or a uid."""
    text = _long_string(header, _OWN_ID)
    return text if text and parse_uid(text.decode("ascii", "replace")) is None else None


def _short_string(header: bytes, flags: int, wanted: int) -> bytes | None:
    """Return the bytes of a short string property, None without it."""
    if flags & wanted == 0:
        return None
    offset = _offset_of(header, flags, wanted)
    return header[offset + 1 : offset + 1 + header[offset]]


def _offset_of(header: bytes, flags: int, wanted: int) -> int:
    """Return the offset of a property that is present: a short string or one byte."""
    offset = _LIST_OFFSET
    flag = _CONTENT_TYPE
    while flag > wanted:
        if flags & flag:
            if flag & _BYTES:
                offset += 1
            elif flag == _HEADERS:
                size = header[offset] << 24 | header[offset + 1] << 16 | header[offset + 2] << 8 | header[offset + 3]
                offset += 4 + size
            else:
                offset += 1 + header[offset]
        flag >>= 1
    return offset


def _long_string(header: bytes, entry: bytes) -> bytes:
    """Return the value of a header, empty without it.

    A search for its bytes is far cheaper than decoding. A client that hides the name in another value misleads only
    itself.
    """
    offset = header.find(entry)
    if offset < 0:
        return b""
    offset += len(entry)
    length = int.from_bytes(header[offset : offset + 4], "big")
    return header[offset + 4 : offset + 4 + length] if length <= 255 else b""
