"""Exchanges and routes: from an exchange and a routing key to the queues.

A route is computed once for each (exchange, routing key, flags) and cached by the virtual host until its topology
changes. Exchanges that inspect the message (headers, hashes of a header), choose at random, or are stateful (ids,
recent messages, loads) prevent caching: routes through them are computed per message.

Compiled when the package is built (exchange.pxd).
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from warrenmq.core.deduplication import Deduplication
from warrenmq.core.options import ExchangeOptions, exchange_options
from warrenmq.core.ports import NO_SAMPLER, RouteSampler
from warrenmq.core.queue import Queue
from warrenmq.core.reserved import is_system_stream
from warrenmq.core.routing import LEAST_LOADED, Matcher, Traits, make_matcher

if TYPE_CHECKING:
    from warrenmq.core.exchange_path import ExchangePath
    from warrenmq.core.history import History

DEFAULT_EXCHANGE = ""


class Exchange:
    """A name, a type and a matcher with the bindings. A destination is a Queue or another Exchange."""

    __slots__ = (
        "alternate",
        "arguments",
        "binding_count",
        "deduplication",
        "history",
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
        self.binding_count = 0
        self.deduplication: Deduplication | None = None
        self.history: History | None = None
        self.alternate: str | None = None
        options = exchange_options(type, self.arguments)
        self.matcher: Matcher = make_matcher(
            options.routing_type, options.hash_header, options.hash_property, name_of, load_of
        )
        self.apply(options)

    @property
    def is_stateful(self) -> bool:
        """True if each message changes the routes of the next, so routing waits until delivery (`ExchangePath`)."""
        return self.deduplication is not None or self.history is not None or self.options.routing_type == LEAST_LOADED

    def apply(self, options: ExchangeOptions) -> None:
        """Apply these options; the virtual host drops the cached routes (`VHost.apply`)."""
        self.options = options
        self.alternate = options.alternate


class Route:
    """The queues of messages with one publish method. `queues` is None if they depend on each message.

    `sampler` is owned by the event sink, which replaces it.
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


def name_of(destination: Any) -> str:
    """Return a unique name of a destination, the same after a restart."""
    return f"{'queue' if isinstance(destination, Queue) else 'exchange'} {destination.name}"


def load_of(destination: Any) -> int:
    """Return the number of ready and unacked messages of a queue; 0 for an exchange, which holds none."""
    return destination.message_count() + destination.unacked_count if isinstance(destination, Queue) else 0


def collect_queues(
    exchange: Exchange,
    keys: Sequence[str],
    traits: Traits | None,
    exchanges: Mapping[str, Exchange],
    queues: Mapping[str, Queue],
    found: dict[Queue, None],
    path: "ExchangePath | None" = None,
) -> bool:
    """Add every queue that one of the keys reaches, each once. Return True if the result depends on the message.

    A message with CC or BCC has several keys: every exchange on the path matches all of them, except for those that
    choose one destination. With a path, exchanges that have seen the message drop it. System streams are never found
    (`VHost.find_route`).
    """
    uses_message = False
    seen = {exchange}
    pending = [exchange]
    while pending:
        current = pending.pop()
        if current.deduplication is not None or current.history is not None:
            uses_message = True
            if path is not None and path.ends_at(current):
                continue
        destinations: dict[Any, None] = {}
        for key in keys if current.matcher.uses_all_keys else keys[:1]:
            if current.name == DEFAULT_EXCHANGE:
                if key in queues and not is_system_stream(queues[key].vhost, key):
                    destinations[queues[key]] = None
            else:
                current.matcher.match(key, traits, destinations)
        if current.matcher.uses_message:
            uses_message = True
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
    return uses_message
