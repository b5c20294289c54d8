"""A fixed-size digest of any header value: the same in every process, unlike Python's hash()."""

from hashlib import blake2b
from typing import Any

DIGEST_SIZE = 16


def digest_of(value: Any) -> bytes:
    """Return 16 bytes for a value. Integers of any width are equal by value; values of two types never are."""
    if isinstance(value, str):
        data = b"S" + value.encode("utf-8", "surrogatepass")
    elif isinstance(value, (bytes, bytearray)):
        data = b"x" + value
    elif isinstance(value, bool):
        data = b"t%d" % value
    elif isinstance(value, int):
        data = b"I%d" % value
    else:
        data = b"o" + repr(value).encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=DIGEST_SIZE).digest()


def hash_of(value: Any) -> int:
    """Return 64 bits of the digest as an integer."""
    return int.from_bytes(digest_of(value)[:8], "little")
