"""Which kinds of events mean the same to several jobs, by their names in facts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.facts import FAILING
from warrenmq.pipeline.jobs.tables import is_one_of

PUBLISHES = ("published", "republished")
# Facts of keys have those that the broker itself published: dead letters.
SENDINGS = (*PUBLISHES, "routed")
# Each failed delivery is one of these (see `once`); `nacked` and `rejected` come before and would count it twice.
FAILURES = ("requeued", "retried", "expired", "dropped", "dead_lettered")
# All that is told of what went wrong.
TROUBLES = tuple(schema.KIND_NAMES[kind] for kind in FAILING)

# Why a message that waits in no queue is dropped or dead-lettered: a consumer had it, or it never joined that queue.
NOT_WAITING = ("rejected", "delivery_limit", "refused", "duplicate", "cycle")
# Why one is dropped or dead-lettered that was not with a consumer.
_NOT_TRIED = ("expired", "maxlen", "purged", "queue_deleted", "refused", "duplicate", "cycle")


def once(facts: pa.Table) -> pa.Table:
    """The facts without dead letters that expired: each of these has an event `expired`, too."""
    is_again = pc.and_(pc.equal(facts["kind"], "dead_lettered"), pc.equal(facts["reason"], "expired"))
    return facts.filter(pc.invert(is_again))


def is_failed_delivery(facts: pa.Table) -> pa.ChunkedArray:
    """Which facts count deliveries that failed, and not messages that no consumer had."""
    return pc.and_(is_one_of(facts["kind"], FAILURES), pc.invert(is_one_of(facts["reason"], _NOT_TRIED)))
