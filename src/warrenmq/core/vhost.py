"""A virtual host: its exchanges and queues by name, and the bindings between them.

Declares, binds, deletes and resolves routes. Refusals have RabbitMQ's codes and texts. Every change of the topology
drops the cached routes.

Owned by the loop thread.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from warrenmq.core import definitions, history, reserved
from warrenmq.core.arguments import (
    COMPARED_EXCHANGE_ARGUMENTS,
    COMPARED_QUEUE_ARGUMENTS,
    queue_type_of,
    require_name,
    validate_exchange_arguments,
    validate_queue_arguments,
)
from warrenmq.core.binding import Binding, BindingIndex, Destination, make_binding
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.consumer_timeout import apply_timeout
from warrenmq.core.deduplication import Deduplication, DeduplicationOptions
from warrenmq.core.equivalence import require_same_arguments, require_same_flag
from warrenmq.core.errors import (
    AccessRefused,
    CommandInvalid,
    NotFound,
    NotImplementedHere,
    PreconditionFailed,
    ResourceLocked,
)
from warrenmq.core.exchange import DEFAULT_EXCHANGE, Exchange, Route, collect_queues
from warrenmq.core.exchange_path import ExchangePath
from warrenmq.core.memory import size_of_binding, size_of_exchange, size_of_idle_queue, size_of_queue, size_of_route
from warrenmq.core.message import Message, address_of
from warrenmq.core.options import STREAM, ExchangeOptions, QueueOptions
from warrenmq.core.policies import Policies
from warrenmq.core.publish_rules import ADDRESS_PREFIX, wants_report
from warrenmq.core.publishing import publish, publish_from
from warrenmq.core.queue import Queue
from warrenmq.core.queue_expiry import apply_expiry
from warrenmq.core.queues import Queues
from warrenmq.core.report import Reports
from warrenmq.core.routing import MATCHERS, Traits, validate_binding
from warrenmq.core.schedule import Schedule
from warrenmq.core.stats import Revision
from warrenmq.core.stream import Stream
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker
    from warrenmq.core.connection import Connection
    from warrenmq.core.consumer import Consumer

# Memory limit of the cached routes of one virtual host: keys that are never used again must not fill the memory.
MAX_ROUTE_BYTES = 64 * 1024 * 1024

TRACE_EXCHANGE = "amq.rabbitmq.trace"
PREDECLARED = (
    (DEFAULT_EXCHANGE, "direct"),
    ("amq.direct", "direct"),
    ("amq.fanout", "fanout"),
    ("amq.headers", "headers"),
    ("amq.match", "headers"),
    ("amq.topic", "topic"),
)


class VHost:
    """One isolated namespace of a broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.limits = broker.limits
        self.is_tapped = False  # its firehose is open
        self.exchanges: dict[str, Exchange] = {}
        self.queues = Queues(self._make_idle_queue)
        self.bindings = BindingIndex()
        self.routes: dict[bytes, Route] = {}  # of clients, by the bytes of the publish method
        self._own_routes: dict[tuple[str, str], Route] = {}  # of `publish`, including internal exchanges
        self._route_bytes = 0  # the memory of both
        self.topology = Revision()  # grows when the cached routes are dropped
        self.stateful_exchanges: dict[Exchange, None] = {}  # `Exchange.is_stateful`
        self.policies = Policies(self)
        self.schedule = Schedule(self)
        self.reports = Reports(self)
        for exchange_name, type in PREDECLARED:
            self.add_exchange(Exchange(exchange_name, type, is_durable=True))
        self.add_exchange(Exchange(TRACE_EXCHANGE, "topic", is_durable=True, is_internal=True))

    @overload
    def apply(self, target: Queue, options: QueueOptions) -> None: ...
    @overload
    def apply(self, target: Exchange, options: ExchangeOptions) -> None: ...
    def apply(self, target: Any, options: Any) -> None:
        """Apply new options to a queue or exchange at run time."""
        before = target.options
        target.apply(options)
        if isinstance(target, Queue):
            apply_expiry(self, target)
            if before.consumer_timeout_ms != options.consumer_timeout_ms:
                apply_timeout(self.broker, target)
        self._topology_changed()

    def tap(self, is_tapped: bool) -> None:
        """Start or stop reporting all publishes and deliveries to the event sink (the firehose)."""
        self.is_tapped = is_tapped
        for queue in self.queues.made():
            queue.is_tapped = is_tapped

    # -- routing -----------------------------------------------------------------------------------------------------

    def route(
        self,
        exchange: Exchange,
        keys: Sequence[str],
        traits: Traits | None,
        path: ExchangePath | None = None,
    ) -> tuple[list[Queue], bool]:
        """Return the queues that a message reaches, and whether they depend on more than its keys."""
        found: dict[Queue, None] = {}
        uses_message = collect_queues(exchange, keys, traits, self.exchanges, self.queues, found, path)
        return list(found), uses_message

    def make_route(self, exchange: Exchange, routing_key: str, address: bytes, is_mandatory: bool) -> Route:
        """Return the route of all messages with the same publish method."""
        if exchange.name == DEFAULT_EXCHANGE and routing_key.startswith(ADDRESS_PREFIX):
            reply_queue = self.broker.reply_queues.get(routing_key)
            return Route(exchange, routing_key, address, is_mandatory, [] if reply_queue is None else [reply_queue])
        queues, uses_message = self.route(exchange, (routing_key,), None)
        if exchange.name == DEFAULT_EXCHANGE and routing_key == reserved.NOTES:
            uses_message = True  # `Channel.publish` inspects it
        return Route(exchange, routing_key, address, is_mandatory, None if uses_message else queues)

    def find_route(
        self, method: bytes, exchange: str, routing_key: str, address: bytes, is_mandatory: bool, is_immediate: bool
    ) -> Route:
        """Return the route of a client's publish, and cache it in `routes` by the bytes of the publish method.

        Only this routes to system streams; the caller has checked that the user may write there.
        """
        source = self.exchange(exchange)
        self._require_not_internal(source)
        if is_immediate:
            raise NotImplementedHere("immediate=true")
        if exchange == DEFAULT_EXCHANGE and reserved.is_system_stream(self.name, routing_key):
            queue = self.queues.get(routing_key)  # not cached: the caller checks the user's tags for every publish
            return Route(source, routing_key, address, is_mandatory, [] if queue is None else [queue])
        route = self.make_route(source, routing_key, address, is_mandatory)
        if not routing_key.startswith(ADDRESS_PREFIX):  # these come and go without a change of topology
            self._make_room_for(route)
            self.routes[method] = route
        return route

    def find_own_route(self, exchange: str, routing_key: str) -> Route:
        """Return the route of a message that the broker publishes; 404 if there is no such exchange."""
        route = self._own_routes.get((exchange, routing_key))
        if route is None:
            route = self.make_route(self.exchange(exchange), routing_key, address_of(exchange, routing_key), False)
            if not routing_key.startswith(ADDRESS_PREFIX):
                self._make_room_for(route)
                self._own_routes[exchange, routing_key] = route
        return route

    def _make_room_for(self, route: Route) -> None:
        """Count the memory of a route to be cached; drop all others if the limit is exceeded."""
        size = size_of_route(route)
        if self._route_bytes + size > MAX_ROUTE_BYTES:
            self._topology_changed()
        self._route_bytes += size
        self.broker.stats.route_bytes += size

    def publish(
        self,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        *,
        is_internal: bool = False,
    ) -> int:
        """Publish a message of the broker itself, without a channel. Return its outcome (core/outcome.py).

        Raises the same errors as a client's publish. `is_internal` also allows internal exchanges.
        """
        route = self.find_own_route(exchange, routing_key)
        if not is_internal:
            self._require_not_internal(route.exchange)
        return publish(self, route, header, body)

    def _require_not_internal(self, exchange: Exchange) -> None:
        if exchange.is_internal:
            raise AccessRefused(f"cannot publish to internal exchange '{exchange.name}' in vhost '{self.name}'")

    def _topology_changed(self) -> None:
        """Drop the cached routes."""
        self.routes.clear()
        self._own_routes.clear()
        self.topology.number += 1
        self.broker.stats.route_bytes -= self._route_bytes
        self._route_bytes = 0

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of that name; 404 if there is none."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self.name}'")
        return exchange

    def declare_exchange(
        self, name: str, type: str, is_durable: bool, is_auto_delete: bool, is_internal: bool, arguments: dict[str, Any]
    ) -> Exchange:
        """Declare an exchange: create it, or check that it is equivalent to the existing one."""
        if type not in MATCHERS:
            raise CommandInvalid(f"unknown exchange type '{type}'")
        existing = self.exchanges.get(name)
        if existing is not None:
            what = self.named("exchange", name)
            require_same_flag("type", what, type, existing.type)
            require_same_flag("durable", what, is_durable, existing.is_durable)
            require_same_flag("auto_delete", what, is_auto_delete, existing.is_auto_delete)
            require_same_flag("internal", what, is_internal, existing.is_internal)
            require_same_arguments(what, arguments, existing.arguments, COMPARED_EXCHANGE_ARGUMENTS)
            return existing
        if name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        if reserved.is_reserved(name):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix '{reserved.PREFIX}*'")
        validate_exchange_arguments(self.named("exchange", name), type, arguments)
        limit = self.limits.max_exchanges
        if limit and len(self.exchanges) >= limit:
            what = self.named("exchange", name)
            raise PreconditionFailed(f"cannot declare {what}: exchange limit of {limit} is reached")
        exchange = Exchange(name, type, is_durable, is_auto_delete, is_internal, arguments)
        self.add_exchange(exchange)
        self._topology_changed()
        if is_durable:
            self.broker.catalog.save("exchange", (self.name, name), definitions.of_exchange(self.name, exchange))
            if exchange.history is not None:
                definition = definitions.of_store(self.name, history.name_of_store(name))
                self.broker.catalog.save("queue", (self.name, definition["name"]), definition)
        self.broker.emit(schema.EXCHANGE_DECLARED, self.name, exchange=name)
        return exchange

    def add_exchange(self, exchange: Exchange) -> None:
        self.exchanges[exchange.name] = exchange
        self.policies.apply_to(exchange)
        self.broker.stats.definition_bytes += size_of_exchange(exchange)
        name, options, is_durable = exchange.name, exchange.options, exchange.is_durable
        if options.deduplication is not None:
            exchange.deduplication = self._make_deduplication(options.deduplication, "exchange", name, is_durable)
        if options.history_length:
            store = None
            if is_durable:
                name = history.name_of_store(name)
                store = self.broker.storage.message_store(self.name, name, QueueOptions(is_durable=True))
            exchange.history = history.History(options.history_length, self.broker.stats, store)
        if exchange.is_stateful:
            self.stateful_exchanges[exchange] = None

    def _make_deduplication(
        self, options: DeduplicationOptions, kind: str, name: str, is_durable: bool, level: int | None = None
    ) -> Deduplication:
        storage = self.broker.storage
        store = storage.seen_store(kind, self.name, name, level) if is_durable and options.is_persistent else None
        return Deduplication(options, store, self.broker.turn, self.broker.stats)

    def delete_exchange(self, name: str, if_unused: bool) -> None:
        """Delete an exchange with its bindings; does nothing if it does not exist."""
        self.require_not_default(name)
        if name.startswith("amq."):
            raise AccessRefused(f"deletion of system {self.named('exchange', name)} not allowed")
        exchange = self.exchanges.get(name)
        if exchange is None:
            return
        if if_unused and exchange.binding_count:
            raise PreconditionFailed(f"{self.named('exchange', name)} in use")
        self.remove_exchange(exchange)

    def remove_exchange(self, exchange: Exchange) -> None:
        """Remove an exchange with all bindings from it and to it."""
        del self.exchanges[exchange.name]
        self.policies.forget(exchange)
        self.broker.stats.definition_bytes -= size_of_exchange(exchange)
        for binding in self.bindings.of_source(exchange):
            self._remove_binding(binding)
        self._unbind_destination(exchange)
        self._topology_changed()
        self.stateful_exchanges.pop(exchange, None)
        if exchange.deduplication is not None:
            exchange.deduplication.delete()
        if exchange.history is not None:
            exchange.history.delete()
        if exchange.is_durable and not _is_predeclared(exchange.name):
            self.broker.catalog.delete("exchange", (self.name, exchange.name))
            if exchange.history is not None:
                self.broker.catalog.delete("queue", (self.name, history.name_of_store(exchange.name)))
        self.broker.emit(schema.EXCHANGE_DELETED, self.name, exchange=exchange.name)

    def require_not_default(self, name: str) -> None:
        if name == DEFAULT_EXCHANGE:
            raise AccessRefused("operation not permitted on the default exchange")

    # -- queues ------------------------------------------------------------------------------------------------------

    def queue(self, name: str, connection: Connection | None) -> Queue:
        """Return the queue of that name; 404 if there is none, 405 if it is exclusive to another connection."""
        queue = self.queues.get(name)
        if queue is None:
            raise NotFound(f"no queue '{name}' in vhost '{self.name}'")
        self._require_access(queue, connection)
        return queue

    def declare_queue(
        self,
        name: str,
        is_durable: bool,
        is_exclusive: bool,
        is_auto_delete: bool,
        arguments: dict[str, Any],
        connection: Connection | None,
    ) -> Queue:
        """Declare a queue: create it, or check that it is equivalent to the existing one.

        An empty name is replaced by a generated one. Without a connection it is a queue of the broker itself, to which
        the limit does not apply.
        """
        if name.startswith("amq."):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        is_durable = is_durable and not is_exclusive  # an exclusive queue is deleted with its connection
        existing = self.queues.get(name) if name else None
        if existing is not None:
            what = self.named("queue", name)
            self._require_access(existing, connection)
            if is_exclusive != (existing.owner is not None):
                raise ResourceLocked(self._locked(name))
            require_same_flag("durable", what, is_durable, existing.is_durable)
            require_same_flag("auto_delete", what, is_auto_delete, existing.is_auto_delete)
            require_same_arguments(what, arguments, existing.arguments, COMPARED_QUEUE_ARGUMENTS)
            existing.touch()
            return existing
        self._require_free(name, is_durable, arguments)
        require_name(name, arguments)
        validate_queue_arguments(self.named("queue", name), arguments, is_durable, is_exclusive, is_auto_delete)
        name = name or self._generate_name()
        limit = self.limits.max_queues
        if limit and len(self.queues) >= limit and connection is not None:
            where = f"in vhost '{self.name}' ({limit})"
            raise PreconditionFailed(f"cannot declare queue '{name}': queue limit {where} is reached")
        queue = self.make_queue(name, is_durable, is_auto_delete, connection if is_exclusive else None, arguments)
        if is_durable:
            self.broker.catalog.save("queue", (self.name, name), definitions.of_queue(queue))
        self.broker.emit(schema.QUEUE_DECLARED, self.name, queue=name)
        return queue

    def _require_free(self, name: str, is_durable: bool, arguments: dict[str, Any]) -> None:
        """403 for a new queue with a reserved name, unless it is a valid system stream."""
        if not reserved.is_reserved(name):
            return
        if not reserved.is_system_stream(self.name, name):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix '{reserved.PREFIX}*'")
        if not reserved.can_be_declared(is_durable, arguments):
            raise AccessRefused(f"queue name '{name}' is reserved for a durable stream")

    def make_queue(
        self,
        name: str,
        is_durable: bool,
        is_auto_delete: bool,
        owner: Connection | None,
        arguments: dict[str, Any],
    ) -> Queue:
        queue = self._add_queue(name, is_durable, is_auto_delete, owner, arguments)
        self._topology_changed()
        return queue

    def _make_idle_queue(self, name: str) -> Queue:
        self.broker.stats.definition_bytes -= size_of_idle_queue(name)
        return self._add_queue(name, True, False, None, {})

    def _add_queue(
        self,
        name: str,
        is_durable: bool,
        is_auto_delete: bool,
        owner: Connection | None,
        arguments: dict[str, Any],
    ) -> Queue:
        broker = self.broker
        applied = self.policies.find(queue_type_of(arguments), name)
        options = applied.queue_options(is_durable, arguments)
        queue: Queue
        if options.type == STREAM:
            streams = broker.storage.stream_store(self.name, name, options)
            queue = Stream(self.name, name, arguments, broker.stats, broker.turn, streams, broker.events, options)
        else:
            queue = ClassicQueue(
                self.name,
                name,
                is_durable,
                is_auto_delete,
                owner,
                arguments,
                broker.stats,
                broker.turn,
                broker.storage.message_store(self.name, name, options),
                broker.events,
                options,
                self,
            )
        if options.deduplication is not None:
            queue.deduplication = self._make_deduplication(
                options.deduplication, "queue", name, is_durable, queue.durability_level
            )
        queue.restore()
        self.policies.record(queue, applied)
        queue.is_tapped = self.is_tapped
        self.queues[name] = queue
        broker.stats.definition_bytes += size_of_queue(queue)
        if owner is not None:
            owner.exclusive_queues[queue] = None
        apply_expiry(self, queue)
        return queue

    def delete_queue(self, name: str, connection: Connection | None, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue. Return the number of waiting messages; does nothing if it does not exist."""
        queue = self.queues.get(name)
        if queue is None:
            return 0
        self._require_access(queue, connection)
        if name == schema.STREAM_NAME and reserved.is_system_stream(self.name, name) and isinstance(queue, Stream):
            raise AccessRefused(f"deletion of system {self.named('queue', name)} not allowed")
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"{self.named('queue', name)} in use")
        if if_empty and (queue.message_count() or queue.retrying()):
            raise PreconditionFailed(f"{self.named('queue', name)} not empty")
        return self.remove_queue(queue)

    def remove_queue(self, queue: Queue, reason: int = 0) -> int:
        """Remove a queue and notify its consumers; `reason` is for the event."""
        if self.queues.get(queue.name) is not queue:
            return 0
        del self.queues[queue.name]
        self.policies.forget(queue)
        self.broker.stats.definition_bytes -= size_of_queue(queue)
        if queue.owner is not None:
            del queue.owner.exclusive_queues[queue]
        dropped, consumers = queue.delete()
        self._unbind_destination(queue)
        self._topology_changed()
        if queue.is_durable:
            self.broker.catalog.delete("queue", (self.name, queue.name))
            self.reports.forget(queue.name)
        self.broker.turn.cancelled.extend(consumers)
        self.broker.emit(schema.QUEUE_DELETED, self.name, queue=queue.name, reason=reason)
        return dropped

    def remove_consumer(self, queue: Queue, consumer: Consumer) -> None:
        """Remove a consumer from a queue; an auto-delete queue is deleted with its last one."""
        queue.remove_consumer(consumer)
        if queue.is_auto_delete and not queue.consumers:
            self.remove_queue(queue)

    def _require_access(self, queue: Queue, connection: Connection | None) -> None:
        if queue.owner is not None and queue.owner is not connection:
            raise ResourceLocked(self._locked(queue.name))

    def _generate_name(self) -> str:
        while True:
            name = "amq.gen-" + urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
            if name not in self.queues:
                return name

    # -- bindings ----------------------------------------------------------------------------------------------------

    def bind(self, source: str, destination: Destination, key: str, arguments: dict[str, Any]) -> None:
        """Bind a queue or another exchange to an exchange; an existing binding is left unchanged."""
        exchange = self.exchange(source)
        if self.is_system_stream(destination):
            raise AccessRefused(f"binding of system {self.named('queue', destination.name)} not allowed")
        try:
            validate_binding(exchange.options.routing_type, key, arguments)
        except ValueError as error:
            raise PreconditionFailed(str(error)) from None
        binding = make_binding(exchange, destination, key, arguments)
        limit = self.limits.max_bindings
        if limit and len(self.bindings) >= limit and binding not in self.bindings:
            kind = "queue" if isinstance(destination, Queue) else "exchange"
            raise PreconditionFailed(
                f"cannot bind {kind} '{destination.name}' to {self.named('exchange', source)}: "
                f"binding limit of {limit} is reached"
            )
        if not self.add_binding(binding):
            return
        if binding.is_durable:
            self.broker.catalog.save(
                "binding", definitions.binding_key(self.name, binding), definitions.of_binding(self.name, binding)
            )
        if exchange.history is not None:
            exchange.history.replay(lambda message: self._replay(message, binding))

    def _replay(self, message: Message, binding: Binding) -> None:
        """Deliver a message of a history to a new binding; consumers receive it at the end of the turn."""
        if binding not in self.bindings:
            return  # unbound while the history was read from disk
        turn = self.broker.turn
        was_settling, turn.is_settling = turn.is_settling, True
        if message.uid != 0:
            self.broker.events.advance_clock()
        try:
            if isinstance(binding.destination, Queue):
                message.wants_report = wants_report(message.header)
                binding.destination.enqueue(message)
            else:
                publish_from(self, binding.destination, message)
        finally:
            turn.is_settling = was_settling

    def is_system_stream(self, destination: Destination) -> bool:
        """Return True for a system stream."""
        return isinstance(destination, Queue) and reserved.is_system_stream(self.name, destination.name)

    def unbind(
        self,
        source: str,
        destination: Destination,
        key: str,
        arguments: dict[str, Any],
        connection: Connection | None = None,
    ) -> bool:
        """Undo a bind. Return False if there is no such binding."""
        exchange = self.exchange(source)
        binding = make_binding(exchange, destination, key, arguments)
        if isinstance(destination, Queue) and binding in self.bindings:
            self._require_access(destination, connection)
        if not self._remove_binding(binding):
            return False
        self._topology_changed()
        self._delete_if_unused(exchange)
        return True

    def add_binding(self, binding: Binding) -> bool:
        """Return True if it is new."""
        if not self.bindings.add(binding):
            return False
        self.broker.stats.definition_bytes += size_of_binding(binding)
        self._topology_changed()
        return True

    def _remove_binding(self, binding: Binding) -> bool:
        if not self.bindings.remove(binding):
            return False
        self.broker.stats.definition_bytes -= size_of_binding(binding)
        if binding.is_durable:
            self.broker.catalog.delete("binding", definitions.binding_key(self.name, binding))
        return True

    def _unbind_destination(self, destination: Destination) -> None:
        """Remove all bindings to a destination, and auto-delete exchanges without bindings left."""
        sources: dict[Exchange, None] = {}
        for binding in self.bindings.of_destination(destination):
            self._remove_binding(binding)
            sources[binding.source] = None
        for source in sources:
            self._delete_if_unused(source)

    def _delete_if_unused(self, exchange: Exchange) -> None:
        if exchange.is_auto_delete and not exchange.binding_count and exchange.name in self.exchanges:
            self.remove_exchange(exchange)

    # -- error texts -------------------------------------------------------------------------------------------------

    def named(self, kind: str, name: str) -> str:
        return f"{kind} '{name}' in vhost '{self.name}'"

    def _locked(self, name: str) -> str:
        return (
            f"cannot obtain exclusive access to locked {self.named('queue', name)}. It could be originally "
            "declared on another connection or the exclusive property value does not match that of the original "
            "declaration."
        )


def _is_predeclared(name: str) -> bool:
    return name == DEFAULT_EXCHANGE or name.startswith("amq.")
