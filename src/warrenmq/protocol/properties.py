# cython: boundscheck=False, wraparound=False, annotation_typing=False, auto_pickle=True
"""The properties of a message, whole or one at a time.

A *header* here is the payload of a content header frame, kept as it came from the publisher:

    0        2        4              12       14
    | class  | weight | body size    | flags  | the properties whose flag is set, in flag order ...

`BasicProperties`, `decode` and `encode` handle all properties at once. The broker reads one property at a time from the
header, skipping those before it without creating objects, and changes a header by cutting and joining bytes, so that
everything else stays as the publisher wrote it, bit for bit.

Invalid bytes raise only MalformedProperties. `validate` checks a header completely; functions that read one property
check only as far as they read.

Compiled when the package is built (properties.pxd).
"""

from datetime import datetime
from struct import Struct
from typing import Any

from warrenmq.protocol import big_endian
from warrenmq.protocol.errors import LocalMisuse, MalformedProperties, MalformedValue
from warrenmq.protocol.values import (
    Timestamp,
    ValueReader,
    encode_shortstr,
    encode_table,
    encode_timestamp,
    encode_value,
)

BASIC_CLASS = 60

# The flags. Those with an underscore are the same numbers, as C integers where this file is compiled.
CONTENT_TYPE = _CONTENT_TYPE = 0x8000
CONTENT_ENCODING = _CONTENT_ENCODING = 0x4000
HEADERS = _HEADERS = 0x2000
DELIVERY_MODE = _DELIVERY_MODE = 0x1000
PRIORITY = _PRIORITY = 0x0800
CORRELATION_ID = _CORRELATION_ID = 0x0400
REPLY_TO = _REPLY_TO = 0x0200
EXPIRATION = _EXPIRATION = 0x0100
MESSAGE_ID = _MESSAGE_ID = 0x0080
TIMESTAMP = _TIMESTAMP = 0x0040
TYPE = _TYPE = 0x0020
USER_ID = _USER_ID = 0x0010
APP_ID = _APP_ID = 0x0008
CLUSTER_ID = _CLUSTER_ID = 0x0004

_FIRST = 0x8000
_KNOWN = 0xFFFC
_CONTINUATION = 0x0001  # another word of flags follows; AMQP 0-9-1 has no property for it
_BYTES = _DELIVERY_MODE | _PRIORITY  # the properties that are one byte

_FLAGS_AT = 12
_LIST_AT = 14
_STRING = 0x53  # the type of a string in a table

_BYTE = tuple(bytes((value,)) for value in range(256))
_pack_start = Struct(">HHQ").pack

_NAMES = (
    ("content_type", CONTENT_TYPE),
    ("content_encoding", CONTENT_ENCODING),
    ("headers", HEADERS),
    ("delivery_mode", DELIVERY_MODE),
    ("priority", PRIORITY),
    ("correlation_id", CORRELATION_ID),
    ("reply_to", REPLY_TO),
    ("expiration", EXPIRATION),
    ("message_id", MESSAGE_ID),
    ("timestamp", TIMESTAMP),
    ("type", TYPE),
    ("user_id", USER_ID),
    ("app_id", APP_ID),
    ("cluster_id", CLUSTER_ID),
)


class BasicProperties:
    """The properties of a message; None if unset."""

    __slots__ = (
        "app_id",
        "cluster_id",
        "content_encoding",
        "content_type",
        "correlation_id",
        "delivery_mode",
        "expiration",
        "headers",
        "message_id",
        "priority",
        "reply_to",
        "timestamp",
        "type",
        "user_id",
    )

    def __init__(
        self,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: datetime | Timestamp | None = None,
        type: str | None = None,
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def encode(self) -> bytes:
        """Encode the flags and the properties that are set."""
        # Name by name rather than over _NAMES: a publisher pays for this with every message.
        flags = 0
        parts = [b""]
        if self.content_type is not None:
            flags |= _CONTENT_TYPE
            parts.append(encode_shortstr(self.content_type))
        if self.content_encoding is not None:
            flags |= _CONTENT_ENCODING
            parts.append(encode_shortstr(self.content_encoding))
        if self.headers is not None:
            flags |= _HEADERS
            parts.append(encode_table(self.headers))
        if self.delivery_mode is not None:
            flags |= _DELIVERY_MODE
            parts.append(_encode_octet(self.delivery_mode))
        if self.priority is not None:
            flags |= _PRIORITY
            parts.append(_encode_octet(self.priority))
        if self.correlation_id is not None:
            flags |= _CORRELATION_ID
            parts.append(encode_shortstr(self.correlation_id))
        if self.reply_to is not None:
            flags |= _REPLY_TO
            parts.append(encode_shortstr(self.reply_to))
        if self.expiration is not None:
            flags |= _EXPIRATION
            parts.append(encode_shortstr(self.expiration))
        if self.message_id is not None:
            flags |= _MESSAGE_ID
            parts.append(encode_shortstr(self.message_id))
        if self.timestamp is not None:
            flags |= _TIMESTAMP
            parts.append(encode_timestamp(self.timestamp))
        if self.type is not None:
            flags |= _TYPE
            parts.append(encode_shortstr(self.type))
        if self.user_id is not None:
            flags |= _USER_ID
            parts.append(encode_shortstr(self.user_id))
        if self.app_id is not None:
            flags |= _APP_ID
            parts.append(encode_shortstr(self.app_id))
        if self.cluster_id is not None:
            flags |= _CLUSTER_ID
            parts.append(encode_shortstr(self.cluster_id))
        parts[0] = _BYTE[flags >> 8] + _BYTE[flags & 255]
        return b"".join(parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BasicProperties):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name, _ in _NAMES)

    def __repr__(self) -> str:
        values = ((name, getattr(self, name)) for name, _ in _NAMES)
        return f"BasicProperties({', '.join(f'{name}={value!r}' for name, value in values if value is not None)})"


def decode(data: bytes, offset: int = 0) -> BasicProperties:
    """Decode all properties, from the flags at the offset to the end."""
    flags = _flags_at(data, offset)
    properties = BasicProperties()
    try:
        reader = ValueReader(data, offset + 2, len(data))
        for name, flag in _NAMES:
            if flags & flag:
                setattr(properties, name, _read_property(reader, flag))
    except MalformedValue as malformed:
        raise MalformedProperties(malformed.text) from malformed
    if reader.position != reader.end:
        raise MalformedProperties("bytes left over after the last property")
    return properties


def content_header(body_size: int, properties: BasicProperties) -> bytes:
    """Encode the payload of a content header frame."""
    return _pack_start(BASIC_CLASS, 0, body_size) + properties.encode()


def validate(header: bytes) -> None:
    """Raise unless the property list, including the headers table, is valid and ends with the header."""
    flags = _flags_at(header, _FLAGS_AT)
    if flags == 0 and len(header) == _LIST_AT:
        return
    offset = _LIST_AT
    flags &= _KNOWN
    flag = _FIRST
    while flags:
        if flags & flag:
            end = _end_of(header, offset, flag)
            if flag == _HEADERS:
                _require_valid_table(header, offset, end)
            offset = end
            flags ^= flag
        flag >>= 1
    if offset != len(header):
        raise MalformedProperties("bytes left over after the last property")


def _require_valid_table(header: bytes, start: int, end: int) -> None:
    try:
        ValueReader(header, start, end).skip_table()
    except MalformedValue as malformed:
        raise MalformedProperties(malformed.text) from malformed


def property_flags(header: bytes) -> int:
    return _flags_at(header, _FLAGS_AT)


def delivery_mode(header: bytes) -> int:
    """Return 2 for persistent, 0 if unset."""
    flags = _flags_at(header, _FLAGS_AT)
    if flags & _DELIVERY_MODE == 0:
        return 0
    return _byte_at(header, _offset_of(header, flags, _DELIVERY_MODE))


def priority(header: bytes) -> int:
    """Return -1 if unset."""
    flags = _flags_at(header, _FLAGS_AT)
    if flags & _PRIORITY == 0:
        return -1
    return _byte_at(header, _offset_of(header, flags, _PRIORITY))


def correlation_id(header: bytes) -> str | None:
    return _text_of(header, _CORRELATION_ID)


def reply_to(header: bytes) -> str | None:
    return _text_of(header, _REPLY_TO)


def expiration(header: bytes) -> str | None:
    return _text_of(header, _EXPIRATION)


def message_id(header: bytes) -> str | None:
    return _text_of(header, _MESSAGE_ID)


def timestamp(header: bytes) -> int | None:
    """In seconds since 1970."""
    flags = _flags_at(header, _FLAGS_AT)
    if flags & _TIMESTAMP == 0:
        return None
    start = _offset_of(header, flags, _TIMESTAMP)
    return int.from_bytes(header[start : _end_of(header, start, _TIMESTAMP)], "big")


def user_id(header: bytes) -> str | None:
    return _text_of(header, _USER_ID)


def headers(header: bytes) -> dict[str, Any] | None:
    """The headers table, decoded."""
    flags = _flags_at(header, _FLAGS_AT)
    if flags & _HEADERS == 0:
        return None
    try:
        return ValueReader(header, _offset_of(header, flags, _HEADERS), len(header)).read_table()
    except MalformedValue as malformed:
        raise MalformedProperties(malformed.text) from malformed


def text_header(header: bytes, key: bytes) -> bytes | None:
    """The string under a key of the headers table, as it came; None if there is none, or a value of another type.

    `key` is a short string as it is on the wire. Of a key that was written twice the first counts.
    """
    flags = _flags_at(header, _FLAGS_AT)
    if flags & _HEADERS == 0:
        return None
    start = _offset_of(header, flags, _HEADERS)
    end = _end_of(header, start, _HEADERS)
    try:
        reader = ValueReader(header, start + 4, end)
        while reader.position < end:
            entry = reader.position
            reader.skip_shortstr()
            if header[entry : reader.position] == key:
                return reader.read_longstr() if reader.read_octet() == _STRING else None
            reader.skip_value()
    except MalformedValue as malformed:
        raise MalformedProperties(malformed.text) from malformed
    return None


def headers_span(header: bytes) -> tuple[int, int]:
    """Return start (of its length) and end of the headers table; (0, 0) if there is none."""
    flags = _flags_at(header, _FLAGS_AT)
    if flags & _HEADERS == 0:
        return 0, 0
    start = _offset_of(header, flags, _HEADERS)
    return start, _end_of(header, start, _HEADERS)


def subset(header: bytes, wanted: int) -> bytes:
    """Return the encoded values of these properties, as far as they are set, after the flags of those that are."""
    flags = _flags_at(header, _FLAGS_AT)
    kept = flags & wanted
    parts = [_BYTE[kept >> 8], _BYTE[kept & 255]]
    offset = _LIST_AT
    flag = _FIRST
    while kept:
        if flags & flag:
            end = _end_of(header, offset, flag)
            if kept & flag:
                parts.append(header[offset:end])
                kept ^= flag
            offset = end
        flag >>= 1
    return b"".join(parts)


def flag_of(name: str) -> int:
    """Return the flag of the property with this name."""
    return dict(_NAMES)[name]


def with_reply_to(header: bytes, value: str) -> bytes:
    """The same header, answering to that address."""
    return _spliced(header, _REPLY_TO, encode_shortstr(value))


def without_expiration(header: bytes) -> bytes:
    """The same header, never expiring."""
    return _spliced(header, _EXPIRATION, b"")


def with_header(header: bytes, key: str, value: Any) -> bytes:
    """The same header with that entry at the end of its headers table, in offset of any of the same key."""
    return with_entry(without_header(header, key), encode_shortstr(key) + encode_value(value))


def with_entry(header: bytes, entry: bytes) -> bytes:
    """The same header with an entry, as it is on the wire, at the end of its headers table, which lacks that key."""
    start, end = headers_span(header)
    if start == end:
        return _spliced(header, _HEADERS, len(entry).to_bytes(4, "big") + entry)
    length = end - start - 4 + len(entry)
    return _spliced(header, _HEADERS, length.to_bytes(4, "big") + header[start + 4 : end] + entry)


def without_header(header: bytes, key: str) -> bytes:
    """The same header without that entry of its headers table; every one, where the key was written twice."""
    start, end = headers_span(header)
    if start == end:
        return header
    unwanted = encode_shortstr(key)
    kept = []
    kept_from = start + 4
    try:
        reader = ValueReader(header, start + 4, end)
        while reader.position < end:
            entry = reader.position
            reader.skip_shortstr()
            is_unwanted = header[entry : reader.position] == unwanted
            reader.skip_value()
            if is_unwanted:
                kept.append(header[kept_from:entry])
                kept_from = reader.position
    except MalformedValue as malformed:
        raise MalformedProperties(malformed.text) from malformed
    if kept_from == start + 4:
        return header
    kept.append(header[kept_from:end])
    table = b"".join(kept)
    return _spliced(header, _HEADERS, len(table).to_bytes(4, "big") + table)


def _spliced(header: bytes, flag: int, value: bytes) -> bytes:
    """The header with that property's bytes in offset of the old ones, if any; empty takes the property away."""
    flags = _flags_at(header, _FLAGS_AT)
    start = end = _offset_of(header, flags, flag)
    if flags & flag:
        end = _end_of(header, start, flag)
    flags = flags | flag if value else flags & ~flag
    return b"".join((header[:_FLAGS_AT], flags.to_bytes(2, "big"), header[_LIST_AT:start], value, header[end:]))


def _text_of(header: bytes, flag: int) -> str | None:
    flags = _flags_at(header, _FLAGS_AT)
    if flags & flag == 0:
        return None
    try:
        return ValueReader(header, _offset_of(header, flags, flag), len(header)).read_label()
    except MalformedValue as malformed:
        raise MalformedProperties(malformed.text) from malformed


def _flags_at(data: bytes, offset: int) -> int:
    if offset < 0 or len(data) < offset + 2:
        raise MalformedProperties("no property flags")
    flags = big_endian.load_u16(data, offset)
    if flags & _CONTINUATION:
        raise MalformedProperties("property flags continue, and AMQP 0-9-1 has no more of them")
    return flags


def _offset_of(header: bytes, flags: int, wanted: int) -> int:
    """Return the offset of the property, or where it would be."""
    offset = _LIST_AT
    flag = _FIRST
    while flag > wanted:
        if flags & flag:
            offset = _end_of(header, offset, flag)
        flag >>= 1
    return offset


def _end_of(header: bytes, offset: int, flag: int) -> int:
    """Return the end of the property at the offset."""
    size = len(header)
    if flag & _BYTES:
        end = offset + 1
    elif flag == _TIMESTAMP:
        end = offset + 8
    elif flag == _HEADERS:
        if offset + 4 > size:
            raise MalformedProperties("the headers table is cut short")
        end = offset + 4 + big_endian.load_u32(header, offset)
    else:
        end = offset + 1 + _byte_at(header, offset)
    if end > size:
        raise MalformedProperties("the property list is cut short")
    return end


def _byte_at(header: bytes, offset: int) -> int:
    if offset >= len(header):
        raise MalformedProperties("the property list is cut short")
    return header[offset]


def _read_property(reader: ValueReader, flag: int) -> Any:
    if flag & _BYTES:
        return reader.read_octet()
    if flag == _TIMESTAMP:
        return reader.read_timestamp()
    if flag == _HEADERS:
        return reader.read_table()
    return reader.read_label()


def _encode_octet(value: int) -> bytes:
    if not 0 <= value <= 255:
        raise LocalMisuse(f"delivery mode and priority are bytes, not {value}")
    return _BYTE[value]
