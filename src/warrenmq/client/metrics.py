"""Metrics of connections: hooks, and a collector of counters with the Prometheus text format.

`ConnectionFactory(metrics=...)` takes a `MetricsCollector`; without one nothing is counted, at no cost. The hooks are
called by the I/O thread and by threads that publish or ack, several at once: a collector must be thread-safe and fast,
must not raise, and must not call the client.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsCollector:
    """The hooks, which do nothing: override those you need.

    >>> class LossReporter(MetricsCollector):
    ...     def connection_lost(self) -> None:
    ...         print("lost the broker")
    >>> LossReporter().connection_lost()
    lost the broker
    """

    __slots__ = ()

    def connection_opened(self) -> None:
        """A connection was opened."""

    def connection_lost(self) -> None:
        """The connection was lost; a recovery may follow."""

    def connection_recovered(self) -> None:
        """The connection is open again, and everything is redeclared."""

    def connection_closed(self) -> None:
        """The connection has ended for good."""

    def channel_opened(self) -> None: ...

    def channel_closed(self) -> None:
        """A channel has ended for good."""

    def published(self, count: int, size: int) -> None:
        """Messages were published; `size` is the total of their bodies in bytes."""

    def confirmed(self, count: int) -> None: ...

    def nacked(self, count: int) -> None:
        """The broker nacked messages."""

    def returned(self) -> None:
        """A mandatory message was returned."""

    def publish_lost(self, count: int) -> None:
        """The connection or the channel ended before these messages were confirmed."""

    def delivered(self, count: int, size: int) -> None:
        """Messages arrived, for consumers or by get; `size` is the total of their bodies in bytes."""

    def acked(self, count: int) -> None:
        """Acknowledgements were sent; one that covers multiple deliveries counts once."""

    def rejected(self, count: int) -> None:
        """Like `acked`, for nack and reject."""

    def callback_failed(self) -> None:
        """A callback of the user raised."""


@dataclass(frozen=True, slots=True)
class Counts:
    """A snapshot of a `CountingMetrics`."""

    connections_opened: int = 0
    connections_lost: int = 0
    connections_recovered: int = 0
    connections_closed: int = 0
    channels_opened: int = 0
    channels_closed: int = 0
    published: int = 0
    published_bytes: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    publish_lost: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    rejected: int = 0
    callbacks_failed: int = 0

    @property
    def open_connections(self) -> int:
        return self.connections_opened - self.connections_closed

    @property
    def open_channels(self) -> int:
        return self.channels_opened - self.channels_closed


# Field of Counts, name for Prometheus, meaning. The names must not change: dashboards use them.
_FAMILIES = (
    ("open_connections", "warren_client_connections", "Connections that have not ended."),
    ("open_channels", "warren_client_channels", "Channels that have not ended."),
    ("connections_opened", "warren_client_connections_opened_total", "Connections opened."),
    ("connections_lost", "warren_client_connections_lost_total", "Times that a connection was lost."),
    ("connections_recovered", "warren_client_connections_recovered_total", "Times that a lost connection came back."),
    ("published", "warren_client_messages_published_total", "Messages published."),
    ("published_bytes", "warren_client_published_bytes_total", "Size of the published bodies."),
    ("confirmed", "warren_client_messages_confirmed_total", "Published messages that the broker confirmed."),
    ("nacked", "warren_client_messages_nacked_total", "Published messages that the broker refused."),
    ("returned", "warren_client_messages_returned_total", "Mandatory messages that came back."),
    ("publish_lost", "warren_client_messages_publish_lost_total", "Published messages whose fate is not known."),
    ("delivered", "warren_client_messages_delivered_total", "Messages received."),
    ("delivered_bytes", "warren_client_delivered_bytes_total", "Size of the received bodies."),
    ("acked", "warren_client_acks_total", "Acknowledgements sent."),
    ("rejected", "warren_client_rejects_total", "Negative acknowledgements sent."),
    ("callbacks_failed", "warren_client_callbacks_failed_total", "Callbacks that raised."),
)


class CountingMetrics(MetricsCollector):
    """Counters, for one connection or for several that share it.

    >>> metrics = CountingMetrics()
    >>> metrics.published(2, size=10)
    >>> metrics.confirmed(1)
    >>> metrics.counts().published, metrics.counts().confirmed
    (2, 1)
    >>> print(metrics.exposition().splitlines()[17])
    warren_client_messages_published_total 2
    """

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = dict.fromkeys(Counts.__dataclass_fields__, 0)

    def counts(self) -> Counts:
        """Return all counters."""
        with self._lock:
            return Counts(**self._counts)

    def exposition(self) -> str:
        """Return the counters in the Prometheus text format, to be served as `CONTENT_TYPE`."""
        counts = self.counts()
        lines = []
        for field, name, meaning in _FAMILIES:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {getattr(counts, field)}"]
        return "\n".join(lines) + "\n"

    def connection_opened(self) -> None:
        self._add("connections_opened", 1)

    def connection_lost(self) -> None:
        self._add("connections_lost", 1)

    def connection_recovered(self) -> None:
        self._add("connections_recovered", 1)

    def connection_closed(self) -> None:
        self._add("connections_closed", 1)

    def channel_opened(self) -> None:
        self._add("channels_opened", 1)

    def channel_closed(self) -> None:
        self._add("channels_closed", 1)

    def published(self, count: int, size: int) -> None:
        with self._lock:
            self._counts["published"] += count
            self._counts["published_bytes"] += size

    def confirmed(self, count: int) -> None:
        self._add("confirmed", count)

    def nacked(self, count: int) -> None:
        self._add("nacked", count)

    def returned(self) -> None:
        self._add("returned", 1)

    def publish_lost(self, count: int) -> None:
        self._add("publish_lost", count)

    def delivered(self, count: int, size: int) -> None:
        with self._lock:
            self._counts["delivered"] += count
            self._counts["delivered_bytes"] += size

    def acked(self, count: int) -> None:
        self._add("acked", count)

    def rejected(self, count: int) -> None:
        self._add("rejected", count)

    def callback_failed(self) -> None:
        self._add("callbacks_failed", 1)

    def _add(self, field: str, count: int) -> None:
        with self._lock:
            self._counts[field] += count
