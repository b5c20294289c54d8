"""Read-only views of the broker, for the management API and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.channel import Channel
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.connection import Connection
from warrenmq.core.consumer import Consumer
from warrenmq.core.exchange import Exchange
from warrenmq.core.options import CLASSIC
from warrenmq.core.queue import Queue
from warrenmq.core.vhost import VHost
from warrenmq.events.schema import R_DELIVERY_LIMIT, R_EXPIRED, R_MAXLEN, R_REJECTED, reason_name
from warrenmq.protocol import properties
from warrenmq.protocol.errors import ProtocolError
from warrenmq.protocol.properties import BasicProperties

# Why a queue removes a message that was not acked.
DROP_REASONS = (R_REJECTED, R_EXPIRED, R_MAXLEN, R_DELIVERY_LIMIT)


@dataclass(frozen=True, slots=True)
class Overview:
    """Totals of one broker. Names in the past tense are counters that only grow."""

    vhosts: int
    connections: int
    channels: int
    exchanges: int
    queues: int
    bindings: int
    consumers: int
    messages_ready: int
    messages_unacked: int
    messages_scheduled: int
    messages_retrying: int
    held_bytes: int
    published: int
    delivered: int
    redelivered: int
    acked: int
    confirmed: int
    returned: int
    unroutable: int
    deduplicated: int
    rejected_publishes: int
    dead_letter_cycles: int
    dropped: Mapping[str, int]  # by reason: messages removed from queues without an ack
    dead_lettered: Mapping[str, int]  # by reason: dropped messages that another queue took
    consumer_timeouts: int
    retried: int
    reports: int
    scheduled: int
    bytes_in: int
    bytes_out: int
    connections_opened: int
    connections_closed: int
    logins_failed: int
    logins_refused: int


def overview(broker: Broker) -> Overview:
    stats = broker.stats
    vhosts = broker.vhosts.values()
    scheduled = sum(len(vhost.schedule) for vhost in vhosts)
    retrying = sum(queue.retrying() for vhost in vhosts for queue in vhost.queues.made())
    return Overview(
        vhosts=len(vhosts),
        connections=broker.connection_count,
        channels=broker.channel_count,
        exchanges=sum(len(vhost.exchanges) for vhost in vhosts),
        queues=sum(len(vhost.queues) for vhost in vhosts),
        bindings=sum(len(vhost.bindings) for vhost in vhosts),
        consumers=stats.consumers,
        messages_ready=stats.ready - scheduled - retrying,
        messages_unacked=stats.unacked,
        messages_scheduled=scheduled,
        messages_retrying=retrying,
        held_bytes=stats.held_bytes,
        published=stats.published,
        delivered=stats.delivered,
        redelivered=stats.redelivered,
        acked=stats.acked,
        confirmed=stats.confirmed,
        returned=stats.returned,
        unroutable=stats.unroutable,
        deduplicated=stats.deduplicated,
        rejected_publishes=stats.rejected_publishes,
        dead_letter_cycles=stats.dead_letter_cycles,
        dropped={reason_name(reason): stats.dropped[reason] for reason in DROP_REASONS},
        dead_lettered={reason_name(reason): stats.dead_lettered[reason] for reason in DROP_REASONS},
        consumer_timeouts=stats.consumer_timeouts,
        retried=stats.retried,
        reports=stats.reports,
        scheduled=stats.scheduled,
        bytes_in=stats.bytes_in,
        bytes_out=stats.bytes_out,
        connections_opened=stats.connections_opened,
        connections_closed=stats.connections_closed,
        logins_failed=broker.login_limit.failed,
        logins_refused=broker.login_limit.refused,
    )


def memory(broker: Broker) -> dict[str, int]:
    """Return the memory used on behalf of clients, by kind. The sum is `Stats.memory`.

    Memory shared by several queues is divided between waiting and unacked messages in proportion.
    """
    stats = broker.stats
    waiting = sum(queue.waiting_bytes() for vhost in broker.vhosts.values() for queue in vhost.queues.made())
    waiting += broker.storage.pending_bytes()
    waiting += sum(vhost.schedule.waiting_bytes() for vhost in broker.vhosts.values())
    held = stats.held_bytes - stats.shared_bytes
    kept = sum(
        x.history.held_bytes
        for vhost in broker.vhosts.values()
        for x in vhost.stateful_exchanges
        if x.history is not None
    )
    messages = held * waiting // stats.held_bytes if stats.held_bytes else 0
    history = held * kept // stats.held_bytes if stats.held_bytes else 0
    return {
        "messages": messages,
        "unacked": held - messages - history,
        "history": history,
        "bodies_in_transit": stats.transit_bytes,
        "transactions": stats.uncommitted_bytes,
        "outboxes": stats.output_bytes,
        "routes": stats.route_bytes,
        "deduplication": stats.id_bytes,
        "expiry": stats.expiry_bytes,
        "definitions": stats.definition_bytes,
    }


@dataclass(frozen=True, slots=True)
class ConnectionView:
    """One connection. `host` and `port` are the broker's end; `bytes_in` and `bytes_out` include the handshake."""

    name: str
    vhost: str
    user: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    connected_at_ms: int
    client_properties: Mapping[str, Any]
    channel_max: int
    frame_max: int
    heartbeat: int
    channels: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True, slots=True)
class ChannelView:
    """One channel. `prefetch` applies to new consumers, `global_prefetch` to the whole channel; 0: no limit.

    Deliveries acked in the open transaction count in `uncommitted_acks`, not in `unacked`.
    """

    connection: str
    number: int
    vhost: str
    user: str
    consumers: int
    prefetch: int
    global_prefetch: int
    unacked: int
    is_confirming: bool
    unconfirmed: int
    is_transactional: bool
    uncommitted_publishes: int
    uncommitted_acks: int


def connections(broker: Broker) -> list[ConnectionView]:
    """Return all connections that have opened a virtual host, oldest first."""
    return [view_connection(connection) for connection in broker.connections]


def channels(broker: Broker) -> list[ChannelView]:
    """Return all open channels, by connection."""
    return [view_channel(channel) for connection in broker.connections for channel in connection.channels.values()]


def view_connection(connection: Connection) -> ConnectionView:
    return ConnectionView(
        name=connection.name,
        vhost=connection.vhost.name,
        user=connection.user,
        peer_host=connection.peer_host,
        peer_port=connection.peer_port,
        host=connection.host,
        port=connection.port,
        connected_at_ms=connection.connected_at_ms,
        client_properties=connection.client_properties,
        channel_max=connection.channel_max,
        frame_max=connection.frame_max,
        heartbeat=connection.heartbeat,
        channels=len(connection.channels),
        bytes_in=connection.traffic.bytes_in,
        bytes_out=connection.traffic.bytes_out,
    )


def view_channel(channel: Channel) -> ChannelView:
    transaction = channel.transaction
    return ChannelView(
        connection=channel.connection_name,
        number=channel.number,
        vhost=channel.vhost_name,
        user=channel.user,
        consumers=len(channel.consumers),
        prefetch=channel.default_prefetch,
        global_prefetch=channel.ledger.prefetch,
        unacked=len(channel.ledger.unacked),
        is_confirming=channel.is_confirming,
        unconfirmed=channel.published_tag - channel.confirmed_tag,
        is_transactional=transaction is not None,
        uncommitted_publishes=0 if transaction is None else len(transaction.publishes),
        uncommitted_acks=0 if transaction is None else len(transaction.held_deliveries()),
    )


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue. Names in the past tense are counters since the start of the broker.

    `messages_paged`: those of `messages_ready` that are only on disk.
    """

    vhost: str
    name: str
    type: str
    is_durable: bool
    is_auto_delete: bool
    is_exclusive: bool
    arguments: Mapping[str, Any]
    messages_ready: int
    messages_unacked: int
    messages_retrying: int
    messages_paged: int
    consumers: int
    published: int
    delivered: int
    delivered_no_ack: int
    redelivered: int
    requeued: int
    rejected: int
    acked: int


def queue_view(queue: Queue) -> QueueView:
    """Return the view of a queue or stream; basic.get counts as a delivery."""
    return QueueView(
        vhost=queue.vhost,
        name=queue.name,
        type=queue.options.type,
        is_durable=queue.is_durable,
        is_auto_delete=queue.is_auto_delete,
        is_exclusive=queue.owner is not None,
        arguments=queue.arguments,
        messages_ready=queue.message_count(),
        messages_unacked=queue.unacked_count,
        messages_retrying=queue.retrying(),
        messages_paged=queue.backlog.paged if isinstance(queue, ClassicQueue) else 0,
        consumers=len(queue.consumers),
        published=queue.published(),
        delivered=queue.delivered + queue.delivered_no_ack + queue.delivered_directly(),
        delivered_no_ack=queue.delivered_no_ack + queue.delivered_directly(),
        redelivered=queue.redelivered,
        requeued=queue.requeued,
        rejected=queue.rejected,
        acked=queue.delivered - queue.unacked_count - queue.requeued - queue.rejected,
    )


def message_properties(header: bytes) -> dict[str, Any]:
    """Return the properties of a message that are set; none if they cannot be decoded."""
    try:
        found = properties.decode(header, 12)
    except ProtocolError:
        return {}
    values = {name: getattr(found, name) for name in BasicProperties.__slots__}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ConsumerView:
    """One consumer. `activity_status`: up; in a queue with a single active consumer, single_active or waiting."""

    queue: str
    vhost: str
    tag: str
    connection: str
    channel: int
    is_ack_required: bool
    is_exclusive: bool
    prefetch: int
    priority: int
    unacked: int
    active: bool
    activity_status: str
    arguments: Mapping[str, Any]


def consumers(queue: Queue) -> list[ConsumerView]:
    """Return the consumers of a queue, in the order of registration."""
    return [view_consumer(queue, consumer) for consumer in queue.consumers]


def view_consumer(queue: Queue, consumer: Consumer) -> ConsumerView:
    choice = queue.single_active if isinstance(queue, ClassicQueue) else None
    is_active = choice is None or choice.active is consumer
    return ConsumerView(
        queue=queue.name,
        vhost=queue.vhost,
        tag=consumer.tag,
        connection=consumer.channel.connection_name,
        channel=consumer.channel_number,
        is_ack_required=not consumer.no_ack,
        is_exclusive=consumer.is_exclusive,
        prefetch=consumer.prefetch,
        priority=consumer.priority,
        unacked=consumer.unacked,
        active=is_active,
        activity_status="up" if choice is None else "single_active" if is_active else "waiting",
        arguments=consumer.arguments,
    )


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The names of the policies that apply to a queue or exchange, and the settings of both together."""

    policy: str | None
    operator_policy: str | None
    definition: Mapping[str, Any]


def policy_view(vhost: VHost, target: Queue | Exchange) -> PolicyView:
    applied = vhost.policies.of(target)
    policy, operator_policy = applied.policy, applied.operator_policy
    return PolicyView(
        policy=None if policy is None else policy.name,
        operator_policy=None if operator_policy is None else operator_policy.name,
        definition=applied.definition(),
    )


def view_queue(vhost: VHost, name: str) -> tuple[QueueView, PolicyView]:
    """Return the view of a queue by its name, and its policies, without making an idle one."""
    if vhost.queues.is_idle(name):
        return QueueView(vhost.name, name, CLASSIC, True, False, False, {}, *[0] * 12), PolicyView(None, None, {})
    queue = vhost.queues[name]
    return queue_view(queue), policy_view(vhost, queue)


@dataclass(frozen=True, slots=True)
class ChannelCounters:
    """The counters of one channel; `unacked` is a gauge."""

    published: int
    unroutable: int
    confirmed: int
    nacked: int
    delivered: int
    acked: int
    unacked: int


def channel_counters(channel: Channel) -> ChannelCounters:
    return ChannelCounters(
        published=channel.published,
        unroutable=channel.unroutable,
        confirmed=channel.confirmed_tag - channel.nacked,
        nacked=channel.nacked,
        delivered=channel.ledger.last_tag,  # each delivery takes one tag
        acked=channel.acked,
        unacked=len(channel.ledger.unacked),
    )
