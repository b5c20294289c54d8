"""Do scheduled messages arrive at their time? A million of them, 10,000 due each second, and a consumer.

    python benchmarks/schedule.py           1,000,000 persistent messages with an x-delay of 20 to 120 s
    python benchmarks/schedule.py --quick   50,000 messages with an x-delay of 5 to 10 s

The consumer compares the arrival of each message with its publish time and delay. The memory is that of the broker's
process at its highest, less that before. RabbitMQ has no scheduled messages without a plugin, so WarrenMQ runs alone.
Kept as results/schedule.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict, dataclass

import brokers
import loadgen
import machine
from expiry import MEGABYTE, seconds
from report import RESULTS, wide_console
from rich.table import Table

# In flight while publishing. The broker counts a delay from the arrival of the message: with a large window the time in
# sockets, some 20 ms, would count as late.
CONFIRMS = 200


@dataclass(frozen=True, slots=True)
class Load:
    """How many messages are published, with delays uniformly from `shortest_ms` to `longest_ms`."""

    messages: int = 1_000_000
    shortest_ms: int = 20_000
    longest_ms: int = 120_000
    timeout: float = 300.0

    def options(self) -> str:
        size = f"--messages {self.messages} --confirm {CONFIRMS} --timeout {self.timeout:g}"
        return f"--mode expiry {size} --delay {self.shortest_ms}:{self.longest_ms} --persistent --durable"

    def title(self) -> str:
        rate = 1000 * self.messages / (self.longest_ms - self.shortest_ms)
        return f"{self.messages:,} scheduled messages, {rate:,.0f} due each second: how late were they?"


QUICK = Load(messages=50_000, shortest_ms=5_000, longest_ms=10_000, timeout=60.0)


def table_of(run: loadgen.Run, load: Load) -> Table:
    figures = run.figures
    table = Table(title=load.title())
    for column in ("published in", "p50", "p99", "max", "memory", "faults"):
        table.add_column(column, justify="left" if column == "faults" else "right")
    late = [seconds(figures["late_us"][name]) for name in ("p50", "p99", "max")]
    memory = (figures["rss_peak"] - figures["rss_before"]) / MEGABYTE
    table.add_row(f"{figures['publish_s']:.1f} s", *late, f"+{memory:.0f} MB", ", ".join(run.faults) or "none")
    return table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="schedule.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few messages with short delays")
    load = QUICK if parser.parse_args(arguments).quick else Load()
    console = wide_console()
    # Leave through every `with`, so that no broker stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        loadgen.build()
        with brokers.running_warren() as broker:
            run = loadgen.run(broker, load.options(), limit=load.timeout + 60)
    except (brokers.BrokerError, loadgen.BuildError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    console.print(table_of(run, load))
    if load is not QUICK:
        kept = {"machine": machine.describe(), "load": asdict(load), "figures": run.figures, "faults": run.faults}
        (RESULTS / "schedule.json").write_text(json.dumps(kept, indent=1) + "\n")
        console.print("kept as benchmarks/results/schedule.json")
    return 1 if run.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
