"""How many messages wait in each queue, whether that grows, and where it leads.

The slope is that of a line through the depths at the ends of the last windows (least squares). A queue that grows is
forecast to reach the limit of the settings, one that shrinks to be empty. Streams are left out: nothing waits there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.job import VHOST, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    REAL,
    TEXT,
    WHOLE,
    WINDOW,
    WINDOW_COLUMNS,
    columns_of,
    count_of,
    put,
    totals,
    where,
)
from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "queue")
COLUMNS = (
    WINDOW_COLUMNS
    | {"queue": TEXT}
    | dict.fromkeys(("depth", "depth_max", "arrived", "left"), WHOLE)
    | dict.fromkeys(("slope_per_second", "empty_in_seconds", "full_in_seconds"), REAL)
    | {"limit": WHOLE}
)
LEAST_POINTS = 3  # two are always a line


def answer(facts: pa.Table, settings: Settings) -> pa.Table:
    found = _depths(where(facts, fact=STEP)).sort_by(
        [(name, "ascending") for name in ("vhost", "queue", "window_start")]
    )
    slopes = pa.array(_slopes(found, _reach_us(settings)), REAL)
    limit = pa.repeat(pa.scalar(settings.depth_limit or None, WHOLE), found.num_rows)
    depth = found["depth"].cast(REAL)
    missing = pc.max_element_wise(pc.subtract(limit.cast(REAL), depth), 0.0, skip_nulls=False)
    falls, rises = pc.if_else(pc.less(slopes, 0), slopes, None), pc.if_else(pc.greater(slopes, 0), slopes, None)
    return put(
        found,
        slope_per_second=slopes,
        empty_in_seconds=pc.divide(depth, pc.negate(falls)),
        full_in_seconds=pc.divide(missing, rises),
        limit=limit,
    )


def _depths(steps: pa.Table) -> pa.Table:
    """Of each queue and window; the depth at its end is that which the last event told."""
    in_order = steps.sort_by([("last_time", "ascending"), ("depth_last", "ascending")])
    counted = put(
        in_order,
        depth=in_order["depth_last"],
        arrived=count_of(in_order, "enqueued", "requeued"),
        left=count_of(in_order, "delivered", "expired", "dropped", "dead_lettered"),
    )
    found = totals(counted, (*WINDOW, "queue"), depth="last", depth_max="max", arrived="sum", left="sum")
    return found.filter(pc.and_(pc.not_equal(found["queue"], ""), pc.is_valid(found["depth"])))


def _slopes(found: pa.Table, reach_us: int) -> Iterator[float | None]:
    """Of each row, with those of the same queue and of so long before it."""
    recent: deque[tuple[int, int]] = deque()
    queue_before = None
    for vhost, queue, end, depth in columns_of(found, ("vhost", "queue", "window_end", "depth")):
        if (vhost, queue) != queue_before:
            recent.clear()
        queue_before = vhost, queue
        recent.append((end, depth))
        while recent[0][0] < end - reach_us:
            recent.popleft()
        yield _slope(recent) if len(recent) >= LEAST_POINTS else None


def _slope(points: deque[tuple[int, int]]) -> float:
    """Messages per second. Whole numbers until the last step: it is the same wherever the series began."""
    count, origin = len(points), points[0][0]
    times = [time - origin for time, _ in points]
    sum_times, sum_depths = sum(times), sum(depth for _, depth in points)
    products = sum(time * depth for time, (_, depth) in zip(times, points, strict=True))
    squares = sum(time * time for time in times)
    return (count * products - sum_times * sum_depths) / (count * squares - sum_times**2) * 1_000_000


def history(settings: Settings) -> float:
    return _reach_us(settings) / 1_000_000


def _reach_us(settings: Settings) -> int:
    return (settings.forecast_windows - 1) * settings.window_us


JOB = arrow_job(
    "backlog",
    "Backlog and forecast",
    KEYS,
    for_all_windows(answer),
    COLUMNS,
    "lines",
    frozenset({STEP}),
    history,
    VHOST,
)
