"""Processing times: from the delivery of a message to its ack, nack or reject.

No event holds both times, so deliveries and settlements are matched by message, queue and attempt: a settlement belongs
to the last delivery before it. Where both are in the same part of the events, the processing time is counted there.
The unmatched rest is passed on: the first settlement of a part, whose delivery may be in an earlier part, and the last
delivery, whose settlement may be in a later one. It is matched the same way: in batch per partition of the messages, in
a --follow with the open deliveries of earlier micro-batches. So both count the same processing times. A delivery that
is requeued or retried without a settlement (its connection was lost) has none, and is no longer open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from warrenmq.events import schema
from warrenmq.pipeline.count.event_arrays import EncodedNames, EventArrays
from warrenmq.pipeline.count.histograms import Durations, duration_counts
from warrenmq.pipeline.facts import PROCESSING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

# Open deliveries kept per queue; beyond that the oldest are dropped.
MAX_OPEN = 200_000

_SETTLED = (schema.ACKED, schema.NACKED, schema.REJECTED)
_RETURNED = (schema.REQUEUED, schema.RETRIED)
_KINDS = (schema.DELIVERED, *_SETTLED, *_RETURNED)
_REMOVED = (schema.DROPPED, schema.DEAD_LETTERED)
_BROKER_BITS = 6  # the lowest bits of a uid are the same for all messages of a broker

DELIVERY_SCHEMA = pa.schema(
    [
        ("vhost", pa.string()),
        ("queue", pa.string()),
        ("uid", pa.int64()),
        ("attempt", pa.int64()),
        ("at", pa.int64()),  # us since 1970
        ("kind", pa.int64()),
    ]
)


def delivery_events(events: EventArrays) -> pa.Table:
    """Return the deliveries, settlements and requeues among the events."""
    # Auto-acked deliveries have no processing time, nor do readers of streams (no depth).
    is_manual = events.ints("reason") != schema.R_AUTO_ACK
    is_over_limit = np.isin(events.kind, _REMOVED) & (events.ints("reason") == schema.R_DELIVERY_LIMIT)
    chosen = events.filter((np.isin(events.kind, _KINDS) | is_over_limit) & is_manual & events.is_valid("depth"))
    # A removed message came back once too often.
    kind = np.where(np.isin(chosen.kind, (*_RETURNED, *_REMOVED)), schema.REQUEUED, chosen.kind)
    vhost, queue = chosen.names("vhost"), chosen.names("queue")
    attempt = np.where(chosen.is_valid("attempt"), chosen.ints("attempt"), 1)
    columns = [vhost.decode(vhost.codes), queue.decode(queue.codes), chosen.uid, attempt, chosen.time, kind]
    return pa.table([pa.array(column) for column in columns], schema=DELIVERY_SCHEMA)


def match_deliveries(deliveries: pa.Table, window_us: int) -> tuple[pa.Table, pa.Table]:
    """Match deliveries with settlements: return the processing times as counts, and the unmatched rows by message."""
    whole = deliveries.combine_chunks()
    vhost, queue = (_encode(whole.column(name)) for name in ("vhost", "queue"))
    uid, attempt, at, kind = (np.asarray(whole.column(name)) for name in ("uid", "attempt", "at", "kind"))
    order = np.lexsort((kind, at, attempt, queue.codes, vhost.codes, uid))
    keys = (uid, attempt, queue.codes, vhost.codes)
    is_requeue = kind[order] == schema.REQUEUED
    # A nack with requeue has two events: the second one, after the settlement, adds nothing.
    follows_settlement = _same_as_previous(keys, order) & np.isin(np.roll(kind[order], 1), _SETTLED)
    is_unmatched = is_requeue & ~follows_settlement

    positions = np.flatnonzero(~is_requeue)  # deliveries and settlements, normally alternating
    rows = order[positions]
    is_same, is_delivery = _same_as_previous(keys, rows), kind[rows] == schema.DELIVERED
    is_matched_settlement = is_same & ~is_delivery & np.roll(is_delivery, 1)
    is_last = ~np.roll(is_same, -1)
    is_unmatched[positions] = (~is_same & ~is_delivery) | (is_last & is_delivery)
    settled, delivered = rows[is_matched_settlement], rows[np.flatnonzero(is_matched_settlement) - 1]
    durations = Durations(
        at[settled], uid[settled], at[settled] - at[delivered], vhost.take(settled), queue.take(settled)
    )
    return duration_counts(PROCESSING, durations, window_us), whole.take(pa.array(order[is_unmatched]))


def _same_as_previous(keys: Sequence[NDArray[Any]], rows: Ints) -> Mask:
    """Return which of these rows have the same keys as the row before."""
    found = np.zeros(len(rows), np.bool_)
    found[1:] = np.logical_and.reduce([key[rows][1:] == key[rows][:-1] for key in keys])
    return found


def partition_by_message(deliveries: pa.Table, partitions: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield (partition, rows); all rows of a message are in the same partition."""
    partition = (np.asarray(deliveries.column("uid")) >> _BROKER_BITS) % partitions
    for number in np.unique(partition).tolist():
        yield number, deliveries if partitions == 1 else deliveries.filter(pa.array(partition == number))


def match_with_open(open_deliveries: pa.Table, unmatched: pa.Table, window_us: int) -> tuple[pa.Table, pa.Table]:
    """Match these rows with deliveries that are still open: return counts, and the deliveries open from now on."""
    is_touched = pc.is_in(open_deliveries.column("uid"), unmatched.column("uid").combine_chunks())
    touched, others = open_deliveries.filter(is_touched), open_deliveries.filter(pc.invert(is_touched))
    counts, left = match_deliveries(pa.concat_tables([touched, unmatched]), window_us)
    return counts, _newest_of_each_queue(pa.concat_tables([others, _still_open(left)]).combine_chunks())


def _still_open(unmatched: pa.Table) -> pa.Table:
    """Return the unmatched deliveries that were not requeued afterwards."""
    kind = np.asarray(unmatched.column("kind"))
    columns = [np.asarray(unmatched.column(name)) for name in ("uid", "attempt")]
    keys = [*columns, *(_encode(unmatched.column(name)).codes for name in ("vhost", "queue"))]
    is_requeued = np.roll(_same_as_previous(keys, np.arange(len(kind))) & (kind == schema.REQUEUED), -1)
    return unmatched.filter(pa.array((kind == schema.DELIVERED) & ~is_requeued))


def _newest_of_each_queue(deliveries: pa.Table) -> pa.Table:
    if deliveries.num_rows <= MAX_OPEN:
        return deliveries
    vhost, queue = (_encode(deliveries.column(name)) for name in ("vhost", "queue"))
    order = np.lexsort((-np.asarray(deliveries.column("at")), queue.codes, vhost.codes))
    keys = np.stack((vhost.codes[order], queue.codes[order]))
    is_new = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))
    first = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    return deliveries.take(pa.array(order[np.arange(len(order)) - first < MAX_OPEN]))


def _encode(column: pa.ChunkedArray) -> EncodedNames:
    return EncodedNames.of(column.combine_chunks())
