"""Exchanges and routes: from an exchange and a key to the queues.

A route is computed once for each (exchange, routing key, flags) and kept by the virtual host until its topology
changes. Only headers exchanges, and those that drop duplicates, look into the message, so routes that pass one are
computed per message.

Compiled when the package is built (exchange.pxd).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from warrenmq.core.deduplication import Deduplication, Passage
from warrenmq.core.options import ExchangeOptions, exchange_options
from warrenmq.core.ports import NO_SAMPLER, RouteSampler
from warrenmq.core.queue import Queue
from warrenmq.core.reserved import is_own
from warrenmq.core.routing import MATCHERS, Matcher

DEFAULT_EXCHANGE = ""


class Exchange:
    """A name, a type and a matcher full of bindings. A destination is a Queue or another Exchange."""

    __slots__ = (
        "alternate",
        "arguments",
        "binding_count",
        "deduplication",
        "is_auto_delete",
        "is_durable",
        "is_internal",
        "matcher",
        "name",
        "options",
        "type",
    )

    def __init__(
        self,
        name: str,
        type: str,
        is_durable: bool = False,
        is_auto_delete: bool = False,
        is_internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.type = type
        self.is_durable = is_durable
        self.is_auto_delete = is_auto_delete
        self.is_internal = is_internal
        self.arguments: dict[str, Any] = arguments or {}
        self.matcher: Matcher = MATCHERS[type]()
        self.binding_count = 0
        self.deduplication: Deduplication | None = None
        self.alternate: str | None = None
        self.apply(exchange_options(type, self.arguments))

    def apply(self, options: ExchangeOptions) -> None:
        """Route by these options from now on; the virtual host drops the cached routes (`VHost.apply`)."""
        self.options = options
        self.alternate = options.alternate


class Route:
    """Where messages with one publish method go. `queues` is None where it depends on each message's headers.

    `sampler` belongs to the event sink, which replaces it.
    """

    __slots__ = (
        "address",
        "exchange",
        "is_mandatory",
        "queues",
        "routing_key",
        "sampler",
    )

    def __init__(
        self, exchange: Exchange, routing_key: str, address: bytes, is_mandatory: bool, queues: list[Queue] | None
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.address = address
        self.is_mandatory = is_mandatory
        self.queues = queues
        self.sampler: RouteSampler = NO_SAMPLER


def collect_queues(
    exchange: Exchange,
    keys: Sequence[str],
    headers: Mapping[str, Any] | None,
    exchanges: Mapping[str, Exchange],
    queues: Mapping[str, Queue],
    found: dict[Queue, None],
    passage: Passage | None = None,
) -> bool:
    """Add every queue that one of the keys reaches, each once; says whether the answer depends on the message.

    A message has several keys if it carries CC or BCC: every exchange on the way looks at all of them. With a passage,
    exchanges that have seen the message lead nowhere. Streams of the broker are never found (`VHost.find_route`).
    """
    uses_headers = False
    seen = {exchange}
    pending = [exchange]
    while pending:
        current = pending.pop()
        if current.deduplication is not None:
            uses_headers = True
            if passage is not None and passage.is_stopped_by(current):
                continue
        destinations: dict[Any, None] = {}
        for key in keys:
            if current.name == DEFAULT_EXCHANGE:
                if key in queues and not is_own(queues[key].vhost, key):
                    destinations[queues[key]] = None
            else:
                current.matcher.match(key, headers, destinations)
        uses_headers = uses_headers or current.matcher.uses_headers
        for destination in destinations:
            if isinstance(destination, Queue):
                found[destination] = None
            elif destination not in seen:
                seen.add(destination)
                pending.append(destination)
        if not destinations and current.alternate is not None:
            alternate = exchanges.get(current.alternate)
            if alternate is not None and alternate not in seen:
                seen.add(alternate)
                pending.append(alternate)
    return uses_headers
