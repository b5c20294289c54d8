"""The workloads: what is measured, with which options of the generator, and what is to be reached.

To add a row, add a `Workload` to WORKLOADS. A figure is compared either as a ratio to RabbitMQ in the same run
(`at_least` times as much) or with a plain bound (`at_most` bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WARREN = "warrenmq"
UNCOMPILED = "uncompiled"
IN_MEMORY = "memory"
# What the log keeps of a message beside its body: heads, names, properties, and that it was acked.
LOGGED_BYTES = 70
# A publisher that nobody slows down gathers about so much while one sync runs.
FILL_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run, where it stands in the generator's JSON, and what it should be."""

    unit: str
    path: tuple[str, ...]
    at_least: float | None = None
    at_most: float | None = None
    less_is_better: bool = False
    cpu: str = "broker_cpu_us_per_msg"  # where the CPU time of one message stands
    is_logged: bool = False  # each of these messages passes the log: compared with the disk

    def read(self, figures: dict[str, Any]) -> float:
        value: Any = figures
        for name in self.path:
            value = value[name]
        return float(value)


@dataclass(frozen=True, slots=True)
class Syncs:
    """What the disk is asked in a durable row: bytes of a record, and how many of them one sync may carry at most."""

    record: int
    group: int


@dataclass(frozen=True, slots=True)
class Workload:
    """One way of using a broker.

    `fresh` wants a broker that has done nothing before (memory is measured); `ours` is the broker that is judged;
    `messages` is set where a run lasts as long as this many messages take; `reference_rounds` where they take the other
    brokers so long that fewer rounds must do.
    """

    key: str
    title: str
    options: str
    figures: tuple[Figure, ...]
    fresh: bool = False
    ours: str = WARREN
    timed: bool = True
    messages: int = 0
    reference_rounds: int | None = None
    syncs: Syncs | None = None


def delivered(at_least: float | None = None, *, is_logged: bool = False) -> tuple[Figure, ...]:
    return (Figure("msg/s", ("dlv_per_s",), at_least=at_least, is_logged=is_logged),)


def confirmed(at_least: float) -> tuple[Figure, ...]:
    return (Figure("msg/s", ("cfm_per_s",), at_least=at_least),)


def durable(key: str, title: str, options: str, at_least: float, size: int, in_flight: int) -> Workload:
    """Persistent messages through durable queues, confirmed: every confirm waits for the disk."""
    return Workload(
        key,
        f"durable, {title}",
        f"--persistent --durable --size {size} {options}",
        delivered(at_least, is_logged=True),
        syncs=Syncs(size + LOGGED_BYTES, in_flight),
    )


def drained(key: str, title: str, options: str, messages: int, size: int, fill: float, drain: float) -> Workload:
    """Fill a queue while nobody consumes, then empty it."""
    is_durable = "--persistent" in options
    return Workload(
        key,
        title,
        f"--mode drain --size {size} {options}",
        (
            Figure("fill/s", ("fill_per_s",), at_least=fill, cpu="fill_cpu_us_per_msg", is_logged=is_durable),
            Figure("drain/s", ("drain_per_s",), at_least=drain, cpu="drain_cpu_us_per_msg"),
        ),
        timed=False,
        messages=messages,
        reference_rounds=1,
        syncs=Syncs(size + LOGGED_BYTES, FILL_BYTES // (size + LOGGED_BYTES)) if is_durable else None,
    )


# Ten thousand under way keep both brokers busy without measuring a backlog.
BUSY = "--outstanding 10000"
ACK_EACH = "--ack 1 --prefetch 1000"
KEPT = "--persistent --durable"
FULL_LENGTH = 10_000
PRIORITIES = 10
SELECTOR = "attempt < 3 AND content_type LIKE 'application/%'"
MEMORY_MESSAGES = 300_000
IDLE_CONNECTIONS = 1000
# What is promised per idle connection with one channel, and per waiting message beside its body.
CONNECTION_BYTES = 25_000
MESSAGE_BYTES = 300

WORKLOADS = (
    Workload("auto-ack-16", "16 B, auto-ack", BUSY, delivered(15)),
    # Messages that meet a waiting consumer touch no file: the data folder must cost them nothing.
    Workload("no-data-16", "16 B, auto-ack, no data folder", BUSY, delivered(), ours=IN_MEMORY, reference_rounds=1),
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
    Workload("own-write", "each message its own write (--batch 1)", f"{BUSY} --batch 1", delivered(5)),
    Workload(
        "own-write-50",
        "50 publishers, 50 consumers, each message its own write",
        f"{BUSY} --publishers 50 --consumers 50 --batch 1",
        delivered(),
    ),
    Workload("ping-pong", "one message in flight (ping-pong)", "--outstanding 1", delivered(2)),
    # Queue features. Where dead letters, the single active consumer or drop-head have no effect, the run has faults.
    Workload(
        "ttl-limit",
        "x-message-ttl and x-max-length, each acked",
        f"{BUSY} {ACK_EACH} --arg x-message-ttl=600000 --arg x-max-length=1000000",
        delivered(10),
    ),
    Workload(
        "dead-letter",
        "each rejected, dead letters consumed and acked",
        f"{BUSY} {ACK_EACH} --dead-letter",
        delivered(8),
    ),
    Workload(
        "retry",
        "each acked, one in five nacked once and retried",
        f"{BUSY} {ACK_EACH} --nack 5 --arg x-retry-delay=1",
        delivered(),
    ),
    Workload(
        "priority-10",
        f"priority queue, {PRIORITIES} levels, each acked",
        f"{BUSY} {ACK_EACH} --priorities {PRIORITIES} --arg x-max-priority={PRIORITIES - 1}",
        delivered(8),
    ),
    Workload(
        "single-active",
        "single active consumer of 4, each acked",
        f"{BUSY} {ACK_EACH} --consumers 4 --dense --arg x-single-active-consumer=true",
        delivered(10),
    ),
    Workload(
        "no-filter",
        "typical properties, each acked",
        f"{BUSY} {ACK_EACH} --props typical",
        delivered(),
    ),
    Workload(
        "filter",
        "the same, with a selector (WarrenMQ's own)",
        f'{BUSY} {ACK_EACH} --props typical --filter "{SELECTOR}"',
        delivered(),
    ),
    Workload(
        "drop-head",
        f"drop-head at {FULL_LENGTH:,}, confirms, no consumer",
        f"--consumers 0 --confirm 1000 --arg x-max-length={FULL_LENGTH} --expect-depth {FULL_LENGTH}",
        confirmed(10),
    ),
    durable("durable-16", "16 B, 1,000 confirms in flight", f"--confirm 1000 {ACK_EACH}", 14, size=16, in_flight=1000),
    durable("durable-1k", "1 KiB, 1,000 in flight", f"--confirm 1000 {ACK_EACH}", 8, size=1024, in_flight=1000),
    durable(
        "durable-1k-100",
        "1 KiB, 100 in flight, ack every 10",
        "--confirm 100 --ack 10 --prefetch 1000",
        7,
        size=1024,
        in_flight=100,
    ),
    durable("durable-1", "16 B, one confirm at a time", f"--confirm 1 {ACK_EACH}", 1.5, size=16, in_flight=1),
    durable(
        "durable-many",
        "100 publishers, 100 queues, 100 in flight each",
        f"--confirm 100 --publishers 100 --consumers 100 --queues 100 --pin {ACK_EACH}",
        6,
        size=16,
        in_flight=10_000,
    ),
    drained("drain-100", "1 M x 100 B, transient", "", 1_000_000, 100, fill=15, drain=20),
    drained("drain-durable-100", "1 M x 100 B, persistent", KEPT, 1_000_000, 100, fill=20, drain=20),
    drained("drain-1k", "300 k x 1 KiB, transient", "", 300_000, 1024, fill=5, drain=5),
    drained("drain-durable-1k", "300 k x 1 KiB, persistent", KEPT, 300_000, 1024, fill=5, drain=5),
    Workload("uncompiled", "uncompiled, 16 B, auto-ack", BUSY, delivered(2), ours=UNCOMPILED),
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
        reference_rounds=1,
    ),
    *(
        Workload(
            f"memory-message-{size}",
            f"memory of a queued message, {size} B",
            f"--mode drain --messages {MEMORY_MESSAGES} --size {size}",
            (Figure("bytes", ("bytes_per_msg",), at_most=MESSAGE_BYTES + size, less_is_better=True),),
            fresh=True,
            timed=False,
            reference_rounds=1,
        )
        for size in (16, 100)
    ),
)
