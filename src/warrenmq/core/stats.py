"""Counters of a broker, traffic of a connection, and revisions of cached decisions.

Plain additions on the message path, read by snapshots. Queues have counters of their own. All memory used on behalf of
clients is counted here, by kind (docs/decisions/0020).

Compiled when the package is built (stats.pxd).
"""

from warrenmq.events import schema


class Stats:
    """Counters ending in `_bytes`, except `bytes_in` and `bytes_out`, are memory; `memory()` is their sum.

    - `held_bytes`: messages, waiting and unacked, counted in each queue; `shared_bytes`: the part counted repeatedly
    - `transit_bytes`: incomplete contents; `uncommitted_bytes`: publishes of open transactions. Only their clients can
      complete them, so together they are limited to `unfinished_limit` (0: no limit)
    - `output_bytes`: output that clients have not read
    - `route_bytes`: cached routes; `id_bytes`: ids of deduplication; `expiry_bytes`: the index of expiring messages
    - `definition_bytes`: queues, exchanges, bindings, consumers, channels and connections (core/memory.py)
    """

    __slots__ = (
        "acked",
        "bytes_in",
        "bytes_out",
        "confirmed",
        "connections_closed",
        "connections_opened",
        "consumer_timeouts",
        "consumers",
        "dead_letter_cycles",
        "dead_lettered",
        "deduplicated",
        "definition_bytes",
        "delivered",
        "dropped",
        "expiry_bytes",
        "held_bytes",
        "id_bytes",
        "output_bytes",
        "published",
        "ready",
        "redelivered",
        "rejected_publishes",
        "reports",
        "retried",
        "returned",
        "route_bytes",
        "scheduled",
        "shared_bytes",
        "transit_bytes",
        "unacked",
        "uncommitted_bytes",
        "unfinished_limit",
        "unroutable",
    )

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0
        self.redelivered = 0
        self.acked = 0
        self.confirmed = 0
        self.returned = 0
        self.unroutable = 0
        self.deduplicated = 0
        # By reason (events/schema.py): messages dropped from queues, and those of them that were dead-lettered.
        self.dropped = [0] * (max(schema.REASON_NAMES) + 1)
        self.dead_lettered = [0] * (max(schema.REASON_NAMES) + 1)
        self.dead_letter_cycles = 0
        self.rejected_publishes = 0
        self.consumer_timeouts = 0
        self.reports = 0  # published to producers
        self.retried = 0  # failed deliveries that will be repeated
        self.scheduled = 0  # messages that were kept until their time
        self.ready = 0
        self.unacked = 0
        self.consumers = 0
        self.held_bytes = 0
        self.shared_bytes = 0
        self.transit_bytes = 0
        self.uncommitted_bytes = 0
        self.output_bytes = 0
        self.route_bytes = 0
        self.id_bytes = 0
        self.expiry_bytes = 0
        self.definition_bytes = 0
        self.unfinished_limit = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_opened = 0
        self.connections_closed = 0

    def memory(self) -> int:
        """Return the memory used on behalf of clients."""
        return (
            self.held_bytes
            - self.shared_bytes
            + self.transit_bytes
            + self.uncommitted_bytes
            + self.output_bytes
            + self.route_bytes
            + self.id_bytes
            + self.expiry_bytes
            + self.definition_bytes
        )

    def exceeds_unfinished(self, coming: int) -> bool:
        """Return True if `coming` more bytes of incomplete contents and transactions exceed the limit."""
        return self.unfinished_limit != 0 and (
            self.transit_bytes + self.uncommitted_bytes + coming > self.unfinished_limit
        )


class Traffic:
    """Bytes received and sent by one connection."""

    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0


class Revision:
    """Grows with each change of what cached decisions depend on; a decision is valid for one revision."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0
