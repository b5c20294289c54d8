"""What keeping events costs: throughput with tracing off, of one message in a hundred, and of all, in one run.

    python benchmarks/tracing.py              four rounds of each
    python benchmarks/tracing.py --quick      one short round
    python benchmarks/tracing.py --against DIR    beside the sources in another folder, with nothing traced

WarrenMQ alone, with its default settings, measured in turn, so that what else the machine does falls on all alike; each
time in a new process on a new data folder, as one process may be a tenth faster than another of the same. Ratios are of
medians, to the broker that traces nothing: of deliveries per second, and of the broker's CPU per delivery, its threads
included. Part of `make bench`. The table is kept as results/tracing.md and results/tracing.json. Ends with 2 when a
bound was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

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


@dataclass(frozen=True, slots=True)
class Pace:
    """How long it takes; `only` chooses workloads whose title has this in it."""

    rounds: int = 4
    seconds: float = 4.0
    only: str = ""
    against: Path | None = None
    is_kept: bool = True


QUICK = Pace(rounds=1, seconds=2.0, is_kept=False)


@dataclass(slots=True)
class Figures:
    """One broker under one workload: deliveries per second, and us of CPU for each, by round."""

    rates: list[float]
    cpu: list[float]


Found = dict[str, dict[str, Figures]]  # by workload and by how much is traced


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=Pace.rounds)
    parser.add_argument("--seconds", type=float, default=Pace.seconds)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="workloads whose title has this in it")
    parser.add_argument("--against", type=Path, help="a folder with other sources (and their compiled modules)")
    options = parser.parse_args(arguments)
    pace = Pace(options.rounds, options.seconds, options.only, options.against, not options.only)
    if options.quick:
        pace = Pace(1, 2.0, options.only, options.against, is_kept=False)
    console = wide_console()
    found = run(console, pace)
    show(console, found)
    return 2 if misses(found) else 0


def run(console: Console, pace: Pace) -> Found:
    """Measure everything; a whole run is kept."""
    loadgen.build()
    found: Found = {}
    for title, flags in WORKLOADS.items():
        if pace.only in title:
            found[title] = measure(title, flags, pace)
            told = ", ".join(
                f"{name} {short(median(each.rates))}/s ({median(each.cpu):.2f} us of CPU)"
                for name, each in found[title].items()
            )
            console.print(f"{title}: {told}")
    if pace.is_kept:
        keep(found)
    return found


def measure(title: str, flags: str, pace: Pace) -> dict[str, Figures]:
    makers = contenders(pace)
    figures = {name: Figures([], []) for name in makers}
    for _ in range(pace.rounds):
        for name, make in makers.items():
            with running(make) as endpoint:
                measured = loadgen.run(endpoint, f"{flags} --duration {pace.seconds:g} --warmup 0.5")
            # A publisher that has to wait while events are written is no fault: it is in the rate.
            faults = [fault for fault in measured.faults if not fault.endswith(" blocked")]
            if faults:
                raise brokers.BrokerError(f"{title}, {name}: {', '.join(faults)}")
            figures[name].rates.append(float(measured.figures["dlv_per_s"]))
            figures[name].cpu.append(float(measured.figures["broker_cpu_us_per_msg"]))
    return figures


def contenders(pace: Pace) -> dict[str, Callable[[Path], Warren]]:
    """What makes each broker, of its data folder."""
    makers: dict[str, Callable[[Path], Warren]] = {
        name: partial(Warren, options=("--trace", flag)) for name, flag in FLAGS.items()
    }
    if pace.against is not None:
        makers[BEFORE] = partial(OtherSources, sources=pace.against)
    return makers


@contextmanager
def running(make: Callable[[Path], Warren]) -> Iterator[Endpoint]:
    with brokers.scratch_folder() as folder:
        broker = make(folder)
        try:
            yield broker.start()
        finally:
            broker.stop()


def ratio(figures: dict[str, Figures], name: str) -> float:
    return median(figures[name].rates) / median(figures[OFF].rates)


def cpu_ratio(figures: dict[str, Figures], name: str) -> float:
    return median(figures[name].cpu) / median(figures[OFF].cpu)


def is_missed(figures: dict[str, Figures], name: str) -> bool:
    return name in AT_LEAST and ratio(figures, name) < AT_LEAST[name]


def misses(found: Found) -> bool:
    return any(is_missed(figures, name) for figures in found.values() for name in AT_LEAST)


def table_of(found: Found) -> list[list[str]]:
    rows = []
    for title, figures in found.items():
        row = [title, f"{short(median(figures[OFF].rates))}/s"]
        for name in (SOME, ALL, *([BEFORE] if BEFORE in figures else [])):
            missed = " (missed)" if is_missed(figures, name) else ""
            row += [f"{ratio(figures, name):.2f}{missed}", f"{cpu_ratio(figures, name):.2f}"]
        rows.append(row)
    return rows


HEADINGS = ["workload", "nothing traced", "1 % traced", "its CPU", "all traced", "its CPU"]


def show(console: Console, found: Found) -> None:
    rows = table_of(found)
    headings = [*HEADINGS, "before tracing was there", "its CPU"]
    table = Table(*headings[: len(rows[0]) if rows else len(HEADINGS)], box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def keep(found: Found) -> None:
    rows = [row[: len(HEADINGS)] for row in table_of(found)]
    lines = [
        "# Tracing",
        "",
        "Deliveries per second and ratios to the same with tracing off, of deliveries and of the broker's CPU for "
        "each; medians of one interleaved run. " + machine.sentence(machine.describe()),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join("---" for _ in HEADINGS) + " |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    (RESULTS / "tracing.md").write_text("\n".join(lines))
    kept = {title: {name: asdict(each) for name, each in figures.items()} for title, figures in found.items()}
    (RESULTS / "tracing.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
