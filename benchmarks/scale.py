"""Does a message cost more because of what it does not touch? Many connections, queues and bindings beside it.

    python benchmarks/scale.py                          5,000 connections, 10,000 queues, 100,000 bindings
    python benchmarks/scale.py --no-rabbitmq            WarrenMQ alone (RabbitMQ takes minutes to declare all that)

A small probe (one topic exchange, ten queues) is measured in a broker that holds nothing else, while the crowd arrives,
and beside the crowd; last, the ten queues are used through the very exchange that has all the bindings. The table shows
the probe's round trip with one message in flight and its CPU cost at full speed. Kept as results/scale.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import brokers
import loadgen
import machine
from brokers import Endpoint
from measure import Opener, run_quietly
from report import LABELS, RESULTS, short, wide_console
from rich.console import Console
from rich.table import Table

FEW = 10
ROUNDS = 3
PROBE = f"--exchange topic --queues {FEW} --bindings {FEW} --keys {FEW} --consumers {FEW} --exchange-name bench.probe"
ONE_IN_FLIGHT = "--outstanding 1"
FULL_SPEED = "--outstanding 10000"
# Files of a broker beside its connections; the machine's limit must leave room for them.
SPARE_FILES = 200


@dataclass(frozen=True, slots=True)
class Crowd:
    """How much stands beside the probe, and how long it is measured."""

    connections: int = 5000
    queues: int = 10_000
    bindings: int = 100_000
    duration: float = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What the probe saw in one situation."""

    situation: str
    p50_us: float
    p99_us: float
    cpu_us: float
    messages_per_second: float


@dataclass(slots=True)
class Outcome:
    """One broker: its probes in order, what the crowd took, and what went wrong."""

    broker: str
    version: str
    crowd: str
    probes: list[Probe] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def title(self) -> str:
        return f"{LABELS.get(self.broker, self.broker)} {self.version}, {self.crowd}"

    def keep(self, run: loadgen.Run, situation: str) -> dict[str, Any]:
        self.faults += [f"{situation}: {fault}" for fault in run.faults]
        return run.figures


def measure_connections(open_broker: Opener, crowd: Crowd) -> Outcome:
    """The probe alone, while idle connections are opened, and beside them."""
    with open_broker() as broker:
        outcome = Outcome(broker.name, broker.version, "idle connections")
        probe(outcome, broker, "alone", crowd, PROBE)
        with loadgen.holding(broker, f"--mode conns --count {crowd.connections}") as held:
            title = f"{crowd.connections:,} connections"
            probe(outcome, broker, f"while {title} are opened", crowd, PROBE, is_arriving=True)
            figures = outcome.keep(held.result(), title)
            probe(outcome, broker, f"beside {title}", crowd, PROBE)
        if figures:
            outcome.figures["connections opened per second"] = figures["open_per_s"]
            outcome.figures["bytes per idle connection"] = figures["bytes_per_conn"]
    return outcome


def measure_topology(open_broker: Opener, crowd: Crowd) -> Outcome:
    """The probe alone, while queues and bindings are declared, beside them, and through the crowded exchange."""
    declared = "--exchange topic --exchange-name bench.crowd --queue crowd"
    declared += f" --queues {crowd.queues} --bindings {crowd.bindings}"
    with open_broker() as broker:
        outcome = Outcome(broker.name, broker.version, "queues and bindings")
        probe(outcome, broker, f"alone, {FEW} queues and {FEW} bindings", crowd, PROBE)
        with loadgen.holding(broker, f"--mode topology {declared}") as held:
            title = f"{crowd.queues:,} queues and {crowd.bindings:,} bindings"
            probe(outcome, broker, f"while {title} are declared", crowd, PROBE, is_arriving=True)
            figures = outcome.keep(held.result(), title)
            probe(outcome, broker, f"beside {title}", crowd, PROBE)
            crowded = f"{declared} --attach --keys {FEW} --consumers {FEW}"
            probe(outcome, broker, f"through an exchange with {crowd.bindings:,} bindings", crowd, crowded)
        if figures:
            growth = figures["rss_after"] - figures["rss_before"]
            outcome.figures["queues declared per second"] = figures["declare_per_s"]
            outcome.figures["bindings declared per second"] = figures["bind_per_s"]
            outcome.figures["seconds to declare all"] = figures["declare_s"] + figures["bind_s"]
            outcome.figures["megabytes for all queues and bindings"] = growth / 1e6
    return outcome


def probe(
    outcome: Outcome, broker: Endpoint, situation: str, crowd: Crowd, options: str, *, is_arriving: bool = False
) -> None:
    """Measure the probe; while a crowd arrives its CPU time is not the probe's, so only the round trip counts."""
    pace = f"--duration {crowd.duration} --warmup 0.5"
    one_in_flight, full_speed = f"{options} {ONE_IN_FLIGHT} {pace}", f"{options} {FULL_SPEED} {pace}"
    busy: dict[str, Any] = {}
    if is_arriving:
        round_trip = outcome.keep(loadgen.run(broker, one_in_flight), situation)
    else:
        round_trip = middle_run(outcome, broker, one_in_flight, situation)
        busy = middle_run(outcome, broker, full_speed, situation)
    if round_trip:
        latency = round_trip["latency_us"]
        cost, rate = busy.get("broker_cpu_us_per_msg", 0.0), busy.get("dlv_per_s", 0.0)
        outcome.probes.append(Probe(situation, latency["p50"], latency["p99"], cost, rate))


def middle_run(outcome: Outcome, broker: Endpoint, options: str, situation: str) -> dict[str, Any]:
    """Of several runs the one whose CPU cost is the median."""
    runs = [outcome.keep(run_quietly(broker, options)[0], situation) for _ in range(ROUNDS)]
    measured = sorted((figures for figures in runs if figures), key=lambda figures: figures["broker_cpu_us_per_msg"])
    return measured[len(measured) // 2] if measured else {}


def table_of(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Headings and cells, the first line being what the others are compared with."""
    headings = ["probe", "round trip p50 us", "p99 us", "cpu us/msg", "msg/s", "cost against alone"]
    alone = outcome.probes[0].cpu_us if outcome.probes else 0.0
    lines = []
    for seen in outcome.probes:
        cells = [seen.situation, short(seen.p50_us), short(seen.p99_us)]
        if seen.cpu_us and alone:
            cells += [short(seen.cpu_us), short(seen.messages_per_second), f"{seen.cpu_us / alone:.2f} x"]
        else:
            cells += ["", "", ""]
        lines.append(cells)
    return headings, lines


def show(console: Console, outcome: Outcome) -> None:
    headings, lines = table_of(outcome)
    table = Table(title=outcome.title(), title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "probe" else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)
    console.print(", ".join(f"{name}: {short(value)}" for name, value in outcome.figures.items()), highlight=False)
    for fault in outcome.faults:
        console.print(f"FAIL {fault}", style="bold red", markup=False)


def write(outcomes: Iterable[Outcome]) -> None:
    told = machine.describe()
    page = [
        "# Results with many connections, queues and bindings",
        "",
        f"{told['date']}: {machine.sentence(told)}.",
    ]
    outcomes = list(outcomes)
    for outcome in outcomes:
        headings, lines = table_of(outcome)
        page += ["", f"## {outcome.title()}", ""]
        page += ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
        page += ["| " + " | ".join(line) + " |" for line in lines]
        page += ["", *(f"- {name}: {short(value)}" for name, value in outcome.figures.items())]
        page += [f"- FAIL {fault}" for fault in outcome.faults]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "scale.md").write_text("\n".join(page) + "\n")
    kept = {"machine": told, "outcomes": [asdict(outcome) for outcome in outcomes]}
    (RESULTS / "scale.json").write_text(json.dumps(kept, indent=2) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scale.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--no-rabbitmq", action="store_true", help="measure WarrenMQ alone")
    parser.add_argument("--no-warren", action="store_true", help="measure RabbitMQ alone")
    parser.add_argument("--small", action="store_true", help="a tenth of the crowd")
    options = parser.parse_args(arguments)
    crowd = Crowd(500, 1000, 10_000, 1.0) if options.small else Crowd()
    console = wide_console()
    openers: list[Opener] = [] if options.no_warren else [brokers.running_warren]
    if not options.no_rabbitmq and brokers.find_rabbitmq() is not None:
        openers.append(brokers.running_rabbitmq)
    outcomes = []
    try:
        loadgen.build()
        room = brokers.raise_file_limit() - SPARE_FILES
        if room < crowd.connections:
            console.print(f"this machine allows {room} connections, not {crowd.connections}", style="yellow")
            crowd = Crowd(room, crowd.queues, crowd.bindings, crowd.duration)
        for opener in openers:
            for measure in (measure_connections, measure_topology):
                outcome = measure(opener, crowd)
                show(console, outcome)
                outcomes.append(outcome)
    except (brokers.BrokerError, loadgen.BuildError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    if not (options.small or options.no_warren):
        write(outcomes)
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
