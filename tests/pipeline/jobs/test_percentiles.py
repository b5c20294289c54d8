"""Percentiles from buckets, beside exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.pipeline.jobs.rows import fact, fact_table
from warrenmq.pipeline.facts import GROWTH
from warrenmq.pipeline.jobs.percentiles import duration_stats

PERCENTS = (50, 90, 95, 99)


def facts_of_durations(durations, window=0, name="waiting", part=0):
    """As facts_of counts them."""
    found = {}
    for uid, duration in enumerate(durations, 1):
        bucket = 0 if duration <= 1 else math.ceil(math.log(duration) / math.log(GROWTH))
        row = found.setdefault(
            bucket,
            fact("time", window, queue="q", name=name, bucket=bucket, part=part, total_us=0, longest_us=0, last_uid=0),
        )
        row["count"] += 1
        row["total_us"] += duration
        row["longest_us"] = max(row["longest_us"], duration)
        row["last_uid"] = uid
    return list(found.values())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
def test_percentiles_are_within_two_percent_of_the_exact_ones(seed, spread):
    draw = np.random.default_rng(seed)
    durations = np.ceil(draw.lognormal(8, spread, 5000)).astype(int).tolist()
    [found] = duration_stats(fact_table(facts_of_durations(durations)), PERCENTS)
    exact = [int(np.percentile(durations, percent, method="inverted_cdf")) for percent in PERCENTS]
    for value, true in zip(found.percentiles_us, exact, strict=True):
        assert abs(value - true) <= 0.02 * true + 1, f"seed {seed}: {value} instead of {true}"
    assert (found.count, found.longest_us) == (5000, max(durations))
    assert found.mean_us == pytest.approx(sum(durations) / 5000)


def test_parts_of_a_window_are_one_distribution():
    durations = list(range(1, 1001))
    whole = duration_stats(fact_table(facts_of_durations(durations)), PERCENTS)
    parts = facts_of_durations(durations[:300], part=4) + facts_of_durations(durations[300:], part=9)
    in_parts = duration_stats(fact_table(parts), PERCENTS)
    assert [some.percentiles_us for some in in_parts] == [some.percentiles_us for some in whole]
    assert in_parts[0].count == 1000


def test_windows_and_measures_are_kept_apart():
    rows = facts_of_durations([100] * 10) + facts_of_durations([5000] * 10, window=1)
    rows += facts_of_durations([9], name="end_to_end")
    found = {(some.window_us, some.name): some for some in duration_stats(fact_table(rows), PERCENTS)}
    assert len(found) == 3
    assert sorted(some.longest_us for some in found.values()) == [9, 100, 5000]


def test_a_percentile_is_never_above_the_longest_and_nothing_takes_no_time():
    for longest in range(90, 120):
        [found] = duration_stats(fact_table(facts_of_durations([0, 0, 1, longest])), PERCENTS)
        assert found.percentiles_us[0] == 1
        assert longest * 0.98 - 1 <= found.percentiles_us[-1] <= longest
    assert duration_stats(fact_table([]), PERCENTS) == []


def test_the_example_is_one_of_the_slowest():
    [found] = duration_stats(fact_table(facts_of_durations([50, 60_000, 70])), PERCENTS)
    assert found.slowest == 2
