"""How long a newcomer waits: a clone to its ready line, a wheel to its ready line, a process to its ready line.

    make bench-start                     (or: python benchmarks/start.py [--starts 21])

Runs `make run` in a clean clone of HEAD and times each step that it prints; builds the wheel there and installs it into
a fresh environment; then starts the installed broker many times on empty data folders. Needs git and nothing that is
not in Python. Packages come from pip's usual index, without pip's cache. The table is kept as results/start.md.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "start.md"
WHEEL_ROUNDS = 3
TARGETS = {"clone": 60.0, "wheel": 15.0, "process": 0.5}
READY = re.compile(r"ready: amqp://.*compiled=(yes|no)")
EMPTY_BROKER = "--port 0 --http-port 0 --data-dir"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=11, metavar="N", help="starts of the process (default 11)")
    starts = parser.parse_args().starts
    os.environ["PIP_NO_CACHE_DIR"] = "1"
    with tempfile.TemporaryDirectory(prefix="warren-start-") as name:
        folder = Path(name)
        steps = time_clone(folder)
        wheel = build_wheel(folder)
        installs = [time_wheel(folder, wheel) for _ in range(WHEEL_ROUNDS)]
        process = [seconds_to_ready(folder, time.monotonic(), f"data-{number}") for number in range(starts)]
    text = page(steps, installs, process)
    RESULTS.write_text(text)
    print(text)
    reached = (sum(steps.values()), statistics.median(installs), statistics.median(process))
    return 0 if all(figure < limit for figure, limit in zip(reached, TARGETS.values(), strict=True)) else 2


def time_clone(folder: Path) -> dict[str, float]:
    """Seconds of each step of `make run` in a clean clone; they add up to the whole."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    print("make run in a clean clone", flush=True)
    began = time.monotonic()
    at: dict[str, float] = {}
    command = ["make", "run", f"ARGS={EMPTY_BROKER} {folder / 'data'}"]
    with running(command, clone) as lines:
        for line in lines:
            print("   " + line, end="", flush=True)
            for step in ("installing the build tools", "compiling the", "installed what", "compiled the", "ready:"):
                if step in line:
                    at[step] = time.monotonic() - began
            if READY.search(line):
                break
    built = max(at["compiled the"], at["installed what"])
    return {
        "environment": at["installing the build tools"],
        "build tools (setuptools, Cython)": at["compiling the"] - at["installing the build tools"],
        f"compile; beside it the dependencies, {at['installed what'] - at['compiling the']:.1f} s": built
        - at["compiling the"],
        "start": at["ready:"] - built,
    }


def build_wheel(folder: Path) -> Path:
    python = folder / "clone" / ".venv" / "bin" / "python"
    print("building a wheel, then installing it into fresh environments", flush=True)
    build = [python, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, "."]
    subprocess.run(build, check=True, cwd=folder / "clone")
    (wheel,) = folder.glob("*.whl")
    return wheel


def time_wheel(folder: Path, wheel: Path) -> float:
    """Seconds from nothing but the wheel to the ready line, in a fresh environment."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "fresh"], check=True)
    constraints = str(ROOT / "constraints.txt")
    pip = folder / "fresh" / "bin" / "pip"
    subprocess.run([pip, "install", "-qq", "--disable-pip-version-check", "-c", constraints, wheel], check=True)
    return seconds_to_ready(folder, began, f"first-{began}")


def seconds_to_ready(folder: Path, began: float, data: str) -> float:
    """Start the installed broker on an empty data folder; returns the seconds from `began` to its ready line."""
    command = [str(folder / "fresh" / "bin" / "warren"), "serve", *EMPTY_BROKER.split(), str(folder / data)]
    with running(command, folder) as lines:
        if not any(READY.search(line) for line in lines):
            raise SystemExit("the installed broker ended without a ready line")
        return time.monotonic() - began


def page(steps: dict[str, float], installs: list[float], process: list[float]) -> str:
    described = machine.describe()
    rows = [f"| &nbsp;&nbsp;{step} | {seconds:.1f} s | |" for step, seconds in steps.items()]
    return "\n".join(
        [
            "# From nothing to the ready line",
            "",
            f"`make bench-start`, {described['date']}: {machine.sentence(described)}.",
            "",
            "| from | seconds | target |",
            "| --- | --- | --- |",
            f"| a clean clone (`make run`) | {sum(steps.values()):.1f} s | < {TARGETS['clone']:.0f} s |",
            *rows,
            f"| a wheel (venv, `pip install`, `warren serve`) | {_spread(installs, 1)} | < {TARGETS['wheel']:.0f} s |",
            f"| the process, empty data folder | {_spread(process, 2)} | < {TARGETS['process']} s |",
            "",
        ]
    )


def _spread(seconds: list[float], digits: int) -> str:
    median, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return f"{median:.{digits}f} s (median of {len(seconds)}, {low:.{digits}f}-{high:.{digits}f})"


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[Iterator[str]]:
    """The lines that a command prints; leaving ends it and all that it started."""
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield iter(process.stdout)
    finally:
        try:
            os.killpg(process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        process.communicate()


if __name__ == "__main__":
    sys.exit(main())
