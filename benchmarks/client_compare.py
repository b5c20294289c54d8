"""Measures warrenmq.client beside the other Python clients, on one broker, and prints how many times faster it is.

    python benchmarks/client_compare.py                     all workloads, medians of 3 interleaved rounds
    python benchmarks/client_compare.py --broker rabbitmq   the same on RabbitMQ
    python benchmarks/client_compare.py --only consume      one workload; --client pika: one client; both repeatable

Every run is a fresh process of one program of clients/, on a queue of its own. What it claims is looked at afterwards:
after a publishing run the queue must hold every message, after a consuming run none. The clients' table of `make bench`
is this one (run.py). Ends with 1 when a run failed, with 2 when --strict is given and a target was missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

import brokers
import machine
import report
from brokers import Endpoint
from clients.plumbing import Plumber
from clients.program import BODY
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

PROGRAMS = Path(__file__).resolve().parent / "clients"
ROUNDS = 3  # each run starts an interpreter and a library: more would take longer than all else
RUN_LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Client:
    """A library: its program, its package, and what it cannot do."""

    key: str
    title: str
    program: str
    package: str
    ours: bool = False
    cannot: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()  # workloads that it does so slowly that fewer messages must do


@dataclass(frozen=True, slots=True)
class ClientWorkload:
    """What a program does; enough messages for a run of about half a second."""

    key: str
    title: str
    ours: int
    others: int
    target: float = 5.0  # times the fastest other client

    @property
    def consumes(self) -> bool:
        return self.key == "consume"

    def messages(self, client: Client, broker: str) -> int:
        if self.key in client.slow:
            return self.others // 20
        # RabbitMQ is slower than our clients: there it is what is measured, and all have the same to do.
        return self.ours if client.ours and broker == report.OURS else self.others


CLIENTS = (
    Client("warren", "WarrenMQ", "with_warren.py", "warrenmq", ours=True),
    Client("warren-aio", "WarrenMQ aio", "with_warren_aio.py", "warrenmq", ours=True),
    Client("pika", "pika", "with_pika.py", "pika", cannot=frozenset({"confirm"})),
    Client("pika-select", "pika select", "with_pika_select.py", "pika", cannot=frozenset({"confirm-1"})),
    Client("aio-pika", "aio-pika", "with_aio_pika.py", "aio-pika"),
    Client("py-amqp", "py-amqp", "with_py_amqp.py", "amqp"),
    Client(
        "amqpstorm",
        "AMQPStorm",
        "with_amqpstorm.py",
        "AMQPStorm",
        cannot=frozenset({"confirm"}),
        slow=frozenset({"confirm-1"}),
    ),
)

WORKLOADS = (
    ClientWorkload("confirm", "publish, 1,000 confirms in flight", ours=150_000, others=6_000),
    # A round trip each: most of the time passes in the broker and in two kernels, which all clients share.
    ClientWorkload("confirm-1", "publish, one confirm at a time", ours=3_000, others=1_500, target=1.2),
    ClientWorkload("publish", "publish without confirms", ours=400_000, others=10_000),
    ClientWorkload("consume", "consume, each acked, prefetch 1,000", ours=150_000, others=8_000),
)


@dataclass(frozen=True, slots=True)
class ClientCell:
    """One client's messages per second in one row, and its own CPU time per message."""

    median: float
    low: float
    high: float
    cpu_us: float
    runs: int


@dataclass(slots=True)
class Runs:
    """What one client did in one workload."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def cell(self) -> ClientCell:
        rates = self.rates
        return ClientCell(statistics.median(rates), min(rates), max(rates), statistics.median(self.cpu_us), len(rates))


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One workload: cells by client, and how many times the fastest other one each of ours is."""

    key: str
    title: str
    cells: dict[str, ClientCell]
    fastest_other: str
    ratios: dict[str, float]
    target: float
    verdict: str
    faults: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class ClientReport:
    """The clients' part of a report."""

    broker: dict[str, str]
    versions: dict[str, str]
    rounds: int
    rows: list[ClientRow]

    @property
    def failed(self) -> bool:
        return any(row.faults for row in self.rows)

    @property
    def missed(self) -> bool:
        return any(row.verdict == "missed" for row in self.rows)


def measure(
    endpoint: Endpoint,
    workloads: Sequence[ClientWorkload],
    clients: Sequence[Client],
    rounds: int,
    after_row: Callable[[ClientRow], None],
    part: float = 1.0,
) -> ClientReport:
    """All rows, interleaved: every round runs each client once, beginning with another one each time."""
    rows = []
    for workload in workloads:
        playing = [client for client in clients if workload.key not in client.cannot]
        if not playing:
            continue
        outcomes = {client.key: Runs() for client in playing}
        for number in range(rounds):
            first = number % len(playing)
            for client in playing[first:] + playing[:first]:
                _run_once(endpoint, workload, client, part, outcomes[client.key])
        rows.append(_row(workload, clients, outcomes))
        after_row(rows[-1])
    versions = {client.title: metadata.version(client.package) for client in clients}
    return ClientReport({"name": endpoint.name, "version": endpoint.version}, versions, rounds, rows)


def measure_installed(
    console: Console,
    endpoint: Endpoint,
    workloads: Sequence[ClientWorkload],
    clients: Sequence[Client],
    rounds: int,
    part: float = 1.0,
) -> ClientReport:
    """All rows with whatever of these is installed, telling each when it is done."""
    clients, missing = installed(clients)
    for name in missing:
        console.print(f"{name} is not installed here: left out", style="yellow")
    return measure(endpoint, workloads, clients, rounds, partial(_print_row, console), part)


def _print_row(console: Console, row: ClientRow) -> None:
    console.print(row_text(row), markup=False, highlight=False)


def installed(clients: Sequence[Client]) -> tuple[list[Client], list[str]]:
    """Those that can run here, and the names of those that cannot."""
    missing = [client.title for client in clients if not is_installed(client.package)]
    return [client for client in clients if is_installed(client.package)], missing


def is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def table_of(told: ClientReport) -> Table:
    """The table for the terminal."""
    headings, lines = _headings(told), _lines(told, _rate_text)
    title = (
        f"Python clients on {report.LABELS.get(told.broker['name'], told.broker['name'])}, messages of 100 B per second"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("workload", "") else "right")
    colours = {"reached": "green", "missed": "yellow", "FAIL": "bold red"}
    for *cells, verdict in lines:
        table.add_row(*cells, f"[{colours[verdict]}]{verdict}[/]" if verdict in colours else verdict)
    return table


def markdown_of(told: ClientReport) -> list[str]:
    """The same as lines of a page."""
    broker = f"{report.LABELS.get(told.broker['name'], told.broker['name'])} {told.broker['version']}"
    versions = ", ".join(f"{name} {version}" for name, version in told.versions.items())
    lines = [
        "## Python clients",
        "",
        f"Messages of 100 B per second on {broker}, each run a fresh process; medians of {told.rounds} interleaved "
        "runs, [lowest-highest], and the client's own CPU time per message. Ratios are ours to the fastest other one. "
        f"{versions}.",
        "",
        "| " + " | ".join(_headings(told)) + " |",
        "|" + " --- |" * len(_headings(told)),
        *("| " + " | ".join(line) + " |" for line in _lines(told, _cell_text)),
    ]
    faults = fault_lines(told)
    return lines + (["", "Failed:", "", *(f"- {line}" for line in faults)] if faults else [])


def part_of_report(told: ClientReport) -> report.Part:
    return report.Part("clients", asdict(told), markdown_of(told))


def show(console: Console, told: ClientReport) -> None:
    console.print(table_of(told))
    for line in fault_lines(told):
        console.print(f"FAIL {line}", style="bold red", markup=False)


def fault_lines(told: ClientReport) -> list[str]:
    return [f"{row.title}: {key}: {'; '.join(faults)}" for row in told.rows for key, faults in row.faults.items()]


def row_text(row: ClientRow) -> str:
    """One line, for reading along."""
    cells = ", ".join(f"{key} {report.short(cell.median)}" for key, cell in row.cells.items())
    return f"{row.title}: {cells} msg/s, ratio {_ratio_text(row)} {row.verdict}"


def _run_once(endpoint: Endpoint, workload: ClientWorkload, client: Client, part: float, runs: Runs) -> None:
    messages = max(100, int(workload.messages(client, endpoint.name) * part))
    figures, fault = run_program(endpoint, client.program, workload.key, messages, workload.consumes)
    if figures is None:
        runs.faults.append(fault)
    else:
        runs.rates.append(messages / figures["seconds"])
        runs.cpu_us.append(figures["cpu_seconds"] / messages * 1e6)


def run_program(
    endpoint: Endpoint, program: str, workload: str, messages: int, consumes: bool
) -> tuple[dict[str, float] | None, str]:
    """The figures of one run on a queue of its own, or why there are none; the queue is looked at afterwards."""
    warmup = warmup_of(messages)
    queue = f"bench-{workload}-{Path(program).stem}"
    with Plumber(endpoint.port) as plumber:
        plumber.declare(queue)
        if consumes:
            plumber.fill(queue, messages + warmup, BODY)
        options = {"port": endpoint.port, "queue": queue, "workload": workload, "messages": messages, "warmup": warmup}
        cpu_before = brokers.cpu_seconds_of(endpoint)
        figures, fault = _start_program(program, options)
        cpu = brokers.cpu_seconds_of(endpoint) - cpu_before
        due = 0 if consumes else messages + warmup
        found = plumber.count(queue, due)
        plumber.delete(queue)
    if figures is not None and found != due:
        return None, f"the queue holds {found} messages, not {due}"
    return (None, fault) if figures is None else (figures | {"broker_cpu_seconds": cpu}, "")


def warmup_of(messages: int) -> int:
    return max(1, messages // 20)


def _start_program(program: str, options: dict[str, object]) -> tuple[dict[str, float] | None, str]:
    """What the program printed, or why it printed nothing."""
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    try:
        ended = subprocess.run(
            [sys.executable, str(PROGRAMS / program), *arguments],
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return None, f"no end after {RUN_LIMIT:.0f} s"
    if ended.returncode:
        return None, (ended.stderr.strip().splitlines() or [f"ended with code {ended.returncode}"])[-1]
    return json.loads(ended.stdout), ""


def _row(workload: ClientWorkload, clients: Sequence[Client], outcomes: dict[str, Runs]) -> ClientRow:
    cells = {key: runs.cell() for key, runs in outcomes.items() if runs.rates}
    faults = {key: sorted(set(runs.faults)) for key, runs in outcomes.items() if runs.faults}
    ours = [client.key for client in clients if client.ours and client.key in cells]
    others = [client.key for client in clients if not client.ours and client.key in cells]
    fastest = max(others, key=lambda key: cells[key].median, default="")
    ratios = {key: round(cells[key].median / cells[fastest].median, 2) for key in ours} if fastest else {}
    verdict = (
        "FAIL" if faults else "" if not ratios else "reached" if min(ratios.values()) >= workload.target else "missed"
    )
    return ClientRow(workload.key, workload.title, cells, fastest, ratios, workload.target, verdict, faults)


def _headings(told: ClientReport) -> list[str]:
    return ["workload", *told.versions, "ratio", "target", ""]


def _lines(told: ClientReport, text_of: Callable[[ClientCell], str]) -> list[list[str]]:
    keys = [client.key for client in CLIENTS if client.title in told.versions]
    return [
        [
            row.title,
            *(text_of(row.cells[key]) if key in row.cells else "" for key in keys),
            _ratio_text(row),
            f">= {row.target:g} x",
            row.verdict,
        ]
        for row in told.rows
    ]


def _rate_text(cell: ClientCell) -> str:
    return report.short(cell.median)


def _cell_text(cell: ClientCell) -> str:
    return f"{report.short(cell.median)} [{report.short(cell.low)}-{report.short(cell.high)}] ({cell.cpu_us:.1f} us)"


def _ratio_text(row: ClientRow) -> str:
    return " / ".join(f"{ratio:.1f}" for ratio in row.ratios.values())


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="client_compare.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help=f"interleaved rounds (default {ROUNDS})"
    )
    parser.add_argument("--only", action="append", choices=[workload.key for workload in WORKLOADS])
    parser.add_argument("--client", action="append", choices=[client.key for client in CLIENTS])
    parser.add_argument("--broker", choices=["warrenmq", "rabbitmq"], default="warrenmq")
    parser.add_argument("--strict", action="store_true", help="end with 2 when a target is missed")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through every `with`: no broker stays behind
    console = report.wide_console()
    workloads = [workload for workload in WORKLOADS if not options.only or workload.key in options.only]
    clients = [client for client in CLIENTS if not options.client or client.key in options.client]
    opener = brokers.running_rabbitmq if options.broker == "rabbitmq" else brokers.running_warren
    try:
        with opener() as endpoint:
            told = measure_installed(console, endpoint, workloads, clients, max(1, options.rounds))
    except brokers.BrokerError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    show(console, told)
    if not (options.only or options.client):
        _write(told, "clients" if options.broker == "warrenmq" else "clients-rabbitmq")
    return 1 if told.failed else 2 if options.strict and told.missed else 0


def _write(told: ClientReport, name: str) -> None:
    """Keep the report as results/NAME.json and results/NAME.md."""
    described = machine.describe()
    page = ["# Results", "", f"{described['date']}, {machine.sentence(described)}.", "", *markdown_of(told)]
    report.RESULTS.mkdir(exist_ok=True)
    (report.RESULTS / f"{name}.json").write_text(json.dumps({"machine": described, **asdict(told)}, indent=2) + "\n")
    (report.RESULTS / f"{name}.md").write_text("\n".join(page) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
