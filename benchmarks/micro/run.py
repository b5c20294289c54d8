"""Nanoseconds per call of the hot functions, compiled and not, side by side.

    python benchmarks/micro/run.py              all cases of cases.py

Each form is measured in a process of its own: compiled from this checkout, uncompiled from a copy of its sources.
Figures tell one form from the other on this machine; what a user feels is measured by ../run.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from brokers import SOURCES, copy_uncompiled  # noqa: E402 - the folder above is no package
from report import wide_console  # noqa: E402
from rich.table import Table  # noqa: E402


def measure(sources: Path) -> tuple[bool, dict[str, float]]:
    """Whether these sources run compiled, and nanoseconds by case."""
    environment = os.environ | {"PYTHONPATH": str(sources)}
    ended = subprocess.run(
        [sys.executable, str(HERE / "cases.py")], env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    told = json.loads(ended.stdout)
    return told["compiled"], told["nanoseconds"]


def main() -> int:
    console = wide_console()
    with tempfile.TemporaryDirectory(prefix="warren-micro-") as folder, console.status("measuring"):
        _, plain = measure(copy_uncompiled(Path(folder) / "src"))
        is_compiled, compiled = measure(SOURCES)
    if not is_compiled:
        console.print("the modules of this checkout are not compiled: both columns are plain Python", style="yellow")
    table = Table("case", *("uncompiled ns", "compiled ns", "times faster"))
    for column in table.columns[1:]:
        column.justify = "right"
    for name, nanoseconds in plain.items():
        table.add_row(name, f"{nanoseconds:,.0f}", f"{compiled[name]:,.0f}", f"{nanoseconds / compiled[name]:.1f}")
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
