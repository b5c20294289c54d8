# cython: infer_types=True
"""The broker's own ids of messages (uids), the ids in a `traceparent`, and the hashes to find messages by id.

A uid is 63 bits: 41 of milliseconds since 2020 (until 2089), 16 of a counter within the millisecond, 6 that name the
broker. So uids are unique, and ordered by publish. Their text has 13 characters that sort as the numbers do.

A `UidClock` belongs to the event loop. Compiled (ids.pxd).
"""

from typing import Any, TypeAlias

Pointer: TypeAlias = Any  # a const unsigned char * in compiled code

EPOCH_MS = 1_577_836_800_000  # 2020-01-01 UTC
NODES = 64  # brokers that can be named
MAX_UID = (1 << 63) - 1

MESSAGE_ID_KEY = 2
CORRELATION_ID_KEY = 3
TRACE_ID_KEY = 4

GROUP_BITS = 12  # the low bits, in which uids of a group differ

_EPOCH_MS = EPOCH_MS  # the same as C integers
_END_MS = 1 << 41
_NODE_BITS = 6
_LOW_BITS = 22

# Crockford's base 32: no letter that looks like a digit or another letter, and in the order of ASCII.
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)} | {
    letter.lower(): value for value, letter in enumerate(_ALPHABET)
}
_TEXT_SIZE = 13


class UidClock:
    """Assigns uids that only grow, even if the clock is set back. `last` is the max so far."""

    __slots__ = ("last", "node")

    def __init__(self, last: int = 0, node: int = 0) -> None:
        if not 0 <= node < NODES:
            raise ValueError(f"the number of a broker is from 0 to {NODES - 1}, not {node}")
        self.last = last
        self.node = node

    def next(self, now_us: int) -> int:
        """Return the uid of a message published now (microseconds since 1970)."""
        counted = (self.last >> _NODE_BITS) + 1
        now_ms = now_us // 1000 - _EPOCH_MS
        if now_ms < _END_MS and now_ms << (_LOW_BITS - _NODE_BITS) > counted:
            counted = now_ms << (_LOW_BITS - _NODE_BITS)
        self.last = counted << _NODE_BITS | self.node
        return self.last


def uid_text(uid: int) -> str:
    """Return the uid as shown to people."""
    return "".join([_ALPHABET[uid >> shift & 31] for shift in range(60, -1, -5)])


def parse_uid(text: str) -> int | None:
    """Return the uid of this text, in letters of either case; None if it is not a uid."""
    if len(text) != _TEXT_SIZE:
        return None
    uid = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            return None
        uid = uid << 5 | value
    return uid if uid <= MAX_UID else None


def key_hash(space: int, data: bytes) -> int:
    """Return the key of an id in the index, 64 bits: FNV-1a over the space and the bytes, then mixed (docs/formats)."""
    return hash_bytes(space, data, 0, len(data))


def uid_key(uid: int) -> int:
    """Return the key of a uid in the index, which up to 64 consecutive uids of a millisecond share.

    So a busy broker has one key for many messages, which the batch distinguishes; an idle one has a key for each.
    """
    return uid >> GROUP_BITS


def hash_bytes(space: int, data: Pointer, start: int, end: int) -> int:
    """Return the key of a part of the bytes. The masks do nothing in C, where numbers have 64 bits."""
    value = (_FNV_BASIS ^ space) * _FNV_PRIME & _MASK
    for at in range(start, end):
        value = (value ^ data[at]) * _FNV_PRIME & _MASK
    value = (value ^ value >> 33) * _MIX_1 & _MASK
    value = (value ^ value >> 33) * _MIX_2 & _MASK
    return value ^ value >> 33


_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FNV_BASIS = 0xCBF2_9CE4_8422_2325
_FNV_PRIME = 0x0000_0100_0000_01B3
_MIX_1 = 0xFF51_AFD7_ED55_8CCD
_MIX_2 = 0xC4CE_B9FE_1A85_EC53

_HEX_DIGITS = frozenset(b"0123456789abcdef")


def parse_traceparent(header: bytes) -> tuple[bytes, bytes] | None:
    """Return trace id and parent id of a `traceparent` header (W3C Trace Context §3.2); None if it is invalid."""
    parts = header.split(b"-")
    if len(parts) < 4 or [len(part) for part in parts[:4]] != [2, 32, 16, 2]:
        return None
    version, trace_id, parent_id, _ = parts[:4]
    if version == b"ff" or (version == b"00" and len(parts) != 4):
        return None
    if not _HEX_DIGITS.issuperset(b"".join(parts[:4])):
        return None
    if trace_id == b"0" * 32 or parent_id == b"0" * 16:
        return None
    return trace_id, parent_id
