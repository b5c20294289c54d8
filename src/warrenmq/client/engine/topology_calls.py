"""Declaring and deleting exchanges, queues and bindings; each success is recorded in the connection's topology.

Owned by the connection's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warrenmq.client.topology import BindingRecord, ExchangeRecord, QueueRecord
from warrenmq.protocol import spec

if TYPE_CHECKING:
    from warrenmq.client.engine.connection import EngineConnection

Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class QueueState:
    """The broker's reply to a declaration: name, ready messages, consumers."""

    queue: str
    message_count: int
    consumer_count: int


class TopologyCalls:
    """Mixin of a channel. `call` sends a method and waits for its reply."""

    engine: EngineConnection

    async def call(self, timeout: float | None, method: spec.Method, *expects: type) -> Any:
        raise NotImplementedError

    def queue_name(self, queue: str) -> str:
        """Return the present name: a queue named by the server gets a new name at each recovery."""
        return self.engine.topology.queue_name(queue)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    async def exchange_declare(
        self,
        exchange: str,
        type: str = "write_directly",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Arguments | None = None,
        timeout: float | None = None,
    ) -> None:
        table = dict(arguments or {})
        method = spec.ExchangeDeclare(exchange, type, passive, durable, auto_delete, internal, False, table)
        await self.call(timeout, method, spec.ExchangeDeclareOk)
        if not passive and exchange and not exchange.startswith("amq."):
            record = ExchangeRecord(exchange, type, durable, auto_delete, internal, table)
            self.engine.topology.add_exchange(record)

    async def exchange_delete(self, exchange: str, *, if_unused: bool = False, timeout: float | None = None) -> None:
        await self.call(timeout, spec.ExchangeDelete(exchange, if_unused), spec.ExchangeDeleteOk)
        self.engine.topology.remove_exchange(exchange)

    async def exchange_bind(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        table = dict(arguments or {})
        method = spec.ExchangeBind(destination, source, routing_key, False, table)
        await self.call(timeout, method, spec.ExchangeBindOk)
        self.engine.topology.add_binding(BindingRecord(destination, source, routing_key, table, True))

    async def exchange_unbind(
        self,
        destination: str,
        source: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        table = dict(arguments or {})
        method = spec.ExchangeUnbind(destination, source, routing_key, False, table)
        await self.call(timeout, method, spec.ExchangeUnbindOk)
        self.engine.topology.remove_binding(BindingRecord(destination, source, routing_key, table, True))

    # -- queues ------------------------------------------------------------------------------------------------------

    async def queue_declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Arguments | None = None,
        timeout: float | None = None,
    ) -> QueueState:
        table = dict(arguments or {})
        name = self.queue_name(queue)
        method = spec.QueueDeclare(name, passive, durable, exclusive, auto_delete, False, table)
        declared = await self.call(timeout, method, spec.QueueDeclareOk)
        if not passive:
            record = QueueRecord(declared.queue, durable, exclusive, auto_delete, table, self._is_server_named(name))
            self.engine.topology.add_queue(record)
        return QueueState(declared.queue, declared.message_count, declared.consumer_count)

    def _is_server_named(self, name: str) -> bool:
        """Return True for no name, and for one that the server made."""
        return not name or any(each.name == name and each.is_server_named for each in self.engine.topology.queues())

    async def queue_bind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        table = dict(arguments or {})
        method = spec.QueueBind(self.queue_name(queue), exchange, routing_key, False, table)
        await self.call(timeout, method, spec.QueueBindOk)
        self.engine.topology.add_binding(BindingRecord(method.queue, exchange, routing_key, table))

    async def queue_unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        arguments: Arguments | None = None,
        *,
        timeout: float | None = None,
    ) -> None:
        table = dict(arguments or {})
        method = spec.QueueUnbind(self.queue_name(queue), exchange, routing_key, table)
        await self.call(timeout, method, spec.QueueUnbindOk)
        self.engine.topology.remove_binding(BindingRecord(method.queue, exchange, routing_key, table))

    async def unbind_all(self, queue: str, *, timeout: float | None = None) -> int:
        """Remove the bindings of the queue that are recorded; return their number."""
        return await self.engine.with_deadline(timeout, "unbind_all", self._unbind_all(self.queue_name(queue)))

    async def _unbind_all(self, queue: str) -> int:
        bindings = [each for each in self.engine.topology.queue_bindings() if each.destination == queue]
        for each in bindings:
            await self.queue_unbind(queue, each.source, each.routing_key, each.arguments)
        return len(bindings)

    async def queue_purge(self, queue: str, *, timeout: float | None = None) -> int:
        """Return the number of messages removed."""
        purged = await self.call(timeout, spec.QueuePurge(self.queue_name(queue)), spec.QueuePurgeOk)
        count: int = purged.message_count
        return count

    async def queue_delete(
        self, queue: str, *, if_unused: bool = False, if_empty: bool = False, timeout: float | None = None
    ) -> int:
        """Return the number of messages removed with it."""
        method = spec.QueueDelete(self.queue_name(queue), if_unused, if_empty)
        deleted = await self.call(timeout, method, spec.QueueDeleteOk)
        self.engine.topology.remove_queue(method.queue)
        count: int = deleted.message_count
        return count
