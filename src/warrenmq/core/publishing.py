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
from warrenmq.core.outcome import DROPPED, UNROUTED, combine
from warrenmq.core.ports import NOTHING
from warrenmq.core.publish_rules import needs_inspection, prepare_header
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


def pass_exchanges(vhost: VHost, message: Message, unrouted: Unrouted) -> tuple[list[Queue], int]:
    """Route a message past exchanges that drop duplicates.

    Return its queues and the outcome so far: DROPPED for a duplicate, and what the confirm waits for.
    """
    passage = Passage(message)
    queues, _ = vhost.route(unrouted.exchange, unrouted.keys, unrouted.headers, passage)
    if queues:
        return queues, passage.note(message.is_persistent())
    if passage.was_dropped:
        vhost.broker.stats.deduplicated += 1
        # Its publisher is told what it was told the first time, once that is safe.
        return queues, DROPPED | (passage.level if message.is_persistent() else NOTHING)
    return queues, UNROUTED


def publish(vhost: VHost, route: Route, header: bytes, body: bytes) -> int:
    """Publish a message of the broker's own. Return its outcome."""
    extra_keys: list[str] = []
    headers: Mapping[str, Any] | None = None
    if route.queues is None or needs_inspection(header):
        header, extra_keys, headers = prepare_header(header, None)
    message = Message(route.address, header, body)
    target = find_target(vhost, route, extra_keys, headers)
    outcome = UNROUTED
    if isinstance(target, Unrouted):
        target, outcome = pass_exchanges(vhost, message, target)
    for queue in target:
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
