# cython: boundscheck=False, wraparound=False, annotation_typing=False
"""Strings, numbers and field tables, between bytes and Python values.

| byte             | on the wire                  | in Python                                   | written for      |
| ---------------- | ---------------------------- | ------------------------------------------- | ---------------- |
| t                | boolean                      | bool                                        | bool             |
| b B s u I i l L  | integers (L signed, as there)| int                                         | int: I, else l   |
| f d              | IEEE 754                     | float                                       | float: d         |
| D                | scale, signed 32-bit value   | Decimal                                     | Decimal          |
| S                | long string                  | str; LongString (bytes) where not UTF-8     | str, LongString  |
| x                | bytes                        | bytes                                       | bytes            |
| A F V            | array, table, nothing        | list, dict, None                            | the same, tuple  |
| T                | seconds since 1970, unsigned | datetime in UTC; Timestamp (int) beyond it  | datetime, Timestamp |

Invalid bytes raise MalformedValue; values that cannot be encoded raise LocalMisuse. Lengths are checked against the
available bytes before use, and nesting is limited to MAX_DEPTH.

Compiled when the package is built (values.pxd): indices are checked by `_require`, never by Python.
"""

from calendar import timegm
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from struct import Struct
from typing import Any

from warrenmq.protocol import big_endian
from warrenmq.protocol.errors import LocalMisuse, MalformedText, MalformedValue

MAX_DEPTH = 100

_ARRAY = 0x41  # A
_UNSIGNED_BYTE = 0x42  # B
_DECIMAL = 0x44  # D
_TABLE = 0x46  # F
_INT = 0x49  # I
_LONG_UPPER = 0x4C  # L
_STRING = 0x53  # S
_TIMESTAMP = 0x54  # T
_VOID = 0x56  # V
_BYTE = 0x62  # b
_DOUBLE = 0x64  # d
_FLOAT = 0x66  # f
_UNSIGNED_INT = 0x69  # i
_LONG = 0x6C  # l
_SHORT = 0x73  # s
_BOOLEAN = 0x74  # t
_UNSIGNED_SHORT = 0x75  # u
_BYTES = 0x78  # x

_LAST_DATETIME = 253402300799  # 9999-12-31T23:59:59Z

_LENGTH_BYTES = tuple(bytes((length,)) for length in range(256))

_unpack_float = Struct(">f").unpack_from
_unpack_double = Struct(">d").unpack_from
_pack_length = Struct(">I").pack
_pack_int = Struct(">Bi").pack
_pack_long = Struct(">Bq").pack
_pack_double = Struct(">Bd").pack
_pack_decimal = Struct(">BBi").pack
_pack_tagged_length = Struct(">BI").pack
_pack_timestamp = Struct(">Q").pack


class Timestamp(int):
    """Seconds since 1970 beyond the range of datetime. Encoded as a timestamp again."""

    __slots__ = ()


class LongString(bytes):
    """A long string that is not UTF-8. Encoded as a long string again."""

    __slots__ = ()


class ValueReader:
    """Reads values from a position in some bytes, never beyond `end`."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        if position < 0 or position > end or end > len(data):
            raise MalformedValue("a value reaches beyond its frame")
        self.data = data
        self.position = position
        self.end = end

    def read_octet(self) -> int:
        self._require(1)
        position = self.position
        self.position = position + 1
        return self.data[position]

    def read_short(self) -> int:
        self._require(2)
        data, position = self.data, self.position
        self.position = position + 2
        return big_endian.load_u16(data, position)

    def read_long(self) -> int:
        self._require(4)
        data, position = self.data, self.position
        self.position = position + 4
        return big_endian.load_u32(data, position)

    def read_longlong(self) -> int:
        high = self.read_long()
        return high << 32 | self.read_long()

    def read_bytes(self, count: int) -> bytes:
        start = self._advance(count)
        return self.data[start : self.position]

    def read_shortstr(self) -> str:
        """Read a short string argument of a method; raise MalformedText if it is not UTF-8."""
        start = self._advance(self.read_octet())
        try:
            return self.data[start : self.position].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedText from None

    def read_label(self) -> str:
        """Read a table key or property; bytes that are not UTF-8 become escapes."""
        start = self._advance(self.read_octet())
        return self.data[start : self.position].decode("utf-8", "backslashreplace")

    def read_longstr(self) -> bytes:
        return self.read_bytes(self.read_long())

    def read_timestamp(self) -> datetime | Timestamp:
        seconds = self.read_longlong()
        if seconds > _LAST_DATETIME:
            return Timestamp(seconds)
        return datetime.fromtimestamp(seconds, UTC)

    def read_table(self) -> dict[str, Any]:
        return self._read_table(0)

    def read_value(self) -> Any:
        """Read a type byte and its value."""
        return self._read_value(0)

    def skip_shortstr(self) -> None:
        self._advance(self.read_octet())

    def skip_table(self) -> None:
        """Check the structure of a table without creating values."""
        self._skip_table(0)

    def skip_value(self) -> None:
        self._skip_value(0)

    def _require(self, count: int) -> None:
        if count < 0 or self.end - self.position < count:
            raise MalformedValue(f"{count} bytes announced, {self.end - self.position} there")

    def _advance(self, count: int) -> int:
        """Skip `count` bytes; return their start."""
        self._require(count)
        start = self.position
        self.position = start + count
        return start

    def _enter(self, depth: int) -> int:
        """Read the length of a table or array; return its end."""
        if depth >= MAX_DEPTH:
            raise MalformedValue(f"tables nested more than {MAX_DEPTH} deep")
        length = self.read_long()
        self._require(length)
        return self.position + length

    def _read_table(self, depth: int) -> dict[str, Any]:
        outer = self.end
        self.end = self._enter(depth)
        table = {}
        while self.position < self.end:
            key = self.read_label()
            table[key] = self._read_value(depth + 1)
        self.end = outer
        return table

    def _read_array(self, depth: int) -> list[Any]:
        outer = self.end
        self.end = self._enter(depth)
        array = []
        while self.position < self.end:
            array.append(self._read_value(depth + 1))
        self.end = outer
        return array

    def _read_value(self, depth: int) -> Any:
        kind = self.read_octet()
        if kind == _STRING:
            start = self._advance(self.read_long())
            try:
                return self.data[start : self.position].decode("utf-8")
            except UnicodeDecodeError:
                return LongString(self.data[start : self.position])
        if kind == _INT:
            number = self.read_long()
            return number - 0x1_0000_0000 if number >= 0x8000_0000 else number
        if kind == _BOOLEAN:
            return self.read_octet() != 0
        if kind in (_LONG, _LONG_UPPER):
            return int.from_bytes(self.read_bytes(8), "big", signed=True)
        if kind == _VOID:
            return None
        if kind == _TABLE:
            return self._read_table(depth)
        if kind == _ARRAY:
            return self._read_array(depth)
        if kind == _TIMESTAMP:
            return self.read_timestamp()
        if kind == _DOUBLE:
            return _unpack_double(self.read_bytes(8))[0]
        if kind == _BYTES:
            return self.read_longstr()
        return self._read_rare_value(kind)

    def _read_rare_value(self, kind: int) -> Any:
        if kind == _BYTE:
            number = self.read_octet()
            return number - 0x100 if number >= 0x80 else number
        if kind == _UNSIGNED_BYTE:
            return self.read_octet()
        if kind == _SHORT:
            number = self.read_short()
            return number - 0x1_0000 if number >= 0x8000 else number
        if kind == _UNSIGNED_SHORT:
            return self.read_short()
        if kind == _UNSIGNED_INT:
            return self.read_long()
        if kind == _FLOAT:
            return _unpack_float(self.read_bytes(4))[0]
        if kind == _DECIMAL:
            scale = self.read_octet()
            unscaled = int.from_bytes(self.read_bytes(4), "big", signed=True)
            # From its digits, because arithmetic would round to the caller's decimal context.
            return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
        raise MalformedValue(f"no field type has the byte {kind:#04x}")

    def _skip_table(self, depth: int) -> None:
        outer = self.end
        self.end = self._enter(depth)
        while self.position < self.end:
            self._advance(self.read_octet())
            self._skip_value(depth + 1)
        self.end = outer

    def _skip_array(self, depth: int) -> None:
        outer = self.end
        self.end = self._enter(depth)
        while self.position < self.end:
            self._skip_value(depth + 1)
        self.end = outer

    def _skip_value(self, depth: int) -> None:
        kind = self.read_octet()
        if kind in (_STRING, _BYTES):
            self._advance(self.read_long())
        elif kind == _TABLE:
            self._skip_table(depth)
        elif kind == _ARRAY:
            self._skip_array(depth)
        else:
            self._advance(_fixed_width(kind))


def _fixed_width(kind: int) -> int:
    """Return the size of a value of a fixed-size type."""
    if kind in (_INT, _UNSIGNED_INT, _FLOAT):
        return 4
    if kind in (_BOOLEAN, _BYTE, _UNSIGNED_BYTE):
        return 1
    if kind in (_LONG, _LONG_UPPER, _DOUBLE, _TIMESTAMP):
        return 8
    if kind in (_SHORT, _UNSIGNED_SHORT):
        return 2
    if kind == _DECIMAL:
        return 5
    if kind == _VOID:
        return 0
    raise MalformedValue(f"no field type has the byte {kind:#04x}")


def decode_table(data: bytes, offset: int, end: int) -> tuple[dict[str, Any], int]:
    """Return the table at the offset, which begins with its length, and its end."""
    reader = ValueReader(data, offset, end)
    return reader.read_table(), reader.position


def decode_value(data: bytes, offset: int, end: int) -> tuple[Any, int]:
    """Return the value at the offset, which begins with its type byte, and its end."""
    reader = ValueReader(data, offset, end)
    return reader.read_value(), reader.position


def decode_shortstr(data: bytes, offset: int, end: int) -> tuple[str, int]:
    reader = ValueReader(data, offset, end)
    return reader.read_shortstr(), reader.position


def decode_longstr(data: bytes, offset: int, end: int) -> tuple[bytes, int]:
    reader = ValueReader(data, offset, end)
    return reader.read_longstr(), reader.position


def decode_timestamp(data: bytes, offset: int, end: int) -> tuple[datetime | Timestamp, int]:
    reader = ValueReader(data, offset, end)
    return reader.read_timestamp(), reader.position


def encode_table(table: Mapping[str, Any]) -> bytes:
    """Encode the table, with its length, in the order of its keys."""
    out = bytearray()
    _write_table(out, table, 0)
    return bytes(out)


def encode_value(value: Any) -> bytes:
    """Encode the value with its type byte."""
    out = bytearray()
    _write_value(out, value, 0)
    return bytes(out)


def encode_shortstr(text: str) -> bytes:
    data = _encode_short(text)
    return _LENGTH_BYTES[len(data)] + data


def encode_longstr(data: bytes) -> bytes:
    return _pack_length(len(data)) + data


def encode_timestamp(moment: datetime | int) -> bytes:
    """Encode whole seconds since 1970; a datetime without a zone counts as UTC, as in other clients."""
    if isinstance(moment, datetime):
        try:
            seconds = timegm(moment.utctimetuple())
        except OverflowError:
            raise LocalMisuse(f"{moment} is out of the calendar in UTC") from None
    else:
        seconds = moment
    if not 0 <= seconds <= 0xFFFF_FFFF_FFFF_FFFF:
        raise LocalMisuse(f"a timestamp cannot be {moment}")
    return _pack_timestamp(seconds)


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise LocalMisuse(f"{text[:40]!r} cannot be written as UTF-8") from None


def _encode_short(text: str) -> bytes:
    data = _encode_text(text)
    if len(data) > 255:
        raise LocalMisuse(f"a short string holds 255 bytes, not {len(data)}: {text[:40]!r}...")
    return data


def _write_table(out: bytearray, table: Mapping[str, Any], depth: int) -> None:
    start = _open_length(out, depth)
    for key, value in table.items():
        if not isinstance(key, str):
            raise LocalMisuse(f"a table key is a str, not {type(key).__name__}")
        data = _encode_short(key)
        out.append(len(data))
        out += data
        _write_value(out, value, depth + 1)
    out[start : start + 4] = _pack_length(len(out) - start - 4)


def _write_array(out: bytearray, array: list[Any] | tuple[Any, ...], depth: int) -> None:
    start = _open_length(out, depth)
    for value in array:
        _write_value(out, value, depth + 1)
    out[start : start + 4] = _pack_length(len(out) - start - 4)


def _open_length(out: bytearray, depth: int) -> int:
    """Append a placeholder for a length; return its position."""
    if depth >= MAX_DEPTH:
        raise LocalMisuse(f"tables nested more than {MAX_DEPTH} deep")
    start = len(out)
    out += b"\0\0\0\0"
    return start


def _write_value(out: bytearray, value: Any, depth: int) -> None:
    if isinstance(value, str):
        _write_bytes(out, _STRING, _encode_text(value))
    elif value is None:
        out.append(_VOID)
    elif isinstance(value, bool):
        out.append(_BOOLEAN)
        out.append(1 if value else 0)
    elif isinstance(value, Timestamp):
        out.append(_TIMESTAMP)
        out += encode_timestamp(value)
    elif isinstance(value, int):
        _write_int(out, value)
    elif isinstance(value, float):
        out += _pack_double(_DOUBLE, value)
    elif isinstance(value, LongString):
        _write_bytes(out, _STRING, value)
    elif isinstance(value, bytes | bytearray):
        _write_bytes(out, _BYTES, value)
    elif isinstance(value, dict):
        out.append(_TABLE)
        _write_table(out, value, depth)
    elif isinstance(value, list | tuple):
        out.append(_ARRAY)
        _write_array(out, value, depth)
    elif isinstance(value, datetime):
        out.append(_TIMESTAMP)
        out += encode_timestamp(value)
    elif isinstance(value, Decimal):
        _write_decimal(out, value)
    else:
        raise LocalMisuse(f"a table cannot hold a value of type {type(value).__name__}")


def _write_bytes(out: bytearray, kind: int, data: bytes | bytearray) -> None:
    out += _pack_tagged_length(kind, len(data))
    out += data


def _write_int(out: bytearray, value: int) -> None:
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        out += _pack_int(_INT, value)
    elif -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
        out += _pack_long(_LONG, value)
    else:
        raise LocalMisuse(f"an integer of {value.bit_length()} bits; a table holds 64")


def _write_decimal(out: bytearray, value: Decimal) -> None:
    sign, digits, exponent = value.as_tuple()
    # Compare before computing the power: an exponent may be huge.
    if isinstance(exponent, int) and -255 <= exponent <= 9 and len(digits) <= 10:
        unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
        if sign:
            unscaled = -unscaled
        if -0x8000_0000 <= unscaled <= 0x7FFF_FFFF:
            out += _pack_decimal(_DECIMAL, max(-exponent, 0), unscaled)
            return
    raise LocalMisuse(f"{value} does not fit 32 bits and 255 decimal places")
