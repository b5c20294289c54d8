"""Percentiles of durations from facts of kind `time`: exact counts in logarithmic buckets (facts.bucket_of)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from warrenmq.pipeline.facts import GROWTH
from warrenmq.pipeline.jobs.tables import Ints, encode, to_ints


@dataclass(frozen=True, slots=True)
class Durations:
    """Of one window, queue and measure. `slowest`: the uid of one of the slowest messages."""

    window_us: int
    window_end_us: int
    queue: str
    name: str
    count: int
    mean_us: float
    percentiles_us: tuple[int, ...]
    longest_us: int
    slowest: int


def bucket_values(buckets: Ints) -> Ints:
    """What stands for all durations of a bucket: not more than 2 % from any of them, or 1 us."""
    middles = np.round(2 / (GROWTH + 1) * np.power(GROWTH, buckets.astype(np.float64)))
    return np.where(buckets == 0, 1, middles).astype(np.int64)


def duration_stats(table: pa.Table, percents: Sequence[int]) -> list[Durations]:
    """Of the `time` facts of one virtual host.

    Nearest-rank percentiles: the least bucket that so many percent of the durations are not above.
    """
    if table.num_rows == 0:
        return []
    queues, queue_codes = encode(table["queue"])
    names, name_codes = encode(table["name"])
    window, bucket = to_ints(table["window_start"]), to_ints(table["bucket"])
    order = np.lexsort((bucket, name_codes, queue_codes, window))
    window, bucket, queue_codes, name_codes = (a[order] for a in (window, bucket, queue_codes, name_codes))
    ends, counts, totals, longest, uids = (
        to_ints(table[name])[order] for name in ("window_end", "count", "total_us", "longest_us", "last_uid")
    )
    is_new = (np.diff(window) != 0) | (np.diff(queue_codes) != 0) | (np.diff(name_codes) != 0)
    first = np.flatnonzero(np.append(True, is_new))
    last = np.append(first[1:], len(window)) - 1
    up_to = np.cumsum(counts)
    before = up_to[first] - counts[first]
    of_all = up_to[last] - before
    most = np.maximum.reduceat(longest, first)
    ranks = [np.searchsorted(up_to, before + -(-of_all * percent // 100)) for percent in percents]
    values = [np.minimum(bucket_values(bucket[rank]), most).tolist() for rank in ranks]
    in_last = np.where(bucket == np.repeat(bucket[last], last - first + 1), uids, 0)
    slowest = np.maximum.reduceat(in_last, first)
    means = np.add.reduceat(totals, first) / of_all
    return [
        Durations(
            int(window[at]), int(ends[at]), queues[queue_codes[at]], names[name_codes[at]], int(of_all[place]),
            float(means[place]), tuple(value[place] for value in values), int(most[place]), int(slowest[place]),
        )
        for place, at in enumerate(first.tolist())
    ]  # fmt: skip
