"""The steps of a publish that do not depend on where the message comes from.

`Channel` publishes what a client sent; `publish` (by `VHost.publish`) what the broker itself sends. Both find the
queues here: by the cached route, by CC and BCC, by what the message carries, or past exchanges that note messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warrenmq.core.exchange import Exchange, Route
from warrenmq.core.message import Message
from warrenmq.core.outcome import REJECTED, UNROUTED, combine
from warrenmq.core.passage import Passage
from warrenmq.core.publish_rules import encode_blind_keys, find_extra_keys, needs_inspection, prepare_header, ttl_of
from warrenmq.core.queue import Queue
from warrenmq.core.routing import Traits
from warrenmq.protocol.properties import headers as decode_headers

if TYPE_CHECKING:
    from warrenmq.core.vhost import VHost


@dataclass(frozen=True, slots=True)
class Unrouted:
    """A message's exchange, keys and traits, where an exchange on its way notes what passes (`Passage`)."""

    exchange: Exchange
    keys: Sequence[str]
    traits: Traits


def find_target(
    vhost: VHost, route: Route, extra_keys: list[str], header: bytes, headers: Mapping[str, Any] | None
) -> list[Queue] | Unrouted:
    """Return the queues of a message with this content header, the keys of CC and BCC and the headers in it."""
    if route.queues is not None and not extra_keys:
        return route.queues
    keys = (route.routing_key, *extra_keys)
    traits = Traits(header, headers)
    if vhost.noting:
        return Unrouted(route.exchange, keys, traits)
    return vhost.route(route.exchange, keys, traits)[0]


def foresee_queues(vhost: VHost, target: list[Queue] | Unrouted) -> list[Queue]:
    """Return the queues that a message will reach, provided that no exchange drops it and the topology stays."""
    return target if isinstance(target, list) else vhost.route(target.exchange, target.keys, target.traits)[0]


def pass_exchanges(vhost: VHost, message: Message, unrouted: Unrouted) -> tuple[list[Queue], Passage]:
    """Route a message past exchanges that note what passes. The caller delivers it, and then calls `Passage.note`."""
    passage = Passage(message)
    queues, _ = vhost.route(unrouted.exchange, unrouted.keys, unrouted.traits, passage)
    if not queues and passage.was_dropped:
        vhost.broker.stats.deduplicated += 1
    return queues, passage


def publish(vhost: VHost, route: Route, header: bytes, body: bytes) -> int:
    """Publish a message of the broker's own. Return its outcome."""
    extra_keys: list[str] = []
    headers: Mapping[str, Any] | None = None
    if route.queues is None or needs_inspection(header):
        header, extra_keys, headers = prepare_header(header, None)
    message = Message(route.address, header, body)
    message.ttl_ms = ttl_of(header)
    message.blind_keys = encode_blind_keys(headers)
    return _deliver(vhost, message, find_target(vhost, route, extra_keys, header, headers))


def pass_on(vhost: VHost, exchange: Exchange, message: Message) -> int:
    """Route a message that was published before from this exchange on. Return its outcome."""
    message.ttl_ms = ttl_of(message.header)
    headers = decode_headers(message.header)
    keys = (message.routing_key, *(find_extra_keys(headers) if headers else ()))
    return _deliver(vhost, message, Unrouted(exchange, keys, Traits(message.header, headers)))


def _deliver(vhost: VHost, message: Message, target: list[Queue] | Unrouted) -> int:
    if not isinstance(target, Unrouted):
        return _enqueue(message, target)
    queues, passage = pass_exchanges(vhost, message, target)
    outcome = _enqueue(message, queues) if queues else passage.outcome()
    return combine(outcome, passage.note(bool(queues) and not outcome & REJECTED))


def _enqueue(message: Message, queues: list[Queue]) -> int:
    outcome = UNROUTED
    for queue in queues:
        outcome = combine(outcome, queue.enqueue(message))
    return outcome


def take_runs(tags: list[int], last: int) -> list[tuple[int, int]]:
    """Remove the tags up to `last` from an ascending list. Return them as runs of consecutive ones: (first, last)."""
    count = bisect_right(tags, last)
    runs: list[tuple[int, int]] = []
    for tag in tags[:count]:
        if runs and runs[-1][1] == tag - 1:
            runs[-1] = (runs[-1][0], tag)
        else:
            runs.append((tag, tag))
    del tags[:count]
    return runs
