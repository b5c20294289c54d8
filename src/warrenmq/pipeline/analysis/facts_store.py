"""The facts of a --follow, by window, in one SQLite file in its checkpoint folder.

A micro-batch brings the changed rows of some windows, each a whole new aggregate: they replace those of the same keys.
That, and the number of the batch, is one transaction, so a batch that Spark plays again after a crash changes nothing.
A window remembers the batch that changed it last and the one up to which it was answered: what is left to answer
survives a crash as well. Facts of one kind and window lie together as an Arrow stream.

The file belongs to one driver at a time. Calls may come from any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import compute

from warrenmq.pipeline.analysis.failures import StoreInUse

BUSY_LIMIT = 30.0
WINDOW = "window_start"

SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches (kind TEXT PRIMARY KEY, batch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS windows (
    kind TEXT NOT NULL,
    start INTEGER NOT NULL,      -- us since 1970
    changed INTEGER NOT NULL,    -- counts up with every change of any window
    answered INTEGER NOT NULL,   -- the value of `changed` that was answered
    facts BLOB NOT NULL,
    PRIMARY KEY (kind, start)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unanswered ON windows (kind, start) WHERE answered < changed;
"""


class FactsStore:
    """Facts by kind ("facts", "keyed", …) and window."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = (folder / "facts.lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.close()
            raise StoreInUse(f"another process follows with the checkpoint {folder}: give another folder") from None
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            folder / "facts.sqlite", timeout=BUSY_LIMIT, isolation_level=None, check_same_thread=False
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._database.close()
        self._lock_file.close()

    # -- what a run is set to ------------------------------------------------------------------------------------------

    def setting(self, name: str, default: str) -> str:
        """The value that was kept under this name; the default, which is kept now, if there was none."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, default))
            found: str = database.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()[0]
            return found

    # -- facts in ------------------------------------------------------------------------------------------------------

    def put(self, kind: str, batch: int, changed: pa.Table, keys: Sequence[str]) -> bool:
        """Keep the changed rows of a micro-batch. False: this batch was kept already, and nothing is changed."""
        with self._transaction() as database:
            last = database.execute("SELECT batch FROM batches WHERE kind = ?", (kind,)).fetchone()
            if last is not None and batch <= last[0]:
                return False
            database.execute("REPLACE INTO batches VALUES (?, ?)", (kind, batch))
            stamp = 1 + database.execute("SELECT coalesce(max(changed), 0) FROM windows").fetchone()[0]
            for start, rows in _by_window(_nullable(changed)):
                self._put_window(kind, start, stamp, rows, keys)
            return True

    def _put_window(self, kind: str, start: int, stamp: int, rows: pa.Table, keys: Sequence[str]) -> None:
        found = self._database.execute(
            "SELECT facts, answered FROM windows WHERE kind = ? AND start = ?", (kind, start)
        ).fetchone()
        answered = 0
        if found is not None:
            rows, answered = merged(_table(found[0]), rows, keys), found[1]
        self._database.execute(
            "REPLACE INTO windows VALUES (?, ?, ?, ?, ?)", (kind, start, stamp, answered, _octets(rows))
        )

    # -- facts out -----------------------------------------------------------------------------------------------------

    def unanswered(self, kind: str) -> dict[int, int]:
        """Windows that changed since they were answered, oldest first: begin -> what to tell `set_answered`."""
        with self._lock:
            found = self._database.execute(
                "SELECT start, changed FROM windows WHERE kind = ? AND answered < changed ORDER BY start", (kind,)
            )
            return dict(found.fetchall())

    def set_answered(self, kind: str, windows: dict[int, int]) -> None:
        """These windows are answered as they were when `unanswered` told of them."""
        with self._transaction() as database:
            database.executemany(
                "UPDATE windows SET answered = ? WHERE kind = ? AND start = ?",
                [(changed, kind, start) for start, changed in windows.items()],
            )

    def starts(self, kind: str, first: int, last: int) -> list[int]:
        """The begins of the windows from first to last that have facts."""
        with self._lock:
            found = self._database.execute(
                "SELECT start FROM windows WHERE kind = ? AND start BETWEEN ? AND ? ORDER BY start", (kind, first, last)
            )
            return [row[0] for row in found]

    def facts(self, kind: str, first: int, last: int) -> pa.Table | None:
        """All facts of the windows from first to last; None if there are none."""
        with self._lock:
            found = self._database.execute(
                "SELECT facts FROM windows WHERE kind = ? AND start BETWEEN ? AND ? ORDER BY start", (kind, first, last)
            ).fetchall()
        return pa.concat_tables([_table(row[0]) for row in found]) if found else None

    def bounds(self, kind: str) -> tuple[int, int] | None:
        """The begins of the oldest and the newest window."""
        with self._lock:
            first, last = self._database.execute(
                "SELECT min(start), max(start) FROM windows WHERE kind = ?", (kind,)
            ).fetchone()
        return None if first is None else (first, last)

    def last_batch(self, kind: str) -> int:
        """The number of the last micro-batch that is kept; -1: none is."""
        with self._lock:
            found = self._database.execute("SELECT batch FROM batches WHERE kind = ?", (kind,)).fetchone()
        return -1 if found is None else int(found[0])

    def forget_before(self, kind: str, start: int) -> None:
        """Facts of older windows go, but those that are not answered yet."""
        with self._transaction() as database:
            database.execute("DELETE FROM windows WHERE kind = ? AND start < ? AND answered = changed", (kind, start))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")


def merged(old: pa.Table, new: pa.Table, keys: Sequence[str]) -> pa.Table:
    """All new rows, and the old ones that have none with the same keys; null is a key like any other."""
    replaced = set(_keys_of(new, keys))
    kept = [key not in replaced for key in _keys_of(old, keys)]
    return pa.concat_tables([old.filter(pa.array(kept, pa.bool_())), new]) if any(kept) else new


def _keys_of(table: pa.Table, keys: Sequence[str]) -> list[tuple[object, ...]]:
    return list(zip(*(table.column(key).to_pylist() for key in keys), strict=True))


def _by_window(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    starts = table.column(WINDOW).cast(pa.int64())
    for start in sorted(compute.unique(starts).to_pylist()):
        yield start, table.filter(compute.equal(starts, start))


def _nullable(table: pa.Table) -> pa.Table:
    """Whether a column may be null is another thing in every plan; tables that are put together must agree."""
    return table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))


def _octets(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    whole = table.combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    octets: bytes = sink.getvalue().to_pybytes()
    return octets


def _table(octets: bytes) -> pa.Table:
    with pa.ipc.open_stream(octets) as reader:
        return reader.read_all()
