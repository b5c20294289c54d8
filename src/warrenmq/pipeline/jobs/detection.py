"""Anomaly detection in a series of values, and the sentence that describes an anomaly. Pure: no Spark, no clock.

A value is compared with those of the preceding windows (the baseline): its robust z-score is its distance from their
median in units of their spread (1.4826 times the median absolute deviation, but at least what noise explains);
durations are compared by their logarithms. An anomaly exceeds the threshold, is at least twice or at most half the
median, and is beyond nine tenths of the baseline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import log
from statistics import median
from typing import Any

from warrenmq.pipeline.options import AnalysisOptions

MIN_POISON_FAILURES = 10  # failures in a window
POISON_RATIO = 3  # failures per publish
MIN_BASELINE_WINDOWS = 10  # fewer windows say nothing about what is usual
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Measure:
    """How a measure is judged: its noise, and the directions in which a change counts."""

    name: str
    label: str  # in a sentence
    unit: str  # "rate", "us" or "count"
    min_spread: float  # absolute
    min_relative_spread: float  # relative to the median
    is_poisson: bool = False  # a count of independent events: its spread is at least its square root
    is_log_scale: bool = False  # its noise is a factor, so logarithms are compared, also with min_relative_spread
    may_fall: bool = False


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("published", "publishes", "rate", 1.5, 0.1, is_poisson=True, may_fall=True),
        Measure("unroutable", "unroutable messages", "rate", 1.5, 0.1, is_poisson=True),
        Measure("enqueued", "arrivals", "rate", 1.5, 0.1, is_poisson=True, may_fall=True),
        Measure("acked", "acks", "rate", 1.5, 0.1, is_poisson=True, may_fall=True),
        Measure("failed", "failed deliveries", "rate", 1.5, 0.1, is_poisson=True),
        Measure("depth", "waiting messages", "count", 20.0, 0.2),
        Measure("waiting_p95", "waiting time p95", "us", 1000.0, 0.1, is_log_scale=True),
        Measure("end_to_end_p95", "end-to-end time p95", "us", 1000.0, 0.1, is_log_scale=True),
        Measure("processing_p95", "processing time p95", "us", 1000.0, 0.1, is_log_scale=True),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Indices of the window in which an anomaly is reported, and of the one in which it was observed."""

    reported: int
    observed: int
    usual: float
    score: float


@dataclass(slots=True)
class Point:
    """The value of a window. The uids are 0 if no message is known; `context` is what else the measure needs.

    `noise` is the minimum spread of the value by chance. `has_events` is False if the value is 0 for lack of events.
    """

    window_us: int
    window_end_us: int
    value: float
    first_uid: int
    last_uid: int
    context: Any = None
    noise: float = 0.0
    has_events: bool = True


def find_changes(points: Sequence[Point], measure: Measure, options: AnalysisOptions) -> list[Finding]:
    """Find where a series leaves its baseline: when an anomaly begins or doubles, not while it lasts.

    The baseline starts with its first window that has events, so nothing older counts. A drop is reported one window
    later: a window that is still being filled is too low.
    """
    length = options.baseline_windows * options.window_us
    values = [point.value for point in points]
    findings: list[Finding] = []
    reported = {1: _Reported(length), -1: _Reported(length)}
    fallen: Finding | None = None
    first = 0
    for index, point in enumerate(points):
        now = point.window_us
        while first < index and (points[first].window_us < now - length or not points[first].has_events):
            first += 1
        finding = judge(values[first:index], point.value, point.noise, measure, options)
        if fallen is not None and reported[-1].is_news(now, 1.0):
            findings.append(Finding(index, index - 1, fallen.usual, fallen.score))
        fallen = None
        if finding is not None and finding.score < 0:
            fallen = finding
        elif finding is not None and reported[1].is_news(now, point.value):
            findings.append(Finding(index, index, finding.usual, finding.score))
    return findings


class _Reported:
    """Anomalies in one direction, as far back as the baseline reaches."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._recent: deque[tuple[int, float]] = deque()

    def is_news(self, now: int, value: float) -> bool:
        """Record an anomaly; return True if it is a new one, or twice as high as the highest recent one."""
        while self._recent and now - self._recent[0][0] > self._length:
            self._recent.popleft()
        highest = max((recent for _, recent in self._recent), default=None)
        self._recent.append((now, value))
        return highest is None or value >= 2 * highest


def sentence(what: str, name: str, measure: Measure, value: float, usual: float, at: datetime, seconds: float) -> str:
    """`queue orders: waiting time p95 rose from 12 ms to 4.1 s at 10:03:00`, of a window of this many seconds."""
    verb = "rose" if value >= usual else "fell"
    before, after = (_format(number, measure.unit, seconds) for number in (usual, value))
    return f"{what} {name}: {measure.label} {verb} from {before} to {after} at {at:%H:%M:%S}"


def is_poison(failed: float, published: int) -> bool:
    """Return True if a routing key fails often in a window, and far more often than it is published."""
    return failed >= MIN_POISON_FAILURES and failed >= published * POISON_RATIO


def judge(
    past: Sequence[float], value: float, noise: float, measure: Measure, options: AnalysisOptions
) -> Finding | None:
    """Return a finding if the value is far from the past: its score is above 0 if it rose, below if it fell."""
    if len(past) < min(MIN_BASELINE_WINDOWS, options.baseline_windows):
        return None
    usual = median(past)
    if not measure.may_fall and value - usual < options.threshold * measure.min_spread:
        return None
    if usual / 2 < value < usual * 2 or not _stands_out(past, value, usual):
        return None
    score = (_log_score if measure.is_log_scale else _score)(past, value, usual, noise, measure)
    if score >= options.threshold or (measure.may_fall and score <= -options.threshold):
        return Finding(0, 0, usual, score)
    return None


def _score(past: Sequence[float], value: float, usual: float, noise: float, measure: Measure) -> float:
    spread = max(
        _spread([other - usual for other in past]),
        measure.min_spread,
        measure.min_relative_spread * usual,
        usual**0.5 if measure.is_poisson else 0.0,
        noise,
    )
    return (value - usual) / spread


def _log_score(past: Sequence[float], value: float, usual: float, noise: float, measure: Measure) -> float:
    """Return the score of the logarithms: three times the median is as far from it as a third."""
    middle = log(max(usual, 1.0))
    spread = _spread([log(max(other, 1.0)) - middle for other in past])
    return (log(max(value, 1.0)) - middle) / max(spread, measure.min_relative_spread, noise)


def _spread(deviations: Sequence[float]) -> float:
    """Estimate the standard deviation from the median; the factor corrects the underestimate for few values."""
    return _MAD_TO_SIGMA * median([abs(deviation) for deviation in deviations]) * (1 + 5 / len(deviations))


def _stands_out(past: Sequence[float], value: float, usual: float) -> bool:
    """Return True if the value is beyond nearly all of the past: regular bursts move neither median nor spread."""
    inorder = sorted(past)
    rare = (len(past) - 1) // 10
    return value >= 1.5 * inorder[-1 - rare] if value > usual else value <= inorder[rare] / 1.5


def _format(value: float, unit: str, seconds: float) -> str:
    if unit == "rate":
        return f"{_number(value / seconds)}/s"
    if unit == "count":
        return _number(value)
    if value < 1000:
        return f"{_number(value)} µs"
    return f"{_number(value / 1000)} ms" if value < 1_000_000 else f"{_number(value / 1_000_000)} s"


def _number(value: float) -> str:
    """0.4, 12.5, 170, 1,700."""
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:,.1f}"
