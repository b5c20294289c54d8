"""The steps that every publish has in common.

`Channel` publishes messages of clients, `publish` (called by `VHost.publish`) the broker's own. Both find the queues
here: by the cached route, by CC and BCC, by other headers, or past stateful exchanges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warrenmq.core.exchange import Exchange, Route
from warrenmq.core.exchange_path import ExchangePath
from warrenmq.core.message import Message
from warrenmq.core.notes import Note
from warrenmq.core.outcome import QUEUED, REJECTED, UNROUTED
from warrenmq.core.publish_rules import (
    decode_blind_keys,
    due_time,
    encode_blind_keys,
    find_extra_keys,
    needs_inspection,
    prepare_header,
    ttl_of,
    wants_report,
)
from warrenmq.core.queue import Queue
from warrenmq.core.routing import Traits
from warrenmq.protocol.properties import headers as decode_headers

if TYPE_CHECKING:
    from warrenmq.core.vhost import VHost


@dataclass(frozen=True, slots=True)
class DeferredRoute:
    """A message's exchange, keys and traits, to be routed at delivery: there may be stateful exchanges on its path."""

    exchange: Exchange
    keys: Sequence[str]
    traits: Traits


@dataclass(frozen=True, slots=True)
class ScheduledRoute:
    """A message that is routed when it is due (schedule.py)."""

    due_ms: int


Target = list[Queue] | DeferredRoute | ScheduledRoute | Note


def find_target(
    vhost: VHost, route: Route, extra_keys: list[str], header: bytes, headers: Mapping[str, Any] | None
) -> list[Queue] | DeferredRoute:
    """Return the queues of a message with this content header, these keys in CC and BCC, and these headers."""
    if route.queues is not None and not extra_keys:
        return route.queues
    keys = (route.routing_key, *extra_keys)
    traits = Traits(header, headers)
    if vhost.stateful_exchanges:
        return DeferredRoute(route.exchange, keys, traits)
    return vhost.route(route.exchange, keys, traits)[0]


def predict_queues(vhost: VHost, target: list[Queue] | DeferredRoute) -> list[Queue]:
    """Return the queues that a message will reach if no exchange drops it and the topology stays."""
    return target if isinstance(target, list) else vhost.route(target.exchange, target.keys, target.traits)[0]


def resolve_route(vhost: VHost, message: Message, deferred: DeferredRoute) -> tuple[list[Queue], ExchangePath]:
    """Route a message past stateful exchanges. The caller delivers it and then calls `ExchangePath.record`."""
    path = ExchangePath(message)
    queues, _ = vhost.route(deferred.exchange, deferred.keys, deferred.traits, path)
    if not queues and path.was_dropped:
        vhost.broker.stats.deduplicated += 1
    return queues, path


def publish(vhost: VHost, route: Route, header: bytes, body: bytes) -> int:
    """Publish a message of the broker itself. Return its outcome."""
    extra_keys: list[str] = []
    headers: Mapping[str, Any] | None = None
    if route.queues is None or needs_inspection(header):
        header, extra_keys, headers = prepare_header(header, None)
    message = Message(route.address, header, body)
    message.ttl_ms = ttl_of(header)
    message.blind_keys = encode_blind_keys(headers)
    due_ms = due_time(headers, vhost.broker.turn.now_ms) if headers else 0
    if due_ms:
        return QUEUED | vhost.schedule.add(message, due_ms, None)
    return _deliver(vhost, message, find_target(vhost, route, extra_keys, header, headers))


def publish_again(vhost: VHost, message: Message) -> int:
    """Route an earlier message by its exchange and keys. Return its outcome; 404 if the exchange does not exist."""
    route = vhost.find_own_route(message.exchange, message.routing_key)
    message.ttl_ms = ttl_of(message.header)
    message.wants_report = wants_report(message.header)
    headers = decode_headers(message.header)
    extra_keys = [*(find_extra_keys(headers) if headers else ()), *decode_blind_keys(message.blind_keys)]
    return _deliver(vhost, message, find_target(vhost, route, extra_keys, message.header, headers))


def publish_from(vhost: VHost, exchange: Exchange, message: Message) -> int:
    """Publish a copy of an earlier message to this exchange. Return its outcome."""
    message.ttl_ms = ttl_of(message.header)
    message.wants_report = wants_report(message.header)
    headers = decode_headers(message.header)
    keys = (message.routing_key, *(find_extra_keys(headers) if headers else ()))
    return _deliver(vhost, message, DeferredRoute(exchange, keys, Traits(message.header, headers)))


def _deliver(vhost: VHost, message: Message, target: list[Queue] | DeferredRoute) -> int:
    if not isinstance(target, DeferredRoute):
        return _enqueue(message, target)
    queues, path = resolve_route(vhost, message, target)
    outcome = _enqueue(message, queues) if queues else path.outcome()
    return outcome | path.record(bool(queues) and not outcome & REJECTED)


def _enqueue(message: Message, queues: list[Queue]) -> int:
    outcome = UNROUTED
    for queue in queues:
        outcome |= queue.enqueue(message)
    return outcome


def pop_runs(tags: list[int], last: int) -> list[tuple[int, int]]:
    """Remove the tags up to `last` from an ascending list. Return them as runs of consecutive tags: (first, last)."""
    count = bisect_right(tags, last)
    runs: list[tuple[int, int]] = []
    for tag in tags[:count]:
        if runs and runs[-1][1] == tag - 1:
            runs[-1] = (runs[-1][0], tag)
        else:
            runs.append((tag, tag))
    del tags[:count]
    return runs
