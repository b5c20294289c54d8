"""The measures that anomalies are looked for in, as series of points: one per window. Pure: facts in, series out.

Counts have a 0 in each window in which nothing was counted, from the first in which the queue or exchange is seen;
depths and times have points where there is something to tell. Every point has uids of messages that show it.
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

MIN_DURATIONS = 10  # a percentile of fewer is chance

Measures = dict[str, tuple[str, ...]]  # names, and the kinds of events that they count
_OF_EXCHANGE: Measures = {"published": PUBLISHES, "unroutable": ("unroutable",)}
_OF_QUEUE: Measures = {"enqueued": ("enqueued",), "acked": ("acked",), "failed": FAILURES}

_WINDOW = ("window_start", "window_end")
_COUNTED = {"count": "sum", "first_uid": "min", "last_uid": "max"}


@dataclass(frozen=True, slots=True)
class Series:
    """Points in the order of time."""

    what: str
    name: str
    measure: str
    points: list[Point]


def series_of(steps: pa.Table, times: pa.Table) -> list[Series]:
    """Of the facts of one virtual host."""
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
    """Failures of routing keys; `about` is how often it was published, and the queue where it failed most."""
    place = (*_WINDOW, "exchange", "name")
    by_queue = aggregate(keys.filter(is_failed_delivery(keys)), (*place, "queue"), **_COUNTED)
    in_order = by_queue.sort_by([("count", "ascending"), ("queue", "ascending")])
    failed = with_columns(in_order, failed=in_order["count"])
    worst = aggregate(failed, place, failed="sum", queue="last", first_uid="last", last_uid="last")
    published = aggregate(where(keys, kind=PUBLISHED_OR_ROUTED), place, count="sum")
    found: dict[str, list[Point]] = defaultdict(list)
    told = left_join(worst, published, place).sort_by("window_start")
    names = (*place, "failed", "first_uid", "last_uid", "count", "queue")
    for start, end, exchange, key, failures, first, last, publishes, queue in iter_rows(told, names):
        point = Point(start, end, failures, first or 0, last or 0, (publishes or 0, queue))
        found[f"{exchange} / {key}"].append(point)
    return [Series("key", name, "poison", points) for name, points in found.items()]


def _counts(steps: pa.Table, what: str, measures: Measures, ends: dict[int, int]) -> list[Series]:
    """Of each queue or exchange; it is seen in a window in which any of these measures has something to count."""
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
    return [points.get(at) or Point(at, end, 0, 0, 0, is_seen=at in seen) for at, end in ends.items() if at >= first]


def _depths(steps: pa.Table) -> list[Series]:
    """At the ends of windows: what the last event told."""
    told = steps.filter(pc.is_valid(steps["depth_last"]))
    in_order = told.sort_by([("last_time", "ascending"), ("depth_last", "descending")])
    found = aggregate(in_order, (*_WINDOW, "queue"), depth_last="last", first_uid="min", last_uid="max")
    points: dict[str, list[Point]] = defaultdict(list)
    names = (*_WINDOW, "queue", "depth_last", "first_uid", "last_uid")
    for start, end, queue, depth, first, last in iter_rows(found.sort_by("window_start"), names):
        points[queue].append(Point(start, end, depth, first or 0, last or 0))
    return [Series("queue", queue, "depth", series) for queue, series in points.items()]


def _times(times: pa.Table) -> list[Series]:
    """95th percentiles; the examples are among the slowest."""
    found: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for some in duration_stats(times, (95,)):
        if some.count >= MIN_DURATIONS:
            point = Point(some.window_us, some.window_end_us, some.percentiles_us[0], some.slowest, some.slowest)
            point.noise = some.count**-0.5  # about that of a percentile's logarithm
            found[some.queue, f"{some.name}_p95"].append(point)
    return [Series("queue", queue, measure, points) for (queue, measure), points in found.items()]
