"""The Prometheus text format (version 0.0.4) of a snapshot.

The names are part of what WarrenMQ promises to its users: dashboards are built on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from warrenmq.core.snapshot import Overview

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One field of the overview and the name it is published under."""

    name: str
    field: str
    meaning: str

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS = (
    Metric("warren_connections", "connections", "Client connections that are open."),
    Metric("warren_vhosts", "vhosts", "Virtual hosts."),
    Metric("warren_channels", "channels", "Channels that are open."),
    Metric("warren_exchanges", "exchanges", "Exchanges, the predeclared ones included."),
    Metric("warren_queues", "queues", "Queues."),
    Metric("warren_bindings", "bindings", "Bindings."),
    Metric("warren_consumers", "consumers", "Consumers."),
    Metric("warren_messages_ready", "messages_ready", "Messages that wait in queues for a consumer."),
    Metric("warren_messages_unacked", "messages_unacked", "Messages delivered and not yet acknowledged."),
    Metric("warren_messages_held_bytes", "held_bytes", "Memory that waiting and unacknowledged messages take."),
    Metric("warren_messages_published_total", "published", "Messages received from publishers."),
    Metric("warren_messages_delivered_total", "delivered", "Messages sent to consumers or fetched by basic.get."),
    Metric("warren_messages_redelivered_total", "redelivered", "Messages sent again after an earlier delivery."),
    Metric("warren_messages_acked_total", "acked", "Messages acknowledged by consumers."),
    Metric("warren_messages_confirmed_total", "confirmed", "Messages confirmed to their publishers."),
    Metric("warren_messages_returned_total", "returned", "Mandatory messages returned because no queue took them."),
    Metric("warren_messages_unroutable_total", "unroutable", "Messages that no queue took, returned or not."),
    Metric("warren_received_bytes_total", "bytes_in", "Bytes received from clients."),
    Metric("warren_sent_bytes_total", "bytes_out", "Bytes sent to clients."),
    Metric("warren_connections_opened_total", "connections_opened", "Connections opened since the start."),
    Metric("warren_connections_closed_total", "connections_closed", "Connections closed since the start."),
)


def render(overview: Overview, *, loop_lag: float, version: str) -> str:
    """All metrics as one text, ready to be scraped."""
    lines = list(_described("warren_build_info", "gauge", "The running version; always 1."))
    lines.append(f'warren_build_info{{version="{_escaped(version)}"}} 1')
    for metric in METRICS:
        lines.extend(_described(metric.name, metric.kind, metric.meaning))
        lines.append(f"{metric.name} {getattr(overview, metric.field)}")
    lines.extend(_described("warren_loop_lag_seconds", "gauge", "How late the event loop last ran a timed call."))
    lines.append(f"warren_loop_lag_seconds {float(loop_lag)!r}")
    return "\n".join(lines) + "\n"


def _described(name: str, kind: str, meaning: str) -> Iterable[str]:
    return (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}")


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
