"""The depth of each queue, its slope, and a forecast.

The depth at the end of a window is that of the last event with a depth, minus the messages removed on disk since: one
event stands for many of those, without the resulting depth. The slope is that of a line through the depths at the ends
of the last windows (least squares). A growing queue is forecast to reach `depth_limit`, a shrinking one to be empty.
Streams are left out: nothing waits there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.facts import REMOVING, STEP
from warrenmq.pipeline.jobs.job import PER_VHOST, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    INT,
    NOT_WAITING,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    count_kinds,
    is_one_of,
    iter_rows,
    left_join,
    where,
    with_columns,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "queue")
COLUMNS = (
    WINDOW_COLUMNS
    | {"queue": TEXT}
    | dict.fromkeys(("depth", "depth_max", "arrived", "left"), INT)
    | dict.fromkeys(("slope_per_second", "empty_in_seconds", "full_in_seconds"), FLOAT)
    | {"limit": INT}
)
_REMOVING = tuple(schema.kind_name(kind) for kind in REMOVING)
MIN_POINTS = 3  # two are always a line


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    found = _depths(where(facts, fact=STEP))
    slopes = pa.array(_slopes(found, _length_us(options)), FLOAT)
    limit = pa.repeat(pa.scalar(options.depth_limit or None, INT), found.num_rows)
    depth = found["depth"].cast(FLOAT)
    missing = pc.max_element_wise(pc.subtract(limit.cast(FLOAT), depth), 0.0, skip_nulls=False)
    falls, rises = pc.if_else(pc.less(slopes, 0), slopes, None), pc.if_else(pc.greater(slopes, 0), slopes, None)
    return with_columns(
        found,
        slope_per_second=slopes,
        empty_in_seconds=pc.divide(depth, pc.negate(falls)),
        full_in_seconds=pc.divide(missing, rises),
        limit=limit,
    )


def _depths(steps: pa.Table) -> pa.Table:
    """Return the depths of each queue and window. Of events of the same time, the lowest depth is usually the last."""
    in_order = steps.sort_by([("last_time", "ascending"), ("depth_last", "descending")])
    has_depth = pc.is_valid(in_order["depth_last"])
    counted = with_columns(
        in_order,
        depth=in_order["depth_last"],
        depth_time=pc.if_else(has_depth, in_order["last_time"], None),
        arrived=count_kinds(in_order, "enqueued", "requeued"),
        left=_left(in_order),
    )
    found = aggregate(
        counted, (*WINDOW, "queue"), depth="last", depth_time="max", depth_max="max", arrived="sum", left="sum"
    )
    found = left_join(found, _removed(in_order, found), KEYS)
    of_queues = found.filter(pc.not_equal(found["queue"], "")).sort_by(
        [(name, "ascending") for name in ("vhost", "queue", "window_start")]
    )
    known = with_columns(of_queues, depth=pa.array(_depths_at_ends(of_queues), INT))
    return known.filter(pc.is_valid(known["depth"]))


def _left(steps: pa.Table) -> pa.ChunkedArray:
    """Count messages that left the queue; one that expires and is dead-lettered counts once."""
    is_waiting = pc.invert(is_one_of(steps["reason"], (*NOT_WAITING, "expired")))
    dropped = pc.if_else(is_waiting, count_kinds(steps, "dropped", "dead_lettered"), 0)
    return pc.add(count_kinds(steps, "delivered", "expired"), dropped)


def _removed(steps: pa.Table, found: pa.Table) -> pa.Table:
    """Count messages that each queue removed on disk after the last event of a window with a depth."""
    some = where(steps, kind=_REMOVING)
    bulk = some.filter(pc.and_(pc.is_null(some["depth_last"]), pc.is_null(some["last_uid"])))
    known = left_join(bulk, found.select([*KEYS, "depth_time"]), KEYS)
    is_later = pc.fill_null(pc.greater_equal(known["last_time"], known["depth_time"]), True)
    counted = known.filter(is_later)
    return aggregate(with_columns(counted, removed=counted["count"]), KEYS, removed="sum")


def _depths_at_ends(found: pa.Table) -> Iterator[int | None]:
    """Yield the depth of each row: the known one, or that of the window before minus what was removed since."""
    depth_before: int | None = None
    queue_before = None
    for vhost, queue, known, removed in iter_rows(found, ("vhost", "queue", "depth", "removed")):
        if (vhost, queue) != queue_before:
            depth_before = None
        queue_before = vhost, queue
        depth = depth_before if known is None else known
        depth_before = None if depth is None else max(0, depth - (removed or 0))
        yield depth_before if known is not None or removed else None


def _slopes(found: pa.Table, length_us: int) -> Iterator[float | None]:
    """Yield the slope of each row, fitted over the preceding rows of the same queue."""
    recent: deque[tuple[int, int]] = deque()
    queue_before = None
    for vhost, queue, end, depth in iter_rows(found, ("vhost", "queue", "window_end", "depth")):
        if (vhost, queue) != queue_before:
            recent.clear()
        queue_before = vhost, queue
        recent.append((end, depth))
        while recent[0][0] < end - length_us:
            recent.popleft()
        yield _slope(recent) if len(recent) >= MIN_POINTS else None


def _slope(points: deque[tuple[int, int]]) -> float:
    """Return messages per second; integers until the last step, so it does not depend on where the series began."""
    count, origin = len(points), points[0][0]
    times = [time - origin for time, _ in points]
    sum_times, sum_depths = sum(times), sum(depth for _, depth in points)
    products = sum(time * depth for time, (_, depth) in zip(times, points, strict=True))
    squares = sum(time * time for time in times)
    return (count * products - sum_times * sum_depths) / (count * squares - sum_times**2) * 1_000_000


def history(options: AnalysisOptions) -> float:
    return _length_us(options) / 1_000_000


def _length_us(options: AnalysisOptions) -> int:
    return (options.forecast_windows - 1) * options.window_us


JOB = arrow_job(
    "backlog",
    "Backlog and forecast",
    KEYS,
    for_all_windows(answer),
    COLUMNS,
    "lines",
    frozenset({STEP}),
    history,
    PER_VHOST,
)
