"""Messages that belong together by their correlation id: how long such a session took, and what became of it.

A session goes on over the ends of windows, and ends when nothing is heard of it for `session_gap` seconds; each window
in which it did something tells it as it is then. Of each window, those that failed most and took longest are kept.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import SESSION
from warrenmq.pipeline.jobs.job import EVERYTHING, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    TEXT,
    TIMESTAMP,
    WHOLE,
    WINDOW,
    WINDOW_COLUMNS,
    Numbers,
    first_of_groups,
    numbers,
    plain,
    put,
    ranked,
    totals,
    where,
)
from warrenmq.pipeline.options import Settings

KEYS = ("window_start", "vhost", "correlation_id")
COUNTS = ("messages", "settled", "failed")
COLUMNS = (
    WINDOW_COLUMNS
    | {"correlation_id": TEXT, "started": TIMESTAMP, "ended": TIMESTAMP, "duration_us": WHOLE}
    | dict.fromkeys(COUNTS, WHOLE)
)
REACH_WINDOWS = 30  # a session is known as far back as this


def answer(facts: pa.Table, settings: Settings) -> pa.Table:
    told = _so_far(_parts(facts), settings)
    order = ("-failed", "-duration_us", "vhost", "correlation_id")
    first = ranked(told, ("window_start",), order)
    return first.filter(pc.less_equal(first["rank"], settings.top))


def _parts(facts: pa.Table) -> pa.Table:
    """What each session did in each window: session by session, in the order of time."""
    found = where(facts, fact=SESSION)
    measures = dict.fromkeys(COUNTS, "sum") | {"first_time": "min", "last_time": "max"}
    merged = totals(put(found, correlation_id=found["name"]), (*WINDOW, "correlation_id"), **measures)
    return merged.sort_by([(name, "ascending") for name in ("vhost", "correlation_id", "window_start")])


def _so_far(parts: pa.Table, settings: Settings) -> pa.Table:
    """Each window of a session with all that happened since its begin, but not longer ago than the reach."""
    begin = _begins(parts, settings)
    started = parts["first_time"].take(pa.array(begin))
    return put(
        parts,
        started=started,
        ended=parts["last_time"],
        duration_us=pc.subtract(plain(parts["last_time"]), plain(started)),
        **{name: pa.array(_sums_since(begin, numbers(parts[name]))) for name in COUNTS},
    )


def _begins(parts: pa.Table, settings: Settings) -> Numbers:
    """For each row the place of the first one that it counts with: of its session, and within the reach."""
    first, last = numbers(parts["first_time"]), numbers(parts["last_time"])
    is_new = np.zeros(parts.num_rows, dtype=bool)
    is_new[first_of_groups(parts, ("vhost", "correlation_id"))] = True
    is_new[1:] |= first[1:] - last[:-1] > round(settings.session_gap * 1_000_000)
    session = np.cumsum(is_new)
    # Numbers that grow from row to row, by more than the reach from one session to the next.
    keyed_us = round(settings.keyed_seconds * 1_000_000)
    window = numbers(parts["window_start"]) // keyed_us
    place = window - window.min(initial=0) + session * (np.ptp(window) + REACH_WINDOWS + 1 if len(window) else 0)
    found: Numbers = np.searchsorted(place, place - REACH_WINDOWS)
    return found


def _sums_since(begin: Numbers, values: Numbers) -> Numbers:
    up_to = np.cumsum(values)
    found: Numbers = up_to - up_to[begin] + values[begin]
    return found


def history(settings: Settings) -> float:
    return REACH_WINDOWS * settings.keyed_seconds


JOB = arrow_job(
    "sessions", "Sessions", KEYS, for_all_windows(answer), COLUMNS, "table", frozenset({SESSION}), history, EVERYTHING
)
