"""Anomalies, as sentences: measures that jump, consumers that are stuck, routing keys whose messages only fail.

Rates, depths and 95th percentiles of durations are compared with preceding windows (detection.py). An anomaly is
reported when it begins, not while it lasts, with uids of example messages.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from warrenmq.pipeline.facts import KEY, STEP, TIME
from warrenmq.pipeline.jobs import consumers
from warrenmq.pipeline.jobs.detection import MEASURES, Point, find_changes, is_poison, sentence
from warrenmq.pipeline.jobs.job import PER_VHOST, arrow_job
from warrenmq.pipeline.jobs.outstanding import ConsumerState, consumer_states
from warrenmq.pipeline.jobs.series import Series, key_points, series_of
from warrenmq.pipeline.jobs.tables import (
    FLOAT,
    TEXT,
    TEXT_LIST,
    WINDOW_COLUMNS,
    Row,
    since,
    split_by_vhost,
    to_table,
    to_time,
    uid_list,
    where,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "what", "name", "measure")
COLUMNS = (
    WINDOW_COLUMNS
    | dict.fromkeys(("what", "name", "measure"), TEXT)
    | dict.fromkeys(("value", "usual", "score"), FLOAT)
    | {"sentence": TEXT, "example_uids": TEXT_LIST}
)


def answer(facts: pa.Table, options: AnalysisOptions, since_us: int) -> pa.Table:
    recent = since(facts, since_us - round(_series_history(options) * 1_000_000))
    rows = [{"vhost": vhost} | row for vhost, part in split_by_vhost(recent) for row in _unusual(part, options)]
    for vhost, steps in split_by_vhost(where(facts, fact=STEP)):
        rows += [{"vhost": vhost} | row for row in _stuck(steps, options, since_us)]
    return to_table(rows, COLUMNS)


def history(options: AnalysisOptions) -> float:
    return max(_series_history(options), consumers.history(options) + _baseline(options))


def _series_history(options: AnalysisOptions) -> float:
    """Whether an anomaly is new depends on the baseline, and the anomalies in it on theirs."""
    return 2 * _baseline(options) + 2 * options.window_seconds


def _baseline(options: AnalysisOptions) -> float:
    return options.baseline_windows * options.window_seconds


def _unusual(facts: pa.Table, options: AnalysisOptions) -> list[Row]:
    steps, keys, times = (where(facts, fact=fact) for fact in (STEP, KEY, TIME))
    changes = [row for series in series_of(steps, times) for row in _changes(series, options)]
    return changes + [row for series in key_points(keys) for row in _poison(series, options)]


def _changes(series: Series, options: AnalysisOptions) -> list[Row]:
    """Return the rows of a measure that leaves its baseline."""
    points, measure = series.points, MEASURES[series.measure]
    rows = []
    for finding in find_changes(points, measure, options):
        reported, observed = points[finding.reported], points[finding.observed]
        at, length = to_time(observed.window_us), options.window_seconds
        text = sentence(series.what, series.name, measure, observed.value, finding.usual, at, length)
        uids = (observed.first_uid, observed.last_uid)
        rows.append(_row(reported, series, measure.name, observed.value, finding.usual, finding.score, text, *uids))
    return rows


def _stuck(steps: pa.Table, options: AnalysisOptions, since_us: int) -> list[Row]:
    """Return a row when a consumer gets stuck; another one after a gap as long as the baseline."""
    length = round(_baseline(options) * 1_000_000)
    rows = []
    before: ConsumerState | None = None
    for state in consumer_states(steps, options, since_us - length):
        is_known = (
            before is not None
            and before.key == state.key
            and before.is_stuck(options)
            and state.window.start_us - before.window.start_us <= length
        )
        if state.is_stuck(options) and not is_known:
            rows.append(_stuck_row(state, options))
        before = state
    return rows


def _stuck_row(state: ConsumerState, options: AnalysisOptions) -> Row:
    key, held = state.key, state.outstanding
    series = Series("consumer", " / ".join([key.queue, key.consumer, key.connection, str(key.channel)]), "stuck", [])
    text = (
        f"consumer {key.consumer} of queue {key.queue} has settled nothing since {to_time(state.since_us):%H:%M:%S} "
        f"and holds {held:,} {'message' if held == 1 else 'messages'}"
    )
    point = Point(state.window.start_us, state.window.end_us, held, 0, 0)
    score = state.silent_seconds / options.stuck_after * options.threshold
    return _row(point, series, "stuck", held, 0.0, score, text, state.example)


def _poison(series: Series, options: AnalysisOptions) -> list[Row]:
    """Return a row when the messages of a routing key begin to fail."""
    length = options.baseline_windows * options.window_us
    rows = []
    last = -length - 1
    for point in series.points:
        published, queue = point.context
        if not is_poison(point.value, published):
            continue
        if point.window_us - last > length:
            text = (
                f"routing key {series.name.partition(' / ')[2]} fails again and again in queue {queue}: "
                f"{point.value:,.0f} failed deliveries and {published:,} publishes from "
                f"{to_time(point.window_us):%H:%M:%S} to {to_time(point.window_end_us):%H:%M:%S}"
            )
            score = point.value / max(published, 1) * options.threshold
            rows.append(_row(point, series, "poison", point.value, 0.0, score, text, point.first_uid, point.last_uid))
        last = point.window_us
    return rows


def _row(
    point: Point, series: Series, measure: str, value: float, usual: float, score: float, text: str, *uids: Any
) -> Row:
    return {
        "window_start": to_time(point.window_us),
        "window_end": to_time(point.window_end_us),
        "what": series.what,
        "name": series.name,
        "measure": measure,
        "value": float(value),
        "usual": float(usual),
        "score": float(score),
        "sentence": text,
        "example_uids": uid_list(uids),
    }


JOB = arrow_job(
    "anomalies", "Anomalies", KEYS, answer, COLUMNS, "anomalies", frozenset({STEP, KEY, TIME}), history, PER_VHOST
)
