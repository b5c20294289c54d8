"""The bindings of one virtual host, indexed by both ends.

An exchange's matcher routes messages; this index answers everything else: whether a binding exists, and the bindings
of a source or destination. The cost of an operation depends on the bindings it touches, not on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from warrenmq.core.exchange import Exchange
from warrenmq.core.queue import Queue
from warrenmq.protocol.values import encode_table

Destination = Queue | Exchange


@dataclass(frozen=True, slots=True)
class Binding:
    """Equal to another with the same ends, key and arguments, whatever the order of the arguments."""

    source: Exchange
    destination: Destination
    key: str
    arguments: dict[str, Any] = field(compare=False)
    canonical_arguments: bytes

    @property
    def is_durable(self) -> bool:
        """True if both ends are durable."""
        return self.source.is_durable and self.destination.is_durable


def make_binding(source: Exchange, destination: Destination, key: str, arguments: dict[str, Any]) -> Binding:
    canonical = encode_table(dict(sorted(arguments.items()))) if arguments else b""
    return Binding(source, destination, key, arguments, canonical)


class BindingIndex:
    """All bindings of a virtual host, except the implicit ones of the default exchange."""

    __slots__ = ("_count", "_from", "_to")

    def __init__(self) -> None:
        self._count = 0
        self._from: dict[Exchange, dict[Binding, None]] = {}
        self._to: dict[Destination, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> bool:
        """Add a binding. Return False if it exists already."""
        existing = self._from.setdefault(binding.source, {})
        if binding in existing:
            return False
        binding.source.matcher.bind(binding.key, binding.arguments, binding.destination)
        existing[binding] = None
        self._to.setdefault(binding.destination, {})[binding] = None
        binding.source.binding_count += 1
        self._count += 1
        return True

    def remove(self, binding: Binding) -> bool:
        """Remove a binding. Return False if it does not exist."""
        existing = self._from.get(binding.source)
        if existing is None or binding not in existing:
            return False
        binding.source.matcher.unbind(binding.key, binding.arguments, binding.destination)
        binding.source.binding_count -= 1
        self._count -= 1
        self._forget(self._from, binding.source, binding)
        self._forget(self._to, binding.destination, binding)
        return True

    def of_source(self, source: Exchange) -> list[Binding]:
        return list(self._from.get(source, ()))

    def of_destination(self, destination: Destination) -> list[Binding]:
        return list(self._to.get(destination, ()))

    def __iter__(self) -> Iterator[Binding]:
        for bindings in self._from.values():
            yield from bindings

    def __contains__(self, binding: Binding) -> bool:
        return binding in self._from.get(binding.source, ())

    def __len__(self) -> int:
        return self._count

    @staticmethod
    def _forget(index: dict[Any, dict[Binding, None]], end: Destination, binding: Binding) -> None:
        del index[end][binding]
        if not index[end]:
            del index[end]
