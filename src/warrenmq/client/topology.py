"""What a connection has declared, to be redeclared in order after a loss.

Deleted entities are removed, including those that the broker deletes by itself (an auto-delete queue with its last
consumer, an auto-delete exchange with the last binding from it), as far as this connection can know. Server-named
queues get a new name at each redeclaration; old names are translated from then on.

Pure: no I/O, no clock. Owned by the connection's loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExchangeRecord:
    name: str
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """`is_server_named`: it was declared without a name, and will be again."""

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Arguments = field(default_factory=dict)
    is_server_named: bool = False


@dataclass(frozen=True, slots=True)
class BindingRecord:
    """From the exchange `source` to a queue, or with `to_exchange` to an exchange."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: Arguments = field(default_factory=dict)
    to_exchange: bool = False

    @property
    def key(self) -> Hashable:
        """The identity of the binding for the broker."""
        return self.to_exchange, self.destination, self.source, self.routing_key, _frozen(self.arguments)


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    channel: int
    tag: str
    queue: str
    auto_ack: bool = False
    exclusive: bool = False
    no_local: bool = False
    arguments: Arguments = field(default_factory=dict)


class Topology:
    """The records of one connection. Methods accept old queue names, which are translated."""

    __slots__ = ("_bindings", "_consumers", "_exchanges", "_new_names", "_queues")

    def __init__(self) -> None:
        self._exchanges: dict[str, ExchangeRecord] = {}
        self._queues: dict[str, QueueRecord] = {}
        self._bindings: dict[Hashable, BindingRecord] = {}
        self._consumers: dict[tuple[int, str], ConsumerRecord] = {}
        self._new_names: dict[str, str] = {}

    # -- changes -----------------------------------------------------------------------------------------------------

    def add_exchange(self, record: ExchangeRecord) -> None:
        self._exchanges[record.name] = record

    def remove_exchange(self, name: str) -> None:
        """Remove an exchange and its bindings, and auto-delete exchanges that lose their last binding."""
        self._exchanges.pop(name, None)
        self._remove_bindings(
            [
                binding
                for binding in self._bindings.values()
                if binding.source == name or (binding.to_exchange and binding.destination == name)
            ]
        )

    def add_queue(self, record: QueueRecord) -> None:
        self._new_names.pop(record.name, None)  # an old name that is declared explicitly is no longer translated
        self._queues[record.name] = record

    def remove_queue(self, name: str) -> None:
        """Remove a queue, its bindings and its consumers."""
        name = self.queue_name(name)
        self._queues.pop(name, None)
        self._remove_bindings(
            [binding for binding in self._bindings.values() if not binding.to_exchange and binding.destination == name]
        )
        for key in [key for key, consumer in self._consumers.items() if consumer.queue == name]:
            del self._consumers[key]

    def add_binding(self, record: BindingRecord) -> None:
        record = self._with_current_name(record)
        self._bindings[record.key] = record

    def remove_binding(self, record: BindingRecord) -> None:
        kept = self._bindings.get(self._with_current_name(record).key)
        if kept is not None:
            self._remove_bindings([kept])

    def add_consumer(self, record: ConsumerRecord) -> None:
        record = replace(record, queue=self.queue_name(record.queue))
        self._consumers[record.channel, record.tag] = record

    def remove_consumer(self, channel: int, tag: str) -> None:
        """Remove a cancelled consumer, and an auto-delete queue with its last one."""
        consumer = self._consumers.pop((channel, tag), None)
        if consumer is None:
            return
        queue = self._queues.get(consumer.queue)
        if queue is not None and queue.auto_delete and not self.has_consumers(queue.name):
            self.remove_queue(queue.name)

    def remove_channel(self, channel: int) -> None:
        """Remove the consumers of a closed channel."""
        for number, tag in list(self._consumers):
            if number == channel:
                self.remove_consumer(number, tag)

    def rename_queue(self, old: str, new: str) -> None:
        """Change the name of a redeclared server-named queue in all its records."""
        old = self.queue_name(old)
        if old == new:
            return
        self._queues = {
            (new if name == old else name): (replace(record, name=new) if name == old else record)
            for name, record in self._queues.items()
        }
        bindings = [
            replace(binding, destination=new) if not binding.to_exchange and binding.destination == old else binding
            for binding in self._bindings.values()
        ]
        self._bindings = {binding.key: binding for binding in bindings}
        for key, consumer in self._consumers.items():
            if consumer.queue == old:
                self._consumers[key] = replace(consumer, queue=new)
        for before, after in self._new_names.items():
            if after == old:
                self._new_names[before] = new
        self._new_names[old] = new
        self._new_names.pop(new, None)

    # -- queries -----------------------------------------------------------------------------------------------------

    def queue_name(self, name: str) -> str:
        """Return the current name of a queue."""
        return self._new_names.get(name, name)

    def has_consumers(self, queue: str) -> bool:
        return any(consumer.queue == queue for consumer in self._consumers.values())

    # Redeclare in this order: exchanges, queues, exchange bindings, queue bindings, then the consumers of each channel.
    # Each list is a copy, in the order of declaration, so the records may change during the iteration.

    def exchanges(self) -> list[ExchangeRecord]:
        return list(self._exchanges.values())

    def queues(self) -> list[QueueRecord]:
        return list(self._queues.values())

    def exchange_bindings(self) -> list[BindingRecord]:
        return [binding for binding in self._bindings.values() if binding.to_exchange]

    def queue_bindings(self) -> list[BindingRecord]:
        """Call it after the queues were redeclared, so that the bindings have the new names."""
        return [binding for binding in self._bindings.values() if not binding.to_exchange]

    def consumers(self, channel: int) -> list[ConsumerRecord]:
        return [consumer for consumer in self._consumers.values() if consumer.channel == channel]

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _with_current_name(self, binding: BindingRecord) -> BindingRecord:
        if binding.to_exchange:
            return binding
        return replace(binding, destination=self.queue_name(binding.destination))

    def _remove_bindings(self, bindings: list[BindingRecord]) -> None:
        """Remove them, and auto-delete exchanges that lose their last binding, recursively."""
        for binding in bindings:
            self._bindings.pop(binding.key, None)
        for source in {binding.source: None for binding in bindings}:
            exchange = self._exchanges.get(source)
            if exchange is not None and exchange.auto_delete and not self._has_bindings_from(source):
                self.remove_exchange(source)

    def _has_bindings_from(self, source: str) -> bool:
        return any(binding.source == source for binding in self._bindings.values())


def _frozen(value: Any) -> Hashable:
    """Return arguments as a hashable key with types: 1, 1.0 and True are equal in Python but differ on the wire."""
    if isinstance(value, Mapping):
        return "table", frozenset((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "array", tuple(_frozen(each) for each in value)
    if isinstance(value, bytearray):
        value = bytes(value)
    return type(value).__name__, value
