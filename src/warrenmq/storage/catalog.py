"""The catalog: durable definitions, in SQLite behind the commit log.

The loop records each definition in the open epoch (`LoggedCatalog`). When that epoch is durable, the catalog writer
applies it to the database (`CatalogFile.apply`), in a transaction that also stores the epoch's number. After a crash
the database is at some epoch, perhaps older than the log, and catches up by replay. It is never ahead of the log,
because only synced epochs are applied.

Owned by the loop: LoggedCatalog. Owned by the catalog writer's thread (before it starts: by recovery): CatalogFile. An
operation is not changed after it was passed from one to the other.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from warrenmq.core.ports import Catalog
from warrenmq.journal.files import MODE
from warrenmq.storage.crash_points import reach
from warrenmq.storage.definition_records import (
    KINDS,
    TABLES,
    CatalogDamaged,
    CatalogError,
    Definition,
    Key,
    Operation,
    Table,
    checksum_of,
    encode_operation,
    table_of,
)

APPLICATION_ID = 0x5752434C  # "WRCL"
MIGRATIONS = Path(__file__).parent / "migrations"
SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite's files beside the database: move all or none
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter for an error message that is not UTF-8
LARGEST_QUEUE_ID = 0xFFFF_FFFF
NUMBERED = ("queue", "level")  # kinds with an id: it names a folder, and records in the log


class CatalogTooNew(CatalogError):
    """A newer version of the broker wrote it."""


class CatalogFull(CatalogError):
    """The disk is full. Nothing of the epoch was applied; it can be retried."""


class CatalogFile:
    """The database. A failed call changes nothing."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.was_created = False
        self.connection = connection
        self._copy: TemporaryDirectory[str] | None = None
        self._applied_epoch = 0
        self._next_queue_id = 1
        self._released_epoch = 0

    @classmethod
    def open(cls, path: str | Path, migrations: Path = MIGRATIONS) -> CatalogFile:
        """Open the catalog and migrate it to the newest version; create it if it is missing or empty."""
        path = os.fspath(path)
        catalog = cls(path, connect(path, path))
        try:
            catalog.prepare(migrations)
        except CatalogError:
            catalog.close()
            raise
        return catalog

    @classmethod
    def open_copy(cls, path: str | Path) -> CatalogFile:
        """Open a temporary copy, which is removed when it is closed; the files themselves are only read."""
        path = os.fspath(path)
        copy = TemporaryDirectory(prefix="warren-catalog-")
        try:
            catalog = cls(path, connect(copy_files(path, copy.name), path))
        except CatalogError:
            copy.cleanup()
            raise
        catalog._copy = copy
        try:
            catalog.prepare()
        except CatalogError:
            catalog.close()
            raise
        return catalog

    def close(self) -> None:
        self.connection.close()
        if self._copy is not None:
            self._copy.cleanup()

    @property
    def applied_epoch(self) -> int:
        """The catalog holds all definitions up to this epoch."""
        return self._applied_epoch

    @property
    def next_queue_id(self) -> int:
        """Neither this id nor a higher one was ever used, not even by a deleted queue."""
        return self._next_queue_id

    @property
    def released_epoch(self) -> int:
        """The log is not needed up to this epoch: its messages are in other files. -1: unknown, there was no manifest
        so far."""
        return self._released_epoch

    # -- writing -----------------------------------------------------------------------------------------------------

    def apply(self, epoch: int, operations: Sequence[Operation]) -> None:
        """Apply the operations of an epoch, all or none; skip an epoch that was applied already.

        Durable after `sync`. Without operations, only the epoch is stored.
        """
        if epoch > self._applied_epoch:
            self._write(epoch, operations)

    def fill(self, epoch: int, operations: Sequence[Operation], next_queue_id: int, released_epoch: int) -> None:
        """Store what was rescued from another catalog, which was at this epoch."""
        self._next_queue_id = max(next_queue_id, self._next_queue_id)
        self._write(epoch, operations)
        self._set_released(released_epoch)

    def release(self, epoch: int) -> None:
        """Record that the log is not needed up to this epoch."""
        if epoch > self._released_epoch:
            self._set_released(epoch)

    def _set_released(self, epoch: int) -> None:
        with _translated_errors(self.path), _transaction(self.connection):
            self._set_meta("released_epoch", epoch)
        self._released_epoch = epoch

    def _write(self, epoch: int, operations: Sequence[Operation]) -> None:
        next_queue_id = self._next_queue_id
        with _translated_errors(self.path), _transaction(self.connection):
            for operation in operations:
                table = table_of(operation[1])
                if operation[0] == "define":
                    definition = operation[3]
                    self.connection.execute(_DEFINE[table.kind], table.row(operation[2], definition))
                    if table.kind in NUMBERED:
                        next_queue_id = max(next_queue_id, definition["id"] + 1)
                else:
                    self.connection.execute(_UNDEFINE[table.kind], table.key_values(operation[2]))
            self._set_meta("applied_epoch", epoch)
            self._set_meta("next_queue_id", next_queue_id)
        self._applied_epoch = epoch
        self._next_queue_id = next_queue_id

    def _set_meta(self, name: str, value: int) -> None:
        row = (name, value, checksum_of((name, value)))
        self.connection.execute("INSERT OR REPLACE INTO meta (name, value, checksum) VALUES (?, ?, ?)", row)

    def sync(self) -> None:
        """Make everything applied durable; the log may be trimmed then."""
        with _translated_errors(self.path):
            busy, frames, moved = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy or frames != moved:
            raise CatalogError(f"the catalog {self.path} cannot be synced: another process has it open")

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, kind: str) -> list[Definition]:
        """Return all definitions of one kind, in the order they were first saved."""
        return list(self.read(kind))

    def read(self, kind: str) -> Iterator[Definition]:
        """Read the definitions of one kind one after the other, without having all of them in memory."""
        return (definition for _, definition in self._rows(table_of(kind)))

    def snapshot(self) -> dict[str, list[Definition]]:
        """Return all definitions by kind."""
        return {kind: self.load(kind) for kind in KINDS}

    def _read(self, table: Table) -> dict[Key, Definition]:
        return dict(self._rows(table))

    def _rows(self, table: Table) -> Iterator[tuple[Key, Definition]]:
        with _translated_errors(self.path):
            for row in self.connection.execute(_select(table)):
                yield table.read(row)

    # -- does it hold together? --------------------------------------------------------------------------------------

    def verify(self) -> None:
        """Raise CatalogDamaged unless everything in the file is as it was written; reads everything."""
        with _translated_errors(self.path):
            lines = [line for (line,) in self.connection.execute("PRAGMA integrity_check") if line != "ok"]
        if lines:
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            raise CatalogDamaged(f"the catalog {self.path} is damaged: {' '.join(lines[0].split())}{more}")
        for table in TABLES.values():
            for _ in self._rows(table):
                pass

    def check(self) -> list[str]:
        """Return what is wrong, a line each; reads everything."""
        try:
            self.verify()
        except CatalogError as error:
            return [str(error)]
        found = {kind: self._read(table) for kind, table in TABLES.items()}
        problems = [f"{TABLES[kind].describe(key)}: {why}" for kind, key, why in _dangling(found)]
        owners: dict[int, str] = {}
        for kind in NUMBERED:
            for key, definition in found[kind].items():
                what, id = TABLES[kind].describe(key), definition["id"]
                if id in owners:
                    problems.append(f"{what} has the same id as {owners[id]}: {id}")
                if id >= self._next_queue_id:
                    problems.append(f"{what} has the id {id}, which was never assigned")
                owners[id] = what
        return problems

    def repair(self) -> list[str]:
        """Make the definitions consistent after a loss; return what was done, a line each.

        Missing virtual hosts are created; bindings without both ends and levels without a queue are dropped.
        """
        found = {kind: self._read(table) for kind, table in TABLES.items()}
        vhosts = dict.fromkeys(key[0] for _, key, why in _dangling(found) if why == _NO_VHOST)
        dangling = [(kind, key, why) for kind, key, why in _dangling(found) if why != _NO_VHOST]
        operations: list[Operation] = [("define", "vhost", (name,), {"name": name}) for name in vhosts]
        operations += [("undefine", kind, key) for kind, key, _ in dangling]
        if operations:
            self._write(self._applied_epoch, operations)
        return [
            *(f"{TABLES['vhost'].describe((name,))} was missing and was created again" for name in vhosts),
            *(f"{TABLES[kind].describe(key)} was dropped: {why}" for kind, key, why in dangling),
        ]

    # -- opening -----------------------------------------------------------------------------------------------------

    def prepare(self, migrations: Path = MIGRATIONS) -> None:
        with _translated_errors(self.path):
            version = self._find_version()
            scripts = find_migrations(migrations)
            if version > len(scripts):
                raise CatalogTooNew(
                    f"the catalog {self.path} has version {version}; this WarrenMQ reads versions up to {len(scripts)}"
                )
            (mode,) = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise CatalogError(f"the catalog {self.path} cannot have a write-ahead log, only '{mode}'")
            self.connection.execute("PRAGMA synchronous = NORMAL")  # commits need no sync: the log has them
            for number in range(version + 1, len(scripts) + 1):
                self._migrate(number, scripts[number - 1])
            if version < len(scripts):
                self.sync()
            if self.was_created:
                _sync_folder_of(self.path)
            self._read_meta()

    def _find_version(self) -> int:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        (application,) = self.connection.execute("PRAGMA application_id").fetchone()
        (things,) = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self.was_created = not (version or application or things)
        if application != APPLICATION_ID and not self.was_created:
            raise CatalogDamaged(f"{self.path} is not a catalog of WarrenMQ")
        return int(version)

    def _migrate(self, number: int, script: Path) -> None:
        with _transaction(self.connection, script.read_text()):
            reach("migration.mid")
            self.connection.execute(f"PRAGMA user_version = {number}")

    def _read_meta(self) -> None:
        meta = read_meta(self.connection)
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if meta.keys() != {"applied_epoch", "next_queue_id", *(["released_epoch"] if version >= 3 else [])}:
            raise CatalogDamaged(f"the catalog {self.path} is damaged: its counters fail their checksums")
        self._applied_epoch = meta["applied_epoch"]
        self._next_queue_id = meta["next_queue_id"]
        self._released_epoch = meta.get("released_epoch", -1)


class DefinitionLog(Protocol):
    """The part of the log that LoggedCatalog uses."""

    def put_definition(self, is_define: bool, encoded: bytes) -> int:
        """Put the record into the open epoch; return the epoch."""


class DefinitionWriter(Protocol):
    """The part of the catalog writer that LoggedCatalog uses."""

    def add(self, epoch: int, operation: Operation) -> None:
        """Apply the operation to the database when the epoch is durable."""


class LoggedCatalog(Catalog):
    """The core's catalog: writes definitions to the log, and assigns the ids of durable queues.

    Each priority of a queue above the lowest is a level with its own id, defined when it is first used.
    """

    __slots__ = ("_ids", "_levels", "_log", "_next_queue_id", "_snapshot", "_writer")

    def __init__(
        self,
        log: DefinitionLog,
        writer: DefinitionWriter,
        snapshot: Mapping[str, list[Definition]],
        next_queue_id: int,
        ids: dict[str, dict[str, int]] | None = None,
    ) -> None:
        """`ids` are those of the queues that are not in the snapshot, by virtual host and name."""
        self._log = log
        self._writer = writer
        self._snapshot = {kind: snapshot.get(kind, []) for kind in KINDS}
        self._next_queue_id = next_queue_id
        self._ids = {} if ids is None else ids
        for queue in self._snapshot["queue"]:
            self._ids.setdefault(queue["vhost"], {})[queue["name"]] = queue["id"]
        self._levels: dict[tuple[str, str], dict[int, int]] = {}  # ids by virtual host and name, and by level
        for level in self._snapshot["level"]:
            self._levels.setdefault((level["vhost"], level["queue"]), {})[int(level["level"])] = level["id"]

    def queue_id(self, vhost: str, name: str) -> int:
        """Return the id of a durable queue, assigning one at the first call; it is kept until the queue is deleted."""
        ids = self._ids.setdefault(vhost, {})
        if name not in ids:
            ids[name] = self._new_id()
        return ids[name]

    def level_id(self, vhost: str, name: str, level: int) -> int:
        """Return the id of a level above 0 of a durable queue; it is kept until the queue is deleted."""
        ids = self._levels.setdefault((vhost, name), {})
        if level not in ids:
            ids[level] = self._new_id()
            key = (vhost, name, str(level))
            self.save("level", key, {"vhost": vhost, "queue": name, "level": str(level), "id": ids[level]})
        return ids[level]

    def stored_levels(self, vhost: str, name: str) -> list[int]:
        """Return the levels above 0 of a durable queue that have an id."""
        return sorted(self._levels.get((vhost, name), {}))

    def _new_id(self) -> int:
        if self._next_queue_id > LARGEST_QUEUE_ID:
            raise CatalogError("all queue ids are used")
        self._next_queue_id += 1
        return self._next_queue_id - 1

    def describe_queue(self, number: int) -> str:
        """Describe a durable queue for a log line, by its id."""
        for vhost, ids in self._ids.items():
            for name, id in ids.items():
                if id == number:
                    return table_of("queue").describe((vhost, name))
        for (vhost, name), levels in self._levels.items():
            for level, id in levels.items():
                if id == number:
                    return table_of("level").describe((vhost, name, str(level)))
        return f"queue {number}" if number else "a non-durable queue"

    def save(self, kind: str, key: Key, definition: Definition) -> None:
        definition = dict(definition)  # applied later; arguments do not change after the declaration
        if kind == "queue":
            definition["id"] = self.queue_id(*key)
        epoch = self._log.put_definition(True, encode_operation(kind, key, definition))
        self._writer.add(epoch, ("define", kind, key, definition))

    def delete(self, kind: str, key: Key) -> None:
        """Delete a definition; a queue is deleted with its levels."""
        epoch = self._log.put_definition(False, encode_operation(kind, key, None))
        self._writer.add(epoch, ("undefine", kind, key))
        if kind == "queue":
            vhost, name = key
            self._ids.get(vhost, {}).pop(name, None)
            for level in self._levels.pop((vhost, name), {}):
                self.delete("level", (vhost, name, str(level)))

    def load(self, kind: str) -> Iterable[Definition]:
        """Return the definitions found at the start, in the order they were first saved; once, to free their memory."""
        if kind not in self._snapshot:
            raise CatalogError(f"definitions of kind {kind!r} were loaded already, or are not stored")
        return self._snapshot.pop(kind)


# -- what does not fit together --------------------------------------------------------------------------------------

_NO_VHOST = "there is no such vhost"


def _dangling(found: Mapping[str, Mapping[Key, Definition]]) -> Iterator[tuple[str, Key, str]]:
    """Yield kind, key and fault of each definition that refers to something missing."""

    def exists(kind: str, vhost: str, name: str) -> bool:
        return (vhost, name) in found[kind] or (kind == "exchange" and _is_predeclared(name))

    for kind in ("exchange", "queue", "policy", "operator_policy"):
        yield from ((kind, key, _NO_VHOST) for key in found[kind] if key[:1] not in found["vhost"])
    for key in found["level"]:
        if key[:2] not in found["queue"]:
            yield "level", key, "its queue does not exist"
    for key in found["binding"]:
        vhost, source, destination_type, destination = key[:4]
        if not exists("exchange", vhost, source):
            yield "binding", key, "its source does not exist"
        elif not exists(destination_type, vhost, destination):
            yield "binding", key, "its destination does not exist"
        elif (vhost,) not in found["vhost"]:
            yield "binding", key, _NO_VHOST


def _is_predeclared(exchange: str) -> bool:
    return not exchange or exchange.startswith("amq.")


# -- SQLite ----------------------------------------------------------------------------------------------------------


def connect(file: str, path: str) -> sqlite3.Connection:
    """Connect without reading anything; errors name `path`."""
    with _translated_errors(path):
        try:
            for name in (file, *(file + ending for ending in SIDE_FILES)):
                if os.path.islink(name):
                    raise OSError(
                        errno.ELOOP,
                        f"{name} is a symbolic link: remove it, the broker does not follow links in its data folder",
                    )
            # SQLite gives its side files the mode of the database.
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE))
        except OSError as error:
            raise CatalogError(f"cannot open the catalog {path}: {error.strerror}") from None
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        # The folder is locked, so no other process opens it: SQLite needs no shared memory file.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection


@contextmanager
def _transaction(connection: sqlite3.Connection, script: str = "") -> Iterator[None]:
    """Run the script and the block in one transaction."""
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}")
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # some errors have already rolled it back
            connection.execute("ROLLBACK")


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """Raise SQLite's errors as CatalogError."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise catalog_error(path, error) from error


def catalog_error(path: str, error: Exception) -> CatalogError:
    # An error without a code is Python's: a text is not UTF-8.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    words = " ".join(str(error).split())
    if code == sqlite3.SQLITE_FULL:
        return CatalogFull(f"no disk space for the catalog {path}: {words}")
    # SQLITE_ERROR: our statements are correct, so a table or a column is missing.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return CatalogDamaged(f"the catalog {path} is damaged: {words}")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CatalogError(f"the catalog {path} is in use: {words}")
    return CatalogError(f"the catalog {path} cannot be used: {words}")


def _select(table: Table) -> str:
    return f"SELECT {', '.join(table.columns)}, checksum FROM {table.name} ORDER BY place"


def _define(table: Table) -> str:
    columns = (*table.columns, "checksum")
    changes = ", ".join(f"{name} = excluded.{name}" for name in (*table.fields, "checksum"))
    return (
        f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        f" ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET {changes}"
    )


def _undefine(table: Table) -> str:
    return f"DELETE FROM {table.name} WHERE {' AND '.join(f'{name} = ?' for name in table.key)}"


def read_meta(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the counters whose checksums match."""
    rows = connection.execute("SELECT name, value, checksum FROM meta").fetchall()
    return {name: value for name, value, checksum in rows if checksum_of((name, value)) == checksum}


_DEFINE = {kind: _define(table) for kind, table in TABLES.items()}
_UNDEFINE = {kind: _undefine(table) for kind, table in TABLES.items()}


# -- files -----------------------------------------------------------------------------------------------------------


def find_migrations(folder: Path = MIGRATIONS) -> list[Path]:
    """Return the scripts that migrate version 0 to 1, 1 to 2, and so on."""
    scripts = sorted(folder.glob("*.sql"))
    for number, script in enumerate(scripts, start=1):
        if not re.fullmatch(rf"{number:04}_\w+", script.stem):
            raise CatalogError(f"{script.name} stands where migration {number} should be")
    return scripts


def copy_files(path: str, folder: str) -> str:
    """Copy the database and its side files; return the path of the copy."""
    copy = os.path.join(folder, os.path.basename(path))
    try:
        shutil.copyfile(path, copy)
        for suffix in SIDE_FILES:
            if os.path.exists(path + suffix):
                shutil.copyfile(path + suffix, copy + suffix)
    except OSError as error:
        raise CatalogError(f"cannot read the catalog {path}: {error.strerror}") from None
    return copy


def _sync_folder_of(path: str) -> None:
    """Make the name of a new file durable; SQLite does that for its journals only."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
