"""The workloads: what is measured, with which options of the generator, and what is to be reached.

To add a row, add a `Workload` to WORKLOADS. A figure is compared either as a ratio to RabbitMQ in the same run
(`at_least` times as much) or with a plain bound (`at_most` so many bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run, where it stands in the generator's JSON, and what it should be."""

    unit: str
    path: tuple[str, ...]
    at_least: float | None = None
    at_most: float | None = None
    less_is_better: bool = False

    def read(self, figures: dict[str, Any]) -> float:
        value: Any = figures
        for name in self.path:
            value = value[name]
        return float(value)


@dataclass(frozen=True, slots=True)
class Workload:
    """One way of using a broker; `fresh` wants a broker that has done nothing before (memory is measured)."""

    key: str
    title: str
    options: str
    figures: tuple[Figure, ...]
    fresh: bool = False
    uncompiled: bool = False
    timed: bool = True


def delivered(at_least: float | None = None) -> tuple[Figure, ...]:
    return (Figure("msg/s", ("dlv_per_s",), at_least=at_least),)


# Ten thousand under way keep both brokers busy without measuring a backlog.
BUSY = "--outstanding 10000"
MEMORY_MESSAGES = 300_000
IDLE_CONNECTIONS = 1000
# What is promised per idle connection with one channel, and per waiting message beside its body.
CONNECTION_BYTES = 25_000
MESSAGE_BYTES = 300

WORKLOADS = (
    Workload("auto-ack-16", "16 B, auto-ack", BUSY, delivered(15)),
    Workload("ack-16", "16 B, each acked, prefetch 1000", f"{BUSY} --ack 1 --prefetch 1000", delivered(14)),
    Workload("auto-ack-1k", "1 KiB, auto-ack", f"{BUSY} --size 1024", delivered(8)),
    # 64 KiB x 10,000 would be 640 MB under way: a thousand are plenty.
    Workload("auto-ack-64k", "64 KiB, auto-ack", "--outstanding 1000 --size 65536", delivered(1.2)),
    Workload(
        "confirm-100", "confirms, 100 in flight, ack every 50", "--confirm 100 --ack 50 --prefetch 1000", delivered(10)
    ),
    Workload("confirm-1", "confirms one at a time, 1 KiB", "--confirm 1 --size 1024", delivered(1.8)),
    Workload(
        "fanout-10",
        "fanout to 10 queues (deliveries)",
        f"{BUSY} --exchange fanout --queues 10 --consumers 10",
        delivered(10),
    ),
    Workload(
        "topic-1000",
        "topic with 1,000 bindings",
        f"{BUSY} --exchange topic --bindings 1000 --queues 10 --consumers 10",
        delivered(10),
    ),
    Workload(
        "parallel-8",
        "8 publishers, 8 consumers, 8 queues, 16 B",
        f"{BUSY} --publishers 8 --consumers 8 --queues 8",
        delivered(10),
    ),
    Workload("own-write", "each message its own write (--batch 1)", f"{BUSY} --batch 1", delivered(2.3)),
    Workload("ping-pong", "one message in flight (ping-pong)", "--outstanding 1", delivered(2)),
    Workload("uncompiled", "uncompiled, 16 B, auto-ack", BUSY, delivered(2), uncompiled=True),
    Workload(
        "latency-10k",
        "latency at 10,000 msg/s, 16 B",
        "--rate 10000",
        (
            Figure("us p50", ("latency_us", "p50"), less_is_better=True),
            Figure("us p99", ("latency_us", "p99"), less_is_better=True),
        ),
    ),
    Workload(
        "memory-connection",
        "memory of an idle connection with one channel",
        f"--mode conns --count {IDLE_CONNECTIONS}",
        (Figure("bytes", ("bytes_per_conn",), at_most=CONNECTION_BYTES, less_is_better=True),),
        fresh=True,
        timed=False,
    ),
    *(
        Workload(
            f"memory-message-{size}",
            f"memory of a queued message, {size} B",
            f"--mode drain --messages {MEMORY_MESSAGES} --size {size}",
            (Figure("bytes", ("bytes_per_msg",), at_most=MESSAGE_BYTES + size, less_is_better=True),),
            fresh=True,
            timed=False,
        )
        for size in (16, 100)
    ),
)
