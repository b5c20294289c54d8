"""How the work of a queue is shared among its consumers, and who is stuck.

A consumer is stuck when it holds messages and has settled none for `stuck_after` seconds: since its last settlement, or
since it got something after it had held nothing. Deliveries and settlements are summed over `consumer_windows`: what
was delivered before is not known (holding.py).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa

from warrenmq.pipeline.facts import STEP
from warrenmq.pipeline.jobs.arrow_tables import Row, answer_by_vhost, to_time
from warrenmq.pipeline.jobs.holding import COLUMNS, State, states_of
from warrenmq.pipeline.jobs.job import Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from warrenmq.pipeline.settings import Settings

KEYS = ("window_start", "vhost", "queue", "consumer", "connection", "channel")

_SCHEMA = {
    "window_start": "timestamp", "window_end": "timestamp", "vhost": "string", "queue": "string",
    "consumer": "string", "connection": "string", "channel": "int", "delivered": "bigint", "settled": "bigint",
    "outstanding": "bigint", "share_ratio": "double", "skew": "double", "stuck": "boolean",
    "stuck_since": "timestamp", "silent_seconds": "double",
}  # fmt: skip


def run(facts: DataFrame, settings: Settings) -> DataFrame:
    return answer_by_vhost(facts.where(f"fact = '{STEP}'"), COLUMNS, answer, _SCHEMA, settings)


def answer(table: pa.Table, settings: Settings) -> list[Row]:
    """The answer of one virtual host."""
    vhost = table["vhost"][0].as_py()
    by_queue: dict[tuple[int, str], list[State]] = defaultdict(list)
    for state in states_of(table, settings):
        by_queue[state.window.start_us, state.who.queue].append(state)
    return [_row(vhost, state, states, settings) for states in by_queue.values() for state in states]


def _row(vhost: str, state: State, states: list[State], settings: Settings) -> Row:
    """`states`: of all consumers of the queue in that window."""
    delivered = sum(other.delivered for other in states)
    share = state.delivered / delivered if delivered else 0.0
    is_stuck = state.is_stuck(settings)
    return {
        "window_start": to_time(state.window.start_us),
        "window_end": to_time(state.window.end_us),
        "vhost": vhost,
        **state.who._asdict(),
        "delivered": state.delivered,
        "settled": state.settled,
        "outstanding": state.outstanding,
        "share_ratio": share,
        "skew": share * len(states),
        "stuck": is_stuck,
        "stuck_since": to_time(state.since_us) if is_stuck else None,
        "silent_seconds": state.silent_seconds,
    }


def history(settings: Settings) -> float:
    """Since when it holds messages is found in that time, and each count in it needs as much before."""
    return 2 * settings.consumer_windows * settings.window_seconds


JOB = Job("consumers", "Consumers", KEYS, run, "table", frozenset({STEP}), history)
