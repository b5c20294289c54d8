"""The durability of confirmed messages: a setting of the broker, and `x-durability` of a queue."""

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
    """`fsync`: confirmed messages are on disk. `interval`, `os`: confirmed messages are written to the file, and synced
    within the interval, or by the operating system."""

    mode: str = FSYNC
    interval_ms: int | None = None


def parse_durability(text: str) -> Durability:
    """Parse a durability; ValueError if it is invalid."""
    if text in (FSYNC, OS):
        return Durability(text)
    match = _INTERVAL.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= 60_000:
        raise ValueError(f"expected {EXPECTED}")
    return Durability(INTERVAL, int(match[1]))
