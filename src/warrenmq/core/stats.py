"""Counters of one broker, shared by everything in it, and those of each connection.

Plain additions on the message path, read by snapshots. Totals only: what each queue holds is the queue's own. And
`Revision`, a number that is compared on the message path.
Compiled when the package is built (stats.pxd).
"""


class Stats:
    """`held_bytes` is the memory that waiting and unacked messages take: the memory alarm judges it."""

    __slots__ = (
        "acked",
        "bytes_in",
        "bytes_out",
        "confirmed",
        "connections_closed",
        "connections_opened",
        "consumers",
        "deduplicated",
        "delivered",
        "held_bytes",
        "published",
        "ready",
        "redelivered",
        "returned",
        "unacked",
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
        self.ready = 0
        self.unacked = 0
        self.consumers = 0
        self.held_bytes = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.connections_opened = 0
        self.connections_closed = 0


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
