"""What searching the event log costs: biographies and searches among ten million events, and the index they need.

    python benchmarks/trace_search.py                   10 million events
    python benchmarks/trace_search.py --events 500000   fewer

Runs a broker on a data folder in the folder for temporary files, removed at the end (some 2 GB). The event log is
filled with events as the recorder writes them, through the codec and the stream, and indexed. A message waits while
some thousand others pass, so its events are in two or three batches. Each question is measured twice: warm, and after
a restart with the files out of the page cache. Exits with 2 if a bound is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import machine
from report import RESULTS, wide_console
from rich.box import SIMPLE_HEAD
from rich.table import Table

from warrenmq.core.message import address_of
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.events.ids import UidClock, uid_text
from warrenmq.events.message_ids import pack_message_ids
from warrenmq.events.rows import Rows
from warrenmq.node import INDEX, Node, NodeOptions
from warrenmq.tracing.index import entry_of_stored
from warrenmq.tracing.reader import Traces
from warrenmq.tracing.recorder import BATCH_ROWS
from warrenmq.tracing.search import TraceQuery, TracingUnavailable

EVENTS = 10_000_000
ID_BOUND = 1.0
RANGE_BOUND = 5.0
# Filling ends after this time.
FILL_LIMIT = 900.0
BEGIN = 1_794_804_600_000_000
STEP_US = 40  # between two publishes: 25,000 a second
WAITING = 5_000  # messages between a publish and its delivery
QUEUES = [f"orders.{number:02d}" for number in range(50)]
RARE = "orders.rare"
RARE_EVERY = 100_000
ASKED = 100


@dataclass(frozen=True, slots=True)
class Answer:
    """How long one kind of question took, in seconds."""

    question: str
    asked: int
    median: float
    slowest: float
    found: str
    bound: float | None = None


class Lives:
    """Writes the events of messages that overlap."""

    def __init__(self) -> None:
        self._uids = UidClock()
        self._chance = random.Random(17)
        self._waiting: deque[tuple[int, int, bytes | None, bytes, str]] = deque()
        self._now = BEGIN
        self.number = 0
        self.sample: list[tuple[str, int]] = []  # message ids and uids

    def fill(self, rows: Rows) -> None:
        while rows.count < BATCH_ROWS:
            self._publish(rows)
            if len(self._waiting) > WAITING:
                self._deliver(rows)

    def _publish(self, rows: Rows) -> None:
        self.number += 1
        self._now += STEP_US
        queue = RARE if self.number % RARE_EVERY == 0 else self._chance.choice(QUEUES)
        message_id = f"{self._chance.getrandbits(128):032x}-{self.number & 0xFFF:03x}"
        uid = self._uids.next(self._now)
        now = self._now
        ids = pack_message_ids(0, message_id.encode(), b"basket-%d" % (self.number // 4), None, None)
        address = address_of("orders", queue)
        published = rows.context_of(address, "/", None, None, "publisher", 1)
        enqueued = rows.context_of(address, "/", queue, None, None, 0)
        rows.put(schema.PUBLISHED, 0, False, published, now, uid, now, ids, 0, 200, -1, 0, 0)
        rows.put(schema.ROUTED, 0, False, published, now + 1, uid, now, ids, 0, 200, -1, 0, 0)
        rows.put(schema.ENQUEUED, 0, False, enqueued, now + 2, uid, now, ids, now + 2, 200, 9, 0, 0)
        self._waiting.append((uid, now, ids, address, queue))
        if self._chance.random() < 0.001:
            self.sample.append((message_id, uid))

    def _deliver(self, rows: Rows) -> None:
        uid, published, ids, address, queue = self._waiting.popleft()
        context = rows.context_of(address, "/", queue, "worker", "consumer", 1)
        for kind, at in ((schema.DELIVERED, self._now + 5), (schema.ACKED, self._now + 9)):
            rows.put(kind, 0, False, context, at, uid, published, ids, published + 2, 200, 9, 1, 0)

    @property
    def now(self) -> int:
        return self._now


class Subject:
    """A node with a data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def start(self) -> None:
        self.node = Node(NodeOptions(port=0, http_port=None, data_dir=self.folder))
        await self.node.start()
        self.traces = self.node.tracing.traces

    async def stop(self) -> None:
        await self.node.stop()

    async def be_indexed(self) -> None:
        """Return when the index has everything."""
        while True:
            try:
                await self.traces.biography("nobody")
            except TracingUnavailable as lag:
                print(lag, file=sys.stderr)
            else:
                return

    async def fill(self, events: int) -> Lives:
        lives = Lives()
        log = self.node.tracing.log
        give_up = time.monotonic() + FILL_LIMIT
        written = 0
        while written < events and time.monotonic() < give_up:
            rows = Rows()
            lives.fill(rows)
            log.take(rows, written + 1, written + rows.count)
            written += rows.count
            await asyncio.sleep(0)
            if log.waiting_rows > 4 * BATCH_ROWS:
                await log.flush()
        return lives


# -- questions ---------------------------------------------------------------------------------------------------------


async def ask(question: str, bound: float | None, asking: list[Callable[[], Awaitable[str]]]) -> Answer:
    times, found = [], ""
    for each in asking:
        begin = time.perf_counter()
        found = await each()
        times.append(time.perf_counter() - begin)
    return Answer(question, len(times), statistics.median(times), max(times), found, bound)


async def questions(traces: Traces, lives: Lives, when: str) -> list[Answer]:
    some = random.Random(4).sample(lives.sample, min(ASKED, len(lives.sample)))
    middle, length = (BEGIN + lives.now) // 2, lives.now - BEGIN

    def biography(key: str) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            found = await traces.biography(key)
            assert found is not None, f"{key} is not found"
            assert [event.kind for event in found.events] in ([1, 2, 5, 6, 7], [1, 2, 5]), found
            return f"{len(found.events)} events"

        return run

    def search(**query: object) -> Callable[[], Awaitable[str]]:
        async def run() -> str:
            page = await traces.search(TraceQuery(**query))  # type: ignore[arg-type]
            return f"{len(page.traces)} messages{', more' if page.next else ''}"

        return run

    span = {"start": middle - length // 100, "end": middle + length // 100}
    return [
        await ask(f"message id, {when}", ID_BOUND, [biography(message_id) for message_id, _ in some]),
        await ask(f"the broker's id, {when}", ID_BOUND, [biography(uid_text(uid)) for _, uid in some]),
        await ask(
            f"correlation id, {when}",
            ID_BOUND,
            [search(correlation_id=f"basket-{number}") for number in range(50, 100)],
        ),
        await ask(f"time range and queue, {when}", RANGE_BOUND, [search(**span, queue=name) for name in QUEUES[:20]]),
        await ask(f"queue, all times, {when}", RANGE_BOUND, [search(queue=name) for name in QUEUES[:5]]),
        await ask(f"rare queue, all times, {when}", RANGE_BOUND, [search(queue=RARE)]),
        await ask(
            f"half of all time, a queue, and a key that is not there, {when}",
            RANGE_BOUND,
            [search(start=middle, queue=QUEUES[0], routing_key="nobody")],
        ),
        await ask(f"a kind that never was, {when}", RANGE_BOUND, [search(kind=schema.DROPPED)]),
    ]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def forget_cached(folder: Path) -> None:
    """Out of the system's cache with all files of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


async def indexing_cost(traces: Traces, batches: list[bytes]) -> float:
    """CPU seconds of indexing, per event."""
    begin = time.thread_time()
    for offset, data in enumerate(batches):
        entry_of_stored(offset, data)
    return (time.thread_time() - begin) / max(1, sum(decode(data).count for data in batches))


async def run(folder: Path, events: int) -> tuple[list[Answer], dict[str, float]]:
    subject = Subject(folder)
    await subject.start()
    begin = time.perf_counter()
    lives = await subject.fill(events)
    filled = time.perf_counter() - begin
    await subject.be_indexed()
    indexed = time.perf_counter() - begin
    answers = await questions(subject.traces, lives, "warm")
    kept = subject.node.tracing.log.kept
    stored = await subject.node.tracing.log.read(0)
    per_event = await indexing_cost(subject.traces, list(stored.values()))
    await subject.stop()
    forget_cached(folder)
    await subject.start()
    begin = time.perf_counter()
    await subject.be_indexed()
    reopened = time.perf_counter() - begin
    answers += await questions(subject.traces, lives, "cold")
    figures = {
        "events": kept,
        "fill_seconds": filled,
        "index_lag_seconds": indexed - filled,
        "reopen_seconds": reopened,
        "log_bytes_per_event": size_of(folder / "queues") / kept,
        "index_bytes_per_event": size_of(folder / INDEX) / kept,
        "index_cpu_ns_per_event": per_event * 1e9,
        "index_runs": subject.traces.figures()["runs"],
    }
    await subject.stop()
    return answers, figures


def show(answers: list[Answer], figures: dict[str, float]) -> None:
    table = Table(box=SIMPLE_HEAD)
    for column in ("question", "asked", "median ms", "slowest ms", "bound ms", "found"):
        table.add_column(column, justify="left" if column in ("question", "found") else "right")
    for each in answers:
        bound = "" if each.bound is None else f"{each.bound * 1e3:.0f}"
        times = f"{each.median * 1e3:.1f}", f"{each.slowest * 1e3:.1f}"
        table.add_row(each.question, str(each.asked), *times, bound, each.found)
    console = wide_console()
    console.print(table)
    for name, value in figures.items():
        console.print(f"{name.replace('_', ' ')}: {value:,.2f}".replace(".00", ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=EVENTS)
    wanted = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="warren-trace-") as folder:
        answers, figures = asyncio.run(run(Path(folder), wanted.events))
    figures["load_average"] = load
    show(answers, figures)
    name = "trace_search.json" if wanted.events >= EVENTS else "partial.json"
    result = {"machine": machine.describe(), "figures": figures, "answers": [asdict(each) for each in answers]}
    (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")
    return 2 if any(each.bound is not None and each.slowest > each.bound for each in answers) else 0


if __name__ == "__main__":
    sys.exit(main())
