"""Missing epochs of the log: which ones, and how many messages they held.

Positions of a queue are consecutive, so the epochs before and after a gap tell which positions were used in it. These
messages may have been deleted since, or been transient: the count is an upper bound. What followed the last remaining
epoch cannot be counted.

Used by the start and by `warren check`, in one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from warrenmq.journal.errors import BadRecord
from warrenmq.journal.log_file import Epoch
from warrenmq.journal.log_scan import LogScan
from warrenmq.storage.manifest import Loss
from warrenmq.storage.positions import LoggedQueue, Positions, read_epoch


@dataclass(frozen=True, slots=True)
class MissingEpochs:
    """Epochs that are missing. `is_needed`: messages may have been in them alone."""

    first: int
    last: int
    is_needed: bool
    is_end_known: bool
    text: str


def find_missing_epochs(scan: LogScan, released_epoch: int, applied_epoch: int) -> list[MissingEpochs]:
    """Compare the first and last epoch of a log with the catalog.

    The log was released up to `released_epoch` (-1: unknown), and `applied_epoch` was durable in it.
    """
    missing: list[MissingEpochs] = []
    files = scan.files_found
    needed_from = max(released_epoch, 0) + 1
    if files and released_epoch >= 0 and files[0].first > needed_from:
        last = files[0].first - 1
        text = f"the log begins with epoch {files[0].first}: a file with epochs {needed_from} to {last} is missing"
        missing.append(MissingEpochs(needed_from, last, True, True, text))
    if scan.last_sequence < applied_epoch:
        first = max(scan.last_sequence + 1, needed_from)
        is_needed = applied_epoch > released_epoch
        what = "no log file is left" if not files else f"the log ends with epoch {scan.last_sequence}"
        if is_needed:
            text = f"{what}, but there were epochs up to {applied_epoch} at least: epochs from {first} on are lost"
        else:
            text = f"{what}: according to the manifest, no message was in the missing epochs alone"
        missing.append(MissingEpochs(first, max(first, applied_epoch), is_needed, False, text))
    return missing


class LostEpochs:
    """Counts the positions that were used in gaps of the log."""

    def __init__(self) -> None:
        self._gaps: list[tuple[int, int]] = []
        self._is_end_known = True
        self._parts: list[dict[int, LoggedQueue]] = []  # the log before, between and after the gaps

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def add(self, first: int, last: int, is_end_known: bool = True) -> None:
        self._gaps.append((first, last))
        self._is_end_known = self._is_end_known and is_end_known

    def read(self, epochs: Iterable[Epoch], bad_epochs: Collection[int]) -> None:
        """Read the remaining epochs."""
        self._gaps.sort()
        self._parts = [{} for _ in range(len(self._gaps) + 1)]
        for epoch in epochs:
            part = sum(first <= epoch.sequence for first, _ in self._gaps)
            if epoch.sequence not in bad_epochs:
                try:
                    read_epoch(bytes(epoch.payload), self._parts[part])
                except BadRecord:
                    continue  # reported by the check of the epochs

    def count(self, number: int, last_on_disk: int) -> Loss:
        """Return how many messages of a queue may be lost; up to `last_on_disk` all live ones are in segments."""
        candidates = Positions()
        logged = [part.get(number) for part in self._parts]
        for gap in range(len(self._gaps)):
            before = max([last_on_disk, *(queue.highest() for queue in logged[: gap + 1] if queue is not None)])
            firsts = [queue.lowest() for queue in logged[gap + 1 :] if queue is not None]
            after = min([first for first in firsts if first >= 0], default=-1)
            if after >= 0:
                candidates.add_range(before + 1, after - 1)
        for queue in logged:
            if queue is not None:
                candidates.remove_all(queue.appended)
                queue.remove_deleted(candidates)
        return Loss(candidates.count(), False)

    def consequences(self) -> str:
        """Describe the other consequences of the loss."""
        if self._is_end_known:
            unknown = "messages of queues that no later epoch names are not counted"
        else:
            unknown = "the number of messages in the last epochs is unknown"
        return (
            f"epochs of the log are lost: {unknown}; acknowledgements in them are lost, too, so messages may be "
            "delivered again; so are declarations that were made in them"
        )
