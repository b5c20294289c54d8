# cython: boundscheck=False, wraparound=False, nonecheck=False, cdivision=True
"""Finds the scene of an event by the objects that it is of: address, queue or channel, consumer.

To make up a scene takes six names; the same few objects come again and again, and where they lie in memory is enough to
know them by. Owned by whoever owns the rows. One of the files that know whether they are compiled
(docs/decisions/0002), in the function at the end. Compiled when the package is built (scene_finder.pxd).
"""

from typing import Any

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

# A scene has a slot, of 256, and may stand in the next few as well.
_PROBES = 4
_PLACES = 256 + _PROBES - 1
_MIX = 0x9E37_79B9_7F4A_7C15  # its multiples differ in their high bits wherever the factors differ
_64_BITS = 0xFFFF_FFFF_FFFF_FFFF


class SceneFinder:
    """`before` belongs to the scene that was found last: the one in which the message had come to that place."""

    __slots__ = ("_befores", "_held", "_numbers", "_places", "before")

    def __init__(self) -> None:
        self.before = -1
        self.clear()

    def find(self, address: bytes, one: object, other: object) -> int:
        """The number of the scene that was noted for these three objects; -1: there is none."""
        first, second, third = _place_of(address), _place_of(one), _place_of(other)
        slot = _slot_of(first, second, third)
        for probe in range(slot, slot + _PROBES):
            at = 3 * probe
            if self._places[at + 1] == second and self._places[at] == first and self._places[at + 2] == third:
                self.before = self._befores[probe]
                return self._numbers[probe]
        return -1

    def note(self, scene: int, before: int, address: bytes, one: object, other: object) -> None:
        """Let it be found by these objects from now on; that they stay what they are is up to the caller."""
        first, second, third = _place_of(address), _place_of(one), _place_of(other)
        slot = self._free_slot(_slot_of(first, second, third), scene)
        at = 3 * slot
        self._places[at] = first
        self._places[at + 1] = second
        self._places[at + 2] = third
        self._numbers[slot] = scene
        self._befores[slot] = self.before = before
        self._held[slot] = (address, one, other)

    def _free_slot(self, slot: int, scene: int) -> int:
        """One of those where a scene of this slot is looked for; if none is free another goes, now this, now that."""
        for probe in range(slot, slot + _PROBES):
            if self._places[3 * probe + 1] == 0:
                return probe
        return slot + scene % _PROBES

    def clear(self) -> None:
        if not cython.compiled:  # arrays of C have their places already
            self._places: list[int] = [0] * (3 * _PLACES)
            self._numbers: list[int] = [0] * _PLACES
            self._befores: list[int] = [0] * _PLACES
        for at in range(3 * _PLACES):
            self._places[at] = 0
        self._held: list[Any] = [None] * _PLACES  # so that the place of an object is not another one's meanwhile


def _slot_of(first: int, second: int, third: int) -> int:
    """By the places of three objects in memory."""
    mixed = (first ^ second * 5 ^ third * 3) >> 4
    return (mixed * _MIX & _64_BITS) >> 56


def _place_of(thing: object) -> int:
    if cython.compiled:
        return cython.cast(cython.size_t, cython.cast(cython.p_void, thing))  # type: ignore[no-any-return]
    else:
        return id(thing)
