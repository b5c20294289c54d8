"""Definitions on disk: what is durable besides messages, in SQLite behind the commit log.

The loop says what is defined and undefined (`LoggedCatalog`); each of these operations is a record of the open epoch.
When the epoch is durable, the catalog writer applies it to the database (`CatalogFile.apply`), in a transaction that
also notes the epoch's number. So after a crash the database is at some epoch, perhaps behind the log, and catches up by
replay. It is never ahead of the log as long as only synced epochs are applied.

Owned by the loop: LoggedCatalog. Owned by the catalog writer's thread (before it starts: by recovery): CatalogFile. An
operation passes from one to the other and is not changed any more.
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
SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite keeps them beside the database: move all or none
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter for an error about a text that is no UTF-8
LARGEST_QUEUE_ID = 0xFFFF_FFFF
NUMBERED = ("queue", "level")  # have an id: a folder, and records in the log


class CatalogTooNew(CatalogError):
    """A later version of the broker has written it."""


class CatalogFull(CatalogError):
    """The disk has no room. Nothing of the epoch was applied; it can be tried again."""


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
        """Open the catalog, bring it to the newest version, and make it if it is missing or empty."""
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
        """Open a copy that goes away when it is closed: the files themselves are read and nothing else."""
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
        """All definitions up to this epoch are in here."""
        return self._applied_epoch

    @property
    def next_queue_id(self) -> int:
        """No queue had this id or a higher one, not even one that was deleted."""
        return self._next_queue_id

    @property
    def released_epoch(self) -> int:
        """No message is only in epochs of the log up to this one; -1: not known, the folder had no manifest so far."""
        return self._released_epoch

    # -- writing -----------------------------------------------------------------------------------------------------

    def apply(self, epoch: int, operations: Sequence[Operation]) -> None:
        """Bring in what an epoch defines and undefines, all of it or nothing; an epoch that was applied is passed over.

        Not on the disk before `sync`. No operations: the catalog only notes that it is as new as that epoch.
        """
        if epoch > self._applied_epoch:
            self._write(epoch, operations)

    def fill(self, epoch: int, operations: Sequence[Operation], next_queue_id: int, released_epoch: int) -> None:
        """Bring in what was rescued from another catalog, which was at that epoch."""
        self._next_queue_id = max(next_queue_id, self._next_queue_id)
        self._write(epoch, operations)
        self._set_released(released_epoch)

    def release(self, epoch: int) -> None:
        """Note that the log is not needed any more up to this epoch."""
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
        """Put everything applied on the disk; the log may forget it then."""
        with _translated_errors(self.path):
            busy, frames, moved = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy or frames != moved:
            raise CatalogError(f"the catalog {self.path} cannot be synced: something else reads it")

    # -- reading -----------------------------------------------------------------------------------------------------

    def load(self, kind: str) -> list[Definition]:
        """All of one kind, in the order they were first saved."""
        return list(self._read(table_of(kind)).values())

    def snapshot(self) -> dict[str, list[Definition]]:
        """Everything, by kind."""
        return {kind: self.load(kind) for kind in KINDS}

    def _read(self, table: Table) -> dict[Key, Definition]:
        with _translated_errors(self.path):
            return dict(table.read(row) for row in self.connection.execute(_select(table)))

    # -- does it hold together? --------------------------------------------------------------------------------------

    def verify(self) -> None:
        """CatalogDamaged if anything in the file is not what was written; reads everything.

        A fault that `open` does not meet would be met later, by whoever comes across it, or never.
        """
        with _translated_errors(self.path):
            lines = [line for (line,) in self.connection.execute("PRAGMA integrity_check") if line != "ok"]
        if lines:
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            raise CatalogDamaged(f"the catalog {self.path} is damaged: {' '.join(lines[0].split())}{more}")
        for table in TABLES.values():
            self._read(table)

    def check(self) -> list[str]:
        """What is wrong, a line each; reads everything."""
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
                    problems.append(f"{what} has the id {id}, which was never given away")
                owners[id] = what
        return problems

    def repair(self) -> list[str]:
        """Make what is there fit together after something was lost; says what was done, a line each.

        Virtual hosts that are missing are made again; bindings without both their ends and levels without a queue go.
        """
        found = {kind: self._read(table) for kind, table in TABLES.items()}
        vhosts = dict.fromkeys(key[0] for _, key, why in _dangling(found) if why == _NO_VHOST)
        dangling = [(kind, key, why) for kind, key, why in _dangling(found) if why != _NO_VHOST]
        operations: list[Operation] = [("define", "vhost", (name,), {"name": name}) for name in vhosts]
        operations += [("undefine", kind, key) for kind, key, _ in dangling]
        if operations:
            self._write(self._applied_epoch, operations)
        return [
            *(f"{TABLES['vhost'].describe((name,))} was missing and was made again" for name in vhosts),
            *(f"{TABLES[kind].describe(key)} was dropped: {why}" for kind, key, why in dangling),
        ]

    # -- opening -----------------------------------------------------------------------------------------------------

    def prepare(self, migrations: Path = MIGRATIONS) -> None:
        with _translated_errors(self.path):
            version = self._find_version()
            scripts = find_migrations(migrations)
            if version > len(scripts):
                raise CatalogTooNew(
                    f"the catalog {self.path} has version {version}; this WarrenMQ knows versions up to {len(scripts)}"
                )
            (mode,) = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise CatalogError(f"the catalog {self.path} cannot have a write-ahead log, only '{mode}'")
            self.connection.execute("PRAGMA synchronous = NORMAL")  # a commit need not be synced: the log has it
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
            raise CatalogDamaged(f"the catalog {self.path} is damaged: its counters are not what was written")
        self._applied_epoch = meta["applied_epoch"]
        self._next_queue_id = meta["next_queue_id"]
        self._released_epoch = meta.get("released_epoch", -1)


class DefinitionLog(Protocol):
    """The open epoch, as the catalog sees it."""

    def put_definition(self, is_define: bool, encoded: bytes) -> int:
        """Put the record into the open epoch; return its number."""


class DefinitionWriter(Protocol):
    """The catalog writer, as LoggedCatalog sees it."""

    def add(self, epoch: int, operation: Operation) -> None:
        """Apply the operation to the database when the epoch is durable."""


class LoggedCatalog(Catalog):
    """The catalog that the core talks to: says everything to the log, and knows the ids of durable queues.

    Each priority of a queue above the lowest is a level with an id of its own, defined when it is first asked for.
    """

    __slots__ = ("_ids", "_levels", "_log", "_next_queue_id", "_snapshot", "_writer")

    def __init__(
        self,
        log: DefinitionLog,
        writer: DefinitionWriter,
        snapshot: Mapping[str, list[Definition]],
        next_queue_id: int,
    ) -> None:
        self._log = log
        self._writer = writer
        self._snapshot = {kind: snapshot.get(kind, []) for kind in KINDS}
        self._next_queue_id = next_queue_id
        self._ids: dict[str, dict[str, int]] = {}  # by virtual host and name
        for queue in self._snapshot["queue"]:
            self._ids.setdefault(queue["vhost"], {})[queue["name"]] = queue["id"]
        self._levels: dict[tuple[str, str], dict[int, int]] = {}  # ids by virtual host and name, and by level
        for level in self._snapshot["level"]:
            self._levels.setdefault((level["vhost"], level["queue"]), {})[int(level["level"])] = level["id"]

    def queue_id(self, vhost: str, name: str) -> int:
        """The id of a durable queue, the same until it is deleted. Given away at the first ask, for ever when saved."""
        ids = self._ids.setdefault(vhost, {})
        if name not in ids:
            ids[name] = self._new_id()
        return ids[name]

    def level_id(self, vhost: str, name: str, level: int) -> int:
        """The id of a level of a durable queue above 0, the same until the queue is deleted."""
        ids = self._levels.setdefault((vhost, name), {})
        if level not in ids:
            ids[level] = self._new_id()
            key = (vhost, name, str(level))
            self.save("level", key, {"vhost": vhost, "queue": name, "level": str(level), "id": ids[level]})
        return ids[level]

    def stored_levels(self, vhost: str, name: str) -> list[int]:
        """The levels of a durable queue above 0 that have an id."""
        return sorted(self._levels.get((vhost, name), {}))

    def _new_id(self) -> int:
        if self._next_queue_id > LARGEST_QUEUE_ID:
            raise CatalogError("all ids of queues have been given away")
        self._next_queue_id += 1
        return self._next_queue_id - 1

    def describe_queue(self, number: int) -> str:
        """A durable queue in words, by its id."""
        for vhost, ids in self._ids.items():
            for name, id in ids.items():
                if id == number:
                    return table_of("queue").describe((vhost, name))
        for (vhost, name), levels in self._levels.items():
            for level, id in levels.items():
                if id == number:
                    return table_of("level").describe((vhost, name, str(level)))
        return f"queue {number}" if number else "a queue that is not durable"

    def save(self, kind: str, key: Key, definition: Definition) -> None:
        definition = dict(definition)  # applied later; arguments are never changed once declared
        if kind == "queue":
            definition["id"] = self.queue_id(*key)
        epoch = self._log.put_definition(True, encode_operation(kind, key, definition))
        self._writer.add(epoch, ("define", kind, key, definition))

    def delete(self, kind: str, key: Key) -> None:
        """A queue goes with its levels."""
        epoch = self._log.put_definition(False, encode_operation(kind, key, None))
        self._writer.add(epoch, ("undefine", kind, key))
        if kind == "queue":
            vhost, name = key
            self._ids.get(vhost, {}).pop(name, None)
            for level in self._levels.pop((vhost, name), {}):
                self.delete("level", (vhost, name, str(level)))

    def load(self, kind: str) -> Iterable[Definition]:
        """What there was at the start, in the order it was first saved; once, so that it is not held for ever."""
        if kind not in self._snapshot:
            raise CatalogError(f"definitions of kind {kind!r} were loaded already, or never kept")
        return self._snapshot.pop(kind)


# -- what does not fit together --------------------------------------------------------------------------------------

_NO_VHOST = "there is no such vhost"


def _dangling(found: Mapping[str, Mapping[Key, Definition]]) -> Iterator[tuple[str, Key, str]]:
    """Kind, key and fault of what stands for itself alone."""

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
    """Nothing is read yet. `path` is what errors name."""
    with _translated_errors(path):
        try:
            for name in (file, *(file + ending for ending in SIDE_FILES)):
                if os.path.islink(name):
                    raise OSError(
                        errno.ELOOP, f"{name} is a symbolic link: remove it, the broker follows no links there"
                    )
            # SQLite gives its side files the mode of the database.
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, MODE))
        except OSError as error:
            raise CatalogError(f"cannot open the catalog {path}: {error.strerror}") from None
        connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        # The folder is locked, so nobody else comes: SQLite needs no memory that is shared through a file.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection


@contextmanager
def _transaction(connection: sqlite3.Connection, script: str = "") -> Iterator[None]:
    """All of the script and of the block, or nothing."""
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}")
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:  # some errors have rolled it back already
            connection.execute("ROLLBACK")


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """What SQLite raises becomes a CatalogError."""
    try:
        yield
    except SQLITE_ERRORS as error:
        raise catalog_error(path, error) from error


def catalog_error(path: str, error: Exception) -> CatalogError:
    # Without a code it is Python that speaks: a text is no UTF-8 any more.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    words = " ".join(str(error).split())
    if code == sqlite3.SQLITE_FULL:
        return CatalogFull(f"no room for the catalog {path}: {words}")
    # SQLITE_ERROR: our statements are right, so a table or a column is missing.
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
    """The counters that have their checksums."""
    rows = connection.execute("SELECT name, value, checksum FROM meta").fetchall()
    return {name: value for name, value, checksum in rows if checksum_of((name, value)) == checksum}


_DEFINE = {kind: _define(table) for kind, table in TABLES.items()}
_UNDEFINE = {kind: _undefine(table) for kind, table in TABLES.items()}


# -- files -----------------------------------------------------------------------------------------------------------


def find_migrations(folder: Path = MIGRATIONS) -> list[Path]:
    """The scripts that lead from version 0 to 1, from 1 to 2, and so on."""
    scripts = sorted(folder.glob("*.sql"))
    for number, script in enumerate(scripts, start=1):
        if not re.fullmatch(rf"{number:04}_\w+", script.stem):
            raise CatalogError(f"{script.name} stands where migration {number} should be")
    return scripts


def copy_files(path: str, folder: str) -> str:
    """Copy the database with what belongs to it; gives the path of the copy."""
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
    """Make the name of a new file durable; SQLite does so for its journals only."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
