"""Sessions: messages with the same correlation id, how long they took and how they ended.

A session spans windows, and ends after `session_gap` seconds without events; each window in which it has events has a
row with its state at that time. Of each window, those with the most failures, then the longest, are kept.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import SESSION
from warrenmq.pipeline.jobs.job import ALL_FACTS, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    INT,
    TEXT,
    TIMESTAMP,
    WINDOW,
    WINDOW_COLUMNS,
    Ints,
    aggregate,
    group_starts,
    times_to_us,
    to_ints,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "correlation_id")
COUNTS = ("messages", "settled", "failed")
COLUMNS = (
    WINDOW_COLUMNS
    | {"correlation_id": TEXT, "started": TIMESTAMP, "ended": TIMESTAMP, "duration_us": INT}
    | dict.fromkeys(COUNTS, INT)
)
LOOKBACK_WINDOWS = 30  # older events of a session are not known


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    sessions = _so_far(_parts(facts), options)
    order = ("-failed", "-duration_us", "vhost", "correlation_id")
    first = with_rank(sessions, ("window_start",), order)
    return first.filter(pc.less_equal(first["rank"], options.top))


def _parts(facts: pa.Table) -> pa.Table:
    """Return the events of each session in each window, by session and in order of time."""
    found = where(facts, fact=SESSION)
    measures = dict.fromkeys(COUNTS, "sum") | {"first_time": "min", "last_time": "max"}
    merged = aggregate(with_columns(found, correlation_id=found["name"]), (*WINDOW, "correlation_id"), **measures)
    return merged.sort_by([(name, "ascending") for name in ("vhost", "correlation_id", "window_start")])


def _so_far(parts: pa.Table, options: AnalysisOptions) -> pa.Table:
    """Accumulate each window of a session with those since its start, within the lookback."""
    start = _starts(parts, options)
    started = parts["first_time"].take(pa.array(start))
    return with_columns(
        parts,
        started=started,
        ended=parts["last_time"],
        duration_us=pc.subtract(times_to_us(parts["last_time"]), times_to_us(started)),
        **{name: pa.array(_sums_since(start, to_ints(parts[name]))) for name in COUNTS},
    )


def _starts(parts: pa.Table, options: AnalysisOptions) -> Ints:
    """Return for each row the index of the first row of its session within the lookback."""
    first, last = to_ints(parts["first_time"]), to_ints(parts["last_time"])
    is_new = np.zeros(parts.num_rows, dtype=bool)
    is_new[group_starts(parts, ("vhost", "correlation_id"))] = True
    is_new[1:] |= first[1:] - last[:-1] > round(options.session_gap * 1_000_000)
    session = np.cumsum(is_new)
    # Increases from row to row, and from one session to the next by more than the lookback.
    id_window_us = round(options.id_window_seconds * 1_000_000)
    window = to_ints(parts["window_start"]) // id_window_us
    position = window - window.min(initial=0) + session * (np.ptp(window) + LOOKBACK_WINDOWS + 1 if len(window) else 0)
    found: Ints = np.searchsorted(position, position - LOOKBACK_WINDOWS)
    return found


def _sums_since(start: Ints, values: Ints) -> Ints:
    cumulative = np.cumsum(values)
    found: Ints = cumulative - cumulative[start] + values[start]
    return found


def history(options: AnalysisOptions) -> float:
    return LOOKBACK_WINDOWS * options.id_window_seconds


JOB = arrow_job(
    "sessions", "Sessions", KEYS, for_all_windows(answer), COLUMNS, "table", frozenset({SESSION}), history, ALL_FACTS
)
