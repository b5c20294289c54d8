"""The part of FlatBuffers that the metadata of Arrow needs: writes and reads tables, strings and vectors.

A buffer is written from its end to its start, because references point forward. Offsets count from the end while
writing, and from the start while reading.
"""

import struct
from typing import Any

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_ALIGNMENT = 8


class Builder:
    """Add each part before the parts that refer to it; each call returns the offset of its part."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b""

    def string(self, text: str) -> int:
        data = text.encode()
        return self._put(_U32.pack(len(data)) + data + b"\0", 4)

    def refs(self, targets: list[int]) -> int:
        """A vector of references."""
        self._align(4 * len(targets) + 4, 4)
        first = len(self._tail) + 4 * len(targets)
        references = [first - 4 * number - target for number, target in enumerate(targets)]
        return self._put(struct.pack(f"<{1 + len(targets)}I", len(targets), *references), 4)

    def structs(self, count: int, data: bytes) -> int:
        """A vector of structs whose widest field has 8 bytes."""
        self._align(len(data), _ALIGNMENT)
        self._tail = data + self._tail
        return self._put(_U32.pack(count), 4)

    def table(self, *fields: tuple[int, str, int]) -> int:
        """Fields: (slot, format, value); the format is one of struct's, or "ref"."""
        # Sorted by width, each field is aligned after the 4 bytes at the start.
        widest_first = sorted(fields, key=_width_of, reverse=True)
        size = 4 + sum([_width_of(field) for field in fields])
        self._tail = bytes(-(len(self._tail) + size - 4) % _ALIGNMENT) + self._tail
        start = len(self._tail) + size
        offsets = [0] * (1 + max([slot for slot, _, _ in fields], default=-1))
        body = b""
        for slot, format_, value in widest_first:
            offsets[slot] = 4 + len(body)
            if format_ == "ref":
                body += _U32.pack(start - offsets[slot] - value)
            else:
                body += struct.pack("<" + format_, value)
        vtable = struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), size, *offsets)
        self._tail = vtable + _I32.pack(len(vtable)) + body + self._tail
        return start

    def finish(self, root: int) -> bytes:
        self._align(4, _ALIGNMENT)
        return _U32.pack(len(self._tail) + 4 - root) + self._tail

    def _put(self, data: bytes, alignment: int) -> int:
        self._align(len(data), alignment)
        self._tail = data + self._tail
        return len(self._tail)

    def _align(self, size: int, alignment: int) -> None:
        """Add padding so that the next part, of this size, begins aligned."""
        self._tail = bytes(-(len(self._tail) + size) % alignment) + self._tail


def _width_of(field: tuple[int, str, int]) -> int:
    return 4 if field[1] == "ref" else struct.calcsize(field[1])


class Table:
    """A table in a buffer. Damaged data raises struct.error or ValueError, or yields wrong numbers."""

    __slots__ = ("_at", "_data", "_vtable")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._vtable = at - self._unpack(_I32, at)

    @staticmethod
    def root(data: bytes, at: int) -> "Table":
        return Table(data, at + int(_U32.unpack_from(data, at)[0]))

    def number(self, slot: int, format_: str) -> int:
        """Return a number; 0 if it was left out, as a default may be."""
        at = self._field(slot)
        return self._unpack(struct.Struct("<" + format_), at) if at else 0

    def table(self, slot: int) -> "Table":
        return Table(self._data, self._target(slot))

    def structs(self, slot: int, fields: int) -> list[tuple[int, ...]]:
        """Return a vector of structs of `fields` int64 each."""
        at = self._target(slot)
        count = self._unpack(_U32, at)
        data = self._data[at + 4 : at + 4 + 8 * fields * count]
        return list(struct.iter_unpack(f"<{fields}q", data))

    def _target(self, slot: int) -> int:
        at = self._field(slot)
        if not at:
            raise ValueError(f"field {slot} of a table is missing")
        return at + self._unpack(_U32, at)

    def _field(self, slot: int) -> int:
        if 4 + 2 * slot >= self._unpack(_U16, self._vtable):
            return 0
        offset = self._unpack(_U16, self._vtable + 4 + 2 * slot)
        return self._at + offset if offset else 0

    def _unpack(self, number: struct.Struct, at: int) -> int:
        if at < 0:
            raise ValueError("a table is before its buffer")
        value: Any = number.unpack_from(self._data, at)[0]
        return int(value)
