"""The broker's own ids of messages, the ids that come with a message, and the hashes by which they are found.

A uid is 63 bits: 41 of milliseconds since 2020 (until 2089), 16 that count within the millisecond, 6 that name the
broker. So uids are unique, and ordered as the messages came. Its text has 13 characters that sort as the number does.

A `UidClock` belongs to the loop. Compiled when the package is built (ids.pxd).
"""

from typing import Any, TypeAlias

Pointer: TypeAlias = Any  # a const unsigned char * in compiled code

EPOCH_MS = 1_577_836_800_000  # 2020-01-01 UTC
NODES = 64
MAX_UID = (1 << 63) - 1

MESSAGE_ID_KEY = 2
CORRELATION_ID_KEY = 3
TRACE_ID_KEY = 4

GROUP_BITS = 12  # of a uid, which those of a group may differ in

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
    """Gives uids that only grow, whatever the clock does. `last` is the greatest one that was ever given."""

    __slots__ = ("last", "node")

    def __init__(self, last: int = 0, node: int = 0) -> None:
        if not 0 <= node < NODES:
            raise ValueError(f"the number of a broker is from 0 to {NODES - 1}, not {node}")
        self.last = last
        self.node = node

    def next(self, now_us: int) -> int:
        """The uid of a message that comes now (microseconds since 1970)."""
        counted = (self.last >> _NODE_BITS) + 1
        now_ms = now_us // 1000 - _EPOCH_MS
        if now_ms < _END_MS and now_ms << (_LOW_BITS - _NODE_BITS) > counted:
            counted = now_ms << (_LOW_BITS - _NODE_BITS)
        self.last = counted << _NODE_BITS | self.node
        return self.last


def uid_time_ms(uid: int) -> int:
    """When the uid was given, in milliseconds since 1970; later than that if the clock was set back then."""
    return (uid >> _LOW_BITS) + EPOCH_MS


def uid_text(uid: int) -> str:
    """As people see it."""
    return "".join([_ALPHABET[uid >> shift & 31] for shift in range(60, -1, -5)])


def parse_uid(text: str) -> int | None:
    """The uid that has this text, in letters of either case; None: no uid has."""
    if len(text) != _TEXT_SIZE:
        return None
    uid = 0
    for letter in text:
        value = _VALUES.get(letter)
        if value is None:
            return None
        uid = uid << 5 | value
    return uid if uid <= MAX_UID else None


def key_hash(space: int, octets: bytes) -> int:
    """64 bits that stand for an id in the index: FNV-1a over the space and the bytes, then mixed (docs/formats)."""
    return hash_bytes(space, octets, 0, len(octets))


def uid_key(uid: int) -> int:
    """What stands for a uid in the index: a group of up to 64 that were given one after the other in a millisecond.

    A busy broker so has a key for many messages, which the batch tells apart, and a quiet one has a key for each.
    """
    return uid >> GROUP_BITS


def hash_bytes(space: int, octets: Pointer, start: int, end: int) -> int:
    """As key_hash, of a part; the masks do nothing in C, where numbers have 64 bits."""
    value = (_FNV_BASIS ^ space) * _FNV_PRIME & _MASK
    for at in range(start, end):
        value = (value ^ octets[at]) * _FNV_PRIME & _MASK
    value = (value ^ value >> 33) * _MIX_1 & _MASK
    value = (value ^ value >> 33) * _MIX_2 & _MASK
    return value ^ value >> 33


_MASK = 0xFFFF_FFFF_FFFF_FFFF
_FNV_BASIS = 0xCBF2_9CE4_8422_2325
_FNV_PRIME = 0x0000_0100_0000_01B3
_MIX_1 = 0xFF51_AFD7_ED55_8CCD
_MIX_2 = 0xC4CE_B9FE_1A85_EC53

_HEX_DIGITS = frozenset(b"0123456789abcdef")


def parse_traceparent(octets: bytes) -> tuple[bytes, bytes] | None:
    """Trace id and parent id of a `traceparent` header, in hexadecimal (W3C Trace Context §3.2); None: it is none."""
    parts = octets.split(b"-")
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
