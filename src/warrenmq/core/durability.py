"""How safe a confirmed message is: chosen for the broker, and for a queue by its argument `x-durability`."""

from __future__ import annotations

import re
from dataclasses import dataclass

FSYNC = "fsync"
INTERVAL = "interval"
OS = "os"

EXPECTED = '"fsync", "interval=MS" (milliseconds from 1 to 60000) or "os"'
_INTERVAL = re.compile(r"interval=(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Durability:
    """`fsync`: a confirm means on the disk. `interval`, `os`: a confirm means written, and the disk has it within the
    interval, or when the operating system thinks fit."""

    mode: str = FSYNC
    interval_ms: int | None = None


def parse_durability(text: str) -> Durability:
    """Read what a person wrote; ValueError if it is none of the three."""
    if text in (FSYNC, OS):
        return Durability(text)
    match = _INTERVAL.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= 60_000:
        raise ValueError(f"expected {EXPECTED}")
    return Durability(INTERVAL, int(match[1]))
