"""Big-endian loads and stores.

Not compiled: this is what uncompiled modules call. Compiled ones inline the C functions of big_endian.pxd, which have
the same names; so callers need one body only. They import the module, not its functions, as Cython requires.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, cast

# Type, channel, payload size.
load_frame_head = cast(Callable[[bytes, int], tuple[int, int, int]], Struct(">BHI").unpack_from)
# A frame head, then class and weight, body size.
load_header_start = cast(Callable[[bytes, int], tuple[int, int, int, int, int]], Struct(">BHIIQ").unpack_from)


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
