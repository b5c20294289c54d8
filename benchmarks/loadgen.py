"""The load generator: builds `loadgen/amqpbench.c` and runs it against a broker.

A run is one process that prints one JSON object. What went wrong in it (a fault it counted, an error it died of) is
never lost: it stands in the run's `faults`.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brokers import Endpoint

FOLDER = Path(__file__).resolve().parent / "loadgen"
BINARY = FOLDER / "build" / "amqpbench"
RUN_LIMIT = 300.0


class BuildError(Exception):
    """The generator cannot be built here; the text says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one process of the generator measured; `faults` is empty when nothing went wrong."""

    figures: dict[str, Any]
    faults: tuple[str, ...]

    @property
    def foreign_cpu(self) -> float:
        """Cores that processes other than generator and broker kept busy during the run."""
        names = ("foreign_cpu", "fill_foreign_cpu", "drain_foreign_cpu")
        return max(float(self.figures.get(name, 0.0)) for name in names)


def build() -> None:
    """Compile the generator if its source is newer than the binary."""
    try:
        made = subprocess.run(["make", "--silent", "-C", str(FOLDER)], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise BuildError("the load generator needs make and a C compiler") from error
    if made.returncode:
        raise BuildError(f"the load generator could not be built: {made.stderr.strip()}")


def run(broker: Endpoint, options: str, limit: float = RUN_LIMIT) -> Run:
    """One measurement to its end."""
    try:
        ended = subprocess.run(_command(broker, options), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return Run({}, (f"no end after {limit:.0f} s",))
    return _read(ended.stdout, ended.returncode, ended.stderr)


class Held:
    """A run that stays connected after it has measured (`--hold`), until its owner lets go."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def result(self) -> Run:
        """Wait for the figures; the connections stay open."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return _read(line, 0, "")
        _, complaint = self._process.communicate()
        return _read("", self._process.returncode, complaint)


@contextmanager
def holding(broker: Endpoint, options: str) -> Iterator[Held]:
    """Start a run that holds what it opened until the `with` is left."""
    process = subprocess.Popen(
        [*_command(broker, options), "--hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Held(process)
    finally:
        try:
            process.communicate(timeout=RUN_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _command(broker: Endpoint, options: str) -> list[str]:
    pids = ["--broker-pid", ",".join(str(pid) for pid in broker.pids)] if broker.pids else []
    return [str(BINARY), "--port", str(broker.port), *pids, *shlex.split(options)]


def _read(output: str, returncode: int, complaint: str) -> Run:
    figures: dict[str, Any] = json.loads(output) if output.strip() else {}
    faults = [f"{count} {name}" for name, count in figures.get("faults", {}).items() if count]
    if returncode or not figures:
        faults.append(complaint.strip().splitlines()[-1] if complaint.strip() else f"ended with code {returncode}")
    return Run(figures, tuple(faults))
