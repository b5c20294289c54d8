"""Estimates of the memory that queues, bindings, consumers and other objects created by clients take.

The counters are in `Stats`, and change when an object is created or removed. So the sum costs a few additions, and the
memory alarm checks it after every turn (docs/decisions/0020). `core/snapshot.py` shows it by kind.

An estimate is a measured constant plus the parts whose size the client chooses: names, arguments, lists.
"""

from __future__ import annotations

from sys import getsizeof
from typing import TYPE_CHECKING, Any

from warrenmq.core.errors import ContentTooLarge

if TYPE_CHECKING:
    from warrenmq.core.binding import Binding
    from warrenmq.core.connection import Connection
    from warrenmq.core.consumer import Consumer
    from warrenmq.core.exchange import Exchange, Route
    from warrenmq.core.queue import Queue
    from warrenmq.core.stats import Stats

# Growth of the resident memory of a compiled broker on CPython 3.11, divided by the number of objects that were made:
# 10,000 queues, exchanges, bindings (each to a queue of its own), consumers and channels, 400 connections, 60,000
# routes. Of 50,000 queues the mean of 1,020 bytes without a data folder and 1,440 with one; durable ones take 110
# more.
QUEUE = 1_230
DURABLE_QUEUE = 110
# A name, a number and two dictionary entries (queues.py).
IDLE_QUEUE = 200
EXCHANGE = 550
BINDING = {
    "fanout": 460,
    "direct": 740,
    "topic": 1_280,
    "headers": 1_500,
    "x-consistent-hash": 600,
    "x-modulus-hash": 460,
    "x-random": 460,
    "x-least-loaded": 460,
    "x-recent-history": 460,
}
CONSUMER = 1_280
# Of a consumer with a filter: what it caches, and the parsed selector, per character: 95 at most.
FILTER = 32 << 10
FILTER_CHARACTER = 95
CHANNEL = 800
CONNECTION = 4_200
ROUTE = 370
SEEN_ID = 130  # docs/deduplication.md
TRACKED_TAG = 200  # two dictionary entries with a text and a number


def size_of_queue(queue: Queue) -> int:
    return QUEUE + queue.is_durable * DURABLE_QUEUE + len(queue.name) + _size_of_table(queue.arguments)


def size_of_idle_queue(name: str) -> int:
    return IDLE_QUEUE + len(name)


def size_of_exchange(exchange: Exchange) -> int:
    return EXCHANGE + len(exchange.name) + _size_of_table(exchange.arguments)


def size_of_binding(binding: Binding) -> int:
    base = BINDING.get(binding.source.options.routing_type, BINDING["topic"])
    return base + len(binding.key) + len(binding.canonical_arguments) + _size_of_table(binding.arguments)


def size_of_consumer(consumer: Consumer) -> int:
    size = CONSUMER + 2 * len(consumer.tag) + _size_of_table(consumer.arguments)
    if consumer.filter is not None:
        size += FILTER + FILTER_CHARACTER * len(consumer.arguments["x-filter"])
    return size


def size_of_connection(connection: Connection) -> int:
    """Return the memory of an open connection, besides its socket."""
    return _size_of_table(connection.client_properties)


def size_of_route(route: Route) -> int:
    """Return the size of a cached route; the key of the cache is about as long as the address."""
    return ROUTE + 2 * len(route.address) + len(route.routing_key) + 8 * len(route.queues or ())


def memory_refusal(stats: Stats) -> ContentTooLarge:
    """Return the error for a content or transaction that would exceed `Stats.unfinished_limit`."""
    return ContentTooLarge(
        f"no memory for this message at present: messages in transit and uncommitted transactions hold "
        f"{stats.transit_bytes + stats.uncommitted_bytes} bytes, the limit is {stats.unfinished_limit}"
    )


def _size_of_table(value: Any) -> int:
    """Return the memory of a field table with its contents; 0 if it is empty."""
    return _size_of(value) if value else 0


def _size_of(value: Any) -> int:
    size = getsizeof(value)
    if isinstance(value, dict):
        size += sum(_size_of(key) + _size_of(item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        size += sum(_size_of(item) for item in value)
    return size
