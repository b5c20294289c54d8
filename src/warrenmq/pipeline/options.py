"""Options of the analysis: window lengths, sizes of rankings, thresholds of anomalies.

An immutable value, validated when it is made; it is pickled to executors. Batch and --follow agree if their options do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNITS = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0}
_INTERVAL = re.compile(r"(\d+) (millisecond|second|minute|hour)s?")
_MAX_WINDOW = 3600.0  # depth_at packs the time within a window and the depth into 63 bits (facts.py)


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """Lengths of time that Spark reads are interval texts ("10 seconds"), all others are seconds."""

    window: str = "10 seconds"  # of most answers
    lateness: str = "30 seconds"  # events that are further behind the newest one are dropped
    id_window: str = "1 minute"  # of duplicates and sessions, which are grouped by id
    top: int = 20  # rows of a ranking, per window
    max_per_group: int = 200  # routing keys and sessions kept per window and group, before rankings are made
    baseline_windows: int = 30  # preceding windows that define what is usual
    threshold: float = 6.0  # robust z-score from which a value is an anomaly
    stuck_after: float = 60.0  # a consumer that holds messages and settles none for this long is stuck
    depth_limit: int = 0  # forecast when a backlog reaches this depth; 0: no limit
    forecast_windows: int = 12  # over which the slope of a backlog is fitted
    session_gap: float = 30.0  # a longer pause ends a session
    consumer_windows: int = 180  # how far back unsettled deliveries are looked for

    def __post_init__(self) -> None:
        if self.window_seconds > _MAX_WINDOW:
            raise ValueError(f"a window is an hour at most, not {self.window!r}")
        for name in ("lateness", "id_window"):
            seconds_of(getattr(self, name))
        for name in ("top", "max_per_group", "baseline_windows", "forecast_windows", "consumer_windows"):
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
    def id_window_seconds(self) -> float:
        return seconds_of(self.id_window)

    @property
    def id_window_us(self) -> int:
        return round(self.id_window_seconds * 1_000_000)

    @property
    def lateness_us(self) -> int:
        return round(seconds_of(self.lateness) * 1_000_000)


def seconds_of(interval: str) -> float:
    """Return the length of an interval text of Spark's."""
    match = _INTERVAL.fullmatch(interval)
    if match is None or int(match[1]) == 0:
        raise ValueError(f"{interval!r} is not a duration; write '10 seconds', '1 minute' or '500 milliseconds'")
    return int(match[1]) * _UNITS[match[2]]
