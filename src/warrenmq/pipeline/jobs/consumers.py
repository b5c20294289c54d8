"""How the work of a queue is shared among its consumers, and which are stuck.

A consumer is stuck if it holds messages and has settled none for `stuck_after` seconds: since its last settlement, or
since its first delivery after it held nothing. Deliveries and settlements are summed over `consumer_windows`; older
deliveries are not known (outstanding.py).
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.job import PER_VHOST, arrow_job
from warrenmq.pipeline.jobs.outstanding import ConsumerState, consumer_states
from warrenmq.pipeline.jobs.tables import (
    BOOL,
    FLOAT,
    INT,
    TEXT,
    TIMESTAMP,
    WINDOW_COLUMNS,
    Row,
    split_by_vhost,
    to_table,
    to_time,
    where,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "queue", "consumer", "connection", "channel")
COLUMNS = WINDOW_COLUMNS | {
    "queue": TEXT, "consumer": TEXT, "connection": TEXT, "channel": pa.int32(), "delivered": INT, "settled": INT,
    "outstanding": INT, "share_ratio": FLOAT, "skew": FLOAT, "stuck": BOOL, "stuck_since": TIMESTAMP,
    "silent_seconds": FLOAT,
}  # fmt: skip


def answer(facts: pa.Table, options: AnalysisOptions, since_us: int) -> pa.Table:
    by_queue: dict[tuple[str, int, str], list[ConsumerState]] = defaultdict(list)
    for vhost, steps in split_by_vhost(where(facts, fact=STEP)):
        for state in consumer_states(steps, options, since_us):
            by_queue[vhost, state.window.start_us, state.key.queue].append(state)
    rows = [_row(key[0], state, states, options) for key, states in by_queue.items() for state in states]
    return to_table(rows, COLUMNS)


def _row(vhost: str, state: ConsumerState, states: list[ConsumerState], options: AnalysisOptions) -> Row:
    """`states` are those of all consumers of the queue in that window."""
    delivered = sum(other.delivered for other in states)
    share = state.delivered / delivered if delivered else 0.0
    is_stuck = state.is_stuck(options)
    return {
        "window_start": to_time(state.window.start_us),
        "window_end": to_time(state.window.end_us),
        "vhost": vhost,
        **state.key._asdict(),
        "delivered": state.delivered,
        "settled": state.settled,
        "outstanding": state.outstanding,
        "share_ratio": share,
        "skew": share * len(states),
        "stuck": is_stuck,
        "stuck_since": to_time(state.since_us) if is_stuck else None,
        "silent_seconds": state.silent_seconds,
    }


def history(options: AnalysisOptions) -> float:
    """The start of a stuck state is looked for in that time, and each count in it needs as much before."""
    return 2 * options.consumer_windows * options.window_seconds


JOB = arrow_job("consumers", "Consumers", KEYS, answer, COLUMNS, "table", frozenset({STEP}), history, PER_VHOST)
