"""The part of FlatBuffers that the metadata of Arrow needs: writes tables, strings and vectors.

A buffer is written from its end to its start, because references point forward; offsets count from the end.
"""

import struct

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
