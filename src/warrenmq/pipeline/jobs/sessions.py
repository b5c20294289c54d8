"""Messages that belong together by their correlation id: how long such a session took, and what became of it.

A session goes on over the ends of windows, and ends when nothing is heard of it for `session_gap` seconds; each window
in which it did something tells it as it is then. Of each window, those that failed most and took longest are kept.
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
REACH_WINDOWS = 30  # a session is known as far back as this


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    told = _so_far(_parts(facts), options)
    order = ("-failed", "-duration_us", "vhost", "correlation_id")
    first = with_rank(told, ("window_start",), order)
    return first.filter(pc.less_equal(first["rank"], options.top))


def _parts(facts: pa.Table) -> pa.Table:
    """What each session did in each window: session by session, in the order of time."""
    found = where(facts, fact=SESSION)
    measures = dict.fromkeys(COUNTS, "sum") | {"first_time": "min", "last_time": "max"}
    merged = aggregate(with_columns(found, correlation_id=found["name"]), (*WINDOW, "correlation_id"), **measures)
    return merged.sort_by([(name, "ascending") for name in ("vhost", "correlation_id", "window_start")])


def _so_far(parts: pa.Table, options: AnalysisOptions) -> pa.Table:
    """Each window of a session with all that happened since its begin, but not longer ago than the reach."""
    begin = _begins(parts, options)
    started = parts["first_time"].take(pa.array(begin))
    return with_columns(
        parts,
        started=started,
        ended=parts["last_time"],
        duration_us=pc.subtract(times_to_us(parts["last_time"]), times_to_us(started)),
        **{name: pa.array(_sums_since(begin, to_ints(parts[name]))) for name in COUNTS},
    )


def _begins(parts: pa.Table, options: AnalysisOptions) -> Ints:
    """For each row the place of the first one that it counts with: of its session, and within the reach."""
    first, last = to_ints(parts["first_time"]), to_ints(parts["last_time"])
    is_new = np.zeros(parts.num_rows, dtype=bool)
    is_new[group_starts(parts, ("vhost", "correlation_id"))] = True
    is_new[1:] |= first[1:] - last[:-1] > round(options.session_gap * 1_000_000)
    session = np.cumsum(is_new)
    # Ints that grow from row to row, by more than the reach from one session to the next.
    id_window_us = round(options.id_window_seconds * 1_000_000)
    window = to_ints(parts["window_start"]) // id_window_us
    place = window - window.min(initial=0) + session * (np.ptp(window) + REACH_WINDOWS + 1 if len(window) else 0)
    found: Ints = np.searchsorted(place, place - REACH_WINDOWS)
    return found


def _sums_since(begin: Ints, values: Ints) -> Ints:
    up_to = np.cumsum(values)
    found: Ints = up_to - up_to[begin] + values[begin]
    return found


def history(options: AnalysisOptions) -> float:
    return REACH_WINDOWS * options.id_window_seconds


JOB = arrow_job(
    "sessions", "Sessions", KEYS, for_all_windows(answer), COLUMNS, "table", frozenset({SESSION}), history, ALL_FACTS
)
