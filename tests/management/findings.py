"""Messages of the stream `warren.analysis` as the analysis writes them, made without Spark."""

# ruff: noqa: E501 (tables of values)

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tests.management.fakes import FakeNode
from warrenmq.core.message import address_of, make_message
from warrenmq.core.stream import Stream
from warrenmq.management.analysis_reader import STREAM_NAME
from warrenmq.protocol.properties import BasicProperties, content_header

BEGIN = 1_794_804_600_000_000  # 2026-11-16 04:50:00 UTC
SECOND = 1_000_000
LENGTH = 10


def iso(microseconds: int) -> str:
    whole, rest = divmod(microseconds, SECOND)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:06}Z"


def windowed(number: int, queue: str = "q", length: int = LENGTH, **values: Any) -> dict[str, Any]:
    """A row of the window with this number."""
    start = BEGIN + number * length * SECOND
    return {"window_start": iso(start), "window_end": iso(start + length * SECOND), "queue": queue, **values}


def answer(
    job: str,
    rows: Sequence[dict[str, Any]],
    *,
    chart: str = "lines",
    title: str | None = None,
    keys: Sequence[str] = ("window_start", "queue"),
    written: int = BEGIN,
    mode: str = "follow",
    run: str = "run-1",
    batch: int = 0,
    windows: Sequence[int] | None = None,
    **further: Any,
) -> dict[str, Any]:
    """One message; `windows` are the numbers of those that it answers whole."""
    document = {
        "version": 1,
        "job": job,
        "title": title or job.capitalize(),
        "chart": chart,
        "mode": mode,
        "run": run,
        "batch": batch,
        "written": iso(written),
        "range": [iso(BEGIN), iso(written)],
        "keys": list(keys),
        "rows": list(rows),
        **further,
    }
    if windows is not None:
        document["windows"] = [iso(BEGIN + number * LENGTH * SECOND) for number in windows]
    return document


def declare(node: FakeNode, arguments: dict[str, Any] | None = None) -> Stream:
    vhost = node.broker.vhosts["/"]
    wanted = {"x-queue-type": "stream", **(arguments or {})}
    stream = vhost.queues.get(STREAM_NAME) or vhost.declare_queue(
        STREAM_NAME, True, False, False, wanted, connection=None
    )
    assert isinstance(stream, Stream)
    return stream


def append(node: FakeNode, *documents: dict[str, Any] | bytes) -> None:
    """Publish to the stream of a node that nobody runs yet, or from its own loop."""
    stream = declare(node)
    for document in documents:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        header = content_header(len(body), BasicProperties(content_type="application/json"))
        stream.enqueue(make_message(address_of("", STREAM_NAME), header, body))


# -- a history with faults, as all jobs tell it ------------------------------------------------------------------------

QUEUES = {"orders": 120.0, "billing": 120.0, "audit": 118.0, "mail": 36.0}
EXCHANGES = {"shop": ("orders", "billing", "audit"), "news": ("mail",)}
CONSUMERS = {
    "orders": ("packer-1", "packer-2"),
    "billing": ("clerk",),
    "audit": ("auditor",),
    "mail": ("mailer-1", "mailer-2"),
}
KEYS = {"order.created": 70.0, "order.paid": 38.0, "order.cancelled": 11.0, "order.poison": 0.8}
UIDS = ("06N1A0R6G000G", "06N1A0R6G0010", "06N1A0R6G001G")
STUCK_AT = 60  # the number of the window in which packer-2 stops
SPIKE = range(30, 36)
PER_SECOND = ("published", "enqueued", "delivered", "acked")


def shop(windows: int = 90, *, begin: int = BEGIN, seed: int = 7, vhost: str = "/") -> list[dict[str, Any]]:
    """Answers of all jobs over a history in which a consumer is stuck, a key is poison, and traffic peaks."""
    history = _Shop(windows, begin, random.Random(seed), vhost)
    told = [
        ("anomalies", "Anomalies", "anomalies", ("window_start", "vhost", "what", "name", "measure"), history.anomalies()),
        ("throughput", "Throughput", "lines", ("window_start", "vhost", "what", "exchange", "name"), history.throughput()),
        ("latency", "Latency", "percentiles", ("window_start", "vhost", "queue"), history.latency()),
        ("priorities", "Priorities", "lines", ("window_start", "vhost", "queue", "priority"), history.priorities()),
        ("backlog", "Backlog", "lines", ("window_start", "vhost", "queue"), history.backlog()),
        ("failures", "Failures", "bars", ("window_start", "vhost", "queue", "kind", "reason"), history.failures()),
        ("retries", "Retries", "lines", ("window_start", "vhost", "what", "queue", "name"), history.retries()),
        ("dead_letters", "Dead letters", "bars", ("window_start", "vhost", "queue", "reason", "exchange", "routing_key"), history.dead_letters()),
        ("flow", "Flow", "flow", ("window_start", "vhost", "source_kind", "source", "target_kind", "target"), history.flow()),
        ("hot_keys", "Hot keys", "bars", ("window_start", "vhost", "exchange", "routing_key"), history.hot_keys()),
        ("consumers", "Consumers", "table", ("window_start", "vhost", "queue", "consumer", "connection", "channel"), history.consumers()),
        ("unroutable", "Unroutable messages", "bars", ("window_start", "vhost", "exchange", "routing_key"), history.unroutable()),
        ("duplicates", "Duplicates", "table", ("window_start", "vhost", "what", "name"), history.duplicates()),
        ("sessions", "Sessions", "table", ("window_start", "vhost", "correlation_id"), history.sessions()),
    ]  # fmt: skip
    written = begin + windows * LENGTH * SECOND
    return [
        answer(job, rows, title=title, chart=chart, keys=keys, written=written, window_seconds=LENGTH)
        for job, title, chart, keys, rows in told
    ]


def status(state: str = "running", written: int = BEGIN, **further: Any) -> dict[str, Any]:
    row = {"run": "run-1", "mode": "follow", "state": state, "started": iso(BEGIN), "batches": 900, "events": 1_234_567}
    return answer("status", [row | {"lag": 0, "error": None} | further], chart="status", keys=["run"], written=written)


class _Shop:
    def __init__(self, windows: int, begin: int, chance: random.Random, vhost: str) -> None:
        self.windows = range(windows)
        self.begin = begin
        self.chance = chance
        self.vhost = vhost

    def row(self, number: int, length: int = LENGTH, **values: Any) -> dict[str, Any]:
        start = self.begin + number * LENGTH * SECOND
        return {
            "window_start": iso(start),
            "window_end": iso(start + length * SECOND),
            "vhost": self.vhost,
            **values,
        }

    def load(self, number: int, usual: float) -> int:
        """How many messages come in a window."""
        busy = 3.2 if number in SPIKE else 1.0 + 0.15 * math.sin(number / 9)
        return max(0, round(usual * LENGTH * busy * self.chance.uniform(0.94, 1.06)))

    def depth(self, number: int, queue: str) -> int:
        if queue == "orders" and number >= STUCK_AT:
            return 40 + (number - STUCK_AT) * 380
        if number in SPIKE and queue == "billing":
            return 900 + 700 * (number - SPIKE.start)
        return self.chance.randrange(5, 40)

    def throughput(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            named = [("queue", "", name, rate) for name, rate in QUEUES.items()]
            named += [("exchange", "", name, 120.0 if name == "shop" else 36.0) for name in EXCHANGES]
            named += [("key", "shop", name, rate) for name, rate in KEYS.items()]
            for what, exchange, name, rate in named:
                count = self.load(number, rate)
                counts = dict.fromkeys(PER_SECOND, count) if what == "queue" else {"published": count}
                if what == "queue":
                    counts["published"] = 0
                    counts["acked"] = count if name != "orders" or number < STUCK_AT else count // 2
                counts = dict.fromkeys(PER_SECOND, 0) | counts
                rates = {f"{each}_per_second": counts[each] / LENGTH for each in PER_SECOND}
                rows.append(
                    self.row(number, what=what, exchange=exchange, name=name, **counts, bytes=count * 640, **rates)
                )
        return rows

    def latency(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            for queue in QUEUES:
                waiting = (
                    1_800.0 * (90 if queue == "billing" and number in SPIKE else 1) * self.chance.uniform(0.8, 1.25)
                )
                if queue == "orders" and number >= STUCK_AT:
                    waiting = 2_000.0 + (number - STUCK_AT) * 260_000
                processing = (42_000.0 if queue == "mail" else 3_900.0) * self.chance.uniform(0.9, 1.1)
                times = {"end_to_end": waiting + processing, "waiting": waiting, "processing": processing}
                values: dict[str, Any] = {}
                for name, middle in times.items():
                    values |= {f"{name}_count": 1200, f"{name}_mean_us": middle * 1.2}
                    spread = {"p50": 1.0, "p90": 2.1, "p95": 2.9, "p99": 5.2, "max": 11.0}
                    values |= {f"{name}_{each}_us": round(middle * factor) for each, factor in spread.items()}
                rows.append(self.row(number, queue=queue, **values))
        return rows

    def priorities(self) -> list[dict[str, Any]]:
        """High priorities wait less. On a chance of its own, so that all else stays as it is."""
        chance = random.Random(3)
        rows = []
        for number in self.windows:
            for priority, middle in ((9, 900.0), (5, 6_000.0), (0, 240_000.0)):
                waited = middle * chance.uniform(0.8, 1.25)
                spread = {"mean": 1.2, "p50": 1.0, "p99": 5.2, "max": 11.0}
                values = {f"waiting_{each}_us": round(waited * factor) for each, factor in spread.items()}
                rows.append(self.row(number, queue="mail", priority=priority, delivered=400, **values))
            rows.append(self.row(number, queue="audit", priority=1, delivered=1, **values))
        return rows

    def backlog(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            for queue in QUEUES:
                depth = self.depth(number, queue)
                grows = queue == "orders" and number > STUCK_AT
                slope = 38.0 if grows else 0.0
                full = max(0.0, (50_000 - depth) / slope) if grows else None
                values = {"depth": depth, "depth_max": round(depth * 1.1), "arrived": 1200, "left": 1200}
                forecast = {
                    "slope_per_second": slope,
                    "empty_in_seconds": None,
                    "full_in_seconds": full,
                    "limit": 50_000,
                }
                rows.append(self.row(number, queue=queue, **values, **forecast))
        return rows

    def failures(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            found = [("orders", "requeued", "rejected", self.load(number, 0.8)), ("mail", "expired", "expired", 3)]
            if number % 7 == 0:
                found.append(("billing", "dead_lettered", "delivery_limit", self.chance.randrange(1, 9)))
            for queue, kind, reason, count in found:
                measures = {"count": count, "per_second": count / LENGTH, "failure_ratio": count / 1200}
                top = {"top_key": "order.poison", "top_key_count": count, "example_uid": UIDS[0]}
                rows.append(self.row(number, queue=queue, kind=kind, reason=reason, **measures, **top))
        return rows

    def retries(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            returned = 80 + number
            share = {"redelivered": returned, "redelivered_ratio": 0.6, "exhausted": 1}
            found = [("queue", "orders", share), ("key", "order.poison", dict.fromkeys(share))]
            rates = {
                "returned": returned,
                "per_second": returned / LENGTH,
                "usual_per_second": None if number < 10 else 1.5,
            }
            why = {"reason": "rejected", "reason_count": returned, "storm": True, "example_uid": UIDS[0]}
            rows += [
                self.row(number, what=what, queue="orders", name=name, **rates, **more, **why)
                for what, name, more in found
            ]
        return rows

    def dead_letters(self) -> list[dict[str, Any]]:
        causes = (("orders", "delivery_limit", "order.poison"), ("mail", "expired", "mail.welcome"))
        return [
            self.row(number, queue=queue, reason=reason, exchange="shop", routing_key=key, count=3, per_second=0.3, example_uids=list(UIDS))
            for number in self.windows if number % 7 == 0 for queue, reason, key in causes
        ]  # fmt: skip

    def flow(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            edges = [("exchange", e, "queue", q, QUEUES[q]) for e, queues in EXCHANGES.items() for q in queues]
            edges += [
                ("queue", q, "consumer", c, QUEUES[q] / len(names)) for q, names in CONSUMERS.items() for c in names
            ]
            edges.append(("queue", "billing", "exchange", "news", 0.4))
            for source_kind, source, target_kind, target, rate in edges:
                count = 0 if target == "packer-2" and number >= STUCK_AT else self.load(number, rate)
                ends = {"source_kind": source_kind, "source": source, "target_kind": target_kind, "target": target}
                rows.append(self.row(number, **ends, count=count, bytes=count * 640, per_second=count / LENGTH))
        return rows

    def hot_keys(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            for rank, (key, rate) in enumerate(KEYS.items(), 1):
                count, poison = self.load(number, rate), key == "order.poison"
                measures = {"published": count, "bytes": count * 640, "failed": count * 20 if poison else 0}
                share = {"rank": rank, "share_ratio": rate / sum(KEYS.values()), "poison": poison}
                rows.append(self.row(number, exchange="shop", routing_key=key, **measures, **share))
        return rows

    def consumers(self) -> list[dict[str, Any]]:
        rows = []
        for number in self.windows:
            for place, (queue, name) in enumerate((q, c) for q, names in CONSUMERS.items() for c in names):
                stuck = name == "packer-2" and number >= STUCK_AT
                delivered = 0 if stuck else self.load(number, QUEUES[queue] / len(CONSUMERS[queue]))
                since = iso(self.begin + STUCK_AT * LENGTH * SECOND) if stuck else None
                who = {"consumer": name, "connection": f"10.0.0.{place + 4}:5{place}022 -> 10.0.0.1:5672", "channel": 1}
                work = {"delivered": delivered, "settled": delivered, "outstanding": 100 if stuck else 12}
                shares = {"share_ratio": 0.0 if stuck else 1.0, "skew": 0.0 if stuck else 1.02, "stuck": stuck}
                silent = (number - STUCK_AT) * LENGTH if stuck else 0
                rows.append(
                    self.row(number, queue=queue, **who, **work, **shares, stuck_since=since, silent_seconds=silent)
                )
        return rows

    def unroutable(self) -> list[dict[str, Any]]:
        return [
            self.row(
                n, exchange="shop", routing_key=key, count=c, returned=0, per_second=c / LENGTH, example_uid=UIDS[1]
            )
            for n in self.windows
            if n % 5 == 0
            for key, c in (("order.refunded", 4), ("invoice.created", 1))
        ]

    def duplicates(self) -> list[dict[str, Any]]:
        return [
            self.row(n, what="published", name=f"order-{n * 31}", times=2, first_uid=UIDS[0], last_uid=UIDS[2], apart_us=840_000)
            for n in self.windows
            if n % 20 == 3
        ]  # fmt: skip

    def sessions(self) -> list[dict[str, Any]]:
        return [
            self.row(
                n,
                correlation_id=f"basket-{n * 7}",
                started=iso(self.begin + n * LENGTH * SECOND + 1_250_000),
                ended=iso(self.begin + n * LENGTH * SECOND + 3_870_000),
                duration_us=2_620_000,
                messages=4,
                settled=4,
                failed=n % 3,
            )
            for n in self.windows
            if n % 6 == 0
        ]

    def anomalies(self) -> list[dict[str, Any]]:
        found = [
            (SPIKE.start, "exchange", "shop", "published", 3_840.0, 1_210.0, 31.4, "exchange shop: messages published rose from 121/s to 384/s", UIDS[:2]),
            (SPIKE.start + 1, "queue", "billing", "waiting_p95", 470_000.0, 5_200.0, 88.0, "queue billing: waiting time p95 rose from 5.2 ms to 470 ms", UIDS),
            (STUCK_AT, "consumer", "packer-2", "stuck", 100.0, 12.0, 9.1, "consumer packer-2 of queue orders: nothing settled any more, 100 messages are with it", UIDS[:1]),
            (STUCK_AT + 2, "queue", "orders", "waiting_p95", 1_510_000.0, 5_300.0, 140.0, "queue orders: waiting time p95 rose from 5.3 ms to 1.51 s", UIDS),
            (STUCK_AT + 3, "key", "order.poison", "failed", 160.0, 0.0, 12.5, "routing key order.poison: failures rose from 0 to 160 in a window", ()),
        ]  # fmt: skip
        return [
            self.row(
                number,
                what=what,
                name=name,
                measure=measure,
                value=value,
                usual=usual,
                score=score,
                sentence=f"{sentence} at {self.at(number)}",
                example_uids=list(uids),
            )
            for number, what, name, measure, value, usual, score, sentence, uids in found
            if number in self.windows
        ]

    def at(self, number: int) -> str:
        return iso(self.begin + number * LENGTH * SECOND)[11:16]
