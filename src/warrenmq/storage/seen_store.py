"""Stores the ids that a queue or exchange has seen: in the log with the message, and in a file when the log is trimmed.

An id is logged in the same epoch as its message, so a crash leaves both or neither. When the log is trimmed, a few ids
are relogged; more are written with all others of their owner to a new file, which replaces the old one. So a start
reads one file per owner, and the log.

Owned by the loop thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any

from warrenmq.core.deduplication import SeenIds
from warrenmq.core.options import exchange_options, queue_options
from warrenmq.core.ports import SeenStore
from warrenmq.journal.files import Files
from warrenmq.journal.ids_file import (
    HEAD_SIZE,
    ROW_SIZE,
    decode_ids,
    encode_head,
    encode_ids,
    ids_name,
    parse_ids_name,
    read_ids,
)
from warrenmq.storage.codec import SEEN_ADD, SEEN_REPLACE_ALL
from warrenmq.storage.commit_log import LocalLog
from warrenmq.storage.damaged import copy_aside
from warrenmq.storage.definition_records import TABLES
from warrenmq.storage.manifest import FileRecord, Manifest, ids_key
from warrenmq.storage.recovery import Recovery
from warrenmq.storage.store_context import StoreContext

SEEN = "seen"
_EXCHANGE = 1 << 63

Key = tuple[str, str, str]  # "queue" or "exchange", virtual host, name


def owner_of_exchange(vhost: str, name: str) -> int:
    """Return the number of an exchange in the log: never a queue's; a collision has odds of 1 in 10^19."""
    text = f"{len(vhost)}:{vhost}{name}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") | _EXCHANGE


class FileSeenStore(SeenStore):
    """`owner` is the number in the log of the queue or exchange."""

    __slots__ = (
        "_context",
        "_first_epoch",
        "_has_released",
        "_ids",
        "_log",
        "_name",
        "_named_epoch",
        "_recovered",
        "_unflushed_count",
        "owner",
    )

    def __init__(self, context: StoreContext, owner: int, durability_level: int) -> None:
        super().__init__(durability_level)
        self.owner = owner
        self._context = context
        self._log: LocalLog = context.log
        self._ids: SeenIds | None = None
        self._recovered: dict[bytes, int] = {}
        self._name = ""  # of the file with all but the newest ids; empty: none
        self._named_epoch = 0
        self._unflushed_count = 0  # maximum number of the newest ids that only the log has
        self._first_epoch = 0  # of the first of them
        self._has_released = False  # the file has ids that were released

    def attach(self, ids: SeenIds) -> None:
        self._ids = ids

    # -- the log -----------------------------------------------------------------------------------------------------

    def save(self, id: bytes, number: int) -> None:
        log = self._log
        log.buffer.put_seen(self.owner, id, number)
        log.note_work(self.durability_level)
        if self._unflushed_count == 0:
            self._first_epoch = log.epoch
            self._context.unflushed[self] = None
        self._unflushed_count += 1

    def ids_removed(self) -> None:
        if self._name and not self._has_released:
            self._has_released = True
            self._context.unflushed[self] = None

    def delete(self) -> None:
        """Log the removal even if only the log has ids: an exchange declared later with this name would have the same
        number."""
        self._context.unflushed.pop(self, None)
        self._log.buffer.put_all_seen(self.owner, SEEN_REPLACE_ALL, 0, b"")
        self._log.note_work(0)
        if self._name:
            self._context.manifest.forget(SEEN, ids_key(self.owner))
            self._context.pager.remove(self._folder(), [self._name])

    # -- what a checkpoint asks --------------------------------------------------------------------------------------

    def has_unflushed(self) -> bool:
        return self._unflushed_count > 0 or self._has_released

    def flush(self, epoch: int, relog_below: int) -> int:
        """Relog a few ids; write more, or after a release, all to a new file."""
        if self._first_epoch > epoch and not self._has_released:
            return 0
        if not self._has_released and self._unflushed_count * ROW_SIZE < relog_below:
            return self._relog()
        self._write_file()
        return 0

    def _relog(self) -> int:
        """Log the ids again that no file has; return the bytes.

        They are the newest ones and added in order, so the order of all stays the same.
        """
        newest = self._seen().newest_stored(self._unflushed_count)
        rows = encode_ids(newest)
        self._log.buffer.put_all_seen(self.owner, SEEN_ADD, len(newest), rows)
        self._log.note_work(0)
        self._first_epoch = self._log.epoch
        self._unflushed_count = len(newest)
        return len(rows)

    def _write_file(self) -> None:
        """Write all ids to a new file; the old one is removed when that is durable."""
        pager = self._context.pager
        folder, old = self._folder(), self._name
        ids = list(self._seen().stored())
        self._name = ""
        if ids:
            epoch = self._named_epoch = max(self._log.epoch, self._named_epoch + 1)
            self._name = ids_name(self.owner, epoch)
            pager.submit(lambda: self._write(epoch, ids), _ignore_result)
            self._context.manifest.record(self.describe(len(ids)))
        elif old:
            self._context.manifest.forget(SEEN, ids_key(self.owner))
        if old:
            pager.remove(folder, [old])
        self._unflushed_count = 0
        self._has_released = False

    def describe(self, count: int) -> FileRecord:
        """Return the manifest's record of the file with this many ids."""
        size = HEAD_SIZE + count * ROW_SIZE
        counts = count, 0, count
        return FileRecord(
            SEEN, ids_key(self.owner), self._named_epoch, 0, size, *counts, 0, self._context.manifest.epoch, 0, 0
        )

    def _write(self, epoch: int, ids: list[tuple[bytes, int]]) -> None:
        """In the writing thread: a million ids take half a second, too long for the loop."""
        rows = encode_ids(ids)
        path = os.path.join(self._folder(), ids_name(self.owner, epoch))
        self._context.pager.write_file(path, [encode_head(self.owner, epoch, rows), rows])

    def _seen(self) -> SeenIds:
        assert self._ids is not None
        return self._ids

    def _folder(self) -> str:
        return os.path.join(self._context.root, SEEN)

    # -- the start ---------------------------------------------------------------------------------------------------

    def restore_ids(self, name: str, saved: bytes, logged: bytes, is_deleted: Callable[[int], bool] | None) -> None:
        """Combine a file and the log; `is_deleted` tests whether the message with a number was deleted."""
        ids = dict(decode_ids(saved))
        for id, number in decode_ids(logged):
            ids.pop(id, None)  # the last record determines the order
            ids[id] = number
        self._unflushed_count = len(logged) // ROW_SIZE
        if is_deleted is not None:
            alive = {id: number for id, number in ids.items() if not is_deleted(number)}
            self._has_released = bool(name) and len(alive) < len(ids)
            ids = alive
        self._recovered = ids
        self._name = name
        if name:
            self._named_epoch = _epoch_of(name)
        if self.has_unflushed():
            self._context.unflushed[self] = None

    def recover(self) -> Iterable[tuple[bytes, int]]:
        recovered, self._recovered = self._recovered, {}
        return recovered.items()


def restore_seen(
    context: StoreContext, recovery: Recovery, definitions: Mapping[str, list[dict[str, Any]]], durability_level: int
) -> dict[Key, FileSeenStore]:
    """Return the stores of all queues and exchanges that deduplicate; remove the files of others."""
    found = _SeenFiles(recovery, context.manifest)
    stores: dict[Key, FileSeenStore] = {}
    numbers: dict[tuple[str, str], list[int]] = {}  # of queues' levels
    for definition in definitions["level"]:
        numbers.setdefault((definition["vhost"], definition["queue"]), []).append(definition["id"])
    for definition in definitions["queue"]:
        settings = queue_options(True, definition["arguments"]).deduplication
        if settings is not None and settings.is_persistent:
            number = definition["id"]
            levels = numbers.get((definition["vhost"], definition["name"]), [])
            is_deleted = recovery.is_deleted(number, *levels) if settings.size == 0 else None
            key: Key = ("queue", definition["vhost"], definition["name"])
            stores[key] = found.restore(FileSeenStore(context, number, durability_level), key, is_deleted)
    for definition in definitions["exchange"]:
        settings = exchange_options(definition["type"], definition["arguments"]).deduplication
        if settings is not None and settings.is_persistent:
            key = ("exchange", definition["vhost"], definition["name"])
            stores[key] = found.restore(
                FileSeenStore(context, owner_of_exchange(*key[1:]), durability_level), key, None
            )
    found.remove_rest()
    return stores


class _SeenFiles:
    """The files found at a start, newest first for each owner."""

    def __init__(self, recovery: Recovery, manifest: Manifest) -> None:
        self._recovery = recovery
        self._manifest = manifest
        self._files: Files = recovery.files
        self._folder = os.path.join(recovery.root, SEEN)
        self._names: dict[int, list[str]] = {}
        self._unwanted: list[str] = []
        self._records = dict(recovery.recorded.folders.get(SEEN, {}))  # of owners not restored yet
        self._gone: list[str] = []  # recorded, but missing
        self._is_recorded = False  # the last loaded file
        for name in reversed(self._files.list(self._folder)):
            parsed = parse_ids_name(name)
            if parsed is None:
                self._unwanted.append(name)
            else:
                self._names.setdefault(parsed[0], []).append(name)

    def restore(self, store: FileSeenStore, key: Key, is_deleted: Callable[[int], bool] | None) -> FileSeenStore:
        """Restore a store from its file and the log; `is_deleted`: see `FileSeenStore.restore_ids`."""
        name, rows, logged = self._load(store.owner, TABLES[key[0]].describe(key[1:]))
        store.restore_ids(name, rows, logged, is_deleted)
        if name and not self._is_recorded:
            self._manifest.record(store.describe(len(rows) // ROW_SIZE))
        return store

    def _load(self, owner: int, words: str) -> tuple[str, bytes, bytes]:
        """Return the newest intact file of an owner, its rows, and the ids in the log."""
        logged, unseen = self._recovery.ids_of(owner)
        record = self._records.pop(ids_key(owner), None)
        names = self._names.pop(owner, [])
        name, rows = "", b""
        for candidate in names:
            if not name and _epoch_of(candidate) > unseen:
                found = read_ids(self._files, os.path.join(self._folder, candidate))
                if found.fault is None:
                    name, rows = candidate, found.rows
                    self._sync_file(candidate)
                    continue
                is_recorded = (
                    record is not None
                    and record.generation == _epoch_of(candidate)
                    and self._recovery.recorded.is_binding(record)
                )
                is_torn = not is_recorded and (self._recovery.recorded.is_complete or bool(logged) or len(names) > 1)
                if is_torn:
                    path = os.path.join(self._folder, candidate)
                    line = f"{path} was being written when the broker ended ({found.fault}): the log has it"
                    self._recovery.report.append(line)
                else:
                    copy_aside(self._files, self._recovery.root, os.path.join(self._folder, candidate))
                    self._report_lost_ids(candidate, f"it cannot be read ({found.fault})", record, words)
            self._unwanted.append(candidate)
        if record is not None and not name:
            self._gone.append(ids_key(owner))
            if not names and record.generation > unseen and self._recovery.recorded.is_binding(record):
                self._report_lost_ids(ids_name(owner, record.generation), "the file is missing", record, words)
        self._is_recorded = bool(name) and record is not None and record.generation == _epoch_of(name)
        return name, rows, logged

    def _report_lost_ids(self, name: str, why: str, record: FileRecord | None, words: str) -> None:
        """Report that ids are lost."""
        how_many = "ids" if record is None else f"up to {record.count:,} ids"
        self._recovery.has_damage = True
        self._recovery.report.append(
            f"{os.path.join(self._folder, name)}: {why}: {how_many} seen by {words} are lost; "
            "duplicates of these messages may pass"
        )

    def _sync_file(self, name: str) -> None:
        """Sync a file that a killed broker may have left unsynced, since the log may be trimmed from now on."""
        handle = self._files.open(os.path.join(self._folder, name))
        try:
            self._files.sync(handle)
        finally:
            self._files.close(handle)
        self._files.sync_dir(self._folder)

    def remove_rest(self) -> None:
        """Remove files without an owner, and older files."""
        for name in (*self._records, *self._gone):
            self._manifest.forget(SEEN, name)
        for names in self._names.values():
            self._unwanted += names
        for name in self._unwanted:
            self._files.remove(os.path.join(self._folder, name))
        if self._unwanted:
            self._files.sync_dir(self._folder)


def _epoch_of(name: str) -> int:
    parsed = parse_ids_name(name)
    assert parsed is not None
    return parsed[1]


def _ignore_result(_: Any) -> None:
    """Ignore the result: the file is read at the next start only."""
