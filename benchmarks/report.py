"""Turns outcomes into rows, and rows into a table for the eye, a JSON file and a Markdown page.

A row with a fault has no figures to believe: it reads FAIL, whatever its numbers.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import machine
from brokers import Endpoint
from disk import DiskRate
from measure import Outcome, Pace
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from workloads import IN_MEMORY, UNCOMPILED, WARREN, Figure, Workload

RESULTS = Path(__file__).resolve().parent / "results"
TABLE_WIDTH = 160
REFERENCE = "rabbitmq"
OURS = WARREN
LABELS = {
    OURS: "WarrenMQ",
    REFERENCE: "RabbitMQ",
    UNCOMPILED: "WarrenMQ uncompiled",
    IN_MEMORY: "WarrenMQ without data folder",
}
DISK_HEADINGS = (
    "workload",
    "WarrenMQ msg/s",
    "MB/s logged",
    "in flight",
    "disk alone msg/s",
    "MB/s",
    "syncs/s",
    "share",
)
DISK_NOTE = (
    "The disk alone: records of the same size written to preallocated blocks, one fdatasync for all that may be in "
    "flight. `share` is WarrenMQ's throughput divided by that."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One broker's figure in one row."""

    median: float
    low: float
    high: float
    cpu_us: float | None
    runs: int = 1

    def spread(self) -> str:
        return f"{short(self.low)}-{short(self.high)}" if self.runs > 1 else "1 run"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `ours` is the broker that is judged in it."""

    key: str
    title: str
    unit: str
    ours: str
    cells: dict[str, Cell]
    ratios: dict[str, float]
    target: str
    verdict: str
    faults: dict[str, list[str]] = field(default_factory=dict)
    repeated: int = 0
    disturbed: int = 0
    disk: DiskRate | None = None

    @property
    def failed(self) -> bool:
        return bool(self.faults)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is kept of one invocation."""

    machine: dict[str, str]
    brokers: dict[str, dict[str, str]]
    pace: dict[str, float]
    rows: list[Row]

    @property
    def failed(self) -> bool:
        return any(row.failed for row in self.rows)

    @property
    def missed(self) -> bool:
        return any(row.verdict == "missed" for row in self.rows)


def rows_of(workload: Workload, outcomes: Mapping[str, Outcome], rate: DiskRate | None = None) -> list[Row]:
    """The rows of one workload: one per figure; `rate` is what the disk does alone."""
    faults = {name: sorted(set(outcome.faults)) for name, outcome in outcomes.items() if outcome.faults}
    return [_row(workload, figure, outcomes, faults, rate) for figure in workload.figures]


def describe_broker(endpoint: Endpoint) -> dict[str, str]:
    described = {"version": endpoint.version}
    if endpoint.compiled is not None:
        described["compiled"] = "yes" if endpoint.compiled else "no"
    return described


def describe_pace(pace: Pace) -> dict[str, float]:
    return asdict(pace)


def table_of(report: Report) -> Table:
    """The table for the terminal."""
    others = _other_brokers(report)
    table = Table(title="medians of interleaved runs, \\[lowest-highest]", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("workload")
    table.add_column("unit", no_wrap=True)
    for name in (OURS, REFERENCE, *others):
        table.add_column(LABELS.get(name, name), justify="right", no_wrap=True)
    for heading in ("ratio", "target", "cpu us/msg"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    colours = {"reached": "green", "missed": "yellow", "FAIL": "bold red"}
    for row in report.rows:
        cells = [_cell_text(row, name) for name in (row.ours, REFERENCE, *others)]
        verdict = f"[{colours[row.verdict]}]{row.verdict}[/]" if row.verdict in colours else row.verdict
        table.add_row(row.title, row.unit, *cells, _ratio_text(row), row.target, _cpu_text(row), verdict)
    return table


def disk_table_of(report: Report) -> Table | None:
    """How far the durable rows are from what the disk does alone; None if there are none."""
    lines = _disk_lines(report)
    if not lines:
        return None
    table = Table(title="durable rows and the disk", title_justify="left", box=SIMPLE_HEAD, caption_justify="left")
    for heading in DISK_HEADINGS:
        table.add_column(heading, justify="left" if heading == "workload" else "right")
    for line in lines:
        table.add_row(*line)
    return table


def _disk_lines(report: Report) -> list[list[str]]:
    lines = []
    for row in report.rows:
        cell = row.cells.get(row.ours)
        if row.disk is None or cell is None:
            continue
        rate = row.disk
        share = cell.median / rate.messages_per_second if rate.messages_per_second else 0.0
        alone = (rate.messages_per_second, rate.megabytes_per_second, rate.syncs_per_second)
        cells = [
            short(cell.median),
            short(cell.median * rate.record / 1e6),
            f"{rate.messages_per_sync:,}",
            *map(short, alone),
        ]
        lines.append([f"{row.title}, {row.unit}", *cells, f"{share:.0%}"])
    return lines


def fault_lines(report: Report) -> list[str]:
    """One line for each broker that failed in a row."""
    return [
        f"{row.title}: {LABELS.get(name, name)}: {'; '.join(faults)}"
        for row in report.rows
        for name, faults in row.faults.items()
    ]


def disturbance(report: Report) -> str:
    """How much other work on the machine was in the way; empty if none was."""
    # Figures of one workload share their runs.
    rows = {row.key: row for row in report.rows}.values()
    repeated, disturbed = sum(row.repeated for row in rows), sum(row.disturbed for row in rows)
    if not repeated:
        return ""
    kept = f"; {disturbed} runs stayed disturbed" if disturbed else ""
    return f"Other processes used the machine: {repeated} runs were repeated{kept}."


def markdown_of(report: Report) -> str:
    """The same table as a page."""
    others = _other_brokers(report)
    brokers = ", ".join(
        " ".join(
            [LABELS.get(name, name), told["version"]]
            + ([f"(compiled: {told['compiled']})"] if "compiled" in told else [])
        )
        for name, told in report.brokers.items()
    )
    names = (OURS, REFERENCE, *others)
    headings = ["workload", "unit", *(LABELS.get(name, name) for name in names), "ratio", "target", "cpu us/msg", ""]
    lines = [
        "# Results",
        "",
        f"{report.machine['date']}: {brokers}. {machine.sentence(report.machine)}; "
        "brokers and load generator share the machine.",
        f"Medians of {report.pace['rounds']:.0f} interleaved runs of {report.pace['duration']:g} s after "
        f"{report.pace['warmup']:g} s of warm-up, [lowest-highest]. Ratio: WarrenMQ / RabbitMQ, higher is better "
        "(latency and memory: RabbitMQ / WarrenMQ). `cpu us/msg`: the broker's CPU time per message, "
        "WarrenMQ / RabbitMQ. RabbitMQ has one run where it is slow (filling queues, starting brokers).",
        "",
        "| " + " | ".join(headings) + " |",
        "|" + " --- |" * len(headings),
    ]
    for row in report.rows:
        cells = [_cell_text(row, name) for name in (row.ours, *names[1:])]
        columns = [row.title, row.unit, *cells, _ratio_text(row), row.target, _cpu_text(row), row.verdict]
        lines.append("| " + " | ".join(columns) + " |")
    if disk_lines := _disk_lines(report):
        lines += ["", "## Durable rows compared with the disk", "", DISK_NOTE, ""]
        lines += ["| " + " | ".join(DISK_HEADINGS) + " |", "|" + " --- |" * len(DISK_HEADINGS)]
        lines += ["| " + " | ".join(line) + " |" for line in disk_lines]
    if note := disturbance(report):
        lines += ["", note]
    faults = fault_lines(report)
    if faults:
        lines += ["", "Failed:", "", *(f"- {line}" for line in faults)]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Part:
    """A further part of what is kept: its name and values in the JSON file, its lines on the page."""

    name: str
    values: dict[str, object]
    lines: list[str]


def write(report: Report, name: str, further: Part | None = None) -> None:
    """Keep the report as results/NAME.json and results/NAME.md."""
    values, page = asdict(report), markdown_of(report)
    if further is not None:
        values[further.name] = further.values
        page += "\n" + "\n".join(further.lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(page)


def wide_console() -> Console:
    """The terminal as it is; a file or a pipe as wide as the table."""
    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)


def short(value: float) -> str:
    """A figure in as few characters as a comparison needs."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.2f}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.1f}k"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _row(
    workload: Workload,
    figure: Figure,
    outcomes: Mapping[str, Outcome],
    faults: dict[str, list[str]],
    rate: DiskRate | None,
) -> Row:
    ours = workload.ours
    cells = {name: _cell(outcome, figure) for name, outcome in outcomes.items() if outcome.runs}
    reference = cells.get(REFERENCE)
    ratios = {} if reference is None else _ratios(cells, reference, figure)
    return Row(
        key=workload.key,
        title=workload.title,
        unit=figure.unit,
        ours=ours,
        cells=cells,
        ratios=ratios,
        target=target_text(figure),
        verdict="FAIL" if faults else _verdict(figure, cells.get(ours), ratios.get(ours)),
        faults=faults,
        repeated=sum(outcome.repeated for outcome in outcomes.values()),
        disturbed=sum(outcome.disturbed for outcome in outcomes.values()),
        disk=rate if figure.is_logged else None,
    )


def _cell(outcome: Outcome, figure: Figure) -> Cell:
    values = outcome.values(figure)
    return Cell(statistics.median(values), min(values), max(values), outcome.cpu_us(figure), len(values))


def _ratios(cells: Mapping[str, Cell], reference: Cell, figure: Figure) -> dict[str, float]:
    ratios = {}
    for name, cell in cells.items():
        better, worse = (reference.median, cell.median) if figure.less_is_better else (cell.median, reference.median)
        if name != REFERENCE and worse > 0:
            ratios[name] = round(better / worse, 3)
    return ratios


def target_text(figure: Figure) -> str:
    if figure.at_least is not None:
        return f">= {figure.at_least:g} x"
    return f"<= {short(figure.at_most)}" if figure.at_most is not None else ""


def _verdict(figure: Figure, cell: Cell | None, ratio: float | None) -> str:
    """Whether the target was reached; empty where there is nothing to judge, or nobody to compare with."""
    if cell is None:
        return ""
    if figure.at_most is not None:
        return "reached" if cell.median <= figure.at_most else "missed"
    if figure.at_least is None or ratio is None:
        return ""
    return "reached" if ratio >= figure.at_least else "missed"


def _other_brokers(report: Report) -> list[str]:
    """Brokers that have a column of their own: all that stand beside the two that are compared."""
    beside = {name for row in report.rows for name in row.cells if name not in (row.ours, REFERENCE)}
    return [name for name in report.brokers if name in beside - {OURS}]


def _cell_text(row: Row, name: str) -> str:
    cell = row.cells.get(name)
    return "" if cell is None else f"{short(cell.median)} \\[{cell.spread()}]"


def _ratio_text(row: Row) -> str:
    ratio = row.ratios.get(row.ours)
    return "" if ratio is None else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def _cpu_text(row: Row) -> str:
    costs = [row.cells[name].cpu_us for name in (row.ours, REFERENCE) if name in row.cells]
    return " / ".join(short(cost) for cost in costs if cost is not None)


def ratio_texts(rows: Sequence[Row]) -> list[str]:
    """One short line per row, for reading along while the rest is measured."""
    lines = []
    for row in rows:
        cells = ", ".join(f"{LABELS.get(name, name)} {short(cell.median)}" for name, cell in row.cells.items())
        ratio = f", ratio {_ratio_text(row)}" if row.ours in row.ratios else ""
        target = f" (target {row.target})" if row.target else ""
        lines.append(f"{row.title}: {cells} {row.unit}{ratio}{target} {row.verdict}".rstrip())
    return lines
