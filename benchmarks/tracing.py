"""What keeping events costs: throughput with tracing off, of one message in a hundred, and of all, in one run.

    python benchmarks/tracing.py              four rounds of each
    python benchmarks/tracing.py --quick      one short round
    python benchmarks/tracing.py --against DIR    beside the sources in another folder, with nothing traced

WarrenMQ alone, on data folders with its default settings, all brokers up at once and measured in turn, so that what
else the machine does falls on all alike. Ratios are of medians, to the broker that traces nothing. The table is kept as
results/tracing.md and results/tracing.json. Ends with 2 when a bound was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import brokers
import loadgen
import machine
from brokers import Endpoint, Warren
from report import RESULTS, short, wide_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

OFF, SOME, ALL, BEFORE = "off", "1 %", "all", "before"
FLAGS = {OFF: "off", SOME: "0.01", ALL: "all"}
# What is promised: ratios to the same with tracing off.
AT_LEAST = {SOME: 0.95, ALL: 0.5}
WORKLOADS = {
    "16 B, auto-ack": "--outstanding 10000",
    "16 B, each acked, prefetch 1000": "--outstanding 10000 --ack 1 --prefetch 1000",
    "1 KiB, auto-ack": "--outstanding 10000 --size 1024",
    "confirms, 100 in flight, ack every 50": "--confirm 100 --ack 50 --prefetch 1000",
    "fanout to 10 queues": "--outstanding 10000 --exchange fanout --queues 10 --consumers 10",
    "durable, 16 B, 1,000 confirms in flight": "--persistent --durable --confirm 1000 --ack 1 --prefetch 1000",
}


class OtherSources(Warren):
    """The same broker from the sources in another folder."""

    def __init__(self, folder: Path, sources: Path) -> None:
        super().__init__(folder)
        self._sources = sources


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="workloads whose title has this in it")
    parser.add_argument("--against", type=Path, help="a folder with other sources (and their compiled modules)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 2.0
    console = wide_console()
    loadgen.build()
    found = measure(console, options)
    show(console, found)
    if not options.quick:
        keep(found)
    return 2 if any(is_missed(title, name, found) for title in found for name in AT_LEAST) else 0


def measure(console: Console, options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Messages per second, by workload and by how much is traced."""
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        endpoints = start(stack, options)
        for title, flags in WORKLOADS.items():
            if options.only not in title:
                continue
            rates = found[title] = {name: [] for name in endpoints}
            cpu: dict[str, list[float]] = {name: [] for name in endpoints}
            for _ in range(options.rounds):
                for name, endpoint in endpoints.items():
                    run = loadgen.run(endpoint, f"{flags} --duration {options.seconds:g} --warmup 0.5")
                    if run.faults:
                        raise brokers.BrokerError(f"{title}, {name}: {', '.join(run.faults)}")
                    rates[name].append(float(run.figures["dlv_per_s"]))
                    cpu[name].append(float(run.figures["broker_cpu_us_per_msg"]))
            console.print(
                f"{title}: "
                + ", ".join(
                    f"{name} {short(median(rates[name]))}/s ({median(cpu[name]):.2f} us of CPU)" for name in rates
                )
            )
    return found


def start(stack: ExitStack, options: argparse.Namespace) -> dict[str, Endpoint]:
    running = {}
    contenders: dict[str, Any] = {
        name: (lambda folder, flag=flag: Warren(folder, options=("--trace", flag))) for name, flag in FLAGS.items()
    }
    if options.against is not None:
        contenders[BEFORE] = lambda folder: OtherSources(folder, options.against)
    for name, make in contenders.items():
        broker = make(stack.enter_context(brokers.scratch_folder()))
        running[name] = broker.start()
        stack.callback(broker.stop)
    return running


def ratio(rates: dict[str, list[float]], name: str) -> float:
    return median(rates[name]) / median(rates[OFF])


def is_missed(title: str, name: str, found: dict[str, dict[str, list[float]]]) -> bool:
    return ratio(found[title], name) < AT_LEAST[name]


def table_of(found: dict[str, dict[str, list[float]]]) -> list[list[str]]:
    rows = []
    for title, rates in found.items():
        row = [title, f"{short(median(rates[OFF]))}/s"]
        for name in (SOME, ALL, *([BEFORE] if BEFORE in rates else [])):
            row.append(
                f"{ratio(rates, name):.2f}"
                + (" (missed)" if name in AT_LEAST and is_missed(title, name, found) else "")
            )
        rows.append(row)
    return rows


HEADINGS = ["workload", "nothing traced", "1 % traced", "all traced"]


def show(console: Console, found: dict[str, dict[str, list[float]]]) -> None:
    rows = table_of(found)
    table = Table(*[*HEADINGS, "before tracing was there"][: len(rows[0]) if rows else 4], box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def keep(found: dict[str, dict[str, list[float]]]) -> None:
    rows = [[*row[:4]] for row in table_of(found)]
    lines = [
        "# Tracing",
        "",
        "Deliveries per second and ratios to the same with tracing off, medians of one interleaved run. "
        + machine.sentence(machine.describe()),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join("---" for _ in HEADINGS) + " |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    (RESULTS / "tracing.md").write_text("\n".join(lines))
    (RESULTS / "tracing.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
