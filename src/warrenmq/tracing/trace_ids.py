"""The trace of a message: what all its events have in common.

A message carries the numbers that the broker gave it. The ids that its publisher wrote among the properties are read
from the header when there is an event to tell of (`message_ids_of`), and so is its priority.

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

from warrenmq.events.ids import parse_traceparent, parse_uid
from warrenmq.events.message_ids import pack_message_ids

_CONTENT_TYPE = 0x8000
_HEADERS = 0x2000
_PRIORITY = 0x0800
_CORRELATION_ID = 0x0400
_MESSAGE_ID = 0x0080
_BYTES = 0x1800  # delivery mode and priority are one byte
_LIST_AT = 14

# A header of that name, as a field table has it: the key as a short string, then the type of a long string.
_TRACEPARENT = b"\x0btraceparentS"
# The uid of the message that this one was made from, for whoever publishes a message again.
SOURCE_HEADER = "x-warren-source-id"
_SOURCE = bytes((len(SOURCE_HEADER),)) + SOURCE_HEADER.encode() + b"S"
_DEATH = b"\x07x-deathA"


def message_ids_of(header: bytes) -> bytes | None:
    """The ids of a message with this content header, whose property list is well formed, as rows have them."""
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
    return pack_message_ids(source, message_id, correlation_id, trace_id, span_id)


def priority_of(header: bytes) -> int:
    """The priority of a message with this content header, whose property list is well formed; 0 where it has none."""
    flags = header[12] << 8 | header[13]
    return header[_place_of(header, flags, _PRIORITY)] if flags & _PRIORITY else 0


def sampling_hash(header: bytes, space: int) -> int:
    """The hash of what the messages of one biography have in common: message id, else correlation id; there is one."""
    flags = header[12] << 8 | header[13]
    wanted = _MESSAGE_ID if flags & _MESSAGE_ID else _CORRELATION_ID
    at = _place_of(header, flags, wanted)
    drawn: int = hash_bytes(space, header, at + 1, at + 1 + header[at])
    return drawn


def is_republished(header: bytes) -> bool:
    """Whether it says that it was in the broker before: it died in some queue, or names its source."""
    return bool(header[12] << 8 & _HEADERS) and (_DEATH in header or source_of(header) != 0)


def source_of(header: bytes) -> int:
    """The uid of the message that this one says it was made from; 0 if it does not say."""
    text = _long_string(header, _SOURCE)
    return parse_uid(text.decode("ascii", "replace")) or 0 if text else 0


def _short_string(header: bytes, flags: int, wanted: int) -> bytes | None:
    """The bytes of one property that is a short string; None if it is not there."""
    if flags & wanted == 0:
        return None
    at = _place_of(header, flags, wanted)
    return header[at + 1 : at + 1 + header[at]]


def _place_of(header: bytes, flags: int, wanted: int) -> int:
    """Where that property stands, a short string or one byte, which is there."""
    at = _LIST_AT
    flag = _CONTENT_TYPE
    while flag > wanted:
        if flags & flag:
            if flag & _BYTES:
                at += 1
            elif flag == _HEADERS:
                at += 4 + (header[at] << 24 | header[at + 1] << 16 | header[at + 2] << 8 | header[at + 3])
            else:
                at += 1 + header[at]
        flag >>= 1
    return at


def _long_string(header: bytes, entry: bytes) -> bytes:
    """The bytes behind the name of a header; empty if there is none of that name.

    Found by its bytes: that is far cheaper than a decode, and who hides the name in another value fools only himself.
    """
    at = header.find(entry)
    if at < 0:
        return b""
    at += len(entry)
    length = int.from_bytes(header[at : at + 4], "big")
    return header[at + 4 : at + 4 + length] if length <= 255 else b""
