"""Little-endian numbers at any offset of a buffer, and pointers into buffers: for modules that run compiled or not.

This is the uncompiled form. Compiled modules cimport the same functions from memory.pxd: inline C, no bounds checks.
"""

import struct
from typing import Any, TypeAlias

Pointer: TypeAlias = Any  # in compiled code a C pointer, otherwise bytes, a bytearray or a memoryview

_I64 = struct.Struct("<q")
_U64 = struct.Struct("<Q")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I16 = struct.Struct("<h")


def load_i64(data: Pointer, at: int) -> int:
    return _I64.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def load_i32(data: Pointer, at: int) -> int:
    return _I32.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def load_u32(data: Pointer, at: int) -> int:
    return _U32.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def load_i16(data: Pointer, at: int) -> int:
    return _I16.unpack_from(data, at)[0]  # type: ignore[no-any-return]


def store_64(out: Pointer, at: int, value: int) -> None:
    """Store a signed or unsigned number."""
    _U64.pack_into(out, at, value & 0xFFFF_FFFF_FFFF_FFFF)


def store_32(out: Pointer, at: int, value: int) -> None:
    _U32.pack_into(out, at, value & 0xFFFF_FFFF)


def copy(out: Pointer, at: int, source: Pointer, source_at: int, size: int) -> None:
    out[at : at + size] = source[source_at : source_at + size]


def copy_array(out: Pointer, at: int, source: Any, size: int) -> None:
    """Copy the first bytes of an array of numbers."""
    out[at : at + size] = memoryview(source).cast("B")[:size]


def clear(out: Pointer, at: int, size: int) -> None:
    out[at : at + size] = bytes(size)


def equal(data: Pointer, at: int, other: Pointer, other_at: int, size: int) -> bool:
    return bool(data[at : at + size] == other[other_at : other_at + size])


def is_ascii(data: bytes) -> bool:
    return data.isascii()


def address_of(thing: object) -> int:
    return id(thing)


def new_bytes(size: int) -> Any:
    """Return a buffer to write to before anyone else sees it; in C it is not zeroed."""
    return bytearray(size)


def finished(data: Any) -> bytes:
    """Return such a buffer as bytes."""
    return bytes(data)


def pointer(data: "bytes | bytearray") -> Pointer:
    return data


def writable(data: Any) -> Pointer:
    """Return a pointer to a bytearray or a new buffer."""
    return data


def bytes_at(data: Pointer, at: int) -> Pointer:
    return memoryview(data)[at:]


def ints_at(data: Pointer, at: int) -> Pointer:
    return _view(data, at, 4).cast("i")


def shorts_at(data: Pointer, at: int) -> Pointer:
    return _view(data, at, 2).cast("h")


def _view(data: Pointer, at: int, width: int) -> memoryview:
    return memoryview(data)[at : at + (len(data) - at) // width * width]
