"""The ids of a window that may still get more of them: messages and sessions, as the facts store keeps them in memory.

A minute of a busy broker has some hundred thousand ids. So what a micro-batch brings is added to arrays in place, and
only what is told becomes a table. The store can make all of it again from what it has on disk.

Owned by the facts store: one of these for each kind and window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.pipeline.count.partials import ID_MEASURES, ID_SCHEMA, MERGED, facts_of_ids
from warrenmq.pipeline.facts import MESSAGE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

FIRST_ROOM = 1024
_ADDED = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class OpenIds:
    """`kind` is message or session, `start` the begin of the window, in us since 1970."""

    def __init__(self, kind: str, start: int) -> None:
        self.kind = kind
        self.start = start
        self._by_vhost: dict[str, _Ids] = {}

    def add(self, ids: pa.Table) -> None:
        """What happened to some ids, each of them once."""
        vhosts = pc.unique(ids.column("vhost")).to_pylist()
        for vhost in vhosts:
            rows = ids if len(vhosts) == 1 else ids.filter(pc.equal(ids.column("vhost"), vhost))
            self._by_vhost.setdefault(vhost, _Ids()).add(rows)

    def facts(self, window_us: int, kept: int) -> pa.Table:
        """What is told of them."""
        least = 2 if self.kind == MESSAGE else None
        found = [ids.table(vhost, least, kept) for vhost, ids in self._by_vhost.items()]
        ids = pa.concat_tables([ID_SCHEMA.empty_table(), *found])
        return facts_of_ids(self.kind, ids, self.start, window_us, kept)


class _Ids:
    """Those of one virtual host: names as they came, and an array of each measure, with room for more."""

    def __init__(self) -> None:
        self._names: list[pa.Array] = []
        self._size = 0
        self._measures = {name: np.empty(FIRST_ROOM, np.int64) for name in ID_MEASURES}

    def add(self, rows: pa.Table) -> None:
        names = rows.column("name").combine_chunks()
        values = {name: np.asarray(rows.column(name).cast(pa.int64())) for name in ID_MEASURES}
        is_new = np.ones(len(names), np.bool_)
        if self._names:
            # Looked for in this direction, only the few new names have to be put into a table of hashes.
            places = pc.index_in(pa.chunked_array(self._names), names)
            known = np.flatnonzero(np.asarray(places.is_valid()))
            again = np.asarray(places.drop_null())
            is_new[again] = False
            for name, measure in self._measures.items():
                measure[known] = _ADDED[MERGED[name]](measure[known], values[name][again])
        self._append(names.filter(pa.array(is_new)), {name: value[is_new] for name, value in values.items()})

    def table(self, vhost: str, least: int | None, kept: int) -> pa.Table:
        """The ids with a count of `least`; or those among which the `kept` worst sessions are."""
        measures = {name: measure[: self._size] for name, measure in self._measures.items()}
        chosen = np.flatnonzero(measures["count"] >= least) if least else _candidates(measures, kept)
        names = pa.chunked_array(self._names, pa.string()).take(pa.array(chosen))
        columns = {name: pa.array(measure[chosen]) for name, measure in measures.items()}
        columns |= {"vhost": pa.repeat(vhost, len(chosen)), "name": names}
        return pa.table([columns[field.name].cast(field.type) for field in ID_SCHEMA], schema=ID_SCHEMA)

    def _append(self, names: pa.Array, values: dict[str, Numbers]) -> None:
        size = self._size + len(names)
        if len(names) == 0:
            return
        room = len(self._measures["count"])
        while room < size:
            room *= 2
        for name, measure in self._measures.items():
            if len(measure) < room:
                self._measures[name] = np.resize(measure, room)
            self._measures[name][self._size : size] = values[name]
        self._names.append(names)
        self._size = size


def _candidates(measures: dict[str, Numbers], kept: int) -> Numbers:
    """Few sessions, with the worst among them: by failures, then by how long they took (pieces.worst_sessions)."""
    duration = measures["last_time"] - measures["first_time"]
    if len(duration) <= kept:
        return np.arange(len(duration))
    score = (measures["failed"] << 42) + duration  # a window has less than 2**42 us, a session less than 2**21 failures
    return np.flatnonzero(score >= np.partition(score, -kept)[-kept])
