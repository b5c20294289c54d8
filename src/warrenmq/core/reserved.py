"""Reserved names: everything under `warren.`, as `amq.` in RabbitMQ.

The virtual host `/` has two system streams: the event log `warren.events`, and `warren.analysis` with the results of
the analysis. Access to them requires permissions and a user tag:

    read a system stream                    monitoring, administrator (the analysis may read its own results)
    declare, publish to warren.analysis     analysis, administrator
    delete warren.analysis                  analysis, administrator
    declare, publish to warren.events       administrator (to import a history)
    delete warren.events, bind either       no one

A publish reaches them only through the default exchange and their name: never by CC, BCC, an alternate exchange or a
binding. Other names under `warren.` cannot be declared; queues and exchanges created by an older version keep working.
`warren.reader.NAME` is an ordinary queue, used by a Spark reader.
`warren.notes` is the routing key of notes (notes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from warrenmq.events.schema import STREAM_NAME as EVENTS

PREFIX = "warren."
ANALYSIS = "warren.analysis"
NOTES = "warren.notes"
VHOST = "/"

ADMINISTRATOR = "administrator"
MONITORING_TAG = "monitoring"
ANALYSIS_TAG = "analysis"
READERS = frozenset({ADMINISTRATOR, MONITORING_TAG})

_OPEN_PREFIX = "warren.reader."
_WRITERS = {EVENTS: frozenset({ADMINISTRATOR}), ANALYSIS: frozenset({ADMINISTRATOR, ANALYSIS_TAG})}


def is_reserved(name: str) -> bool:
    return name.startswith(PREFIX) and not name.startswith(_OPEN_PREFIX)


def is_system_stream(vhost: str, queue: str) -> bool:
    """Return True if this is the name of a system stream."""
    return queue in _WRITERS and vhost == VHOST


def allows(queue: str, action: str, tags: Set[str]) -> bool:
    """Return True if a user with these tags may configure, write or read this system stream."""
    writers = _WRITERS[queue]
    return not tags.isdisjoint(writers | READERS if action == "read" else writers)


def can_be_declared(is_durable: bool, arguments: Mapping[str, Any]) -> bool:
    """Return True if a system stream may be declared like this."""
    return is_durable and arguments.get("x-queue-type") == "stream"
