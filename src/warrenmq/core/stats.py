"""Counters of one broker, shared by everything in it, and those of each connection.

Plain additions on the message path, read by snapshots. Totals only: what each queue holds is the queue's own. All
memory that clients make the broker hold is counted here, by kind (docs/decisions/0020). And `Revision`, a number that
is compared on the message path.
Compiled when the package is built (stats.pxd).
"""

from warrenmq.events import schema


class Stats:
    """The counters that end in `_bytes` are memory, but for `bytes_in` and `bytes_out`; `memory()` is their sum.

    `held_bytes` are messages, waiting and unacked, in every queue that holds them; `shared_bytes` of that are counted
    more than once, as the message is in several queues. `transit_bytes` are contents that have not come whole,
    `uncommitted_bytes` the publishes of open transactions: both can end only by what their clients send next, so they
    may take no more than `unfinished_limit` together (0: no limit). `output_bytes` wait for clients to read them.
    `route_bytes` are cached routes, `id_bytes` the ids that deduplication remembers, `expiry_bytes` the index of
    messages that expire, `definition_bytes` queues,
    exchanges, bindings, consumers, channels and connections (core/memory.py).
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
        "returned",
        "route_bytes",
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
        # By reason (events/schema.py): removed from queues, and of those, published to a dead-letter exchange.
        self.dropped = [0] * (max(schema.REASON_NAMES) + 1)
        self.dead_lettered = [0] * (max(schema.REASON_NAMES) + 1)
        self.dead_letter_cycles = 0
        self.rejected_publishes = 0
        self.consumer_timeouts = 0
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
        """Return the bytes that clients make the broker hold."""
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
        """Return True if `coming` more bytes of unfinished contents and transactions are more than there may be."""
        return self.unfinished_limit != 0 and (
            self.transit_bytes + self.uncommitted_bytes + coming > self.unfinished_limit
        )


class Traffic:
    """Bytes that one connection has received and sent."""

    __slots__ = ("bytes_in", "bytes_out")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0


class Revision:
    """Grows with each change of what decisions depend on. A cached decision is valid for the number it was made at."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0
