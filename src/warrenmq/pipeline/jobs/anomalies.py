"""What is not as usual, in sentences: measures that jump, consumers that are stuck, routing keys that only fail.

Rates, depths and 95th percentiles of times are compared with the same measure in the windows before (unusual.py). It is
told when something begins, not as long as it lasts, with uids of messages that show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.events.ids import uid_text
from warrenmq.pipeline.facts import KEY, STEP, TIME
from warrenmq.pipeline.jobs import consumers, holding
from warrenmq.pipeline.jobs.arrow_tables import Row, answer_by_vhost, to_time
from warrenmq.pipeline.jobs.holding import State, states_of
from warrenmq.pipeline.jobs.job import Job
from warrenmq.pipeline.jobs.series import Point, Series, key_points, series_of
from warrenmq.pipeline.jobs.unusual import MEASURES, find_changes, is_poison, sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "what", "name", "measure")

_COLUMNS = (
    *holding.COLUMNS, "fact", "exchange", "name", "bucket", "total_us", "longest_us", "depth_last", "first_uid",
)  # fmt: skip
_SCHEMA = {
    "window_start": "timestamp", "window_end": "timestamp", "vhost": "string", "what": "string", "name": "string",
    "measure": "string", "value": "double", "usual": "double", "score": "double", "sentence": "string",
    "example_uids": "array<string>",
}  # fmt: skip


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    wanted = facts.where(f"fact IN ('{STEP}', '{KEY}', '{TIME}')")
    return answer_by_vhost(wanted, _COLUMNS, answer, _SCHEMA, settings)


def history(settings: Settings) -> float:
    """Whether it is the beginning depends on the windows before, and those on as many before them."""
    baseline = settings.baseline_windows * settings.window_seconds
    return max(2 * baseline + 2 * settings.window_seconds, consumers.history(settings) + baseline)


def answer(table: pa.Table, settings: Settings) -> list[Row]:
    """The answer of one virtual host."""
    vhost = table["vhost"][0].as_py()
    steps, keys, times = (table.filter(pc.equal(table["fact"], fact)) for fact in (STEP, KEY, TIME))
    rows = [row for series in series_of(steps, times) for row in _changes(series, settings)]
    rows += _stuck(steps, settings)
    rows += [row for series in key_points(keys) for row in _poison(series, settings)]
    return [{"vhost": vhost} | row for row in rows]


def _changes(series: Series, settings: Settings) -> list[Row]:
    """Where a measure leaves what was usual."""
    points, measure = series.points, MEASURES[series.measure]
    times_us, values = [point.window_us for point in points], [point.value for point in points]
    noises = [point.noise for point in points]
    rows = []
    for finding in find_changes(times_us, values, measure, settings, noises):
        told, seen = points[finding.told], points[finding.seen]
        words = sentence(series.what, series.name, measure, seen.value, finding.usual, to_time(seen.window_us),
                         settings.window_seconds)  # fmt: skip
        rows.append(
            _row(
                told,
                series,
                measure.name,
                seen.value,
                finding.usual,
                finding.score,
                words,
                seen.first_uid,
                seen.last_uid,
            )
        )
    return rows


def _stuck(steps: pa.Table, settings: Settings) -> list[Row]:
    rows = []
    before: State | None = None
    for state in states_of(steps, settings):
        was_stuck = before is not None and before.who == state.who and before.is_stuck(settings)
        if state.is_stuck(settings) and not was_stuck:
            rows.append(_stuck_row(state, settings))
        before = state
    return rows


def _stuck_row(state: State, settings: Settings) -> Row:
    who, held = state.who, state.outstanding
    series = Series("consumer", " / ".join([who.queue, who.consumer, who.connection, str(who.channel)]), "stuck", [])
    words = (
        f"consumer {who.consumer} of queue {who.queue} has settled nothing since {to_time(state.since_us):%H:%M:%S} "
        f"and holds {held:,} {'message' if held == 1 else 'messages'}"
    )
    point = Point(state.window.start_us, state.window.end_us, held, 0, 0)
    score = state.silent_seconds / settings.stuck_after * settings.threshold
    return _row(point, series, "stuck", held, 0.0, score, words, state.example)


def _poison(series: Series, settings: Settings) -> list[Row]:
    """A routing key whose messages fail, when it begins."""
    reach = settings.baseline_windows * settings.window_us
    rows = []
    last = -reach - 1
    for point in series.points:
        published, queue = point.about
        if not is_poison(point.value, published):
            continue
        if point.window_us - last > reach:
            words = (
                f"routing key {series.name.partition(' / ')[2]} fails again and again in queue {queue}: "
                f"{point.value:,.0f} failed deliveries and {published:,} publishes from "
                f"{to_time(point.window_us):%H:%M:%S} to {to_time(point.window_end_us):%H:%M:%S}"
            )
            score = point.value / max(published, 1) * settings.threshold
            rows.append(_row(point, series, "poison", point.value, 0.0, score, words, point.first_uid, point.last_uid))
        last = point.window_us
    return rows


def _row(
    point: Point, series: Series, measure: str, value: float, usual: float, score: float, words: str, *uids: Any
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
        "sentence": words,
        "example_uids": [uid_text(uid) for uid in dict.fromkeys(uids) if uid],
    }


JOB = Job("anomalies", "Anomalies", KEYS, run, "anomalies", frozenset({STEP, KEY, TIME}), history)
