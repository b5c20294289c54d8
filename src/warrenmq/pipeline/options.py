"""What the analysis is told: lengths of windows, how many rows are kept, when something counts as unusual.

A value, checked when it is made; it travels to executors. Answers of batch and follow agree if their settings do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}
_INTERVAL = re.compile(r"(\d+) (millisecond|second|minute|hour)s?")
_LONGEST_WINDOW = 3600.0  # depth_last packs the time within a window and the depth into 63 bits (facts.py)


@dataclass(frozen=True, slots=True)
class Settings:
    """Lengths of time are texts that Spark understands ("10 seconds") where Spark gets them, else seconds."""

    window: str = "10 seconds"  # most answers are of such a window
    lateness: str = "30 seconds"  # what comes later than this behind the newest event is not counted
    keyed_window: str = "1 minute"  # duplicates and sessions are looked for within such a window
    top: int = 20  # rows of a ranking, per window
    kept: int = 200  # routing keys and sessions that are kept per window and group, before rankings are made
    baseline_windows: int = 30  # what is usual is judged by so many windows before
    threshold: float = 6.0  # an anomaly has at least this robust z-score
    stuck_after: float = 60.0  # a consumer that holds messages and settles none for so long is stuck
    depth_limit: int = 0  # the depth whose reaching is forecast; 0: none
    forecast_windows: int = 12  # the slope of a backlog is that of so many windows
    session_gap: float = 30.0  # a longer silence ends a session
    consumer_windows: int = 180  # how far back deliveries are looked for that are not settled

    def __post_init__(self) -> None:
        if self.window_seconds > _LONGEST_WINDOW:
            raise ValueError(f"a window is an hour at most, not {self.window!r}")
        for name in ("lateness", "keyed_window"):
            seconds_of(getattr(self, name))
        for name in ("top", "kept", "baseline_windows", "forecast_windows", "consumer_windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("threshold", "stuck_after", "session_gap"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0, not {getattr(self, name)}")
        if self.depth_limit < 0:
            raise ValueError(f"depth_limit must be 0 (none) or more, not {self.depth_limit}")

    @property
    def window_seconds(self) -> float:
        return seconds_of(self.window)

    @property
    def window_us(self) -> int:
        return round(self.window_seconds * 1_000_000)

    @property
    def keyed_seconds(self) -> float:
        return seconds_of(self.keyed_window)

    @property
    def keyed_us(self) -> int:
        return round(self.keyed_seconds * 1_000_000)

    @property
    def lateness_us(self) -> int:
        return round(seconds_of(self.lateness) * 1_000_000)


def seconds_of(interval: str) -> float:
    """The length of an interval as Spark writes it."""
    match = _INTERVAL.fullmatch(interval)
    if match is None or int(match[1]) == 0:
        raise ValueError(
            f"{interval!r} is no length of time; write it as '10 seconds', '1 minute' or '500 milliseconds'"
        )
    return int(match[1]) * _UNITS[match[2]]
