"""What is unusual in a series of numbers, and the sentence that says it. Pure: no Spark, no clock.

A value is compared with those of the windows before: its robust z-score is how far it is from their median, in units
of their spread (1.4826 times the median of absolute deviations, and at least what noise explains); of times, it is
that of their logarithms. It must be beyond the threshold, double or half of what is usual, and beyond nine tenths of
those windows.
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
    """How a measure is judged: what is noise, and in which direction a change is one."""

    name: str
    words: str  # in a sentence
    unit: str  # "rate", "us" or "count"
    least_spread: float  # of the value, at least
    least_share: float  # of what is usual, at least
    is_random: bool = False  # a count of independent events has a spread of its root
    is_scaled: bool = False  # its noise is a factor, so its logarithm is judged; the least share is of that
    may_fall: bool = False


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("published", "publishes", "rate", 1.5, 0.1, is_random=True, may_fall=True),
        Measure("unroutable", "unroutable messages", "rate", 1.5, 0.1, is_random=True),
        Measure("enqueued", "arrivals", "rate", 1.5, 0.1, is_random=True, may_fall=True),
        Measure("acked", "acks", "rate", 1.5, 0.1, is_random=True, may_fall=True),
        Measure("failed", "failed deliveries", "rate", 1.5, 0.1, is_random=True),
        Measure("depth", "waiting messages", "count", 20.0, 0.2),
        Measure("waiting_p95", "waiting time p95", "us", 1000.0, 0.1, is_scaled=True),
        Measure("end_to_end_p95", "end-to-end time p95", "us", 1000.0, 0.1, is_scaled=True),
        Measure("processing_p95", "processing time p95", "us", 1000.0, 0.1, is_scaled=True),
    )
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`told`: the place of the window in which it is told; `seen`: of the one in which it is seen."""

    told: int
    seen: int
    usual: float
    score: float


@dataclass(slots=True)
class Point:
    """A value of a window. The uids are 0 where no message is known; `about` is what else the measure needs.

    `noise` is the spread that the value has by chance at least. `is_seen`: whether anything is known of that window,
    or its value is 0 because nothing was heard.
    """

    window_us: int
    window_end_us: int
    value: float
    first_uid: int
    last_uid: int
    about: Any = None
    noise: float = 0.0
    is_seen: bool = True


def find_changes(points: Sequence[Point], measure: Measure, options: AnalysisOptions) -> list[Finding]:
    """Where a series, in the order of time, leaves what was usual: when it begins or doubles, not as long as it lasts.

    What is usual is told by the windows of the baseline from the first in which anything was heard: so nothing that is
    older counts. What fell is told one window later: a window that is still being filled has too little in it.
    """
    reach = options.baseline_windows * options.window_us
    values = [point.value for point in points]
    findings: list[Finding] = []
    told = {1: _Told(reach), -1: _Told(reach)}
    fallen: Finding | None = None
    first = 0
    for place, point in enumerate(points):
        now = point.window_us
        while first < place and (points[first].window_us < now - reach or not points[first].is_seen):
            first += 1
        finding = _judge(values[first:place], point.value, point.noise, measure, options)
        if fallen is not None and told[-1].is_news(now, 1.0):
            findings.append(Finding(place, place - 1, fallen.usual, fallen.score))
        fallen = None
        if finding is not None and finding.score < 0:
            fallen = finding
        elif finding is not None and told[1].is_news(now, point.value):
            findings.append(Finding(place, place, finding.usual, finding.score))
    return findings


class _Told:
    """What was unusual in one direction, as far back as the baseline reaches."""

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self._seen: deque[tuple[int, float]] = deque()

    def is_news(self, now: int, value: float) -> bool:
        """Whether it begins, or is twice of what it was; what goes on is none."""
        while self._seen and now - self._seen[0][0] > self._reach:
            self._seen.popleft()
        most = max((seen for _, seen in self._seen), default=None)
        self._seen.append((now, value))
        return most is None or value >= 2 * most


def sentence(what: str, name: str, measure: Measure, value: float, usual: float, at: datetime, seconds: float) -> str:
    """`queue orders: waiting time p95 rose from 12 ms to 4.1 s at 10:03:00`, of a window of so many seconds."""
    verb = "rose" if value >= usual else "fell"
    before, after = (_shown(number, measure.unit, seconds) for number in (usual, value))
    return f"{what} {name}: {measure.words} {verb} from {before} to {after} at {at:%H:%M:%S}"


def is_poison(failed: float, published: int) -> bool:
    """Whether a routing key fails often in a window, and far more often than it is published."""
    return failed >= MIN_POISON_FAILURES and failed >= published * POISON_RATIO


def _judge(
    past: Sequence[float], value: float, noise: float, measure: Measure, options: AnalysisOptions
) -> Finding | None:
    """Whether the value is far from the past: with a score above 0 if it rose, below if it fell."""
    if len(past) < min(MIN_BASELINE_WINDOWS, options.baseline_windows):
        return None
    usual = median(past)
    if not measure.may_fall and value - usual < options.threshold * measure.least_spread:
        return None
    if usual / 2 < value < usual * 2 or not _stands_out(past, value, usual):
        return None
    score = (_log_score if measure.is_scaled else _score)(past, value, usual, noise, measure)
    if score >= options.threshold or (measure.may_fall and score <= -options.threshold):
        return Finding(0, 0, usual, score)
    return None


def _score(past: Sequence[float], value: float, usual: float, noise: float, measure: Measure) -> float:
    spread = max(
        _spread([other - usual for other in past]),
        measure.least_spread,
        measure.least_share * usual,
        usual**0.5 if measure.is_random else 0.0,
        noise,
    )
    return (value - usual) / spread


def _log_score(past: Sequence[float], value: float, usual: float, noise: float, measure: Measure) -> float:
    """A time that is three times the usual one is as far from it as a third of it is."""
    middle = log(max(usual, 1.0))
    spread = _spread([log(max(other, 1.0)) - middle for other in past])
    return (log(max(value, 1.0)) - middle) / max(spread, measure.least_share, noise)


def _spread(deviations: Sequence[float]) -> float:
    """The standard deviation as their median tells it; of few it is often told too small, hence the factor."""
    return _MAD_TO_SIGMA * median([abs(deviation) for deviation in deviations]) * (1 + 5 / len(deviations))


def _stands_out(past: Sequence[float], value: float, usual: float) -> bool:
    """Whether it is beyond nearly all of the past: a burst that comes every minute moves neither median nor spread."""
    inorder = sorted(past)
    rare = (len(past) - 1) // 10
    return value >= 1.5 * inorder[-1 - rare] if value > usual else value <= inorder[rare] / 1.5


def _shown(value: float, unit: str, seconds: float) -> str:
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
