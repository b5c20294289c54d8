"""Read-only views of the broker, for whoever shows it to people."""

from dataclasses import dataclass

from warrenmq.core.broker import Broker
from warrenmq.core.channel import Channel
from warrenmq.core.queue import Queue


@dataclass(frozen=True, slots=True)
class Overview:
    """Totals of one broker; the names in the past tense are counters that only grow."""

    vhosts: int
    connections: int
    channels: int
    exchanges: int
    queues: int
    bindings: int
    consumers: int
    messages_ready: int
    messages_unacked: int
    held_bytes: int
    published: int
    delivered: int
    redelivered: int
    acked: int
    confirmed: int
    returned: int
    unroutable: int
    deduplicated: int
    bytes_in: int
    bytes_out: int
    connections_opened: int
    connections_closed: int


def overview(broker: Broker) -> Overview:
    stats = broker.stats
    vhosts = broker.vhosts.values()
    return Overview(
        vhosts=len(vhosts),
        connections=broker.connection_count,
        channels=broker.channel_count,
        exchanges=sum(len(vhost.exchanges) for vhost in vhosts),
        queues=sum(len(vhost.queues) for vhost in vhosts),
        bindings=sum(len(vhost.bindings) for vhost in vhosts),
        consumers=stats.consumers,
        messages_ready=stats.ready,
        messages_unacked=stats.unacked,
        held_bytes=stats.held_bytes,
        published=stats.published,
        delivered=stats.delivered,
        redelivered=stats.redelivered,
        acked=stats.acked,
        confirmed=stats.confirmed,
        returned=stats.returned,
        unroutable=stats.unroutable,
        deduplicated=stats.deduplicated,
        bytes_in=stats.bytes_in,
        bytes_out=stats.bytes_out,
        connections_opened=stats.connections_opened,
        connections_closed=stats.connections_closed,
    )


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue; the names in the past tense are counters since the start of the broker."""

    vhost: str
    name: str
    type: str
    is_durable: bool
    is_auto_delete: bool
    is_exclusive: bool
    messages_ready: int
    messages_unacked: int
    consumers: int
    published: int
    delivered: int
    delivered_no_ack: int
    redelivered: int
    requeued: int
    rejected: int
    acked: int


def queue_view(queue: Queue) -> QueueView:
    """Return what there is to show of a queue, streams included; basic.get counts as a delivery."""
    return QueueView(
        vhost=queue.vhost,
        name=queue.name,
        type=queue.options.type,
        is_durable=queue.is_durable,
        is_auto_delete=queue.is_auto_delete,
        is_exclusive=queue.owner is not None,
        messages_ready=queue.message_count(),
        messages_unacked=queue.unacked_count,
        consumers=len(queue.consumers),
        published=queue.next_position - queue.restored_position,  # each takes one position
        delivered=queue.delivered + queue.delivered_no_ack,
        delivered_no_ack=queue.delivered_no_ack,
        redelivered=queue.redelivered,
        requeued=queue.requeued,
        rejected=queue.rejected,
        acked=queue.delivered - queue.unacked_count - queue.requeued - queue.rejected,
    )


@dataclass(frozen=True, slots=True)
class ChannelCounters:
    """What one channel has done; `unacked` is what it holds now."""

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
