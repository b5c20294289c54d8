"""The state store of a --follow: everything counted so far, in one SQLite file in the checkpoint folder.

A micro-batch brings partial aggregates, which are merged into their windows. One transaction holds that, the number of
the batch, the open deliveries (processing_times.py), the ids of open windows (open_ids.py) and the time of the newest
event; so a batch that Spark replays after a crash changes nothing. The watermark is the newest event time minus the
lateness: events of windows that ended before it are late, and are dropped and counted.

Each window records the change up to which it was answered, so answers that are still due survive a crash as well.

One process owns the file. Any thread may call, one at a time.
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
    TOTALS,
    UNMATCHED,
    Partial,
    merge_counts,
    merge_ids,
    pack,
    split_by_window,
    unpack,
)
from warrenmq.pipeline.errors import CheckpointInUse, CheckpointMismatch
from warrenmq.pipeline.facts import MESSAGE, SESSION, STEP
from warrenmq.pipeline.merge.facts import facts_from_counts, top_routing_keys
from warrenmq.pipeline.merge.open_ids import OpenIds
from warrenmq.pipeline.options import AnalysisOptions

BUSY_TIMEOUT = 30.0
LAYOUT = 3
FACTS, IDS = "facts", "ids"  # kinds of windows, which differ in length
ID_KINDS = (MESSAGE, SESSION)

SCHEMA = """
CREATE TABLE options (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE progress (name TEXT PRIMARY KEY, value INTEGER NOT NULL);  -- batch, newest (us since 1970), change
CREATE TABLE windows (
    kind TEXT NOT NULL,
    start INTEGER NOT NULL,      -- us since 1970
    changed INTEGER NOT NULL,    -- number of the last change; one counter for all windows
    answered INTEGER NOT NULL,   -- the value of `changed` that was answered
    is_open INTEGER NOT NULL,    -- whether events can still be added
    body BLOB,                   -- facts: counts; ids: facts, null while the window is open
    PRIMARY KEY (kind, start)
) WITHOUT ROWID;
CREATE INDEX unanswered ON windows (kind, start) WHERE answered < changed;
CREATE INDEX open_windows ON windows (kind, start) WHERE is_open;
CREATE TABLE ids (
    kind TEXT NOT NULL,
    start INTEGER NOT NULL,
    batch INTEGER NOT NULL,      -- micro-batch that brought them
    body BLOB NOT NULL,
    PRIMARY KEY (kind, start, batch)
);
CREATE TABLE open_deliveries (name TEXT PRIMARY KEY, body BLOB NOT NULL);  -- one row
"""


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """What a micro-batch brought. `newest`: time of the newest event so far, in us since 1970; 0 if there is none."""

    events: int
    newest: int
    late: int


class FactsStore:
    """Facts by kind of window and start of the window."""

    def __init__(self, folder: Path, options: AnalysisOptions | None = None) -> None:
        self._options = options or AnalysisOptions()
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = (folder / "facts.lock").open("w")
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.close()
            raise CheckpointInUse(f"another process uses the checkpoint {folder}: give another folder") from None
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            folder / "facts.sqlite", timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        self._open_ids: dict[tuple[str, int], OpenIds] = {}
        self._open_deliveries: pa.Table | None = None
        self._facts_cache: dict[tuple[str, int], tuple[int, pa.Table]] = {}  # (change, facts)
        self._prepare()

    def close(self) -> None:
        with self._lock:
            self._database.close()
        self._lock_file.close()

    # -- options of the run --------------------------------------------------------------------------------------------

    def option(self, name: str, default: str) -> str:
        """Return the stored value of this name; store and return the default if there is none."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO options VALUES (?, ?)", (name, default))
            found: str = database.execute("SELECT value FROM options WHERE name = ?", (name,)).fetchone()[0]
            return found

    # -- partials in ---------------------------------------------------------------------------------------------------

    def add_batch(self, batch: int, partials: Sequence[Partial]) -> BatchSummary | None:
        """Add the partials of a micro-batch; return None if that batch was already added."""
        with self._transaction():
            last = self._progress("batch", -1)
            if batch <= last:
                return None
            if batch != last + 1:
                raise CheckpointMismatch(
                    f"the checkpoint {self._folder} has lost earlier batches: delete the whole folder to start over"
                )
            watermark = self._watermark()
            change = self._progress("change", 0) + 1
            late = self._add_counts(partials, change, watermark)
            self._add_ids(partials, batch, change, watermark)
            totals = [partial for partial in partials if partial.kind == TOTALS]
            newest = max((partial.newest for partial in totals), default=0)
            self._set_progress(batch=batch, change=change, newest=max(newest, self._progress("newest", 0)))
            self._close_windows(self._watermark())
            return BatchSummary(sum(partial.events for partial in totals), self._progress("newest", 0), late)

    def _add_counts(self, partials: Sequence[Partial], change: int, watermark: int) -> int:
        """Merge the counts into their windows; return the number of late events."""
        tables = [partial.table() for partial in partials if partial.kind == COUNTS]
        unmatched = [partial.table() for partial in partials if partial.kind == UNMATCHED]
        if unmatched:
            tables.append(self._match(pa.concat_tables(unmatched)))
        late = 0
        for start, counts in split_by_window(pa.concat_tables([COUNT_SCHEMA.empty_table(), *tables])):
            if start + self._options.window_us <= watermark:
                late += _events_in(counts)
                continue
            before = self._body(FACTS, start)
            whole = merge_counts([counts] if before is None else [unpack(before), counts])
            self._update_window(FACTS, start, change, pack(whole))
        return late

    def _match(self, unmatched: pa.Table) -> pa.Table:
        """Match settlements with open deliveries; return the processing times as counts."""
        counts, still_open = processing_times.match_with_open(self._deliveries(), unmatched, self._options.window_us)
        self._database.execute("REPLACE INTO open_deliveries VALUES ('deliveries', ?)", (pack(still_open),))
        self._open_deliveries = still_open
        return counts

    def _add_ids(self, partials: Sequence[Partial], batch: int, change: int, watermark: int) -> None:
        by_window: dict[tuple[str, int], list[pa.Table]] = {}
        for partial in partials:
            if partial.kind in ID_KINDS and partial.key + self._options.id_window_us > watermark:
                by_window.setdefault((partial.kind, partial.key), []).append(partial.table())
        for (kind, start), tables in by_window.items():
            ids = merge_ids(tables) if len(tables) > 1 else tables[0]  # a single partial has each id once
            self._ids(kind, start).add(ids)
            self._database.execute("INSERT INTO ids VALUES (?, ?, ?, ?)", (kind, start, batch, pack(ids)))
            self._update_window(IDS, start, change, None)

    def _update_window(self, kind: str, start: int, change: int, body: bytes | None) -> None:
        self._database.execute(
            "INSERT INTO windows VALUES (?, ?, ?, 0, 1, ?) "
            "ON CONFLICT DO UPDATE SET changed = excluded.changed, body = excluded.body",
            (kind, start, change, body),
        )

    def _close_windows(self, watermark: int) -> None:
        """Close windows that ended before the watermark; of their keys and ids only those that become facts stay."""
        for kind, length in ((FACTS, self._options.window_us), (IDS, self._options.id_window_us)):
            ended = self._database.execute(
                "SELECT start FROM windows WHERE kind = ? AND is_open AND start <= ?", (kind, watermark - length)
            ).fetchall()
            for (start,) in ended:
                body = self._closed_counts(start) if kind == FACTS else pack(self._id_facts(start))
                self._database.execute(
                    "UPDATE windows SET body = ?, is_open = 0 WHERE kind = ? AND start = ?", (body, kind, start)
                )
                if kind == IDS:
                    self._drop_ids(start)

    def _closed_counts(self, start: int) -> bytes | None:
        body = self._body(FACTS, start)
        counts = unpack(body) if body is not None else COUNT_SCHEMA.empty_table()
        bounded = top_routing_keys(counts, self._options.max_per_group)
        return body if bounded is counts else pack(bounded)

    # -- facts out -----------------------------------------------------------------------------------------------------

    def unanswered(self, kind: str) -> dict[int, int]:
        """Return the windows that changed since they were answered, oldest first: start -> number of the change."""
        with self._lock:
            found = self._database.execute(
                "SELECT start, changed FROM windows WHERE kind = ? AND answered < changed ORDER BY start", (kind,)
            )
            return dict(found.fetchall())

    def set_answered(self, kind: str, windows: dict[int, int]) -> None:
        """Mark windows as answered up to these changes, as `unanswered` returned them."""
        with self._transaction() as database:
            database.executemany(
                "UPDATE windows SET answered = ? WHERE kind = ? AND start = ?",
                [(changed, kind, start) for start, changed in windows.items()],
            )

    def facts(self, kind: str, first: int, last: int) -> pa.Table | None:
        """Return all facts of the windows from first to last; None if there are none."""
        with self._lock:
            found = self._database.execute(
                "SELECT start, changed FROM windows WHERE kind = ? AND start BETWEEN ? AND ? ORDER BY start",
                (kind, first, last),
            ).fetchall()
            tables = [self._facts_of(kind, start, changed) for start, changed in found]
        return pa.concat_tables(tables) if tables else None

    def bounds(self, kind: str) -> tuple[int, int] | None:
        """Return the starts of the oldest and the newest window."""
        with self._lock:
            first, last = self._database.execute(
                "SELECT min(start), max(start) FROM windows WHERE kind = ?", (kind,)
            ).fetchone()
        return None if first is None else (first, last)

    def last_batch(self) -> int:
        """Return the number of the last micro-batch that was added, or -1."""
        with self._lock:
            return self._progress("batch", -1)

    def drop_before(self, kind: str, start: int) -> None:
        """Drop older windows, except those that are open or not answered yet."""
        with self._transaction() as database:
            database.execute(
                "DELETE FROM windows WHERE kind = ? AND start < ? AND answered = changed AND NOT is_open", (kind, start)
            )
            for window in [window for window in self._facts_cache if window[0] == kind and window[1] < start]:
                del self._facts_cache[window]

    def _facts_of(self, kind: str, start: int, changed: int) -> pa.Table:
        cached, table = self._facts_cache.get((kind, start), (0, None))
        if cached != changed or table is None:
            table = self._id_facts(start) if kind == IDS else self._counted_facts(start)
            self._facts_cache[kind, start] = (changed, table)
        return table

    def _counted_facts(self, start: int) -> pa.Table:
        body = self._body(FACTS, start)
        counts = COUNT_SCHEMA.empty_table() if body is None else unpack(body)
        return facts_from_counts(counts, self._options.window_us, self._options.max_per_group)

    def _id_facts(self, start: int) -> pa.Table:
        body = self._body(IDS, start)
        if body is not None:
            return unpack(body)
        windows = [self._ids(kind, start) for kind in ID_KINDS]
        return pa.concat_tables(
            [window.facts(self._options.id_window_us, self._options.max_per_group) for window in windows]
        )

    # -- caches, rebuilt from the file ---------------------------------------------------------------------------------

    def _ids(self, kind: str, start: int) -> OpenIds:
        if (kind, start) not in self._open_ids:
            window = OpenIds(kind, start)
            for (body,) in self._database.execute(
                "SELECT body FROM ids WHERE kind = ? AND start = ? ORDER BY batch", (kind, start)
            ):
                window.add(unpack(body))
            self._open_ids[kind, start] = window
        return self._open_ids[kind, start]

    def _drop_ids(self, start: int) -> None:
        self._database.execute("DELETE FROM ids WHERE start = ?", (start,))
        for kind in ID_KINDS:
            self._open_ids.pop((kind, start), None)

    def _deliveries(self) -> pa.Table:
        if self._open_deliveries is None:
            found = self._database.execute("SELECT body FROM open_deliveries").fetchone()
            empty = processing_times.DELIVERY_SCHEMA.empty_table()
            self._open_deliveries = empty if found is None else unpack(found[0])
        return self._open_deliveries

    def _clear_caches(self) -> None:
        self._open_ids.clear()
        self._facts_cache.clear()
        self._open_deliveries = None

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
            raise CheckpointMismatch(
                f"the checkpoint {self._folder} was made by another version of the analysis: "
                "delete the folder to start over, or give another --checkpoint"
            )

    def _watermark(self) -> int:
        return self._progress("newest", 0) - self._options.lateness_us

    def _progress(self, name: str, default: int) -> int:
        found = self._database.execute("SELECT value FROM progress WHERE name = ?", (name,)).fetchone()
        return default if found is None else int(found[0])

    def _set_progress(self, **values: int) -> None:
        self._database.executemany("REPLACE INTO progress VALUES (?, ?)", values.items())

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
                self._clear_caches()
                raise
            self._database.execute("COMMIT")


def _events_in(counts: pa.Table) -> int:
    """Return the number of events: each is in exactly one fact of kind step."""
    steps = counts.filter(pc.equal(counts.column("fact"), STEP))
    return pc.sum(steps.column("count")).as_py() or 0
