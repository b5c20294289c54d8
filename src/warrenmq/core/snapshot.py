"""Read-only views of the broker, for whoever shows it to people."""

from dataclasses import dataclass

from warrenmq.core.broker import Broker


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
