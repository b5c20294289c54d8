"""Retries by queue and by routing key: how many deliveries came back, why most of them did, and whether it is a storm.

A delivery comes back when its message is requeued or retried (`x-retry-max`). `usual_per_second` is the median of the
windows before, as for anomalies (detection.py); null if there are too few of them. With at least MIN_RETURNS in a
window it is a storm if that is unusual, if most deliveries of the queue are redeliveries, or if the routing key is
poison. `exhausted` counts messages that came back too often.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.detection import MIN_BASELINE_WINDOWS, Measure, is_poison, judge
from warrenmq.pipeline.jobs.job import PER_VHOST, arrow_job
from warrenmq.pipeline.jobs.tables import (
    BOOL,
    FLOAT,
    INT,
    PUBLISHED_OR_ROUTED,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    concat,
    count_kinds,
    is_one_of,
    iter_rows,
    left_join,
    per_second,
    ratio,
    since,
    uid_texts,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

RETURNS = ("requeued", "retried")
MIN_RETURNS = 10
STORM_RATIO = 0.5  # redeliveries of all deliveries

SERIES = ("vhost", "what", "queue", "name")
KEYS = ("window_start", *SERIES)
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("what", "queue", "name"), TEXT)
    | {"returned": INT, "per_second": FLOAT, "usual_per_second": FLOAT, "redelivered": INT, "redelivered_ratio": FLOAT}
    | {"exhausted": INT, "reason": TEXT, "reason_count": INT, "storm": BOOL, "example_uid": TEXT}
)
PUBLISH = ("window_start", "vhost", "name")
_MEASURE = Measure("returned", "retries", "rate", 1.5, 0.1, is_poisson=True)


def answer(facts: pa.Table, options: AnalysisOptions, since_us: int) -> pa.Table:
    counted = where(facts, fact=(STEP, KEY))
    in_queues = counted.filter(pc.not_equal(counted["queue"], ""))
    steps, keys = where(in_queues, fact=STEP), where(in_queues, fact=KEY)
    by_series = concat(with_columns(steps, what="queue", name=steps["queue"]), with_columns(keys, what="key"))
    whole = _counts(by_series)
    found = since(whole, since_us)
    is_any = pc.greater(pc.add(pc.add(found["returned"], found["redelivered"]), found["exhausted"]), 0)
    found = with_rank(found.filter(is_any), ("window_start", "vhost", "what"), ("-returned", "queue", "name"))
    found = found.filter(pc.or_(pc.equal(found["what"], "queue"), pc.less_equal(found["rank"], options.top)))
    found = left_join(left_join(found, _reasons(by_series), KEYS), _publishes(where(counted, fact=KEY)), PUBLISH)
    usual, storms = _judged(found, _Baselines(whole, counted, options), options)
    is_queue = pc.equal(found["what"], "queue")
    return with_columns(
        found,
        per_second=per_second(found, "returned"),
        usual_per_second=pc.divide(pa.array(usual, FLOAT), options.window_seconds),
        redelivered_ratio=pc.if_else(is_queue, ratio(found["redelivered"], found["delivered"]), None),
        storm=pa.array(storms, BOOL),
        example_uid=uid_texts(found["uid"]),
    )


def _counts(by_series: pa.Table) -> pa.Table:
    """Count what came back, in all windows in which the queue or key has events."""
    count = by_series["count"]
    is_removed = is_one_of(by_series["kind"], ("dropped", "dead_lettered"))
    is_exhausted = pc.and_(is_removed, pc.equal(by_series["reason"], "delivery_limit"))
    counted = with_columns(
        by_series,
        returned=count_kinds(by_series, *RETURNS),
        delivered=count_kinds(by_series, "delivered"),
        exhausted=pc.if_else(is_exhausted, count, 0),
        uid=pc.if_else(pc.or_(is_one_of(by_series["kind"], RETURNS), is_exhausted), by_series["last_uid"], None),
    )
    sums = dict.fromkeys(("returned", "delivered", "redelivered", "exhausted"), "sum")
    return aggregate(counted, (*WINDOW, "what", "queue", "name"), **sums, uid="max")


def _reasons(by_series: pa.Table) -> pa.Table:
    """Return the most frequent reason; of equal ones the last by name."""
    by_reason = aggregate(where(by_series, kind=RETURNS), (*KEYS, "reason"), count="sum")
    in_order = by_reason.sort_by([("count", "ascending"), ("reason", "ascending")])
    return aggregate(with_columns(in_order, reason_count=in_order["count"]), KEYS, reason="last", reason_count="last")


def _publishes(keys: pa.Table) -> pa.Table:
    published = where(keys, kind=PUBLISHED_OR_ROUTED)
    return aggregate(with_columns(published, published=published["count"]), PUBLISH, published="sum")


def _judged(found: pa.Table, baselines: _Baselines, options: AnalysisOptions) -> tuple[list[float | None], list[bool]]:
    """Return for each row what is usual in a window, and whether it is a storm."""
    usual: list[float | None] = []
    storms = []
    names = ("window_start", *SERIES, "returned", "delivered", "redelivered", "published")
    for start, vhost, what, queue, name, returned, delivered, redelivered, published in iter_rows(found, names):
        past = baselines.before(start, vhost, what, queue, name)
        usual.append(median(past) if len(past) >= min(MIN_BASELINE_WINDOWS, options.baseline_windows) else None)
        is_mostly = redelivered > STORM_RATIO * delivered if what == "queue" else is_poison(returned, published or 0)
        is_storm = is_mostly or judge(past, returned, 0.0, _MEASURE, options) is not None
        storms.append(returned >= MIN_RETURNS and is_storm)
    return usual, storms


class _Baselines:
    """What came back in the windows before, from the first of them on in which the queue has events."""

    def __init__(self, counts: pa.Table, facts: pa.Table, options: AnalysisOptions) -> None:
        self._length = options.baseline_windows * options.window_us
        self._windows: dict[str, list[int]] = defaultdict(list)
        self._active: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._returned: dict[tuple[str, str, str, str], dict[int, int]] = defaultdict(dict)
        window = ("vhost", "window_start")
        for vhost, start in iter_rows(aggregate(facts, window).sort_by("window_start"), window):
            self._windows[vhost].append(start)
        names = (*SERIES, "window_start", "returned")
        for vhost, what, queue, name, start, returned in iter_rows(counts.sort_by("window_start"), names):
            if what == "queue":
                self._active[vhost, queue].append(start)
            if returned:
                self._returned[vhost, what, queue, name][start] = returned

    def before(self, start: int, vhost: str, what: str, queue: str, name: str) -> Sequence[int]:
        active, windows = self._active[vhost, queue], self._windows[vhost]
        first = bisect_left(active, start - self._length)
        if first == len(active):
            return ()
        returned = self._returned[vhost, what, queue, name]
        between = windows[bisect_left(windows, active[first]) : bisect_left(windows, start)]
        return [returned.get(window, 0) for window in between]


def history(options: AnalysisOptions) -> float:
    return options.baseline_windows * options.window_seconds


JOB = arrow_job("retries", "Retries", KEYS, answer, COLUMNS, "lines", frozenset({STEP, KEY}), history, PER_VHOST)
