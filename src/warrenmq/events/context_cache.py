# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True, infer_types=True
"""A cache from the objects an event concerns (address, queue or channel, consumer) to the number of its event context.

Building a context takes six names; the same few objects come again and again, so they are compared by memory address.
Owned by the owner of the rows. Compiled (context_cache.pxd).
"""

from typing import Any

from warrenmq.events import memory

# An entry is in its slot, one of 256, or in one of the next few.
_PROBES = 4
_ENTRIES = 256 + _PROBES - 1
_MIX = 0x9E37_79B9_7F4A_7C15  # its multiples differ in their high bits wherever the factors differ
_64_BITS = 0xFFFF_FFFF_FFFF_FFFF


class ContextCache:
    """`enqueue_context`: for the context found last, the one of the message's `enqueued` event; -1 if there is none."""

    __slots__ = ("_contexts", "_enqueue_contexts", "_keys", "_references", "enqueue_context")

    def __init__(self) -> None:
        self.enqueue_context = -1
        self.clear()

    def find(self, address: bytes, owner: object, consumer: object) -> int:
        """Return the number of the context added for these three objects, or -1."""
        first, second, third = memory.address_of(address), memory.address_of(owner), memory.address_of(consumer)
        slot = _slot_of(first, second, third)
        for probe in range(slot, slot + _PROBES):
            at = 3 * probe
            if self._keys[at + 1] == second and self._keys[at] == first and self._keys[at + 2] == third:
                self.enqueue_context = self._enqueue_contexts[probe]
                return self._contexts[probe]
        return -1

    def add(self, context: int, enqueue_context: int, address: bytes, owner: object, consumer: object) -> None:
        """Map these objects to the context. The caller makes sure that their names do not change."""
        first, second, third = memory.address_of(address), memory.address_of(owner), memory.address_of(consumer)
        slot = self._free_slot(_slot_of(first, second, third), context)
        at = 3 * slot
        self._keys[at] = first
        self._keys[at + 1] = second
        self._keys[at + 2] = third
        self._contexts[slot] = context
        self._enqueue_contexts[slot] = self.enqueue_context = enqueue_context
        self._references[slot] = (address, owner, consumer)

    def _free_slot(self, slot: int, context: int) -> int:
        """Return a free slot for an entry; if there is none, evict one of those it may be in."""
        for probe in range(slot, slot + _PROBES):
            if self._keys[3 * probe + 1] == 0:
                return probe
        return slot + context % _PROBES

    def clear(self) -> None:
        self._keys = [0 for _ in range(3 * _ENTRIES)]
        self._contexts = [0 for _ in range(_ENTRIES)]
        self._enqueue_contexts = [0 for _ in range(_ENTRIES)]
        self._references: list[Any] = [None] * _ENTRIES  # so that no address is reused by another object


def _slot_of(first: int, second: int, third: int) -> int:
    mixed = (first ^ second * 5 ^ third * 3) >> 4
    return (mixed * _MIX & _64_BITS) >> 56
