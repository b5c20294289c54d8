"""Restores virtual hosts, policies, exchanges, queues and bindings from the catalog when a broker starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from warrenmq.core import definitions, history, report, reserved, retry, schedule
from warrenmq.core.binding import Destination, make_binding
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.exchange import Exchange
from warrenmq.core.memory import size_of_idle_queue
from warrenmq.core.options import CLASSIC
from warrenmq.core.policies import NO_POLICIES, OPERATOR_POLICY, POLICY
from warrenmq.core.vhost import VHost

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker


def restore_definitions(broker: Broker) -> None:
    """Restore everything that the catalog holds."""
    load = broker.catalog.load
    for definition in load("vhost"):
        broker.vhosts[definition["name"]] = VHost(broker, definition["name"])
    for kind in (POLICY, OPERATOR_POLICY):  # before what they apply to
        for definition in load(kind):
            broker.vhosts[definition["vhost"]].policies.restore(definition, kind == OPERATOR_POLICY)
    for definition in load("exchange"):
        _restore_exchange(broker.vhosts[definition["vhost"]], definition)
    for name, queues in broker.storage.idle_queues().items():  # before retries, which look up their queues
        _restore_idle_queues(broker.vhosts[name], queues)
    for definition in sorted(load("queue"), key=_rank):
        restore_queue(broker.vhosts[definition["vhost"]], definition)
    for definition in list(load("binding")):
        _restore_binding(broker.vhosts[definition["vhost"]], definition)
    for vhost in broker.vhosts.values():
        _warn_of_reserved_names(vhost)


def _rank(definition: Mapping[str, Any]) -> int:
    """Before a queue, whether its messages may want reports is restored; after it, the store of its retries."""
    if definition["name"].startswith(report.MARK_PREFIX):
        return 0
    return 2 if definition["name"].startswith(retry.STORE_PREFIX) else 1


def _restore_exchange(vhost: VHost, definition: Mapping[str, Any]) -> None:
    exchange = Exchange(
        definition["name"],
        definition["type"],
        True,
        definition["auto_delete"],
        definition["internal"],
        definition["arguments"],
    )
    vhost.add_exchange(exchange)


def _restore_idle_queues(vhost: VHost, names: Iterable[str]) -> None:
    """Restore durable queues without arguments and messages; each is made when it is first used."""
    for name in names:
        if vhost.policies.find(CLASSIC, name) is NO_POLICIES:
            vhost.queues.add_idle(name)
            vhost.broker.stats.definition_bytes += size_of_idle_queue(name)
        else:
            vhost.make_queue(name, True, False, None, {})


def restore_queue(vhost: VHost, definition: Mapping[str, Any]) -> None:
    """Restore a queue, or another store of messages that is defined as a queue."""
    name = definition["name"]
    if name.startswith(report.MARK_PREFIX):
        vhost.reports.restore(name)
        return
    if name == schedule.STORE:
        vhost.schedule.restore()
        return
    retrying = vhost.queues.get(name.removeprefix(retry.STORE_PREFIX))
    if name.startswith(retry.STORE_PREFIX) and isinstance(retrying, ClassicQueue):
        retrying.restore_retries()
        return
    is_history = name.startswith(history.STORE_PREFIX)
    exchange = vhost.exchanges.get(name.removeprefix(history.STORE_PREFIX)) if is_history else None
    if exchange is not None and exchange.history is not None:
        return  # the exchange has it
    vhost.make_queue(name, True, definition["auto_delete"], None, definition["arguments"])


def _restore_binding(vhost: VHost, definition: Mapping[str, Any]) -> None:
    kinds: Mapping[str, Mapping[str, Destination]] = {"queue": vhost.queues, "exchange": vhost.exchanges}
    destination = kinds[definition["destination_type"]][definition["destination"]]
    source = vhost.exchanges[definition["source"]]
    binding = make_binding(source, destination, definition["routing_key"], definition["arguments"])
    if not vhost.is_system_stream(destination):
        vhost.add_binding(binding)
        return
    # An older version allowed it.
    vhost.broker.catalog.delete("binding", definitions.binding_key(vhost.name, binding))
    vhost.broker.recovery_warnings.append(
        f"the binding of queue '{destination.name}' in vhost '{vhost.name}' to exchange '{source.name}' is removed: "
        "clients cannot bind streams of the broker"
    )


def _warn_of_reserved_names(vhost: VHost) -> None:
    for kind, names in (("queue", vhost.queues), ("exchange", vhost.exchanges)):
        vhost.broker.recovery_warnings += [
            f"{kind} '{name}' in vhost '{vhost.name}' has a name under the reserved prefix '{reserved.PREFIX}*': "
            "it works, but once deleted it cannot be declared again"
            for name in names
            if reserved.is_reserved(name) and not (kind == "queue" and reserved.is_system_stream(vhost.name, name))
        ]
