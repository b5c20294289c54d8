"""Names that belong to the broker: everything under `warren.`, as `amq.` in RabbitMQ.

Two streams of the virtual host `/` are the broker's own: the event log `warren.events`, and `warren.analysis`, which
holds the results of the analysis. A user's permissions do not suffice for them; it takes a tag:

    read a stream of the broker             monitoring, administrator (the analysis may read its own results)
    declare, publish to warren.analysis     analysis, administrator
    delete warren.analysis                  analysis, administrator
    declare, publish to warren.events       administrator (to import a history)
    delete warren.events, bind either       no one

A publish reaches them by the default exchange and their own name alone: never by CC, BCC, an alternate exchange or a
binding. Queues and exchanges with other names under `warren.` cannot be declared; those that an older version has made
work as before. `warren.reader.NAME` is a queue of a Spark reader and is like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from warrenmq.events.schema import STREAM_NAME as EVENTS

PREFIX = "warren."
ANALYSIS = "warren.analysis"
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
    """Whether a queue of this name is a stream of the broker."""
    return queue in _WRITERS and vhost == VHOST


def allows(queue: str, action: str, tags: Set[str]) -> bool:
    """Whether a user with these tags may configure, write or read this stream of the broker."""
    writers = _WRITERS[queue]
    return not tags.isdisjoint(writers | READERS if action == "read" else writers)


def can_be_declared(is_durable: bool, arguments: Mapping[str, Any]) -> bool:
    """Whether a stream of the broker may be declared like this."""
    return is_durable and arguments.get("x-queue-type") == "stream"
