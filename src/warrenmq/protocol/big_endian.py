"""Big-endian loads and stores.

Not compiled: this is what uncompiled modules call. Compiled ones inline the C functions of big_endian.pxd, which have
the same names; so callers need one body only. They import the module, not its functions, as Cython requires.
"""

from typing import Any


def load_u16(data: bytes, offset: int) -> int:
    return data[offset] << 8 | data[offset + 1]


def load_u32(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "big")


def load_u64(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 8], "big")


# Stores write through a pointer and return the one after: C only.
store_bytes: Any
store_frame_head: Any
store_u32: Any
store_u64: Any
