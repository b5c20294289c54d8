"""Time series of the measures in which anomalies are detected, one point per window. Pure: facts in, series out.

Counts are 0 in windows without events, from the first window of the queue or exchange on; depths and durations have
points only where there are values. Each point has uids of example messages.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.jobs.detection import Point
from warrenmq.pipeline.jobs.percentiles import duration_stats
from warrenmq.pipeline.jobs.tables import (
    FAILURES,
    PUBLISHED_OR_ROUTED,
    PUBLISHES,
    aggregate,
    count_once,
    is_failed_delivery,
    iter_rows,
    left_join,
    where,
    with_columns,
)

MIN_DURATIONS = 10  # a percentile of fewer is random

Measures = dict[str, tuple[str, ...]]  # kinds of events counted, by name of the measure
_OF_EXCHANGE: Measures = {"published": PUBLISHES, "unroutable": ("unroutable",)}
_OF_QUEUE: Measures = {"enqueued": ("enqueued",), "acked": ("acked",), "failed": FAILURES}

_WINDOW = ("window_start", "window_end")
_COUNTED = {"count": "sum", "first_uid": "min", "last_uid": "max"}


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of time."""

    what: str
    name: str
    measure: str
    points: list[Point]


def series_of(steps: pa.Table, times: pa.Table) -> list[Series]:
    """Return the series of one virtual host."""
    in_queue = pc.not_equal(steps["queue"], "")
    of_queues, of_exchanges = steps.filter(in_queue), steps.filter(pc.invert(in_queue))
    ends: dict[int, int] = dict(iter_rows(aggregate(steps, _WINDOW).sort_by("window_start"), _WINDOW))
    return [
        *_counts(of_exchanges, "exchange", _OF_EXCHANGE, ends),
        *_counts(count_once(of_queues), "queue", _OF_QUEUE, ends),
        *_depths(of_queues),
        *_times(times),
    ]


def key_points(keys: pa.Table) -> list[Series]:
    """Return the failures of routing keys; `context` is how often each was published, and where it failed most."""
    place = (*_WINDOW, "exchange", "name")
    by_queue = aggregate(keys.filter(is_failed_delivery(keys)), (*place, "queue"), **_COUNTED)
    in_order = by_queue.sort_by([("count", "ascending"), ("queue", "ascending")])
    failed = with_columns(in_order, failed=in_order["count"])
    worst = aggregate(failed, place, failed="sum", queue="last", first_uid="last", last_uid="last")
    published = aggregate(where(keys, kind=PUBLISHED_OR_ROUTED), place, count="sum")
    points: dict[str, list[Point]] = defaultdict(list)
    rows = left_join(worst, published, place).sort_by("window_start")
    names = (*place, "failed", "first_uid", "last_uid", "count", "queue")
    for start, end, exchange, key, failures, first, last, publishes, queue in iter_rows(rows, names):
        point = Point(start, end, failures, first or 0, last or 0, (publishes or 0, queue))
        points[f"{exchange} / {key}"].append(point)
    return [Series("key", name, "poison", series) for name, series in points.items()]


def _counts(steps: pa.Table, what: str, measures: Measures, ends: dict[int, int]) -> list[Series]:
    """Return the counts of each queue or exchange; a window has events if any of these measures counts something."""
    seen: dict[str, set[int]] = defaultdict(set)
    points: dict[tuple[str, str], dict[int, Point]] = defaultdict(dict)
    for measure, kinds in measures.items():
        found = aggregate(where(steps, kind=kinds), (*_WINDOW, what), **_COUNTED)
        for start, end, name, count, first, last in iter_rows(found, (*_WINDOW, what, *_COUNTED)):
            seen[name].add(start)
            points[name, measure][start] = Point(start, end, count, first or 0, last or 0)
    return [
        Series(what, name, measure, _filled(points[name, measure], windows, ends))
        for name, windows in seen.items()
        for measure in measures
    ]


def _filled(points: dict[int, Point], seen: set[int], ends: dict[int, int]) -> list[Point]:
    first = min(seen)
    return [points.get(at) or Point(at, end, 0, 0, 0, has_events=at in seen) for at, end in ends.items() if at >= first]


def _depths(steps: pa.Table) -> list[Series]:
    """Return depths at the ends of windows, according to the last event."""
    known = steps.filter(pc.is_valid(steps["depth_last"]))
    in_order = known.sort_by([("last_time", "ascending"), ("depth_last", "descending")])
    found = aggregate(in_order, (*_WINDOW, "queue"), depth_last="last", first_uid="min", last_uid="max")
    points: dict[str, list[Point]] = defaultdict(list)
    names = (*_WINDOW, "queue", "depth_last", "first_uid", "last_uid")
    for start, end, queue, depth, first, last in iter_rows(found.sort_by("window_start"), names):
        points[queue].append(Point(start, end, depth, first or 0, last or 0))
    return [Series("queue", queue, "depth", series) for queue, series in points.items()]


def _times(times: pa.Table) -> list[Series]:
    """Return 95th percentiles of durations; the examples are among the slowest."""
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for stats in duration_stats(times, (95,)):
        if stats.count >= MIN_DURATIONS:
            point = Point(stats.window_us, stats.window_end_us, stats.percentiles_us[0], stats.slowest, stats.slowest)
            point.noise = stats.count**-0.5  # approximately that of the logarithm of a percentile
            found[stats.queue, f"{stats.name}_p95"].append(point)
    return [Series("queue", queue, measure, points) for (queue, measure), points in found.items()]
