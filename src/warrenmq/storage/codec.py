"""Encodes messages for the commit log and for pages, and decodes them. docs/formats draws the layout.

Called for each persistent message, and for each message that is paged out or in. Some functions have two bodies
(docs/decisions/0002): compiled code copies into one growing buffer, Python packs and joins. Both produce the bytes of
journal/record.py; tests/storage/test_codec.py compares them.

Compiled when the package is built (codec.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy

from warrenmq.core.message import Message, QueuedMessage, ended_attempts, enqueue_as, make_message
from warrenmq.journal import record

Pointer: TypeAlias = Any  # unsigned char * in compiled code, not used in plain Python

APPEND = 1
AGAIN = 2
FORGET = 3
FORGET_RANGE = 4
DEFINE = 5
UNDEFINE = 6
EVENTS = 7
EVENTS_DISCARDED = 8
SEEN = 9
ATTEMPTS = 10
POSITION = 11
OFFSET = 12

# How a record of ids applies: added to the ids of its owner, replacing those that the log has (older logs only), or
# replacing all.
SEEN_ADD = 0
SEEN_REPLACE_LOGGED = 1
SEEN_REPLACE_ALL = 2

# As C integers.
_APPEND = APPEND
_FORGET_ONE = FORGET
_PERSISTENT = record.PERSISTENT
_TRACED = record.TRACED
_PUBLISH_TIME = record.PUBLISH_TIME
_EXPIRY = record.EXPIRY
_ATTEMPTS = record.ATTEMPTS
_HAS_DEATHS = record.HAS_DEATHS
_READ_FLAGS = record.READ_FLAGS

_APPEND_HEAD = struct.Struct("<BIQBHII")
_AGAIN = struct.Struct("<BIQB")
_FORGET = struct.Struct("<BIQ")
_RANGE = struct.Struct("<BIQQ")
_DEFINITION = struct.Struct("<BI")
_EVENTS = struct.Struct("<BQQI")
_EVENTS_DISCARDED = struct.Struct("<BQ")
_SEEN = struct.Struct("<BQBI")
_SEEN_ONE = struct.Struct("<BQBI16sQ")
_ATTEMPTS_RECORD = struct.Struct("<BIQI")
_POSITION_RECORD = struct.Struct("<BIQ")
_OFFSET_HEAD = struct.Struct("<BIQB")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_TRACE = record.TRACE
_RECORD = record.HEAD
_RECORD_SIZE = record.HEAD_SIZE
_FIRST_CAPACITY: int = 256 * 1024 if cython.compiled else 0  # plain Python appends to the bytearray
_KEPT_CAPACITY = 4 * 1024 * 1024


class BadPage(Exception):
    """The payload of a page cannot be decoded, although its checksum matches."""


class EpochBuffer:
    """The content of the open epoch, encoded for the log."""

    __slots__ = ("_capacity", "_data", "_last", "_spare", "size")

    def __init__(self) -> None:
        self._data = bytearray(_FIRST_CAPACITY)
        self._spare: bytearray | None = None
        self._capacity = len(self._data)
        self._last: Message | None = None  # of the last APPEND in this epoch
        self.size = 0

    def put_append(self, queue: int, entry: QueuedMessage, flags: int) -> None:
        """Encode APPEND; a further queue of the same message gets AGAIN, which refers to it."""
        message = entry.message
        if message is self._last:
            if entry.expires_ms != 0:
                flags |= _EXPIRY
            if message.has_deaths:
                flags |= _HAS_DEATHS
            self._put(_AGAIN.pack(AGAIN, queue, entry.position, flags) + _encode_fields(entry, flags))
            return
        self._last = message
        address_size = len(message.address) + len(message.blind_keys)
        header_size = len(message.header)
        body_size = len(message.body)
        flags = _flags_of(entry, flags)
        if cython.compiled:
            total = 5 + _RECORD_SIZE + fields_size(flags) + address_size + header_size + body_size
            at = self._reserve(total)
            at[0] = _APPEND
            at = _put_u32(at + 1, queue)
            _put_record(at, entry, flags)
            self.size += total
        else:
            self._put(
                _APPEND_HEAD.pack(APPEND, queue, entry.position, flags, address_size, header_size, body_size)
                + _encode_fields(entry, flags)
                + message.address
                + message.blind_keys
                + message.header
            )
            self._put(message.body)

    def put_forget(self, queue: int, position: int) -> None:
        if cython.compiled:
            at = self._reserve(13)
            at[0] = _FORGET_ONE
            at = _put_u32(at + 1, queue)
            _put_u64(at, position)
            self.size += 13
        else:
            self._put(_FORGET.pack(FORGET, queue, position))

    def put_forget_range(self, queue: int, first: int, last: int) -> None:
        self._put(_RANGE.pack(FORGET_RANGE, queue, first, last))

    def put_definition(self, is_define: bool, encoded: bytes) -> None:
        self._put(_DEFINITION.pack(DEFINE if is_define else UNDEFINE, len(encoded)) + encoded)

    def put_events(self, first: int, last: int, rows: bytes) -> None:
        self._put(_EVENTS.pack(EVENTS, first, last, len(rows)) + rows)

    def put_events_discarded(self, up_to: int) -> None:
        self._put(_EVENTS_DISCARDED.pack(EVENTS_DISCARDED, up_to))

    def put_seen(self, owner: int, id: bytes, number: int) -> None:
        """Encode an id that a queue or exchange has seen."""
        self._put(_SEEN_ONE.pack(SEEN, owner, SEEN_ADD, 1, id, number))

    def put_all_seen(self, owner: int, how: int, count: int, ids: bytes) -> None:
        """Encode `count` ids, given as `encode_ids` returns them (journal/ids_file.py)."""
        self._put(_SEEN.pack(SEEN, owner, how, count) + ids)

    def put_attempts(self, queue: int, position: int, attempts: int) -> None:
        """Encode that a message was requeued after this many deliveries."""
        self._put(_ATTEMPTS_RECORD.pack(ATTEMPTS, queue, position, attempts))

    def put_position(self, queue: int, next_position: int) -> None:
        """Encode that all positions of a queue below this one are used."""
        self._put(_POSITION_RECORD.pack(POSITION, queue, next_position))

    def put_offset(self, stream: int, position: int, tag: bytes) -> int:
        """Encode the offset of a tracked consumer, 0 to remove it; return the record's place for `move_offset`."""
        place = self.size
        self._put(_OFFSET_HEAD.pack(OFFSET, stream, position, len(tag)) + tag)
        return place

    def move_offset(self, place: int, position: int) -> None:
        """Overwrite an offset in the same epoch."""
        self._data[place + 5 : place + 13] = _U64.pack(position)

    def take(self) -> "bytes | memoryview":
        """Return everything since the last call, and start a new epoch. Pass it to `recycle` when it is written."""
        taken = memoryview(self._data)[: self.size]
        self._data = self._spare if self._spare is not None else bytearray(_FIRST_CAPACITY)
        self._spare = None
        self._capacity = len(self._data)
        self._last = None
        self.size = 0
        return taken

    def recycle(self, taken: "bytes | memoryview") -> None:
        """Reuse the memory of an epoch: fresh memory costs a page fault for every 4 KiB."""
        if cython.compiled and isinstance(taken, memoryview) and isinstance(taken.obj, bytearray):
            data = taken.obj
            taken.release()
            if len(data) <= _KEPT_CAPACITY:
                self._spare = data

    def _put(self, data: bytes) -> None:
        if cython.compiled:
            size = len(data)
            at = self._reserve(size)
            source: Pointer = data
            memcpy(at, source, size)
        else:
            self._data += data
        self.size += len(data)

    def _reserve(self, size: int) -> Pointer:
        """Return a pointer to `size` free bytes."""
        if self.size + size > self._capacity:
            grown = bytearray(max(2 * self._capacity, self.size + size))
            grown[: self.size] = self._data[: self.size]
            self._data = grown
            self._capacity = len(grown)
        at: Pointer = self._data
        return at + self.size


def encode_records(entries: list[QueuedMessage]) -> "bytes | bytearray":
    """Encode the payload of a page."""
    if cython.compiled:
        total = 0
        for entry in entries:
            message = entry.message
            total += _RECORD_SIZE + len(message.address) + len(message.blind_keys) + len(message.header)
            total += len(message.body)
            total += fields_size(_page_flags_of(entry))
        payload = bytearray(total)
        at: Pointer = payload
        for entry in entries:
            at = _put_record(at, entry, _page_flags_of(entry))
        return payload
    pieces: list[bytes] = []
    for entry in entries:
        message = entry.message
        sizes = len(message.address) + len(message.blind_keys), len(message.header), len(message.body)
        flags = _page_flags_of(entry)
        pieces.append(_RECORD.pack(entry.position, flags, *sizes))
        pieces += (_encode_fields(entry, flags), message.address, message.blind_keys, message.header, message.body)
    return b"".join(pieces)


def _flags_of(entry: QueuedMessage, flags: int) -> int:
    """Add the flags of the message's optional fields."""
    if entry.message.uid != 0:
        flags |= _TRACED
    elif entry.message.publish_time != 0:
        flags |= _PUBLISH_TIME
    if entry.expires_ms != 0:
        flags |= _EXPIRY
    if entry.message.has_deaths:
        flags |= _HAS_DEATHS
    return flags


def _page_flags_of(entry: QueuedMessage) -> int:
    flags = _flags_of(entry, _PERSISTENT if entry.epoch > 0 else 0)
    return flags | _ATTEMPTS if ended_attempts(entry) != 0 else flags


def fields_size(flags: int) -> int:
    """Return the size of the optional fields that the flags name (journal/record.py)."""
    size = 0
    if flags & _TRACED != 0:
        size += 24
    if flags & _PUBLISH_TIME != 0:
        size += 8
    if flags & _EXPIRY != 0:
        size += 8
    if flags & _ATTEMPTS != 0:
        size += 4
    return size


def encode_record_head(entry: QueuedMessage) -> bytes:
    """Encode a persistent message for a page, without its body."""
    message = entry.message
    flags = _flags_of(entry, _PERSISTENT)
    head = _RECORD.pack(entry.position, flags, len(message.address), len(message.header), len(message.body))
    return head + _encode_fields(entry, flags) + message.address + message.header


def decode_records(
    payload: bytes,
    above: int,
    first: int,
    dead: "bytearray | None",
    restored_below: int,
    only: "list[int] | None" = None,
) -> list[QueuedMessage]:
    """Decode the messages of a page after position `above` that are not marked dead; `only`: ascending positions to
    decode.

    Bit n of `dead` stands for position first + n. Messages from before the last start are marked as redelivered, since
    they may have been delivered; transient ones are skipped. Equal addresses and headers of adjacent messages are one
    object.
    """
    found: list[QueuedMessage] = []
    end = len(payload)
    offset = 0
    address = b""
    header = b""
    next_only = -1
    at_only = 0
    data: Pointer = payload
    while offset < end:
        if end - offset < _RECORD_SIZE:
            raise BadPage("a record is cut short")
        if cython.compiled:
            position = _get_u64(data + offset)
            flags = data[offset + 8]
            address_size = data[offset + 9] | data[offset + 10] << 8
            header_size = _get_u32(data + offset + 11)
            body_size = _get_u32(data + offset + 15)
        else:
            position, flags, address_size, header_size, body_size = _RECORD.unpack_from(payload, offset)
        offset += _RECORD_SIZE
        fields_at = offset
        offset += fields_size(flags)
        if end - offset < address_size + header_size + body_size:
            raise BadPage("a record is longer than its page")
        is_wanted = position > above and (flags & _PERSISTENT != 0 or position >= restored_below)
        if only is not None:
            while next_only < position and at_only < len(only):
                next_only = only[at_only]
                at_only += 1
            is_wanted = is_wanted and position == next_only
        if is_wanted and (dead is None or not _is_dead(dead, position - first)):
            header_at = offset + address_size
            body_at = header_at + header_size
            if cython.compiled:
                if address_size != len(address) or memcmp(data + offset, _pointer(address), address_size) != 0:
                    address = data[offset:header_at]
                if header_size != len(header) or memcmp(data + header_at, _pointer(header), header_size) != 0:
                    header = data[header_at:body_at]
                body = data[body_at : body_at + body_size]
            else:
                if payload[offset:header_at] != address:
                    address = payload[offset:header_at]
                if payload[header_at:body_at] != header:
                    header = payload[header_at:body_at]
                body = payload[body_at : body_at + body_size]
            entry = enqueue_as(restore_message(address, header, body), position)
            entry.epoch = 1 if flags & _PERSISTENT != 0 else -1
            entry.redelivered = position < restored_below
            if flags & _READ_FLAGS != 0:
                read_fields(payload, fields_at, flags, entry)
            found.append(entry)
        offset += address_size + header_size + body_size
    return found


def restore_message(address: bytes, header: bytes, body: bytes) -> Message:
    """Return a stored message: its address holds exchange, routing key, and the keys of BCC if it has any."""
    end = 2 + address[0] if len(address) > 1 else len(address)
    if end < len(address):
        end += address[end - 1]
    if end >= len(address):
        return make_message(address, header, body)
    message = make_message(address[:end], header, body)
    message.blind_keys = address[end:]
    return message


def find_living(
    payload: bytes, first: int, dead: "bytearray | None", restored_below: int
) -> tuple[list[bytes], int, int, int, int, int, int, int, int]:
    """Find the records of a page that are not marked dead, to be copied unchanged.

    Return them, adjacent ones joined; their count and how many are transient; first and last position; the bytes of all
    bodies and of the persistent ones; and their earliest and latest expiry as in `PageHead`. Other arguments: see
    `decode_records`.
    """
    found: list[bytes] = []
    end = len(payload)
    offset = 0
    start = 0  # of the current run of adjacent records
    count = 0
    transient = 0
    first_position = -1
    last_position = -1
    body_bytes = 0
    kept_bytes = 0
    earliest = 0
    latest = 0
    has_lasting = False  # a message that never expires
    data: Pointer = payload
    while offset < end:
        if end - offset < _RECORD_SIZE:
            raise BadPage("a record is cut short")
        if cython.compiled:
            position = _get_u64(data + offset)
            flags = data[offset + 8]
            address_size = data[offset + 9] | data[offset + 10] << 8
            header_size = _get_u32(data + offset + 11)
            body_size = _get_u32(data + offset + 15)
        else:
            position, flags, address_size, header_size, body_size = _RECORD.unpack_from(payload, offset)
        size = _RECORD_SIZE + fields_size(flags) + address_size + header_size + body_size
        if end - offset < size:
            raise BadPage("a record is longer than its page")
        is_kept = flags & _PERSISTENT != 0
        if (is_kept or position >= restored_below) and (dead is None or not _is_dead(dead, position - first)):
            if count == 0:
                first_position = position
            last_position = position
            count += 1
            body_bytes += body_size
            if is_kept:
                kept_bytes += body_size
            else:
                transient += 1
            if flags & _EXPIRY == 0:
                has_lasting = True
            else:
                expires_ms = _expiry_at(payload, offset, flags)
                if earliest == 0 or expires_ms < earliest:
                    earliest = expires_ms
                if expires_ms > latest:
                    latest = expires_ms
        else:
            if start < offset:
                found.append(payload[start:offset])
            start = offset + size
        offset += size
    if start < offset:
        found.append(payload[start:offset])
    if has_lasting:
        latest = 0
    return found, count, transient, first_position, last_position, body_bytes, kept_bytes, earliest, latest


def find_expiring(
    payload: bytes, above: int, first: int, dead: "bytearray | None", restored_below: int
) -> list[tuple[int, int, int]]:
    """Return position, expiry and body size of the messages of a page that expire; see `decode_records`."""
    found: list[tuple[int, int, int]] = []
    end = len(payload)
    offset = 0
    while offset < end:
        if end - offset < _RECORD_SIZE:
            raise BadPage("a record is cut short")
        position, flags, address_size, header_size, body_size = _RECORD.unpack_from(payload, offset)
        size = _RECORD_SIZE + fields_size(flags) + address_size + header_size + body_size
        if end - offset < size:
            raise BadPage("a record is longer than its page")
        is_wanted = position > above and (flags & _PERSISTENT != 0 or position >= restored_below)
        if is_wanted and flags & _EXPIRY != 0 and (dead is None or not _is_dead(dead, position - first)):
            found.append((position, _expiry_at(payload, offset, flags), body_size))
        offset += size
    return found


def _expiry_at(payload: bytes, offset: int, flags: int) -> int:
    """Return the expiry of the record at this offset, which has one."""
    at = offset + _RECORD_SIZE + fields_size(flags & (_TRACED | _PUBLISH_TIME))
    expires_ms: int = _U64.unpack_from(payload, at)[0]
    return expires_ms


def read_fields(data: bytes, offset: int, flags: int, entry: QueuedMessage) -> None:
    """Set the optional fields of a record on the message and its queue entry."""
    message = entry.message
    if flags & _HAS_DEATHS != 0:
        message.has_deaths = True
    if flags & _TRACED != 0:
        message.uid, message.publish_time, message.enqueue_time = _TRACE.unpack_from(data, offset)
        offset += 24
    if flags & _PUBLISH_TIME != 0:
        message.publish_time = _U64.unpack_from(data, offset)[0]
        offset += 8
    if flags & _EXPIRY != 0:
        entry.expires_ms = _U64.unpack_from(data, offset)[0]
        offset += 8
    if flags & _ATTEMPTS != 0:
        entry.attempts = _U32.unpack_from(data, offset)[0]
        entry.redelivered = True


def _encode_fields(entry: QueuedMessage, flags: int) -> bytes:
    message = entry.message
    fields = b""
    if flags & _TRACED != 0:
        fields = _TRACE.pack(message.uid, message.publish_time, message.enqueue_time)
    if flags & _PUBLISH_TIME != 0:
        fields += _U64.pack(message.publish_time)
    if flags & _EXPIRY != 0:
        fields += _U64.pack(entry.expires_ms)
    if flags & _ATTEMPTS != 0:
        fields += _U32.pack(ended_attempts(entry))
    return fields


def is_marked(marks: "bytes | bytearray | None", index: int) -> bool:
    """Return True if the bit is set; bits after the end are not."""
    return marks is not None and index >> 3 < len(marks) and marks[index >> 3] >> (index & 7) & 1 == 1


def _is_dead(dead: bytearray, index: int) -> bool:
    if index < 0 or index >> 3 >= len(dead):
        return False
    return dead[index >> 3] >> (index & 7) & 1 == 1


def _pointer(data: bytes) -> Pointer:
    at: Pointer = data
    return at


def _put_record(at: Pointer, entry: QueuedMessage, flags: int) -> Pointer:
    message = entry.message
    address: Pointer = message.address
    header: Pointer = message.header
    body: Pointer = message.body
    blind: Pointer = message.blind_keys
    blind_size = len(message.blind_keys)
    address_size = len(message.address) + blind_size
    header_size = len(message.header)
    body_size = len(message.body)
    at = _put_u64(at, entry.position)
    at[0] = flags
    at[1] = address_size & 255
    at[2] = address_size >> 8
    at = _put_u32(at + 3, header_size)
    at = _put_u32(at, body_size)
    if flags & _TRACED != 0:
        at = _put_u64(at, message.uid)
        at = _put_u64(at, message.publish_time)
        at = _put_u64(at, message.enqueue_time)
    if flags & _PUBLISH_TIME != 0:
        at = _put_u64(at, message.publish_time)
    if flags & _EXPIRY != 0:
        at = _put_u64(at, entry.expires_ms)
    if flags & _ATTEMPTS != 0:
        at = _put_u32(at, ended_attempts(entry))
    memcpy(at, address, address_size - blind_size)
    at += address_size - blind_size
    if blind_size != 0:
        memcpy(at, blind, blind_size)
        at += blind_size
    memcpy(at, header, header_size)
    at += header_size
    memcpy(at, body, body_size)
    return at + body_size


def _put_u32(at: Pointer, value: int) -> Pointer:
    at[0] = value & 255
    at[1] = value >> 8 & 255
    at[2] = value >> 16 & 255
    at[3] = value >> 24 & 255
    return at + 4


def _put_u64(at: Pointer, value: int) -> Pointer:
    _put_u32(at, value)  # low half; a 32-bit mask would be a Python object
    return _put_u32(at + 4, value >> 32)


def _get_u32(at: Pointer) -> int:
    return _as_u64(at[0] | at[1] << 8 | at[2] << 16) | _as_u64(at[3]) << 24


def _get_u64(at: Pointer) -> int:
    return _as_u64(_get_u32(at)) | _as_u64(_get_u32(at + 4)) << 32


def _as_u64(value: int) -> int:
    return value
