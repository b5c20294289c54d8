"""Durable definitions as plain dictionaries, as the catalog stores them.

The names are those of RabbitMQ's definitions files, so export and import need no translation.
"""

from typing import Any

from warrenmq.core.binding import Binding
from warrenmq.core.exchange import Exchange
from warrenmq.core.queue import Queue


def of_exchange(vhost: str, exchange: Exchange) -> dict[str, Any]:
    return {
        "vhost": vhost,
        "name": exchange.name,
        "type": exchange.type,
        "durable": True,
        "auto_delete": exchange.is_auto_delete,
        "internal": exchange.is_internal,
        "arguments": exchange.arguments,
    }


def of_queue(queue: Queue) -> dict[str, Any]:
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "durable": True,
        "auto_delete": queue.is_auto_delete,
        "arguments": queue.arguments,
    }


def of_store(vhost: str, name: str) -> dict[str, Any]:
    """Return the definition by which recovery finds a store that is not a queue: that of a durable queue."""
    return {"vhost": vhost, "name": name, "durable": True, "auto_delete": False, "arguments": {}}


def of_binding(vhost: str, binding: Binding) -> dict[str, Any]:
    return {
        "vhost": vhost,
        "source": binding.source.name,
        "destination": binding.destination.name,
        "destination_type": destination_type(binding),
        "routing_key": binding.key,
        "arguments": binding.arguments,
    }


def binding_key(vhost: str, binding: Binding) -> tuple[str, ...]:
    return (
        vhost,
        binding.source.name,
        destination_type(binding),
        binding.destination.name,
        binding.key,
        binding.canonical_arguments.hex(),
    )


def destination_type(binding: Binding) -> str:
    return "queue" if isinstance(binding.destination, Queue) else "exchange"
