"""Metrics in the Prometheus text format (version 0.0.4).

The names are stable: dashboards are built on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from warrenmq.core.snapshot import Overview

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """A field of the overview, or a figure of the storage, and its name and help text."""

    name: str
    field: str
    help: str

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


METRICS = (
    Metric("warren_connections", "connections", "Open client connections."),
    Metric("warren_vhosts", "vhosts", "Virtual hosts."),
    Metric("warren_channels", "channels", "Open channels."),
    Metric("warren_exchanges", "exchanges", "Exchanges, including the predeclared ones."),
    Metric("warren_queues", "queues", "Queues."),
    Metric("warren_bindings", "bindings", "Bindings."),
    Metric("warren_consumers", "consumers", "Consumers."),
    Metric("warren_messages_ready", "messages_ready", "Messages waiting in queues."),
    Metric("warren_messages_unacked", "messages_unacked", "Messages delivered and not yet acknowledged."),
    Metric("warren_messages_scheduled", "messages_scheduled", "Messages kept until their time."),
    Metric("warren_messages_retrying", "messages_retrying", "Messages waiting for their next attempt."),
    Metric("warren_messages_held_bytes", "held_bytes", "Memory of waiting and unacked messages, summed over queues."),
    Metric("warren_messages_published_total", "published", "Messages received from publishers."),
    Metric("warren_messages_delivered_total", "delivered", "Messages sent to consumers or fetched by basic.get."),
    Metric("warren_messages_redelivered_total", "redelivered", "Messages delivered again."),
    Metric("warren_messages_retried_total", "retried", "Failed deliveries that are followed by another attempt."),
    Metric("warren_messages_delayed_total", "scheduled", "Messages received with a delay or a time of delivery."),
    Metric("warren_reports_total", "reports", "Reports published to producers (x-report-to)."),
    Metric("warren_messages_acked_total", "acked", "Messages acknowledged by consumers."),
    Metric("warren_messages_confirmed_total", "confirmed", "Messages confirmed to their publishers."),
    Metric("warren_messages_returned_total", "returned", "Mandatory messages returned because no queue took them."),
    Metric("warren_messages_unroutable_total", "unroutable", "Messages that no queue took, whether returned or not."),
    Metric(
        "warren_consumer_timeouts_total",
        "consumer_timeouts",
        "Channels closed for a delivery not acked in time.",
    ),
    Metric("warren_messages_deduplicated_total", "deduplicated", "Messages dropped as duplicates."),
    Metric("warren_publishes_rejected_total", "rejected_publishes", "Publishes rejected by full queues."),
    Metric("warren_dead_letter_cycles_total", "dead_letter_cycles", "Dead letters dropped because of a cycle."),
    Metric("warren_received_bytes_total", "bytes_in", "Bytes received from clients."),
    Metric("warren_sent_bytes_total", "bytes_out", "Bytes sent to clients."),
    Metric("warren_connections_opened_total", "connections_opened", "Connections opened."),
    Metric("warren_connections_closed_total", "connections_closed", "Connections closed."),
    Metric("warren_logins_failed_total", "logins_failed", "Logins with a wrong user or password, AMQP and HTTP."),
    Metric("warren_logins_refused_total", "logins_refused", "Logins refused unchecked after too many failed ones."),
)

REASON_METRICS = (
    Metric("warren_messages_dropped_total", "dropped", "Messages removed from queues without an ack, by reason."),
    Metric("warren_messages_dead_lettered_total", "dead_lettered", "Messages dead-lettered to a queue, by reason."),
)

STORAGE_METRICS = (
    Metric("warren_log_bytes", "log_bytes", "Size of the commit log."),
    Metric("warren_log_epochs_total", "log_epochs", "Epochs written since the data folder was created."),
    Metric("warren_log_syncs_total", "log_syncs", "Syncs of the commit log."),
    Metric("warren_log_checkpoints_total", "log_checkpoints", "Checkpoints of the commit log."),
    Metric("warren_compactions_total", "compactions", "Segment files rewritten without their dead messages."),
    Metric(
        "warren_page_out_pending_bytes",
        "page_out_pending_bytes",
        "Messages being written from memory to segments.",
    ),
    Metric("warren_damaged_pages_total", "damaged_pages", "Segment pages that could not be read, since the start."),
    Metric("warren_lost_messages_total", "lost_messages", "Messages lost to damage, at most: at the start and since."),
    Metric("warren_disk_free_bytes", "disk_free_bytes", "Free space on the disk of the data folder."),
)
RESOURCES = ("memory", "disk", "events")


def render(
    overview: Overview,
    *,
    loop_lag: float,
    version: str,
    alarms: Collection[str] = (),
    figures: Mapping[str, int] | None = None,
    refused: Mapping[str, int] | None = None,
    memory: Mapping[str, int] | None = None,
    resident_bytes: int | None = None,
) -> str:
    """Return all metrics as text."""
    lines = list(_described("warren_build_info", "gauge", "The running version; always 1."))
    lines.append(f'warren_build_info{{version="{_escaped(version)}"}} 1')
    for metric in METRICS:
        lines.extend(_described(metric.name, metric.kind, metric.help))
        lines.append(f"{metric.name} {getattr(overview, metric.field)}")
    for metric in REASON_METRICS:
        lines.extend(_described(metric.name, metric.kind, metric.help))
        lines.extend(f'{metric.name}{{reason="{reason}"}} {n}' for reason, n in getattr(overview, metric.field).items())
    for metric in STORAGE_METRICS:
        if figures is not None and metric.field in figures:
            lines.extend(_described(metric.name, metric.kind, metric.help))
            lines.append(f"{metric.name} {figures[metric.field]}")
    if refused:
        name = "warren_connections_refused_total"
        lines.extend(_described(name, "counter", "Connections refused because of a limit, by limit."))
        lines.extend(f'{name}{{reason="{reason}"}} {count}' for reason, count in refused.items())
    if memory is not None:
        lines.extend(_described("warren_memory_bytes", "gauge", "Memory held for clients, by kind."))
        lines.extend(f'warren_memory_bytes{{kind="{kind}"}} {size}' for kind, size in memory.items())
    if resident_bytes is not None:
        lines.extend(_described("process_resident_memory_bytes", "gauge", "Resident memory of the process."))
        lines.append(f"process_resident_memory_bytes {resident_bytes}")
    lines.extend(_described("warren_alarm", "gauge", "1 while publishers are paused because of this resource."))
    lines.extend(f'warren_alarm{{resource="{resource}"}} {int(resource in alarms)}' for resource in RESOURCES)
    lines.extend(_described("warren_loop_lag_seconds", "gauge", "Delay of the event loop's last timer."))
    lines.append(f"warren_loop_lag_seconds {float(loop_lag)!r}")
    return "\n".join(lines) + "\n"


def _described(name: str, kind: str, text: str) -> Iterable[str]:
    return (f"# HELP {name} {text}", f"# TYPE {name} {kind}")


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
