"""Percentiles of durations from facts of kind `time`: exact counts in logarithmic buckets (count/histograms.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from warrenmq.pipeline.facts import GROWTH
from warrenmq.pipeline.jobs.tables import Ints, encode, to_ints


@dataclass(frozen=True, slots=True)
class DurationStats:
    """Of one window, queue and measure. `slowest`: uid of one of the slowest messages."""

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
    """Return the value that represents a bucket: at most 2 % from any duration in it, or 1 us."""
    middles = np.round(2 / (GROWTH + 1) * np.power(GROWTH, buckets.astype(np.float64)))
    return np.where(buckets == 0, 1, middles).astype(np.int64)


def duration_stats(table: pa.Table, percents: Sequence[int]) -> list[DurationStats]:
    """Return the statistics of the `time` facts of one virtual host, with nearest-rank percentiles."""
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
    cumulative = np.cumsum(counts)
    before = cumulative[first] - counts[first]
    total = cumulative[last] - before
    longest_of = np.maximum.reduceat(longest, first)
    ranks = [np.searchsorted(cumulative, before + -(-total * percent // 100)) for percent in percents]
    values = [np.minimum(bucket_values(bucket[rank]), longest_of).tolist() for rank in ranks]
    in_last_bucket = np.where(bucket == np.repeat(bucket[last], last - first + 1), uids, 0)
    slowest = np.maximum.reduceat(in_last_bucket, first)
    means = np.add.reduceat(totals, first) / total
    return [
        DurationStats(
            int(window[at]), int(ends[at]), queues[queue_codes[at]], names[name_codes[at]], int(total[group]),
            float(means[group]), tuple(value[group] for value in values), int(longest_of[group]), int(slowest[group]),
        )
        for group, at in enumerate(first.tolist())
    ]  # fmt: skip
