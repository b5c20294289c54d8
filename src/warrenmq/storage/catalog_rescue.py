"""Builds a new catalog from what is still readable in a damaged one.

Every row has a checksum, so a row that was found is right, however it was found. Tables are read from both ends, and
once more with the first page replaced by that of a new catalog, which locates the tables. The damaged files are not
changed.

Called before the threads start, with the data folder locked.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from warrenmq.journal.files import Files
from warrenmq.storage.catalog import (
    SIDE_FILES,
    SQLITE_ERRORS,
    CatalogFile,
    catalog_error,
    connect,
    copy_files,
    read_meta,
)
from warrenmq.storage.definition_records import TABLES, CatalogDamaged, Definition, Key, Operation, Table

_SIZE_AT = 28  # in the first page: the number of pages, then the list of free pages


def open_catalog(path: str, damaged: str) -> tuple[CatalogFile, list[str]]:
    """Open the catalog; return it and what was lost, a line each.

    A damaged catalog is moved to the folder `damaged`, and a new one is filled with what is still readable.
    """
    catalog: CatalogFile | None = None
    try:
        catalog = CatalogFile.open(path)
        catalog.verify()
    except CatalogDamaged as error:
        if catalog is not None:
            catalog.close()
        Files().make_dirs(damaged)
        name = os.path.basename(path)
        aside, number = os.path.join(damaged, name), 1
        while os.path.exists(aside):
            number += 1
            aside = os.path.join(damaged, f"{name}.{number}")
        for ending in ("", *SIDE_FILES):
            if os.path.exists(path + ending):
                os.rename(path + ending, aside + ending)
        losses = [f"the catalog is damaged and was moved to {aside}: {error}", *rescue(aside, path)]
        return CatalogFile.open(path), losses
    return catalog, []


def rescue(damaged: str | Path, fresh: str | Path) -> list[str]:
    """Write all readable rows to a new catalog; return what is lost, a line each.

    If the epoch is lost, the new catalog starts at 0: replaying applied operations again is harmless. The result may be
    inconsistent until `CatalogFile.repair` runs, after the replay of the log.
    """
    rescued = _Rescue(os.fspath(damaged))
    with TemporaryDirectory(prefix="warren-catalog-") as folder:
        copy = copy_files(rescued.path, folder)
        rescued.open_and_read(copy)
        faults = list(rescued.faults)
        if faults or rescued.losses():
            _replace_first_page(copy, os.path.join(folder, "new"))
            rescued.read(connect(copy, rescued.path))
    operations: list[Operation] = [
        ("define", kind, key, definition)
        for kind, rows in rescued.found.items()
        for _, (key, definition) in sorted(rows.items())
    ]
    catalog = CatalogFile.open(fresh)
    try:
        meta = rescued.meta
        catalog.fill(
            meta.get("applied_epoch", 0), operations, meta.get("next_queue_id", 1), meta.get("released_epoch", -1)
        )
        catalog.sync()
    finally:
        catalog.close()
    return faults + rescued.losses()  # the faults of the second attempt mean nothing


class _Rescue:
    """The rows found so far by kind and place, and the names of rows that were not readable."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: dict[str, dict[int, tuple[Key, Definition]]] = {kind: {} for kind in TABLES}
        self.meta: dict[str, int] = {}
        self.faults: dict[str, None] = {}
        self._named: dict[str, dict[Key, None]] = {kind: {} for kind in TABLES}

    def losses(self) -> list[str]:
        lost = []
        for kind, names in self._named.items():
            known = {key for key, _ in self.found[kind].values()}
            lost += [f"{TABLES[kind].describe(key)} is lost" for key in names if key not in known]
        return lost

    def open_and_read(self, file: str) -> None:
        """Read a database, migrated to the newest version if possible."""
        catalog = CatalogFile(self.path, connect(file, self.path))
        try:
            catalog.prepare()
        except CatalogDamaged as error:
            self.faults[str(error)] = None
        self.read(catalog.connection)

    def read(self, connection: sqlite3.Connection) -> None:
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        for table in TABLES.values():
            for direction in ("ASC", "DESC"):
                self._read_rows(connection, table, direction)
            self._read_names(connection, table)
        try:
            self.meta = read_meta(connection) | self.meta
        except SQLITE_ERRORS as error:
            self._note(error)
        connection.close()

    def _read_rows(self, connection: sqlite3.Connection, table: Table, direction: str) -> None:
        columns = ", ".join(("rowid", *table.columns, "checksum"))
        rows = self.found[table.kind]
        try:
            for place, *row in connection.execute(
                f"SELECT {columns} FROM {table.name} NOT INDEXED ORDER BY rowid {direction}"
            ):
                try:
                    rows.setdefault(place, table.read(row))
                except CatalogDamaged:
                    self._note_name(table, row)
        except SQLITE_ERRORS as error:
            self._note(error)

    def _read_names(self, connection: sqlite3.Connection, table: Table) -> None:
        """Note the names in the index, which may still have what the table has lost."""
        columns = ", ".join(table.key)
        try:
            for row in connection.execute(f"SELECT {columns} FROM {table.name} INDEXED BY {table.name}_key"):
                self._note_name(table, row)
        except SQLITE_ERRORS as error:
            self._note(error)

    def _note_name(self, table: Table, row: Any) -> None:
        if all(isinstance(value, str | bytes) for value in row[: len(table.key)]):
            self._named[table.kind][table.read_key(row)] = None

    def _note(self, error: Exception) -> None:
        self.faults[str(catalog_error(self.path, error))] = None


def _replace_first_page(file: str, beside: str) -> None:
    """Replace the first page by that of a new catalog, whose tables begin at the same pages."""
    CatalogFile.open(beside).close()
    with open(beside, "rb") as new:
        page = bytearray(new.read(4096))
    with open(file, "r+b") as old:
        pages = old.seek(0, os.SEEK_END) // len(page)
        page[_SIZE_AT : _SIZE_AT + 12] = pages.to_bytes(4, "big") + bytes(8)
        old.seek(0)
        old.write(page)
    for suffix in ("-wal", "-journal"):
        Path(file + suffix).unlink(missing_ok=True)  # may hold another version of the first page
