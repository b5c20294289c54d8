"""Waits for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 60.0


def wait_until(holds: Callable[[], bool], what: str = "it") -> None:
    """Ask again and again until it holds; fail after a time that no healthy run takes."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen within {LIMIT} s"
        time.sleep(0.01)
