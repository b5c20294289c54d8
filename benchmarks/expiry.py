"""When do messages expire? A million of them with mixed expirations, and no consumer on their queue.

    python benchmarks/expiry.py                 1,000,000 messages that live 5 to 35 s, WarrenMQ beside RabbitMQ
    python benchmarks/expiry.py --quick         50,000 messages that live 1 to 4 s
    python benchmarks/expiry.py --no-rabbitmq   WarrenMQ alone

Each broker is started anew for each row. With a dead-letter exchange the figures are exact: a consumer of the dead
letters compares the arrival of each message with its publish time and expiration. Without one, the queue's depth is
sampled: when N messages are gone, the next one in the order of their times should not be long overdue; how long
it is, is the lag of that sample. RabbitMQ's classic queues expire a message when it is first in its queue, so one that
lives long keeps those behind it. Kept as results/expiry.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import brokers
import loadgen
import machine
from measure import Opener
from report import LABELS, RESULTS, wide_console
from rich.console import Console
from rich.table import Table

# A window that keeps brokers busy; what waits in sockets counts as late.
CONFIRMS = 5000
SAMPLES_SHOWN = 8
MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """How many messages are published, and how long they live: uniformly from `shortest_ms` to `longest_ms`."""

    messages: int = 1_000_000
    shortest_ms: int = 5_000
    longest_ms: int = 35_000
    timeout: float = 240.0

    def options(self, *, is_dead_lettered: bool) -> str:
        lives = f"--expiration {self.shortest_ms}:{self.longest_ms}"
        size = f"--messages {self.messages} --confirm {CONFIRMS} --timeout {self.timeout:g}"
        return f"--mode expiry {size} {lives}" + (" --dead-letter" if is_dead_lettered else "")

    def title(self) -> str:
        return f"{self.messages:,} messages that live {self.shortest_ms / 1000:g} to {self.longest_ms / 1000:g} s"


QUICK = Load(messages=50_000, shortest_ms=1_000, longest_ms=4_000, timeout=30.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `late_us` is of single messages (with dead letters), `lag_us` of samples of the queue's depth."""

    broker: str
    version: str
    is_dead_lettered: bool
    figures: dict[str, Any]
    faults: tuple[str, ...]

    def row(self) -> list[str]:
        kind = "dead letters" if self.is_dead_lettered else "depth"
        found = self.figures.get("late_us" if self.is_dead_lettered else "lag_us")
        times = [seconds(found[name]) if found else "-" for name in ("p50", "p99", "max")]
        before, peak = (self.figures.get(name, 0) / MEGABYTE for name in ("rss_before", "rss_peak"))
        published, end = self.figures.get("publish_s", 0.0), self.figures.get("end_s", 0.0)
        after = end - self.figures.get("last_due_s", end)
        label = f"{LABELS.get(self.broker, self.broker)} {self.version}"
        memory = f"{before:.0f} -> {peak:.0f}"
        return [label, kind, f"{published:.1f}", *times, f"{after:.1f}", memory, ", ".join(self.faults) or "none"]

    def curve(self) -> list[dict[str, float]]:
        samples: list[dict[str, float]] = self.figures.get("samples", [])
        return samples[:: max(1, len(samples) // SAMPLES_SHOWN)]


def seconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.1f} ms" if microseconds < 1e6 else f"{microseconds / 1e6:.2f} s"


def measure(open_broker: Opener, load: Load, *, is_dead_lettered: bool) -> Outcome:
    with open_broker() as broker:
        run = loadgen.run(broker, load.options(is_dead_lettered=is_dead_lettered), limit=load.timeout + 60)
    return Outcome(broker.name, broker.version, is_dead_lettered, run.figures, run.faults)


def table_of(outcomes: Sequence[Outcome], load: Load) -> Table:
    table = Table(title=f"{load.title()}: how long after their time did they go?")
    for column in ("broker", "seen by", "publish s", "p50", "p99", "max", "s after the last", "RSS MB", "faults"):
        table.add_column(column, justify="left" if column in ("broker", "seen by", "faults") else "right")
    for outcome in outcomes:
        table.add_row(*outcome.row())
    return table


def curve_of(outcome: Outcome) -> Table:
    seen_by = "with dead letters" if outcome.is_dead_lettered else "without dead letters"
    table = Table(title=f"{LABELS.get(outcome.broker, outcome.broker)}, {seen_by}: the queue over time")
    for column in ("s", "confirmed", "due", "depth", "should be", "RSS MB"):
        table.add_column(column, justify="right")
    for sample in outcome.curve():
        numbers = (sample["confirmed"], sample["due"], sample["depth"], max(0, sample["confirmed"] - sample["due"]))
        cells = [f"{number:,.0f}" for number in numbers]
        table.add_row(f"{sample['s']:.1f}", *cells, f"{sample['rss'] / MEGABYTE:.0f}")
    return table


def openers(console: Console, options: argparse.Namespace) -> list[Opener]:
    found: list[Opener] = [brokers.running_warren]
    if not options.no_rabbitmq:
        if brokers.find_rabbitmq() is None:
            console.print("RabbitMQ is not installed here: WarrenMQ alone")
        else:
            found.append(brokers.running_rabbitmq)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="expiry.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few messages that live for seconds")
    parser.add_argument("--no-rabbitmq", action="store_true", help="measure WarrenMQ alone")
    options = parser.parse_args(arguments)
    console = wide_console()
    load = QUICK if options.quick else Load()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # leave through every `with`, so that no broker stays behind
    try:
        loadgen.build()
        outcomes = []
        for is_dead_lettered in (True, False):
            for opener in openers(console, options):
                outcomes.append(measure(opener, load, is_dead_lettered=is_dead_lettered))
                console.print(curve_of(outcomes[-1]))
    except (brokers.BrokerError, loadgen.BuildError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    console.print(table_of(outcomes, load))
    if not options.quick:
        kept = {"machine": machine.describe(), "load": asdict(load), "runs": [asdict(each) for each in outcomes]}
        (RESULTS / "expiry.json").write_text(json.dumps(kept, indent=1) + "\n")
        console.print("kept as benchmarks/results/expiry.json")
    return 1 if any(outcome.faults for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
