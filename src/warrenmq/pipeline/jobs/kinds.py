"""Which kinds of events mean the same to several jobs, by their names in facts."""

from __future__ import annotations

from warrenmq.events import schema
from warrenmq.pipeline.facts import FAILING

PUBLISHES = ("published", "republished")
# Each failed delivery is one of these; `nacked` and `rejected` come before and would count it twice.
FAILURES = ("requeued", "retried", "expired", "dropped", "dead_lettered")
# All that is told of what went wrong.
TROUBLES = tuple(schema.KIND_NAMES[kind] for kind in FAILING)
