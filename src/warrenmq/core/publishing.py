"""The steps of a publish that do not depend on where the message comes from.

`Channel` publishes what a client sent; `publish` (by `VHost.publish`) what the broker itself sends. Both find the
queues here: by the cached route, by CC and BCC, by headers, or past exchanges that drop duplicates.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warrenmq.core.deduplication import Passage
from warrenmq.core.exchange import Exchange, Route
from warrenmq.core.message import Message
from warrenmq.core.outcome import REJECTED, UNROUTED, combine
from warrenmq.core.publish_rules import needs_inspection, prepare_header, ttl_of
from warrenmq.core.queue import Queue

if TYPE_CHECKING:
    from warrenmq.core.vhost import VHost


@dataclass(frozen=True, slots=True)
class Unrouted:
    """A message's exchange, keys and headers, where an exchange on its way drops duplicates.

    Such exchanges are asked when the message is delivered, in a transaction on commit.
    """

    exchange: Exchange
    keys: Sequence[str]
    headers: Mapping[str, Any] | None


def find_target(
    vhost: VHost, route: Route, extra_keys: list[str], headers: Mapping[str, Any] | None
) -> list[Queue] | Unrouted:
    """Return the queues of a message with these keys of CC and BCC and these headers."""
    if route.queues is not None and not extra_keys:
        return route.queues
    keys = (route.routing_key, *extra_keys)
    if vhost.deduplicating:
        return Unrouted(route.exchange, keys, headers)
    return vhost.route(route.exchange, keys, headers)[0]


def pass_exchanges(vhost: VHost, message: Message, unrouted: Unrouted) -> tuple[list[Queue], Passage]:
    """Route a message past exchanges that drop duplicates.

    The caller notes the passage when the queues have taken the message: what was rejected may be published again.
    """
    passage = Passage(message)
    queues, _ = vhost.route(unrouted.exchange, unrouted.keys, unrouted.headers, passage)
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
    target = find_target(vhost, route, extra_keys, headers)
    if not isinstance(target, Unrouted):
        return _enqueue(message, target)
    queues, passage = pass_exchanges(vhost, message, target)
    if not queues:
        return passage.outcome()
    outcome = _enqueue(message, queues)
    return outcome if outcome & REJECTED else combine(outcome, passage.note())


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
