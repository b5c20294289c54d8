"""Measures programs of pika, aio-pika and kombu as their users write them, on WarrenMQ, RabbitMQ and other brokers.

    python benchmarks/ordinary_clients.py                             all programs, medians of 5 interleaved rounds
    python benchmarks/ordinary_clients.py --endpoint other=5673,4711  also a broker that already runs: name=port,pid
    python benchmarks/ordinary_clients.py --only pika --rounds 9      the programs of one library; repeatable

Here the client is the bottleneck: the figures say what a program gains by another broker without being rewritten. Every
run is a fresh process on a queue of its own, which is counted afterwards. Ends with 1 when a run failed.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import brokers
import machine
import report
from brokers import BrokerError, Endpoint
from client_compare import is_installed, run_program, warmup_of
from measure import FOREIGN_CPU_LIMIT, LONG_REPEATS
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

ROUNDS = 5
WIDTH = 80


@dataclass(frozen=True, slots=True)
class Program:
    """One program: its file and workload, and enough messages for a run of about half a second."""

    package: str
    file: str
    workload: str
    title: str
    messages: int

    @property
    def consumes(self) -> bool:
        return self.workload.startswith(("consume", "iterate"))


_PIKA = ("pika", "ordinary_pika.py")
_AIO_PIKA = ("aio-pika", "ordinary_aio_pika.py")
_KOMBU = ("kombu", "ordinary_kombu.py")
PROGRAMS = (
    Program(*_PIKA, "publish", "publish", 20_000),
    Program(*_PIKA, "confirm", "publish, confirms", 8_000),
    Program(*_PIKA, "consume", "callback", 15_000),
    Program(*_PIKA, "consume-100", "callback, prefetch 100", 15_000),
    Program(*_AIO_PIKA, "publish", "publish, no confirms", 12_000),
    Program(*_AIO_PIKA, "confirm", "publish, confirms", 4_000),
    Program(*_AIO_PIKA, "consume-100", "callback, prefetch 100", 6_000),
    Program(*_AIO_PIKA, "iterate-100", "iterator, prefetch 100", 6_000),
    Program(*_KOMBU, "publish", "publish a task", 6_000),
    Program(*_KOMBU, "consume-4", "worker, prefetch 4", 8_000),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One program on one broker: messages per second, and the broker's CPU time per message."""

    median: float
    low: float
    high: float
    cpu_us: float


@dataclass(slots=True)
class Runs:
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    disturbed: int = 0  # runs that were kept although others kept the machine busy to the last repeat

    def cell(self) -> Cell:
        return Cell(statistics.median(self.rates), min(self.rates), max(self.rates), statistics.median(self.cpu_us))


@dataclass(frozen=True, slots=True)
class Row:
    package: str
    title: str
    cells: dict[str, Cell]
    faults: dict[str, list[str]]
    disturbed: int

    @property
    def ratio(self) -> float | None:
        """How many times as fast the program is on WarrenMQ as on RabbitMQ."""
        ours, reference = self.cells.get(report.OURS), self.cells.get(report.REFERENCE)
        return ours.median / reference.median if ours and reference else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows; `brokers` are names and versions, in the order of the columns."""

    brokers: dict[str, str]
    libraries: dict[str, str]
    rounds: int
    rows: list[Row]

    @property
    def failed(self) -> bool:
        return any(row.faults for row in self.rows)


def measure(console: Console, endpoints: Sequence[Endpoint], programs: Sequence[Program], rounds: int) -> Comparison:
    """All rows, interleaved: every round runs a program on each broker once, beginning with another one each time."""
    rows = []
    for program in programs:
        outcomes = {endpoint.name: Runs() for endpoint in endpoints}
        for number in range(rounds):
            first = number % len(endpoints)
            for endpoint in [*endpoints[first:], *endpoints[:first]]:
                _run_quietly(endpoint, program, outcomes[endpoint.name])
        rows.append(_row(program, outcomes))
        console.print(_line(rows[-1]), markup=False, highlight=False)
    names = dict.fromkeys(program.package for program in programs)
    versions = {endpoint.name: endpoint.version for endpoint in endpoints}
    return Comparison(versions, {name: metadata.version(name) for name in names}, rounds, rows)


def _run_quietly(endpoint: Endpoint, program: Program, runs: Runs) -> None:
    """One run, repeated while others disturb it; a fault is never repeated away."""
    for repeat in range(LONG_REPEATS + 1):
        began, busy = time.monotonic(), _busy_seconds()
        own = _own_seconds() + brokers.cpu_seconds_of(endpoint)
        figures, fault = run_program(endpoint, program.file, program.workload, program.messages, program.consumes)
        own = _own_seconds() + brokers.cpu_seconds_of(endpoint) - own
        foreign_cpu = (_busy_seconds() - busy - own) / (time.monotonic() - began)
        if figures is None:
            runs.faults.append(fault)
            return
        if foreign_cpu <= FOREIGN_CPU_LIMIT or not endpoint.pids or repeat == LONG_REPEATS:
            break
    runs.disturbed += bool(endpoint.pids) and foreign_cpu > FOREIGN_CPU_LIMIT
    runs.rates.append(program.messages / figures["seconds"])
    count = program.messages + warmup_of(program.messages)
    runs.cpu_us.append(figures["broker_cpu_seconds"] / count * 1e6)


def _busy_seconds() -> float:
    """CPU time that the machine has spent on anything."""
    user, nice, system, _, _, interrupts, soft_interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / 100


def _own_seconds() -> float:
    """CPU time of this process and of the programs that it has run."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _row(program: Program, outcomes: dict[str, Runs]) -> Row:
    cells = {name: runs.cell() for name, runs in outcomes.items() if runs.rates}
    faults = {name: sorted(set(runs.faults)) for name, runs in outcomes.items() if runs.faults}
    disturbed = sum(runs.disturbed for runs in outcomes.values())
    return Row(program.package, program.title, cells, faults, disturbed)


# -- what the reader sees


def table_of(told: Comparison) -> Table:
    """The table for a terminal of 80 columns."""
    table = Table(
        title="Ordinary programs: messages of 100 B per second, the broker's CPU time for each",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("program", no_wrap=True)
    for name in told.brokers:
        table.add_column(_label(name), justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("us/msg", justify="right", no_wrap=True)
    package = ""
    for row in told.rows:
        if row.package != package:
            package = row.package
            table.add_row(f"[bold]{package}[/]")
        cpu = " ".join(f"{row.cells[name].cpu_us:.0f}" if name in row.cells else "-" for name in told.brokers)
        rates = (report.short(row.cells[name].median) if name in row.cells else "FAIL" for name in told.brokers)
        table.add_row(f" {row.title}", *rates, _ratio_text(row), cpu)
    return table


def markdown_of(told: Comparison) -> list[str]:
    columns = [f"{_label(name)} {version}" for name, version in told.brokers.items()]
    libraries = ", ".join(f"{name} {version}" for name, version in told.libraries.items())
    lines = [
        "## Ordinary programs",
        "",
        f"Programs as users of {libraries} write them, a fresh process for each run: messages of 100 B per second, "
        f"medians of {told.rounds} interleaved runs, [lowest-highest], and the broker's own CPU time per message. "
        "The ratio is WarrenMQ to RabbitMQ. The client is the bottleneck.",
        "",
        "| library | program | " + " | ".join([*columns, "ratio"]) + " |",
        "|" + " --- |" * (len(columns) + 3),
    ]
    for row in told.rows:
        cells = [_cell_text(row.cells[name]) if name in row.cells else "FAIL" for name in told.brokers]
        lines.append("| " + " | ".join([row.package, row.title, *cells, _ratio_text(row)]) + " |")
    disturbed = sum(row.disturbed for row in told.rows)
    if disturbed:
        lines += ["", f"Disturbed by other processes to the last repeat: {disturbed} runs."]
    faults = fault_lines(told)
    return lines + (["", "Failed:", "", *(f"- {line}" for line in faults)] if faults else [])


def fault_lines(told: Comparison) -> list[str]:
    return [
        f"{row.package}, {row.title}: {_label(name)}: {'; '.join(faults)}"
        for row in told.rows
        for name, faults in row.faults.items()
    ]


def _line(row: Row) -> str:
    rates = " / ".join(report.short(cell.median) for cell in row.cells.values())
    return f"{row.package}, {row.title}: {rates} msg/s"


def _label(name: str) -> str:
    return report.LABELS.get(name, name)


def _cell_text(cell: Cell) -> str:
    return f"{report.short(cell.median)} [{report.short(cell.low)}-{report.short(cell.high)}] ({cell.cpu_us:.1f} us)"


def _ratio_text(row: Row) -> str:
    return f"{row.ratio:.1f}" if row.ratio is not None else ""


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through every `with`: no broker stays behind
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    programs = [program for program in PROGRAMS if not options.only or program.package in options.only]
    for package in dict.fromkeys(program.package for program in programs):
        if not is_installed(package):
            console.print(f"{package} is not installed here: left out", style="yellow")
    programs = [program for program in programs if is_installed(program.package)]
    try:
        with ExitStack() as stack:
            endpoints = [stack.enter_context(brokers.running_warren())]
            if brokers.find_rabbitmq() is not None:
                endpoints.append(stack.enter_context(brokers.running_rabbitmq()))
            else:
                console.print("RabbitMQ is not installed here: no ratios", style="yellow")
            endpoints += [brokers.attached(definition) for definition in options.endpoint]
            told = measure(console, endpoints, programs, max(1, options.rounds))
    except BrokerError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    console.print(table_of(told))
    for line in fault_lines(told):
        console.print(f"FAIL {line}", style="bold red", markup=False)
    if not options.only:
        _write(told)
    return 1 if told.failed else 0


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ordinary_clients.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds (default {ROUNDS})")
    parser.add_argument("--only", action="append", choices=sorted({program.package for program in PROGRAMS}))
    parser.add_argument("--endpoint", action="append", default=[], metavar="NAME=PORT,PID", help="a running broker")
    return parser.parse_args(arguments)


def _write(told: Comparison) -> None:
    """Keep the comparison as results/ordinary-clients.json and .md."""
    described = machine.describe()
    page = ["# Results", "", f"{described['date']}, {machine.sentence(described)}.", "", *markdown_of(told)]
    report.RESULTS.mkdir(exist_ok=True)
    figures = json.dumps({"machine": described, **asdict(told)}, indent=2)
    (report.RESULTS / "ordinary-clients.json").write_text(figures + "\n")
    (report.RESULTS / "ordinary-clients.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
