"""The measures that anomalies are looked for in, as series of points: one per window. Pure: facts in, series out.

Counts have a 0 in each window in which nothing was counted, from the first in which the queue or exchange is seen;
depths and times have points where there is something to tell. Every point has uids of messages that show it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from warrenmq.pipeline.jobs.arrow_tables import columns_of
from warrenmq.pipeline.jobs.durations import durations_of
from warrenmq.pipeline.jobs.hot_keys import FAILURES, PUBLISHES

LEAST_DURATIONS = 10  # a percentile of fewer is chance

_MEASURES = {"exchange": ("published", "unroutable"), "queue": ("enqueued", "acked", "failed")}
_MEASURE_OF_KIND = (
    dict.fromkeys(PUBLISHES, "published")
    | dict.fromkeys(FAILURES, "failed")
    | {"unroutable": "unroutable", "enqueued": "enqueued", "acked": "acked"}
)


@dataclass(slots=True)
class Point:
    """`first_uid` and `last_uid` are 0 where no message is known; `about` is what else the measure needs.

    `noise` is the spread that the value has by chance at least.
    """

    window_us: int
    window_end_us: int
    value: float
    first_uid: int
    last_uid: int
    about: Any = None
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of time."""

    what: str
    name: str
    measure: str
    points: list[Point]


def series_of(steps: pa.Table, times: pa.Table) -> list[Series]:
    return [*_counts_and_depths(steps), *_times(times)]


def key_points(keys: pa.Table) -> list[Series]:
    """Failures of routing keys; `about` is how often it was published, and the queue where it failed most."""
    columns = columns_of(
        keys.select(
            ["window_start", "window_end", "exchange", "name", "queue", "kind", "count", "first_uid", "last_uid"]
        )
    )
    found: dict[str, dict[int, Point]] = defaultdict(dict)
    worst: dict[tuple[str, int], tuple[int, str, int, int]] = {}
    for start, end, exchange, key, queue, kind, count, first, last in zip(*columns.values(), strict=True):
        name = f"{exchange} / {key}"
        point = found[name].setdefault(start, Point(start, end, 0, 0, 0, (0, "")))
        if kind in PUBLISHES:
            point.about = (point.about[0] + count, point.about[1])
        elif kind in FAILURES:
            point.value += count
            worst[name, start] = max(worst.get((name, start), (0, "", 0, 0)), (count, queue, first or 0, last or 0))
            _, queue_name, point.first_uid, point.last_uid = worst[name, start]
            point.about = (point.about[0], queue_name)
    return [Series("key", name, "poison", _in_time(points)) for name, points in found.items()]


def _counts_and_depths(steps: pa.Table) -> list[Series]:
    columns = columns_of(
        steps.select(
            ["window_start", "window_end", "exchange", "queue", "kind", "count", "first_uid", "last_uid", "last_time",
             "depth_last"]
        )
    )  # fmt: skip
    ends: dict[int, int] = {}
    counts: dict[tuple[str, str], dict[str, dict[int, Point]]] = {}
    depths: dict[str, dict[int, Point]] = defaultdict(dict)
    for start, end, exchange, queue, kind, count, first, last, last_time, depth in zip(*columns.values(), strict=True):
        ends[start] = end
        measure = _MEASURE_OF_KIND.get(kind)
        what, name = ("queue", queue) if queue else ("exchange", exchange)
        if measure in _MEASURES[what]:
            by_measure = counts.setdefault((what, name), {measure: {} for measure in _MEASURES[what]})
            _add(by_measure[measure], start, end, count, first, last)
        if queue and depth is not None:
            point = depths[queue].setdefault(start, Point(start, end, depth, 0, 0, (last_time, depth)))
            point.about = max(point.about, (last_time, depth))
            point.value = point.about[1]
            _show(point, first, last)
    found = [
        Series(what, name, measure, _filled(points, min(min(by) for by in by_measure.values() if by), ends))
        for (what, name), by_measure in counts.items()
        for measure, points in by_measure.items()
    ]
    return [*found, *(Series("queue", queue, "depth", _in_time(points)) for queue, points in depths.items())]


def _add(points: dict[int, Point], start: int, end: int, count: int, first: int | None, last: int | None) -> None:
    point = points.setdefault(start, Point(start, end, 0, 0, 0))
    point.value += count
    _show(point, first, last)


def _show(point: Point, first: int | None, last: int | None) -> None:
    """These are uids of messages that show it, too."""
    if first:
        point.first_uid = min(point.first_uid or first, first)
    point.last_uid = max(point.last_uid, last or 0)


def _filled(points: dict[int, Point], first: int, ends: dict[int, int]) -> list[Point]:
    return [points.get(at) or Point(at, ends[at], 0, 0, 0) for at in sorted(ends) if at >= first]


def _in_time(points: dict[int, Point]) -> list[Point]:
    return [points[at] for at in sorted(points)]


def _times(times: pa.Table) -> list[Series]:
    """95th percentiles; the examples are among the slowest."""
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for some in durations_of(times, (95,)):
        if some.count >= LEAST_DURATIONS:
            point = Point(some.window_us, some.window_end_us, some.percentiles_us[0], some.slowest, some.slowest)
            point.noise = some.count**-0.5  # about that of a percentile's logarithm
            found[some.queue, f"{some.name}_p95"].append(point)
    return [Series("queue", queue, measure, points) for (queue, measure), points in found.items()]
