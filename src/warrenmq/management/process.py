"""Figures of this process from the operating system."""

from __future__ import annotations

import os


def resident_bytes() -> int | None:
    """Return the resident memory of the process; None without /proc."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
