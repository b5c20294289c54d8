"""Definitions reach the catalog after the log, in order, and before the log forgets them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.storage.driver import Kept
from warrenmq.storage.catalog import CatalogFull
from warrenmq.storage.catalog_writer import CatalogWriter
from warrenmq.storage.definition_records import CatalogError, Operation


class FakeLog:
    durable = 0


class FakeCatalog:
    """Notes what is done; `refusals` are raised first."""

    def __init__(self, *refusals: Exception) -> None:
        self.done: list[object] = []
        self._refusals = list(refusals)

    def apply(self, epoch: int, operations: Sequence[Operation]) -> None:
        if self._refusals:
            raise self._refusals.pop(0)
        self.done.append((epoch, [operation[2][0] for operation in operations]))

    def release(self, epoch: int) -> None:
        self.done.append(f"released {epoch}")

    def sync(self) -> None:
        self.done.append("sync")


class Writer(CatalogWriter):
    def __init__(self, *refusals: Exception) -> None:
        self.log = FakeLog()
        self.catalog = FakeCatalog(*refusals)
        super().__init__(self.catalog, self.log)  # type: ignore[arg-type]
        self.failures: list[str] = []
        self.worker.on_failed = self.failures.append

    def define(self, epoch: int, name: str) -> None:
        self.add(epoch, ("define", "vhost", (name,), {"name": name}))

    def durable_up_to(self, epoch: int) -> None:
        self.log.durable = epoch
        self.release()

    def run(self) -> list[object]:
        while self.worker.run_one():
            pass
        done: list[object] = self.catalog.done
        self.catalog.done = []
        return done


def test_nothing_is_applied_before_its_epoch_is_durable() -> None:
    writer = Writer()
    writer.define(3, "a")
    writer.define(4, "b")
    writer.durable_up_to(2)
    assert writer.run() == []
    writer.durable_up_to(3)
    assert writer.run() == [(3, ["a"])]
    writer.durable_up_to(4)
    assert writer.run() == [(4, ["b"])]


def test_operations_during_a_transaction_form_the_next_one() -> None:
    writer = Writer()
    for epoch, name in enumerate("abc", 1):
        writer.define(epoch, name)
        writer.durable_up_to(epoch)
    assert writer.run() == [(1, ["a"]), (3, ["b", "c"])]


def test_sync_covers_everything_that_is_durable_and_notes_the_epoch() -> None:
    writer = Writer()
    done: list[bool] = []
    writer.define(2, "a")
    writer.define(9, "not durable")
    writer.durable_up_to(2)
    writer.log.durable = 7
    writer.sync(5, lambda: done.append(True))
    assert done == []
    assert writer.run() == [(2, ["a"]), (5, []), "released 5", "sync"]
    assert done == [True]


def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warrenmq.storage.full_disk.FULL_DISK_RETRY", 0.0)
    writer = Writer(CatalogFull("no room"), CatalogFull("no room"), OSError(errno.EMFILE, "too many"))
    full: list[bool] = []
    writer.worker.on_full = full.append
    writer.define(1, "a")
    writer.durable_up_to(1)
    assert writer.run() == [(1, ["a"])]
    assert full == [True, False]


def test_after_a_failure_nothing_is_applied_or_synced() -> None:
    """A later epoch in the catalog would hide that this one is missing."""
    writer = Writer(CatalogError("it is damaged"))
    writer.define(1, "a")
    writer.durable_up_to(1)
    writer.define(2, "b")
    writer.durable_up_to(2)
    writer.sync(2, lambda: pytest.fail("it is not durable"))
    assert writer.run() == []
    assert writer.failures == ["it is damaged"]


def test_the_log_keeps_definitions_until_the_catalog_has_them(tmp_path: Path) -> None:
    kept = Kept(tmp_path, log_file_size=3000)
    kept.declare("before")
    kept.channel.declare("late", durable=True)
    kept.turn()
    while kept.storage.committer.run_one():  # it is durable, and not in the catalog
        pass
    kept.publish(range(100), "before")
    kept.turn()
    kept.storage.checkpoint.begin(kept.storage.log.last, may_relog=False)
    while kept.storage.committer.run_one() or kept.storage.pager.run_one():
        pass
    kept.crash()
    kept.open()
    assert set(kept.broker.vhosts["/"].queues) == {"before", "late"}
    assert len(kept.take_all("before")) == 100
