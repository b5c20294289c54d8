"""What keeping events costs: throughput with tracing off, of one message in a hundred, and of all, in one run.

    python benchmarks/tracing.py              three rounds of each
    python benchmarks/tracing.py --quick      one short round
    python benchmarks/tracing.py --against DIR    beside the sources in another folder, with nothing traced

WarrenMQ alone, with its default settings. Machines are noisy, and one process may be a third faster than another of the
same: so each round has a new process on a new data folder and measures in pairs of short turns, one with nothing traced
beside each that has, with the rules changed while it runs. Ratios are the medians of all pairs: of deliveries per
second, and of the broker's CPU per delivery, its threads included. After a turn with events the next one begins when
they are written. Part of `make bench`.
The table is kept as results/tracing.md and results/tracing.json. Ends with 2 when a bound was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median

import brokers
import httpx
import loadgen
import machine
from brokers import Endpoint, Warren
from report import RESULTS, short, wide_console
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

OFF, SOME, ALL, BEFORE = "off", "1 %", "all", "before"
RATIOS = {SOME: 0.01, ALL: 1.0}  # of messages that the rule keeps
RULE = "benchmark"
GUEST = ("guest", "guest")
PATIENCE = 20.0  # with events that are on their way, in seconds
# What is promised: ratios to the same with tracing off.
AT_LEAST = {SOME: 0.95, ALL: 0.5}
# To tell 0.95 from 1 takes more pairs, which may be shorter: turns, and seconds of each, to those of the pace.
MORE_PAIRS = {SOME: (3, 0.6), ALL: (1, 1.0)}
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
    """How long it takes: rounds, turns of each in one, seconds. `only` chooses workloads by a part of their titles."""

    rounds: int = 3
    turns: int = 6
    seconds: float = 0.7
    only: str = ""
    against: Path | None = None
    is_kept: bool = True

    def flags(self, share_of_time: float = 1.0) -> str:
        return f"--duration {self.seconds * share_of_time:g} --warmup 0.2"


QUICK = Pace(rounds=1, turns=2, is_kept=False)


@dataclass(slots=True)
class Figures:
    """One broker under one workload: deliveries per second, and us of CPU for each, by turn."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Pairs:
    """The same with nothing traced and with something, turn beside turn."""

    off: Figures = field(default_factory=Figures)
    on: Figures = field(default_factory=Figures)

    @property
    def ratio(self) -> float:
        return median([on / off for on, off in zip(self.on.rates, self.off.rates, strict=True)])

    @property
    def cpu_ratio(self) -> float:
        return median([on / off for on, off in zip(self.on.cpu, self.off.cpu, strict=True)])


Found = dict[str, dict[str, Pairs]]  # by workload and by how much is traced


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=Pace().rounds)
    parser.add_argument("--turns", type=int, default=Pace().turns, help="of each in a round; an even number")
    parser.add_argument("--seconds", type=float, default=Pace().seconds)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="workloads whose title has this in it")
    parser.add_argument("--against", type=Path, help="a folder with other sources (and their compiled modules)")
    options = parser.parse_args(arguments)
    pace = Pace(options.rounds, options.turns, options.seconds, options.only, options.against, not options.only)
    if options.quick:
        pace = replace(QUICK, only=options.only, against=options.against)
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
                f"{name} {short(median(each.on.rates))}/s ({median(each.on.cpu):.2f} us of CPU)"
                for name, each in found[title].items()
            )
            console.print(f"{title}: nothing {short(rate_of_nothing(found[title]))}/s, {told}")
    if pace.is_kept:
        keep(found)
    return found


def measure(title: str, flags: str, pace: Pace) -> dict[str, Pairs]:
    pairs = {name: Pairs() for name in (SOME, ALL)}
    if pace.against is not None:
        pairs[BEFORE] = Pairs()
    for _ in range(pace.rounds):
        with running(Warren) as endpoint:
            run_one(f"{title}, to warm up", endpoint, f"{flags} --duration 0.5 --warmup 0", Figures())
            for name, (times, share_of_time) in MORE_PAIRS.items():
                for turn in range(pace.turns * times):
                    both = [(None, pairs[name].off), (RATIOS[name], pairs[name].on)]
                    for share, figures in both if turn % 2 == 0 else reversed(both):
                        keep_events(endpoint, share)
                        run_one(f"{title}, {name}", endpoint, f"{flags} {pace.flags(share_of_time)}", figures)
                        if share is not None:
                            wait_for_events(endpoint)
        if pace.against is not None:
            with running(Warren) as endpoint, running(partial(OtherSources, sources=pace.against)) as other:
                for turn in range(pace.turns):
                    both_brokers = [(endpoint, pairs[BEFORE].off), (other, pairs[BEFORE].on)]
                    for where, figures in both_brokers if turn % 2 == 0 else reversed(both_brokers):
                        run_one(f"{title}, {BEFORE}", where, f"{flags} {pace.flags()}", figures)
    return pairs


def run_one(title: str, endpoint: Endpoint, flags: str, figures: Figures) -> None:
    measured = loadgen.run(endpoint, flags)
    # A publisher that has to wait while events are written is no fault: it is in the rate.
    faults = [fault for fault in measured.faults if not fault.endswith(" blocked")]
    if faults:
        raise brokers.BrokerError(f"{title}: {', '.join(faults)}")
    figures.rates.append(float(measured.figures["dlv_per_s"]))
    figures.cpu.append(float(measured.figures["broker_cpu_us_per_msg"]))


def keep_events(endpoint: Endpoint, ratio: float | None) -> None:
    """From now on keep the events of this share of messages; None: of none."""
    url = f"http://127.0.0.1:{endpoint.http_port}/api/trace-rules/{RULE}"
    if ratio is None:
        answer = httpx.delete(url, auth=GUEST, timeout=30)
        if answer.status_code == 404:  # there is no rule to begin with
            return
    else:
        answer = httpx.put(url, json={"ratio": ratio}, auth=GUEST, timeout=30)
    answer.raise_for_status()


def wait_for_events(endpoint: Endpoint) -> None:
    """Returns when what was kept so far is in batches, and these had a moment to be written."""
    url = f"http://127.0.0.1:{endpoint.http_port}/api/trace-rules"
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        answer = httpx.get(url, auth=GUEST, timeout=30)
        answer.raise_for_status()
        if answer.json()["tracing"]["waiting_rows"] == 0:
            break
        time.sleep(0.05)
    time.sleep(0.1)


@contextmanager
def running(make: Callable[[Path], Warren]) -> Iterator[Endpoint]:
    with brokers.scratch_folder() as folder:
        broker = make(folder)
        try:
            yield broker.start()
        finally:
            broker.stop()


def rate_of_nothing(pairs: dict[str, Pairs]) -> float:
    return median([rate for each in pairs.values() for rate in each.off.rates])


def is_missed(pairs: dict[str, Pairs], name: str) -> bool:
    return name in AT_LEAST and pairs[name].ratio < AT_LEAST[name]


def misses(found: Found) -> bool:
    return any(is_missed(pairs, name) for pairs in found.values() for name in AT_LEAST)


def table_of(found: Found) -> list[list[str]]:
    rows = []
    for title, pairs in found.items():
        row = [title, f"{short(rate_of_nothing(pairs))}/s"]
        for name, each in pairs.items():
            missed = " (missed)" if is_missed(pairs, name) else ""
            row += [f"{each.ratio:.2f}{missed}", f"{each.cpu_ratio:.2f}"]
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
        "Deliveries per second, and ratios to the same with tracing off, of deliveries and of the broker's CPU for "
        "each: medians of pairs of turns in the same process, in one run. " + machine.sentence(machine.describe()),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join("---" for _ in HEADINGS) + " |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    (RESULTS / "tracing.md").write_text("\n".join(lines))
    kept = {title: {name: asdict(each) for name, each in pairs.items()} for title, pairs in found.items()}
    (RESULTS / "tracing.json").write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
