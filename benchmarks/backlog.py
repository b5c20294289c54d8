"""What waiting costs: memory, disk and start times with ten million messages, and with a hundred thousand queues.

    python benchmarks/backlog.py              10 million messages of 100 B, persistent and transient; 100,000 queues
    python benchmarks/backlog.py --small      a tenth of it
    python benchmarks/backlog.py --only messages|transient|queues

WarrenMQ alone, on a data folder with its default settings. The broker is stopped in order, then killed, and started
again both times; at the end the backlog is drained, and every message must come, once and in order. The table is kept
as results/backlog.md and results/backlog.json. Ends with 1 when a message was lost, and with 2 when a bound was passed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import brokers
import loadgen
import machine
from brokers import Endpoint, Warren
from report import RESULTS, short, wide_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

QUEUE = "backlog"
SIZE = 100
STEPS = (1_000_000, 2_000_000, 5_000_000, 10_000_000)
QUEUES = 100_000
# Messages that are added before the broker is killed, so that its log has an end to replay.
TAIL = 200_000
RESIDENT_BOUND = 200e6
START_BOUND = 5.0
RUN_LIMIT = 1200.0
STOP_LIMIT = 300.0
# Memory is read when the broker has had a moment to write out what it holds.
REST = 2.0


@dataclass(frozen=True, slots=True)
class Moment:
    """The broker at one point of a life; figures that were not taken are None."""

    situation: str
    resident: int
    peak: int
    on_disk: int
    per_second: float | None = None
    seconds: float | None = None
    note: str = ""


@dataclass(slots=True)
class Life:
    """One broker from empty to empty: its moments in order, and what went wrong."""

    title: str
    moments: list[Moment] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def take(self, broker: Warren, endpoint: Endpoint, situation: str, **figures: float | str) -> Moment:
        """Look at the broker now."""
        resident, peak = memory_of(endpoint.pids[0])
        moment = Moment(situation, resident, peak, bytes_below(broker.data), **figures)  # type: ignore[arg-type]
        self.moments.append(moment)
        return moment

    def expect(self, is_so: bool, otherwise: str) -> None:
        if not is_so:
            self.faults.append(otherwise)

    def bound(self, what: str, value: float, limit: float, unit: str) -> None:
        if value > limit:
            self.missed.append(f"{what}: {short(value)} {unit}, bound {short(limit)}")

    def run(self, endpoint: Endpoint, options: str, *, is_restored: bool = False) -> loadgen.Run:
        """One run of the generator; what was there before a start may have been delivered then, and says so."""
        run = loadgen.run(endpoint, options, RUN_LIMIT)
        faults = [fault for fault in run.faults if not (is_restored and fault.endswith(" redelivered"))]
        self.faults += [f"{options}: {fault}" for fault in faults]
        return run


def live_with_messages(life: Life, broker: Warren, steps: tuple[int, ...], is_durable: bool) -> None:
    """Fill in steps, restart twice if the messages are to survive that, drain, count."""
    kind = "--persistent --durable" if is_durable else ""
    publish = f"--mode drain --part fill --queue {QUEUE} --size {SIZE} {kind} --confirm 1000"
    endpoint = broker.start()
    life.take(broker, endpoint, "empty", seconds=broker.start_seconds)
    held = 0
    for step in steps:
        run = life.run(endpoint, f"{publish} --messages {step - held} --first {held + 1}")
        if not run.figures:
            return
        held = step
        time.sleep(REST)
        moment = life.take(broker, endpoint, f"{short(held)} waiting", per_second=run.figures["fill_per_s"])
    life.bound("resident memory when full", moment.resident, RESIDENT_BOUND, "bytes")
    if is_durable:
        endpoint = restart(life, broker, held, 1)
        run = life.run(endpoint, f"{publish} --messages {TAIL} --first {held + 1}")
        held += TAIL
        endpoint = restart(life, broker, held, 1, is_killed=True)
    drain = f"--mode drain --part drain --queue {QUEUE} --size {SIZE} {kind} --ack 100 --prefetch 5000 --dense"
    run = life.run(endpoint, f"{drain} --messages {held}", is_restored=is_durable)
    if run.figures:
        life.expect(run.figures["left"] == 0, f"{run.figures['left']} messages are left after all were consumed")
        time.sleep(REST)
        life.take(broker, endpoint, "drained", per_second=run.figures["drain_per_s"])


def live_with_queues(life: Life, broker: Warren, queues: int) -> None:
    """Declare many durable queues, restart; put a message into each, restart again."""
    endpoint = broker.start()
    life.take(broker, endpoint, "empty", seconds=broker.start_seconds)
    many = f"--queue {QUEUE} --queues {queues} --durable"
    run = life.run(endpoint, f"--mode topology {many}")
    if not run.figures:
        return
    life.take(broker, endpoint, f"{short(queues)} queues", per_second=run.figures["declare_per_s"])
    endpoint = restart(life, broker, 0, queues)
    endpoint = restart(life, broker, 0, queues, is_killed=True)
    run = life.run(
        endpoint, f"--mode drain --part fill {many} --attach --persistent --confirm 1000 --messages {queues}"
    )
    if run.figures:
        time.sleep(REST)
        life.take(broker, endpoint, "one message in each", per_second=run.figures["fill_per_s"])
        endpoint = restart(life, broker, queues, queues)
        restart(life, broker, queues, queues, is_killed=True)


def restart(life: Life, broker: Warren, held: int, queues: int, *, is_killed: bool = False) -> Endpoint:
    """End the broker one way or the other, start it, and count what it found."""
    if is_killed:
        broker.kill()
        note = "killed"
    else:
        note = f"stopped in {broker.stop(STOP_LIMIT):.1f} s"
    endpoint = broker.start()
    situation = "start after kill -9" if is_killed else "start after a stop"
    life.take(broker, endpoint, situation, seconds=broker.start_seconds, note=note)
    if queues == 1:
        life.bound(situation, broker.start_seconds, START_BOUND, "s")
    run = life.run(endpoint, f"--mode count --queue {QUEUE} --queues {queues} --durable")
    waiting = run.figures.get("waiting")
    life.expect(waiting == held, f"{situation}: {waiting} messages wait, not {held}")
    return endpoint


def memory_of(pid: int) -> tuple[int, int]:
    """Resident bytes now, and their highest so far."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]


def bytes_below(folder: Path) -> int:
    """What the files of a folder take; one that vanishes meanwhile counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def table_of(life: Life) -> tuple[list[str], list[list[str]]]:
    headings = ["situation", "resident MB", "peak MB", "on disk MB", "msg/s or queues/s", "seconds to start", ""]
    lines = []
    for moment in life.moments:
        cells = [moment.situation, *(f"{n / 1e6:,.0f}" for n in (moment.resident, moment.peak, moment.on_disk))]
        cells.append("" if moment.per_second is None else short(moment.per_second))
        cells.append("" if moment.seconds is None else f"{moment.seconds:.2f}")
        lines.append([*cells, moment.note])
    return headings, lines


def show(console: Console, life: Life) -> None:
    headings, lines = table_of(life)
    table = Table(title=life.title, title_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("situation", "") else "right")
    for line in lines:
        table.add_row(*line)
    console.print(table)
    for miss in life.missed:
        console.print(f"missed: {miss}", style="yellow", markup=False, highlight=False)
    for fault in life.faults:
        console.print(f"FAIL {fault}", style="bold red", markup=False)


def write(lives: list[Life]) -> None:
    told = machine.describe()
    page = [
        "# Results with a backlog",
        "",
        f"{told['date']}: {machine.sentence(told)}. WarrenMQ alone, default settings, a data folder on disk. Start "
        "times include the interpreter and its imports (the first line shows them alone). "
        f"Bounds: {RESIDENT_BOUND / 1e6:.0f} MB resident when full, {START_BOUND:g} s to start with a long queue.",
    ]
    for life in lives:
        headings, lines = table_of(life)
        page += ["", f"## {life.title}", "", "| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
        page += ["| " + " | ".join(line) + " |" for line in lines]
        page += [""] if life.missed or life.faults else []
        page += [f"- missed: {miss}" for miss in life.missed] + [f"- FAIL {fault}" for fault in life.faults]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "backlog.md").write_text("\n".join(page) + "\n")
    kept = {"machine": told, "lives": [asdict(life) for life in lives]}
    (RESULTS / "backlog.json").write_text(json.dumps(kept, indent=2) + "\n")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="backlog.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tenth of everything")
    parser.add_argument("--only", choices=("messages", "transient", "queues"), help="one of the three")
    options = parser.parse_args(arguments)
    part = 10 if options.small else 1
    steps, queues = tuple(step // part for step in STEPS), QUEUES // part
    plans: dict[str, tuple[str, Callable[[Life, Warren], None]]] = {
        "messages": (
            f"{short(steps[-1])} persistent messages of {SIZE} B in one durable queue",
            lambda life, broker: live_with_messages(life, broker, steps, is_durable=True),
        ),
        "transient": (
            f"{short(steps[-1])} transient messages of {SIZE} B in one queue",
            lambda life, broker: live_with_messages(life, broker, steps, is_durable=False),
        ),
        "queues": (f"{short(queues)} durable queues", lambda life, broker: live_with_queues(life, broker, queues)),
    }
    console = wide_console()
    lives: list[Life] = []
    try:
        loadgen.build()
        for name, (title, live) in plans.items():
            if options.only in (None, name):
                life = Life(title)
                lives.append(life)
                live_once(life, live)
                show(console, life)
    except loadgen.BuildError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    if not (options.small or options.only):
        write(lives)
    if any(life.faults for life in lives):
        return 1
    return 2 if any(life.missed for life in lives) else 0


def live_once(life: Life, live: Callable[[Life, Warren], None]) -> None:
    """One life in a folder of its own; a broker that does not start is a fault of that life."""
    with brokers.scratch_folder() as folder:
        broker = Warren(folder)
        try:
            live(life, broker)
        except brokers.BrokerError as error:
            life.faults.append(str(error))
        finally:
            broker.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
