"""Which routing keys are published most, and which fail most.

A key fails when one of its messages comes back to its queue (requeued, retried) or is lost (expired, dropped,
dead-lettered). It is poison if its deliveries fail often, and far more often than it is published; messages that no
consumer had, such as those that expire in a delay queue, do not count for that.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.pipeline.facts import KEY, STEP
from warrenmq.pipeline.jobs.detection import MIN_POISON_FAILURES, POISON_RATIO
from warrenmq.pipeline.jobs.job import arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import (
    BOOL,
    FAILURES,
    FLOAT,
    INT,
    PUBLISHED_OR_ROUTED,
    PUBLISHES,
    TEXT,
    WINDOW,
    WINDOW_COLUMNS,
    aggregate,
    count_kinds,
    count_once,
    is_failed_delivery,
    left_join,
    ratio,
    where,
    with_columns,
    with_rank,
)
from warrenmq.pipeline.options import AnalysisOptions

KEYS = ("window_start", "vhost", "exchange", "routing_key")
COLUMNS = WINDOW_COLUMNS | {
    "exchange": TEXT, "routing_key": TEXT, "published": INT, "bytes": INT, "failed": INT, "rank": INT,
    "share_ratio": FLOAT, "poison": BOOL,
}  # fmt: skip
EXCHANGE = ("window_start", "vhost", "exchange")


def answer(facts: pa.Table, options: AnalysisOptions) -> pa.Table:
    by_name = ("vhost", "exchange", "routing_key")
    counted = where(count_once(facts), fact=KEY, kind=(*PUBLISHED_OR_ROUTED, *FAILURES))
    # Messages removed on disk have no known key and no exchange (the default exchange has a name here).
    found = _by_key(counted.filter(pc.not_equal(counted["exchange"], "")))
    found = with_rank(found, ("window_start",), ("-published", *by_name))
    found = with_rank(found, ("window_start",), ("-failed", *by_name), "worst")
    is_hot = pc.and_(pc.less_equal(found["rank"], options.top), pc.greater(found["published"], 0))
    is_bad = pc.and_(pc.less_equal(found["worst"], options.top), pc.greater(found["failed"], 0))
    kept = left_join(found.filter(pc.or_(is_hot, is_bad)), _by_exchange(facts), EXCHANGE)
    return with_columns(kept, share_ratio=ratio(kept["published"], kept["exchange_total"]), poison=_is_poison(kept))


def _by_key(facts: pa.Table) -> pa.Table:
    counted = with_columns(
        facts,
        routing_key=facts["name"],
        published=count_kinds(facts, *PUBLISHES),
        bytes=count_kinds(facts, *PUBLISHES, measure="bytes"),
        failed=count_kinds(facts, *FAILURES),
        sent=count_kinds(facts, *PUBLISHED_OR_ROUTED),
        failed_deliveries=pc.if_else(is_failed_delivery(facts), facts["count"], 0),
    )
    measures = ("published", "bytes", "failed", "sent", "failed_deliveries")
    return aggregate(counted, (*WINDOW, "exchange", "routing_key"), **dict.fromkeys(measures, "sum"))


def _by_exchange(facts: pa.Table) -> pa.Table:
    """Return the publishes of each exchange: only its busiest keys have facts of their own."""
    published = where(facts, fact=STEP, kind=PUBLISHES)
    return aggregate(with_columns(published, exchange_total=published["count"]), EXCHANGE, exchange_total="sum")


def _is_poison(found: pa.Table) -> pa.ChunkedArray:
    is_frequent = pc.greater_equal(found["failed_deliveries"], MIN_POISON_FAILURES)
    return pc.and_(is_frequent, pc.greater_equal(found["failed_deliveries"], pc.multiply(found["sent"], POISON_RATIO)))


JOB = arrow_job("hot_keys", "Hot keys", KEYS, for_all_windows(answer), COLUMNS, "bars", frozenset({STEP, KEY}))
