"""Runs one workload against several brokers, interleaved, and keeps what each of them did.

Every round runs all brokers one after the other, each round beginning with the next one, so that a disturbed minute
disturbs all alike. A run during which other processes took too much CPU is repeated a few times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import disk
import loadgen
from brokers import BrokerError, Endpoint
from workloads import Figure, Workload

FOREIGN_CPU_LIMIT = 0.25
REPEATS = 4
LONG_REPEATS = 1  # where a run takes as long as its messages take
FRESH_ROUNDS = 3

Opener = Callable[[], AbstractContextManager[Endpoint]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A broker that takes part: one that runs all the time, and how to start a fresh one where that can be done."""

    endpoint: Endpoint
    start_fresh: Opener | None = None

    @property
    def name(self) -> str:
        return self.endpoint.name


@dataclass(frozen=True, slots=True)
class Pace:
    """How long and how often is measured."""

    rounds: int = 5
    duration: float = 2.0
    warmup: float = 0.5
    part_of_messages: float = 1.0

    def rounds_of(self, workload: Workload, broker: str) -> int:
        """How often a broker runs a workload."""
        rounds = min(self.rounds, FRESH_ROUNDS) if workload.fresh else self.rounds
        is_reference = workload.reference_rounds is not None and broker != workload.ours
        return min(rounds, workload.reference_rounds) if is_reference else rounds

    def options_of(self, workload: Workload) -> str:
        options = workload.options
        if workload.timed:
            options += f" --duration {self.duration} --warmup {self.warmup}"
        if workload.messages:
            options += f" --messages {workload.messages * self.part_of_messages:.0f}"
        return options


@dataclass(slots=True)
class Outcome:
    """All runs of one workload against one broker."""

    broker: str
    runs: list[loadgen.Run] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    repeated: int = 0
    disturbed: int = 0  # runs that were kept although others kept the machine busy to the last repeat

    def values(self, figure: Figure) -> list[float]:
        return [figure.read(run.figures) for run in self.runs]

    def cpu_us(self, figure: Figure) -> float | None:
        """Median CPU time of the broker per message, where its processes are known."""
        found = [run.figures[figure.cpu] for run in self.runs if figure.cpu in run.figures]
        return statistics.median(found) if found else None


def takes_part(workload: Workload, contender: Contender) -> bool:
    return not workload.fresh or contender.start_fresh is not None


def measure(
    workload: Workload,
    contenders: Sequence[Contender],
    pace: Pace,
    before_run: Callable[[str], None],
    after_run: Callable[[], None],
) -> dict[str, Outcome]:
    """Outcomes by broker name; `before_run` hears the broker's name."""
    playing = [contender for contender in contenders if takes_part(workload, contender)]
    outcomes = {contender.name: Outcome(contender.name) for contender in playing}
    options = pace.options_of(workload)
    for number in range(pace.rounds):
        first = number % len(playing)
        for contender in playing[first:] + playing[:first]:
            if number < pace.rounds_of(workload, contender.name):
                before_run(contender.name)
                _run_once(workload, contender, options, outcomes[contender.name])
                after_run()
    return outcomes


def measure_disk(workload: Workload, pace: Pace) -> disk.DiskRate | None:
    """What the disk does alone, for a durable row."""
    if workload.syncs is None:
        return None
    rates = (disk.probe(workload.syncs) for _ in range(pace.rounds))
    return disk.middle([rate for rate in rates if rate is not None])


def _run_once(workload: Workload, contender: Contender, options: str, outcome: Outcome) -> None:
    try:
        with _broker_for(workload, contender) as endpoint:
            run, repeats = run_quietly(endpoint, options, REPEATS if workload.timed else LONG_REPEATS)
    except BrokerError as error:
        outcome.faults.append(str(error))
        return
    outcome.repeated += repeats
    outcome.disturbed += is_disturbed(endpoint, run)
    outcome.faults += run.faults
    if run.figures:
        outcome.runs.append(run)


def _broker_for(workload: Workload, contender: Contender) -> AbstractContextManager[Endpoint]:
    if workload.fresh and contender.start_fresh is not None:
        return contender.start_fresh()
    return nullcontext(contender.endpoint)


def run_quietly(endpoint: Endpoint, options: str, limit: int = REPEATS) -> tuple[loadgen.Run, int]:
    """One run, repeated while others disturb it, and the number of repeats; a fault is never repeated away."""
    run = loadgen.run(endpoint, options)
    repeats = 0
    while is_disturbed(endpoint, run) and not run.faults and repeats < limit:
        run = loadgen.run(endpoint, options)
        repeats += 1
    return run, repeats


def is_disturbed(endpoint: Endpoint, run: loadgen.Run) -> bool:
    # Without its process numbers the broker's own CPU time would count as foreign.
    return bool(endpoint.pids) and run.foreign_cpu > FOREIGN_CPU_LIMIT
