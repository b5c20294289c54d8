"""Named points at which a test may end the process, as kill -9 would.

Storage code calls `reach(name)` where a crash would hurt most. Nothing happens unless `arm` was called, which only
tests do: directly, or through a broker's environment (`WARREN_TEST_CRASH_AT`, read by `warren serve`).
docs/durability.md lists the points and what must hold at each.

Owned by the process: at most one armed point. Several threads may reach it; the first one counts.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

POINTS = frozenset(
    {
        "log.after_write",
        "log.after_sync",
        "log.mid_roll",
        "segment.after_write",
        "segment.before_remove",
        "checkpoint.after_sync",
        "checkpoint.before_trim",
        "compaction.mid",
        "compaction.before_rename",
        "compaction.after_rename",
        "compaction.mid_removal",
        "transaction.mid",
        "migration.mid",
        "stop.mid",
    }
)

_armed: str | None = None
_passes_left = 0
_crash: Callable[[], None] | None = None


def reach(name: str) -> None:
    """Crash here if this point is armed."""
    if _armed is not None and name == _armed:
        _count_down()


def is_armed(name: str) -> bool:
    """Return True if this point is armed."""
    return _armed == name


def is_any_armed() -> bool:
    return _armed is not None


def arm(name: str, count: int = 1, crash: Callable[[], None] | None = None) -> None:
    """Crash when this point is reached for the `count`-th time; `crash` replaces kill -9."""
    global _armed, _passes_left, _crash
    if name not in POINTS:
        raise ValueError(f"no crash point is called {name!r}; there are {', '.join(sorted(POINTS))}")
    if count < 1:
        raise ValueError(f"a crash point is reached for the first time at 1, not {count}")
    _passes_left, _crash, _armed = count, crash, name


def arm_from(text: str) -> None:
    """Arm by `name` or `name:count`, from the environment variable; an empty text arms nothing."""
    if text:
        name, _, count = text.partition(":")
        arm(name, int(count or 1))


def disarm() -> None:
    global _armed
    _armed = None


def _count_down() -> None:
    global _passes_left
    _passes_left -= 1
    if _passes_left == 0:
        (_crash or _kill)()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
