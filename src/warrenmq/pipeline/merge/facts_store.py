"""What a --follow has counted so far, in one SQLite file in its checkpoint folder.

A micro-batch brings pieces (pieces.py). They are added to those of their windows, and that, with the number of the
batch, is one transaction: a batch that Spark plays again after a crash changes nothing. In the same transaction are the
deliveries whose settlement has not come (processing_times.py), the ids of windows that may still get more of them
(open_ids.py), and the time of the newest event. What comes for a window that ended longer than the lateness before that
is late: it is left out, and told.

A window remembers the change up to which it was answered: what is left to answer survives a crash as well.

The file belongs to one driver at a time. Calls may come from any thread, one at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.pipeline.count import processing_times
from warrenmq.pipeline.count.partials import (
    COUNT_SCHEMA,
    COUNTS,
    ENDS,
    SEEN,
    Piece,
    busiest_keys,
    by_window,
    facts_of_counts,
    merged_counts,
    merged_ids,
    packed,
    unpacked,
)
from warrenmq.pipeline.facts import MESSAGE, SESSION, STEP
from warrenmq.pipeline.failures import OtherCheckpoint, StoreInUse
from warrenmq.pipeline.merge.open_ids import OpenIds
from warrenmq.pipeline.options import Settings

BUSY_LIMIT = 30.0
LAYOUT = 2
FACTS, KEYED = "facts", "keyed"  # what the windows are of: their lengths differ
ID_KINDS = (MESSAGE, SESSION)

SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE reached (name TEXT PRIMARY KEY, value INTEGER NOT NULL);  -- batch, newest (us since 1970), stamp
CREATE TABLE windows (
    kind TEXT NOT NULL,
    start INTEGER NOT NULL,      -- us since 1970
    changed INTEGER NOT NULL,    -- counts up with every change of any window
    answered INTEGER NOT NULL,   -- the value of `changed` that was answered
    is_open INTEGER NOT NULL,    -- whether more can come
    body BLOB,                   -- facts: counts; keyed: facts, and nothing while it is open
    PRIMARY KEY (kind, start)
) WITHOUT ROWID;
CREATE INDEX unanswered ON windows (kind, start) WHERE answered < changed;
CREATE INDEX opened ON windows (kind, start) WHERE is_open;
CREATE TABLE ids (
    kind TEXT NOT NULL,
    start INTEGER NOT NULL,
    batch INTEGER NOT NULL,      -- that brought them
    body BLOB NOT NULL,
    PRIMARY KEY (kind, start, batch)
);
CREATE TABLE held (name TEXT PRIMARY KEY, body BLOB NOT NULL);  -- one row: deliveries that are not settled
"""


@dataclass(frozen=True, slots=True)
class Added:
    """What a micro-batch brought. `newest`: the time of the newest event so far, in us since 1970; 0: none came."""

    events: int
    newest: int
    late: int


class FactsStore:
    """Facts by kind ("facts", "keyed") and window."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self._settings = settings or Settings()
        self._folder = folder
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
        self._open_ids: dict[tuple[str, int], OpenIds] = {}
        self._held: pa.Table | None = None
        self._told: dict[tuple[str, int], tuple[int, pa.Table]] = {}  # facts as they were at a change
        self._prepare()

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

    # -- pieces in -----------------------------------------------------------------------------------------------------

    def put(self, batch: int, pieces: Sequence[Piece]) -> Added | None:
        """Add what a micro-batch brings. None: this batch was added already, and nothing is changed."""
        with self._transaction():
            last = self._reached("batch", -1)
            if batch <= last:
                return None
            if batch != last + 1:
                raise OtherCheckpoint(
                    f"the checkpoint {self._folder} has lost what came before: delete the whole folder to begin anew"
                )
            line = self._watermark()
            stamp = self._reached("stamp", 0) + 1
            late = self._add_counts(pieces, stamp, line)
            self._add_ids(pieces, batch, stamp, line)
            seen = [piece for piece in pieces if piece.kind == SEEN]
            newest = max((piece.newest for piece in seen), default=0)
            self._reach(batch=batch, stamp=stamp, newest=max(newest, self._reached("newest", 0)))
            self._close_before(self._watermark())
            return Added(sum(piece.events for piece in seen), self._reached("newest", 0), late)

    def _add_counts(self, pieces: Sequence[Piece], stamp: int, line: int) -> int:
        """How many events were late."""
        tables = [piece.table() for piece in pieces if piece.kind == COUNTS]
        ends = [piece.table() for piece in pieces if piece.kind == ENDS]
        if ends:
            tables.append(self._settle(pa.concat_tables(ends)))
        late = 0
        for start, counts in by_window(pa.concat_tables([COUNT_SCHEMA.empty_table(), *tables])):
            if start + self._settings.window_us <= line:
                late += _events_in(counts)
                continue
            before = self._body(FACTS, start)
            whole = merged_counts([counts] if before is None else [unpacked(before), counts])
            self._change(FACTS, start, stamp, packed(whole))
        return late

    def _settle(self, ends: pa.Table) -> pa.Table:
        """The legs of deliveries that are settled now, as counts; the others are held."""
        counts, held = processing_times.paired_with_held(self._deliveries(), ends, self._settings.window_us)
        self._database.execute("REPLACE INTO held VALUES ('deliveries', ?)", (packed(held),))
        self._held = held
        return counts

    def _add_ids(self, pieces: Sequence[Piece], batch: int, stamp: int, line: int) -> None:
        brought: dict[tuple[str, int], list[pa.Table]] = {}
        for piece in pieces:
            if piece.kind in ID_KINDS and piece.place + self._settings.keyed_us > line:
                brought.setdefault((piece.kind, piece.place), []).append(piece.table())
        for (kind, start), tables in brought.items():
            ids = merged_ids(tables) if len(tables) > 1 else tables[0]  # each id of a piece is there once
            self._ids(kind, start).add(ids)
            self._database.execute("INSERT INTO ids VALUES (?, ?, ?, ?)", (kind, start, batch, packed(ids)))
            self._change(KEYED, start, stamp, None)

    def _change(self, kind: str, start: int, stamp: int, body: bytes | None) -> None:
        self._database.execute(
            "INSERT INTO windows VALUES (?, ?, ?, 0, 1, ?) "
            "ON CONFLICT DO UPDATE SET changed = excluded.changed, body = excluded.body",
            (kind, start, stamp, body),
        )

    def _close_before(self, line: int) -> None:
        """To windows that ended before this nothing is added any more: only what is told is kept of them."""
        for kind, length in ((FACTS, self._settings.window_us), (KEYED, self._settings.keyed_us)):
            ended = self._database.execute(
                "SELECT start FROM windows WHERE kind = ? AND is_open AND start <= ?", (kind, line - length)
            ).fetchall()
            for (start,) in ended:
                body = self._closed_counts(start) if kind == FACTS else packed(self._keyed_facts(start))
                self._database.execute(
                    "UPDATE windows SET body = ?, is_open = 0 WHERE kind = ? AND start = ?", (body, kind, start)
                )
                if kind == KEYED:
                    self._forget_ids(start)

    def _closed_counts(self, start: int) -> bytes | None:
        body = self._body(FACTS, start)
        counts = unpacked(body) if body is not None else COUNT_SCHEMA.empty_table()
        kept = busiest_keys(counts, self._settings.kept)
        return body if kept is counts else packed(kept)

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

    def facts(self, kind: str, first: int, last: int) -> pa.Table | None:
        """All facts of the windows from first to last; None if there are none."""
        with self._lock:
            found = self._database.execute(
                "SELECT start, changed FROM windows WHERE kind = ? AND start BETWEEN ? AND ? ORDER BY start",
                (kind, first, last),
            ).fetchall()
            tables = [self._facts_of(kind, start, changed) for start, changed in found]
        return pa.concat_tables(tables) if tables else None

    def bounds(self, kind: str) -> tuple[int, int] | None:
        """The begins of the oldest and the newest window."""
        with self._lock:
            first, last = self._database.execute(
                "SELECT min(start), max(start) FROM windows WHERE kind = ?", (kind,)
            ).fetchone()
        return None if first is None else (first, last)

    def last_batch(self) -> int:
        """The number of the last micro-batch that was added; -1: none was."""
        with self._lock:
            return self._reached("batch", -1)

    def forget_before(self, kind: str, start: int) -> None:
        """Facts of older windows go, but those that are not answered yet or may still change."""
        with self._transaction() as database:
            database.execute(
                "DELETE FROM windows WHERE kind = ? AND start < ? AND answered = changed AND NOT is_open", (kind, start)
            )
            for place in [place for place in self._told if place[0] == kind and place[1] < start]:
                del self._told[place]

    def _facts_of(self, kind: str, start: int, changed: int) -> pa.Table:
        stamp, table = self._told.get((kind, start), (0, None))
        if stamp != changed or table is None:
            table = self._keyed_facts(start) if kind == KEYED else self._counted_facts(start)
            self._told[kind, start] = (changed, table)
        return table

    def _counted_facts(self, start: int) -> pa.Table:
        body = self._body(FACTS, start)
        counts = COUNT_SCHEMA.empty_table() if body is None else unpacked(body)
        return facts_of_counts(counts, self._settings.window_us, self._settings.kept)

    def _keyed_facts(self, start: int) -> pa.Table:
        body = self._body(KEYED, start)
        if body is not None:
            return unpacked(body)
        windows = [self._ids(kind, start) for kind in ID_KINDS]
        return pa.concat_tables([window.facts(self._settings.keyed_us, self._settings.kept) for window in windows])

    # -- what is kept in memory, and made again from the file ----------------------------------------------------------

    def _ids(self, kind: str, start: int) -> OpenIds:
        if (kind, start) not in self._open_ids:
            window = OpenIds(kind, start)
            for (body,) in self._database.execute(
                "SELECT body FROM ids WHERE kind = ? AND start = ? ORDER BY batch", (kind, start)
            ):
                window.add(unpacked(body))
            self._open_ids[kind, start] = window
        return self._open_ids[kind, start]

    def _forget_ids(self, start: int) -> None:
        self._database.execute("DELETE FROM ids WHERE start = ?", (start,))
        for kind in ID_KINDS:
            self._open_ids.pop((kind, start), None)

    def _deliveries(self) -> pa.Table:
        if self._held is None:
            found = self._database.execute("SELECT body FROM held").fetchone()
            self._held = processing_times.ENDS_SCHEMA.empty_table() if found is None else unpacked(found[0])
        return self._held

    def _forget_memory(self) -> None:
        self._open_ids.clear()
        self._told.clear()
        self._held = None

    # -- the file ------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        [layout] = self._database.execute("PRAGMA user_version").fetchone()
        is_new = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if is_new:
            self._database.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {LAYOUT}; COMMIT;")
        elif layout != LAYOUT:
            self.close()
            raise OtherCheckpoint(
                f"the checkpoint {self._folder} was made by another version of the analysis: "
                "delete the folder to begin anew, or give another --checkpoint"
            )

    def _watermark(self) -> int:
        return self._reached("newest", 0) - self._settings.lateness_us

    def _reached(self, name: str, default: int) -> int:
        found = self._database.execute("SELECT value FROM reached WHERE name = ?", (name,)).fetchone()
        return default if found is None else int(found[0])

    def _reach(self, **values: int) -> None:
        self._database.executemany("REPLACE INTO reached VALUES (?, ?)", values.items())

    def _body(self, kind: str, start: int) -> bytes | None:
        found = self._database.execute(
            "SELECT body FROM windows WHERE kind = ? AND start = ?", (kind, start)
        ).fetchone()
        return None if found is None else found[0]

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                self._forget_memory()
                raise
            self._database.execute("COMMIT")


def _events_in(counts: pa.Table) -> int:
    """Each event is in one fact of kind step."""
    steps = counts.filter(pc.equal(counts.column("fact"), STEP))
    return pc.sum(steps.column("count")).as_py() or 0
