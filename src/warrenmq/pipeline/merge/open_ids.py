"""Message and correlation ids of a window that is still open, kept in memory by the facts store.

A minute of a busy broker has some hundred thousand ids, so each micro-batch is added to arrays in place, and only the
ids that become facts are made into a table. The store can rebuild all of it from disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.pipeline.count.partials import ID_MEASURES, ID_SCHEMA, MERGED
from warrenmq.pipeline.facts import MESSAGE
from warrenmq.pipeline.merge.facts import facts_from_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

INITIAL_CAPACITY = 1024
_MERGE = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class OpenIds:
    """The ids of one window. `kind` is message or session, `start` the start of the window in us since 1970."""

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind
        self.start = start
        self._by_vhost: dict[str, _VhostIds] = {}

    def add(self, ids: pa.Table) -> None:
        """Merge these ids; each occurs once in the table."""
        vhosts = pc.unique(ids.column("vhost")).to_pylist()
        for vhost in vhosts:
            rows = ids if len(vhosts) == 1 else ids.filter(pc.equal(ids.column("vhost"), vhost))
            self._by_vhost.setdefault(vhost, _VhostIds()).add(rows)

    def facts(self, window_us: int, max_sessions: int) -> pa.Table:
        min_count = 2 if self.kind == MESSAGE else None
        tables = [ids.table(vhost, min_count, max_sessions) for vhost, ids in self._by_vhost.items()]
        ids = pa.concat_tables([ID_SCHEMA.empty_table(), *tables])
        return facts_from_ids(self.kind, ids, self.start, window_us, max_sessions)


class _VhostIds:
    """The ids of one virtual host: names in order of arrival, and a growing array per measure."""

    def __init__(self) -> None:
        self._names: list[pa.Array] = []
        self._size = 0
        self._measures = {name: np.empty(INITIAL_CAPACITY, np.int64) for name in ID_MEASURES}

    def add(self, rows: pa.Table) -> None:
        names = rows.column("name").combine_chunks()
        values = {name: np.asarray(rows.column(name).cast(pa.int64())) for name in ID_MEASURES}
        is_new = np.ones(len(names), np.bool_)
        if self._names:
            # In this direction only the few new names are put into a hash table.
            indices = pc.index_in(pa.chunked_array(self._names), names)
            known = np.flatnonzero(np.asarray(indices.is_valid()))
            incoming = np.asarray(indices.drop_null())
            is_new[incoming] = False
            for name, measure in self._measures.items():
                measure[known] = _MERGE[MERGED[name]](measure[known], values[name][incoming])
        self._append(names.filter(pa.array(is_new)), {name: value[is_new] for name, value in values.items()})

    def table(self, vhost: str, min_count: int | None, max_sessions: int) -> pa.Table:
        """Return the ids with at least this count; or a few that include the `max_sessions` worst sessions."""
        measures = {name: measure[: self._size] for name, measure in self._measures.items()}
        chosen = np.flatnonzero(measures["count"] >= min_count) if min_count else _candidates(measures, max_sessions)
        names = pa.chunked_array(self._names, pa.string()).take(pa.array(chosen))
        columns = {name: pa.array(measure[chosen]) for name, measure in measures.items()}
        columns |= {"vhost": pa.repeat(vhost, len(chosen)), "name": names}
        return pa.table([columns[field.name].cast(field.type) for field in ID_SCHEMA], schema=ID_SCHEMA)

    def _append(self, names: pa.Array, values: dict[str, Ints]) -> None:
        size = self._size + len(names)
        if len(names) == 0:
            return
        capacity = len(self._measures["count"])
        while capacity < size:
            capacity *= 2
        for name, measure in self._measures.items():
            if len(measure) < capacity:
                self._measures[name] = np.resize(measure, capacity)
            self._measures[name][self._size : size] = values[name]
        self._names.append(names)
        self._size = size


def _candidates(measures: dict[str, Ints], max_sessions: int) -> Ints:
    """Return few rows that include the worst sessions: by failures, then by duration (facts.worst_sessions)."""
    duration = measures["last_time"] - measures["first_time"]
    if len(duration) <= max_sessions:
        return np.arange(len(duration))
    score = (measures["failed"] << 42) + duration  # a window is below 2**42 us, a session has under 2**21 failures
    return np.flatnonzero(score >= np.partition(score, -max_sessions)[-max_sessions])
