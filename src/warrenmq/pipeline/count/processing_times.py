"""Legs: how long a consumer had a message, from the delivery to its ack, nack or reject.

No event tells both ends, so they are paired by message, queue and attempt: a settlement belongs to the last delivery
before it. Where one part of the events has both, the leg is counted there. An end without the other is handed on: the
first settlement of a part, whose delivery may be in a part before, and the last delivery, whose settlement may come in
one behind. Ends of several parts are paired in the same way: in batch those of a shelf (by message), in a --follow
those of a micro-batch with the deliveries that were held since before. So both count the same legs. What comes back by
itself (its connection is lost) is no leg, and is not held any longer.

Nothing is owned here: tables go in and come out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.count.event_arrays import Chunk, Names
from warrenmq.pipeline.count.histograms import Timed, time_counts
from warrenmq.pipeline.facts import PROCESSING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Truths = NDArray[np.bool_]

# Deliveries of one queue that are held for their settlement; of more, the oldest are given up.
MOST_OPEN = 200_000

_SETTLED = (schema.ACKED, schema.NACKED, schema.REJECTED)
_STEPS = (schema.DELIVERED, *_SETTLED, schema.REQUEUED)
_OVER = (schema.DROPPED, schema.DEAD_LETTERED)
_BROKER_BITS = 6  # the lowest of a uid are the same in all of a broker's

ENDS_SCHEMA = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("uid", pa.int64()),
        ("attempt", pa.int64()),
        ("at", pa.int64()),  # us since 1970
        ("kind", pa.int64()),
    ]
)


def ends_of(events: Chunk) -> pa.Table:
    """The deliveries and settlements among the events."""
    # What is acked as it is delivered has no leg; a reader of a stream (no depth) neither.
    is_manual = events.numbers("reason") != schema.R_AUTO_ACK
    is_over = np.isin(events.kind, _OVER) & (events.numbers("reason") == schema.R_DELIVERY_LIMIT)
    steps = events.where((np.isin(events.kind, _STEPS) | is_over) & is_manual & events.has("depth"))
    kind = np.where(np.isin(steps.kind, _OVER), schema.REQUEUED, steps.kind)  # it came back, though too often
    vhost, queue = steps.names("vhost"), steps.names("queue")
    attempt = np.where(steps.has("attempt"), steps.numbers("attempt"), 1)
    columns = [vhost.named(vhost.codes), queue.named(queue.codes), steps.uid, attempt, steps.time, kind]
    return pa.table([pa.array(column) for column in columns], schema=ENDS_SCHEMA)


def pair(ends: pa.Table, window_us: int) -> tuple[pa.Table, pa.Table]:
    """The legs that have both ends, as counts; and the ends that are left, by message and time."""
    whole = ends.combine_chunks()
    vhost, queue = (_names(whole.column(name)) for name in ("vhost", "queue"))
    uid, attempt, at, kind = (np.asarray(whole.column(name)) for name in ("uid", "attempt", "at", "kind"))
    order = np.lexsort((kind, at, attempt, queue.codes, vhost.codes, uid))
    keys = (uid, attempt, queue.codes, vhost.codes)
    is_back = kind[order] == schema.REQUEUED
    # Who settles a message by giving it back is told as having settled it, and that it came back says nothing new.
    is_told = _is_same(keys, order) & np.isin(np.roll(kind[order], 1), _SETTLED)
    is_left = is_back & ~is_told

    places = np.flatnonzero(~is_back)  # of deliveries and settlements, in turns if all is well
    rows = order[places]
    is_same, is_delivered = _is_same(keys, rows), kind[rows] == schema.DELIVERED
    is_leg = is_same & ~is_delivered & np.roll(is_delivered, 1)
    is_last = ~np.roll(is_same, -1)
    is_left[places] = (~is_same & ~is_delivered) | (is_last & is_delivered)
    ended, begun = rows[is_leg], rows[np.flatnonzero(is_leg) - 1]
    timed = Timed(at[ended], uid[ended], at[ended] - at[begun], vhost.at(ended), queue.at(ended))
    return time_counts(PROCESSING, timed, window_us), whole.take(pa.array(order[is_left]))


def _is_same(keys: Sequence[NDArray[Any]], rows: Numbers) -> Truths:
    """Which of these rows mean the same delivery as the row before."""
    found = np.zeros(len(rows), np.bool_)
    found[1:] = np.logical_and.reduce([key[rows][1:] == key[rows][:-1] for key in keys])
    return found


def shelved(ends: pa.Table, shelves: int) -> Iterator[tuple[int, pa.Table]]:
    """The ends on so many shelves; those of one message are on the same."""
    shelf = (np.asarray(ends.column("uid")) >> _BROKER_BITS) % shelves
    for number in np.unique(shelf).tolist():
        yield number, ends if shelves == 1 else ends.filter(pa.array(shelf == number))


def paired_with_held(held: pa.Table, ends: pa.Table, window_us: int) -> tuple[pa.Table, pa.Table]:
    """The legs of these ends and of deliveries that are held, as counts; and what is held from now on."""
    is_touched = pc.is_in(held.column("uid"), ends.column("uid").combine_chunks())
    touched, others = held.filter(is_touched), held.filter(pc.invert(is_touched))
    counts, left = pair(pa.concat_tables([touched, ends]), window_us)
    return counts, _newest_of_each_queue(pa.concat_tables([others, _still_open(left)]).combine_chunks())


def _still_open(left: pa.Table) -> pa.Table:
    """The deliveries among the ends that are left, but for those that came back by themselves."""
    kind = np.asarray(left.column("kind"))
    columns = [np.asarray(left.column(name)) for name in ("uid", "attempt")]
    keys = [*columns, *(_names(left.column(name)).codes for name in ("vhost", "queue"))]
    comes_back = np.roll(_is_same(keys, np.arange(len(kind))) & (kind == schema.REQUEUED), -1)
    return left.filter(pa.array((kind == schema.DELIVERED) & ~comes_back))


def _newest_of_each_queue(held: pa.Table) -> pa.Table:
    if held.num_rows <= MOST_OPEN:
        return held
    vhost, queue = (_names(held.column(name)) for name in ("vhost", "queue"))
    order = np.lexsort((-np.asarray(held.column("at")), queue.codes, vhost.codes))
    place = np.stack((vhost.codes[order], queue.codes[order]))
    is_new = np.append(True, (place[:, 1:] != place[:, :-1]).any(axis=0))
    first = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    return held.take(pa.array(order[np.arange(len(order)) - first < MOST_OPEN]))


def _names(column: pa.ChunkedArray) -> Names:
    return Names.of(column.combine_chunks())
