# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Sorts the keys of a batch, and those of a run of the index, without holding the interpreter lock.

A stable radix sort by bytes, least significant first; equal keys stay in the order of their batches. Python's sort
would hold the interpreter for a third of a second per million keys, and for 3 ms per batch.

Compiled when the package is built (keys.pxd).
"""

from array import array
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memset

from warrenmq.events import memory
from warrenmq.events.batch import EventBatch, uid_keys

Pointer: TypeAlias = Any


def keys_of(batch: EventBatch) -> "array[int]":
    """As `EventBatch.key_hashes`."""
    hashes = bytearray(8 * batch.max_keys())
    size = batch.hash_keys(hashes)
    del hashes[size:]
    return _distinct(hashes)


def keys_of_uids(data: bytes, offset: int, count: int) -> "array[int]":
    """Return the keys of a batch whose messages have only uids, `count` of them at this offset."""
    return _distinct(uid_keys(data, offset, count))


def _distinct(hashes: bytearray) -> "array[int]":
    """Return the hashes sorted, each once."""
    if not cython.compiled:
        return array("Q", sorted(set(array("Q", bytes(hashes)))))
    sort_keys(hashes, bytearray(len(hashes) // 2))
    del hashes[8 * _drop_equal(hashes) :]
    return array("Q", bytes(hashes))


def sort_keys(hashes: bytearray, numbers: bytearray) -> None:
    """Sort hashes (8 bytes each, little endian) together with their numbers (4 bytes each), in place."""
    if len(hashes) // 8 != len(numbers) // 4:
        raise ValueError("each hash needs a number")
    if cython.compiled:
        _sort(hashes, numbers, bytearray(len(hashes)), bytearray(len(numbers)))
    else:
        pairs = sorted(zip(array("Q", bytes(hashes)), array("I", bytes(numbers)), strict=True), key=_hash_of)
        hashes[:] = array("Q", [pair[0] for pair in pairs]).tobytes()
        numbers[:] = array("I", [pair[1] for pair in pairs]).tobytes()


def _hash_of(pair: tuple[int, int]) -> int:
    return pair[0]


def _sort(hashes: bytearray, numbers: bytearray, spare_hashes: bytearray, spare_numbers: bytearray) -> None:
    own, own_numbers = _longs(hashes), _ints(numbers)
    other, other_numbers = _longs(spare_hashes), _ints(spare_numbers)
    count = len(hashes) // 8
    with cython.nogil:
        for shift in range(0, 64, 16):
            _pass(own, own_numbers, other, other_numbers, count, shift)
            _pass(other, other_numbers, own, own_numbers, count, shift + 8)


def _pass(
    from_hashes: Pointer, from_numbers: Pointer, to_hashes: Pointer, to_numbers: Pointer, count: int, shift: int
) -> None:
    """Sort by one byte of the hashes."""
    memset(offsets, 0, 256 * 8)  # type: ignore[name-defined]  # noqa: F821  # an array of C, declared in keys.pxd
    for at in range(count):
        offsets[from_hashes[at] >> shift & 255] += 1  # type: ignore[name-defined]  # noqa: F821
    end = count
    for byte in range(255, -1, -1):
        end -= offsets[byte]  # type: ignore[name-defined]  # noqa: F821
        offsets[byte] = end  # type: ignore[name-defined]  # noqa: F821
    for at in range(count):
        target = offsets[from_hashes[at] >> shift & 255]  # type: ignore[name-defined]  # noqa: F821
        offsets[from_hashes[at] >> shift & 255] = target + 1  # type: ignore[name-defined]  # noqa: F821
        to_hashes[target] = from_hashes[at]
        to_numbers[target] = from_numbers[at]


def _drop_equal(hashes: bytearray) -> int:
    """Move distinct hashes to the beginning; return their number."""
    kept = _longs(hashes)
    count = len(hashes) // 8
    target = 0
    for at in range(count):
        if at == 0 or kept[at] != kept[target - 1]:
            kept[target] = kept[at]
            target += 1
    return target


def _longs(data: bytearray) -> Pointer:
    return cython.cast(cython.pointer(cython.ulonglong), memory.writable(data))


def _ints(data: bytearray) -> Pointer:
    return cython.cast(cython.pointer(cython.uint), memory.writable(data))
