"""Runs a broker under a steady load for ten minutes and judges whether anything grows.

    python tools/soak.py                    ten minutes
    python tools/soak.py --minutes 1        a short look; growth is judged all the same
    python tools/soak.py --scale 0.5        half the load

A real `warren serve` on a fresh data folder, where everything that is published is consumed: persistent messages with
confirms, transient ones, a stream with a limit and two readers, and a tide that fills a queue and drains it again, with
the queue declared and deleted each time. Every few seconds the broker's memory, data folder, log files, descriptors and
threads are read. At the end each is flat or growing: the median slope over the second half of the time, as the growth
that it makes in that half, beside a bound. Then the broker is stopped and its folder checked.

Ends with 0 when all is flat and no message was lost, late or doubled; otherwise with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import brokers  # noqa: E402 - the benchmarks are scripts beside each other, no package
import loadgen  # noqa: E402

SAMPLE_EVERY = 2.0
LINE_EVERY = 15.0  # where no terminal shows the table
SETTLE_LIMIT = 150.0
BARS = "▁▂▃▄▅▆▇█"
MB = 1e6


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that must not grow: by no more than `least`, or this part of its median if that is more."""

    name: str
    unit: str
    least: float
    part: float = 0.0

    def bound(self, values: Sequence[float]) -> float:
        return max(self.least, self.part * statistics.median(values))


METRICS = (
    Metric("resident memory", "MB", 10.0, 0.05),
    Metric("data folder", "MB", 40.0, 0.10),
    Metric("files in it", "", 8.0, 0.10),
    Metric("log files", "", 2.0),
    Metric("open descriptors", "", 6.0),
    Metric("threads", "", 0.5),
)


@dataclass(frozen=True, slots=True)
class Load:
    """One generator. A `tide` runs again and again; the others once, for the whole time."""

    name: str
    options: str
    rate: int = 0
    is_tide: bool = False


LOADS = (
    Load(
        "persistent, confirmed, 1 KiB",
        "--persistent --durable --size 1024 --confirm 200 --ack 1 --prefetch 500 --publishers 4 --consumers 4 "
        "--queues 4 --pin --queue soak.kept",
        rate=4000,
    ),
    Load(
        "transient, 200 B",
        "--size 200 --publishers 2 --consumers 2 --queues 2 --pin --queue soak.transient",
        rate=20_000,
    ),
    Load(
        "transient in a durable queue",
        "--size 100 --durable --ack 10 --prefetch 500 --queue soak.mixed",
        rate=2000,
    ),
    Load(
        "stream, 2 readers, 64 MB kept",
        "--persistent --durable --size 1024 --confirm 200 --ack 1 --prefetch 500 --consumers 2 --queue-type stream "
        "--arg x-max-length-bytes=64000000 --arg x-stream-max-segment-size-bytes=8000000 --queue soak.stream",
        rate=3000,
    ),
    Load(
        "tide: fill 100,000 x 300 B, drain",
        "--mode drain --persistent --durable --size 300 --messages 100000 --confirm 1000 --ack 100 --prefetch 1000 "
        "--queue soak.tide",
        is_tide=True,
    ),
)
TIDE_PAUSE = 3.0


@dataclass(slots=True)
class Running:
    """A generator at work: what it has counted so far, and its faults."""

    load: Load
    published: int = 0
    delivered: int = 0
    confirmed: int = 0
    rounds: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    earlier: dict[str, int] = field(default_factory=dict)  # of the tide's finished rounds
    process: subprocess.Popen[str] | None = None

    def count(self, figures: dict[str, Any]) -> None:
        """What the generator has reported of the round that runs."""
        self.published = self.earlier.get("published", 0) + figures.get("published", 0)
        self.delivered = self.earlier.get("delivered", 0) + figures.get("delivered", 0)
        self.confirmed = self.earlier.get("confirmed", 0) + figures.get("confirmed", 0)

    def finish(self, figures: dict[str, Any], complaint: str) -> None:
        """The end of a round."""
        self.rounds += 1
        if not figures:
            self.trouble.append(complaint or "it ended without a result")
        for name, count in figures.get("faults", {}).items():
            if count:
                self.faults[name] = self.faults.get(name, 0) + count
        self.earlier = {"published": self.published, "delivered": self.delivered, "confirmed": self.confirmed}


class Generator(threading.Thread):
    """Runs one load until its time is over. Its `running` is written here only, and read by whoever shows it."""

    def __init__(self, load: Load, port: int, seconds: float, scale: float) -> None:
        super().__init__(name=f"soak {load.name}", daemon=True)
        self.running = Running(load)
        self._port = port
        self._until = time.monotonic() + seconds
        self._options = f"{load.options} --dense --report 1"
        if not load.is_tide:
            self._options += f" --rate {load.rate * scale:.0f} --warmup 0 --duration {seconds:.0f}"

    def run(self) -> None:
        while True:
            self._run_once()
            rest = self._until - time.monotonic()
            if not self.running.load.is_tide or rest < 2 * TIDE_PAUSE or self.running.trouble:
                return
            time.sleep(TIDE_PAUSE)

    def end(self) -> None:
        if self.running.process is not None and self.running.process.poll() is None:
            self.running.process.terminate()

    def _run_once(self) -> None:
        command = [str(loadgen.BINARY), "--port", str(self._port), *self._options.split()]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.running.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        complaint = ""
        for line in process.stderr:
            if line.startswith("{"):
                self.running.count(json.loads(line))
            else:
                complaint = line.strip()
        output = process.stdout.read()
        process.wait()
        figures = json.loads(output) if output.strip() and not process.returncode else {}
        if self.running.load.is_tide and figures:
            self.running.count({"published": figures["messages"], "delivered": figures["messages"]})
        elif figures:
            self.running.count(figures)
        self.running.finish(figures, complaint)


def sample(pid: int, data: Path) -> list[float]:
    """The metrics now, in the order of METRICS."""
    status = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        status[name] = value
    size = files = logs = 0
    for parent, _, names in os.walk(data):
        for name in names:
            try:
                size += os.stat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:
                continue
            files += 1
            logs += name.endswith(".log")
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    resident, threads = int(status["VmRSS"].split()[0]) * 1024, int(status["Threads"])
    return [resident / MB, size / MB, files, logs, descriptors, threads]


def median_slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Theil and Sen: the median of the slopes of all pairs, which single peaks do not move."""
    points = list(zip(times, values, strict=True))
    slopes = [(w - v) / (t - s) for (s, v), (t, w) in combinations(points, 2) if t > s]
    return statistics.median(slopes) if slopes else 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """One metric over the second half of the time."""

    metric: Metric
    values: list[float]
    growth: float
    bound: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.bound


def judge(times: Sequence[float], samples: Sequence[Sequence[float]]) -> list[Judgement]:
    half = len(times) // 2
    judged = []
    for index, metric in enumerate(METRICS):
        values = [each[index] for each in samples]
        late, when = values[half:], times[half:]
        growth = median_slope(when, late) * (when[-1] - when[0]) if len(late) > 1 else 0.0
        judged.append(Judgement(metric, values, growth, metric.bound(late or values)))
    return judged


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The course of a metric in one line, from 0 to its highest."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    picked = [values[int(index * step)] for index in range(min(width, len(values)))]
    highest = max(max(picked), 1e-9)
    return "".join(BARS[min(len(BARS) - 1, int(value / highest * len(BARS)))] for value in picked)


def metrics_table(judged: Sequence[Judgement], *, is_final: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "now", "highest", "growth", "bound", "over time (from 0)"):
        table.add_column(heading, justify="left" if heading in ("", "over time (from 0)") else "right", no_wrap=True)
    for each in judged:
        unit = f" {each.metric.unit}" if each.metric.unit else ""
        style = "" if each.is_flat or not is_final else "bold red"
        cells = [f"{each.values[-1]:,.0f}{unit}", f"{max(each.values):,.0f}"]
        table.add_row(
            each.metric.name,
            *cells,
            f"{each.growth:+,.1f}",
            f"{each.bound:,.1f}",
            sparkline(each.values, 32),
            style=style,
        )
    return table


def loads_table(running: Sequence[Running], seconds: float) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("load", "published", "delivered", "per s", "faults"):
        is_text = heading in ("load", "faults")
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=heading != "faults")
    for each in running:
        faults = ", ".join([*(f"{count} {name}" for name, count in each.faults.items()), *each.trouble]) or "none"
        rate = each.delivered / seconds if seconds else 0.0
        figures = (f"{each.published:,}", f"{each.delivered:,}", f"{rate:,.0f}")
        table.add_row(each.load.name, *figures, faults, style="bold red" if faults != "none" else "")
    return table


def soak(
    console: Console, broker: brokers.Warren, seconds: float, scale: float
) -> tuple[list[Judgement], list[Running]]:
    """Start the loads, watch until they end, judge."""
    endpoint = broker.start()
    pid = endpoint.pids[0]
    generators = [Generator(load, endpoint.port, seconds, scale) for load in LOADS]
    running = [generator.running for generator in generators]
    began = time.monotonic()
    times: list[float] = []
    samples: list[list[float]] = []
    judged: list[Judgement] = []
    next_line = LINE_EVERY
    try:
        for generator in generators:
            generator.start()
        with Live(console=console, refresh_per_second=2, transient=True) as live:
            while any(generator.is_alive() for generator in generators):
                if broker.has_ended():
                    raise brokers.BrokerError(f"the broker ended: {broker.last_words()}")
                passed = time.monotonic() - began
                if passed > seconds + SETTLE_LIMIT:
                    raise brokers.BrokerError("the loads did not come to their end")
                if passed <= seconds:  # what comes later is the settling
                    times.append(passed)
                    samples.append(sample(pid, broker.data))
                    judged = judge(times, samples)
                bar = ProgressBar(total=seconds, completed=min(passed, seconds), width=40)
                title = Text(f"soaking: {passed:.0f} of {seconds:.0f} s")
                live.update(Group(title, bar, metrics_table(judged, is_final=False), loads_table(running, passed)))
                if not console.is_terminal and passed >= next_line:
                    next_line += LINE_EVERY
                    told = ", ".join(f"{each.metric.name} {each.values[-1]:,.0f}" for each in judged)
                    faults = sum(sum(each.faults.values()) + len(each.trouble) for each in running)
                    console.print(f"{passed:5.0f} s: {told}; faults {faults}", highlight=False)
                time.sleep(SAMPLE_EVERY)
    finally:
        for generator in generators:
            generator.end()
    console.print(metrics_table(judged, is_final=True))
    console.print(loads_table(running, seconds))
    return judged, running


def check_data(broker: brokers.Warren) -> str:
    """Stop the broker and look at what it leaves; what is wrong with it, if anything is."""
    broker.stop()
    environment = os.environ | {"PYTHONPATH": str(brokers.SOURCES)}
    command = [sys.executable, "-m", "warrenmq", "check", "--json", str(broker.data)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    told = json.loads(ended.stdout) if ended.stdout.strip() else {}
    if ended.returncode:
        found = [
            f"{finding['file']}: {finding['text']}" for finding in told.get("findings", []) if finding["is_damage"]
        ]
        return "; ".join(found) or told.get("error", ended.stderr.strip())
    left = {queue["name"]: queue["messages"] for queue in told["queues"] if queue["messages"]}
    return f"messages are left: {left}" if left else ""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="soak.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual load")
    options = parser.parse_args(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through every `with`: no broker stays behind
    with brokers.scratch_folder() as folder:
        broker = brokers.Warren(folder)
        try:
            loadgen.build()
            judged, running = soak(console, broker, options.minutes * 60, options.scale)
            damage = check_data(broker)
        except (brokers.BrokerError, loadgen.BuildError) as error:
            console.print(f"FAIL {error}", style="bold red", markup=False)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            broker.stop()
    return verdict(console, judged, running, damage)


def verdict(console: Console, judged: Sequence[Judgement], running: Sequence[Running], damage: str) -> int:
    growing = [each.metric.name for each in judged if not each.is_flat]
    faulty = [each.load.name for each in running if each.faults or each.trouble]
    lines = [f"growing: {', '.join(growing)}"] if growing else []
    lines += [f"faults: {'; '.join(faulty)}"] if faulty else []
    lines += [f"data folder: {damage}"] if damage else []
    for line in lines:
        console.print(f"FAIL {line}", style="bold red", markup=False, highlight=False)
    if lines:
        return 1
    total = sum(each.delivered for each in running)
    text = f"flat: {total:,} messages delivered, none lost, late or doubled; the data folder is clean"
    console.print(text, style="bold green", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
