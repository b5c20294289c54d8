"""The disk's own rate: what is left for a broker to win or lose.

The load generator writes records of the same size and syncs after as many of them as a broker may have under way, with
nothing else to do, into preallocated blocks. A durable row is judged beside that: the share of it that is reached.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadgen import BINARY
from workloads import Syncs

SECONDS = 0.5
PREALLOCATED_MB = 64
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class DiskRate:
    """What the disk does alone, for one row."""

    record: int
    messages_per_sync: int
    messages_per_second: float
    megabytes_per_second: float
    syncs_per_second: float


def probe(syncs: Syncs, seconds: float = SECONDS) -> DiskRate | None:
    """One measurement in the folder where the brokers keep their data; None where it cannot be done."""
    command = [str(BINARY), "--mode", "disk", "--dir", tempfile.gettempdir(), "--duration", str(seconds)]
    command += ["--size", str(syncs.record), "--group", str(syncs.group), "--prealloc", str(PREALLOCATED_MB)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        return None
    figures = json.loads(ended.stdout)
    return DiskRate(syncs.record, syncs.group, figures["records_per_s"], figures["mb_per_s"], figures["sync_per_s"])


def middle(rates: Sequence[DiskRate]) -> DiskRate | None:
    """Their medians."""
    if not rates:
        return None
    return DiskRate(
        rates[0].record,
        rates[0].messages_per_sync,
        statistics.median(rate.messages_per_second for rate in rates),
        statistics.median(rate.megabytes_per_second for rate in rates),
        statistics.median(rate.syncs_per_second for rate in rates),
    )


def is_memory(mounts: str = "/proc/mounts") -> bool:
    """Whether the scratch folder is no disk at all, so that durable rows mean nothing."""
    folder = Path(tempfile.gettempdir()).resolve()
    kinds = {}
    file = Path(mounts)
    for line in file.read_text().splitlines() if file.exists() else []:
        _, point, kind, *_ = line.split()
        kinds[Path(point)] = kind
    while folder not in kinds and folder != folder.parent:
        folder = folder.parent
    return kinds.get(folder) in MEMORY_FILE_SYSTEMS
