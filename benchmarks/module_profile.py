"""Which modules are worth compiling: each one's share of the uncompiled broker's CPU time, where it is largest.

    pip install py-spy
    python benchmarks/module_profile.py

Samples an uncompiled broker with py-spy under the workloads below. The list of compiled modules in setup.py quotes
these shares. A module may still be worth compiling for less: one that others call from C, or that runs without the
interpreter lock.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import loadgen
from brokers import Warren, scratch_folder
from report import wide_console
from rich.table import Table

BUSY = "--outstanding 10000"
KEPT = "--persistent --durable"
ACK_EACH = "--ack 1 --prefetch 1000"
TIMED = "--duration 4 --warmup 0.3"
WORKLOADS = {
    "16 B, auto-ack": f"{BUSY} {TIMED}",
    "each acked": f"{BUSY} {ACK_EACH} {TIMED}",
    "confirms": f"--confirm 100 --ack 50 --prefetch 1000 --props typical {TIMED}",
    "fan-out": f"{BUSY} --exchange fanout --queues 10 --consumers 10 {TIMED}",
    "topic": f"{BUSY} --exchange topic --bindings 1000 --queues 10 --consumers 10 --keys 1000 {TIMED}",
    "one write per message": f"{BUSY} --batch 1 {TIMED}",
    "durable": f"{KEPT} --confirm 1000 {ACK_EACH} {TIMED}",
    "paging": f"{KEPT} --mode drain --messages 150000 --size 1024",
    "streams": f"{KEPT} --queue-type stream --confirm 1000 {ACK_EACH} {TIMED}",
    "tracing": f"{BUSY} {ACK_EACH} {TIMED}",
}
SAMPLED_SECONDS = 6
SAMPLES_PER_SECOND = 400
LEAST_SHARE = 0.005
# The innermost frame of a sampled stack: function (path/to/warrenmq/core/queue.py:123)
FRAME = re.compile(r"\(.*?warrenmq/(?P<module>[\w/]+)\.py:\d+\)$")


def main() -> int:
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if spy is None:
        print("module_profile.py: py-spy is missing: pip install py-spy", file=sys.stderr)
        return 1
    console = wide_console()
    loadgen.build()
    shares: dict[str, tuple[float, str]] = {}
    for workload, options in WORKLOADS.items():
        with console.status(workload):
            samples = profile(spy, options, ("--trace", "all") if workload == "tracing" else ())
        total = samples.total()
        for module, count in samples.items():
            shares[module] = max(shares.get(module, (0.0, "")), (count / total, workload))
    table = Table("module", "share", "workload")
    table.columns[1].justify = "right"
    for module, (share, workload) in sorted(shares.items(), key=lambda entry: -entry[1][0]):
        if share >= LEAST_SHARE:
            table.add_row(module, f"{share:.1%}", workload)
    console.print(table)
    return 0


def profile(spy: str, options: str, flags: tuple[str, ...]) -> Counter[str]:
    """Samples by module of a broker under load; what is not WarrenMQ's counts as "other"."""
    with scratch_folder() as folder:
        broker = Warren(folder, pure=True, options=flags)
        endpoint = broker.start()
        raw = folder / "samples"
        command = [spy, "record", "--gil", "--format", "raw", "--output", str(raw), "--pid", str(endpoint.pids[0])]
        timing = ["--duration", str(SAMPLED_SECONDS), "--rate", str(SAMPLES_PER_SECOND)]
        try:
            sampler = subprocess.Popen([*command, *timing], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.5)  # py-spy has to find the interpreter first
            loadgen.run(endpoint, options)
            sampler.wait()
        finally:
            broker.stop()
        samples: Counter[str] = Counter()
        for line in raw.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            innermost = FRAME.search(stack.rpartition(";")[2])
            samples[innermost["module"].replace("/", ".") if innermost else "other"] += int(count)
        return samples


if __name__ == "__main__":
    sys.exit(main())
