"""What counts as unusual in a series: no Spark is needed to know."""

from __future__ import annotations

import math
import random

import pytest

from tests.pipeline.jobs.rows import at
from warrenmq.pipeline.jobs.detection import MEASURES, Point, find_changes, sentence
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()
PUBLISHED, WAITING, FAILED = MEASURES["published"], MEASURES["waiting_p95"], MEASURES["failed"]


def points(values, noises=None):
    noises = noises or [0.0] * len(values)
    return [
        Point(10_000_000 * number, 10_000_000 * (number + 1), value, 0, 0, noise=noise)
        for number, (value, noise) in enumerate(zip(values, noises, strict=True))
    ]


def changes(values, measure=PUBLISHED, settings=OPTIONS, noises=None):
    return [(found.reported, found.observed) for found in find_changes(points(values, noises), measure, settings)]


def test_a_spike_is_reported_when_it_begins_and_once():
    assert changes([100.0] * 20 + [900.0] * 5 + [100.0] * 10) == [(20, 20)]


def test_a_value_that_is_far_but_less_than_double_is_not_reported():
    assert changes([100.0] * 20 + [195.0]) == []


def test_a_drop_is_reported_one_window_later_as_a_window_fills_slowly():
    assert changes([100.0] * 20 + [3.0]) == []
    assert changes([100.0] * 20 + [3.0, 0.0, 0.0]) == [(21, 20)]


def test_times_that_fall_are_good_news():
    assert changes([50_000.0] * 20 + [1000.0] * 5, WAITING) == []


def test_a_lasting_anomaly_is_reported_again_only_when_it_doubles():
    assert changes([2000.0] * 20 + [90_000.0] * 3 + [100_000.0] * 3 + [400_000.0] * 3, WAITING) == [(20, 20), (26, 26)]


def test_percentiles_of_few_times_are_no_news():
    values = [2000.0] * 20 + [20_000.0]
    assert changes(values, WAITING, noises=[0.1] * 21)
    assert not changes(values, WAITING, noises=[0.5] * 21)


@pytest.mark.parametrize("spread", [0.4, 0.8, 1.2])
def test_times_that_vary_by_chance_are_not_reported(spread):
    """An hour of windows with some 12 times each, of which the 95th percentile is taken."""
    told = 0
    for seed in range(20):
        draw = random.Random(seed)
        counts = [draw.randint(10, 14) for _ in range(360)]
        values = [sorted(2000 * math.exp(draw.gauss(0, spread)) for _ in range(count))[-1] for count in counts]
        told += len(changes(values, WAITING, noises=[count**-0.5 for count in counts]))
    assert told == 0, f"{told} in {20} hours"


def test_few_windows_say_nothing_about_what_is_usual():
    assert changes([100.0] * 9 + [900.0]) == []
    assert changes([100.0] * 10 + [900.0]) == [(10, 10)]


def test_a_key_that_returns_after_a_long_silence_counts_as_new():
    """Else the answer would depend on events that a `--follow` may have forgotten."""
    silent = points([100.0] * 20 + [0.0] * 40 + [900.0])
    assert find_changes(silent, PUBLISHED, OPTIONS)[-1].reported == 60, "it was heard of all the time"
    for point in silent[20:60]:
        point.has_events = False
    assert find_changes(silent, PUBLISHED, OPTIONS)[-1].reported == 21, "that it fell"


def test_some_failures_among_none_are_noise_and_many_are_not():
    assert changes([0.0] * 20 + [8.0], FAILED) == []
    assert changes([0.0] * 20 + [10.0], FAILED) == [(20, 20)]


def test_a_key_that_varies_much_must_vary_more_to_be_reported():
    assert changes([60.0, 140.0] * 10 + [290.0]) == []
    assert changes([99.0, 101.0] * 10 + [290.0]) == [(20, 20)]


def test_counts_vary_by_their_root_at_least():
    assert changes([16.0] * 20 + [36.0]) == []
    assert changes([16.0] * 20 + [41.0]) == [(20, 20)]


def test_a_series_that_always_jumps_is_usual():
    assert changes([10.0, 400.0] * 30) == []


def test_the_new_level_becomes_usual_and_a_second_rise_is_reported():
    assert changes([100.0] * 20 + [400.0] * 60 + [4000.0] * 3) == [(20, 20), (80, 80)]


def test_the_baseline_reaches_back_as_far_as_the_settings_say():
    values = [5.0] * 20 + [300.0] * 30 + [5.0] * 30 + [300.0]
    assert changes(values, settings=AnalysisOptions(baseline_windows=12)) == [(20, 20), (51, 50), (80, 80)]
    assert changes(values, settings=AnalysisOptions(baseline_windows=60)) == [(20, 20)]


def test_bursts_that_come_again_and_again_are_usual():
    assert changes(([10.0] * 5 + [400.0]) * 12) in ([], [(11, 11)])
    assert changes([10.0] * 12 + [400.0]) == [(12, 12)]


def test_random_variation_is_not_reported():
    draw = random.Random(7)
    for rate in (0.5, 5, 50, 500):
        values = [float(sum(draw.random() < rate / 1000 for _ in range(1000))) for _ in range(400)]
        assert changes(values) == [], f"rate {rate}, seed 7"


@pytest.mark.parametrize(
    ("measure", "usual", "value", "said"),
    [
        (WAITING, 12_000.0, 4_100_000.0, "queue orders: waiting time p95 rose from 12 ms to 4.1 s at 10:03:00"),
        (PUBLISHED, 17_000.0, 5.0, "queue orders: publishes fell from 1,700/s to 0.5/s at 10:03:00"),
        (MEASURES["depth"], 0.0, 12_345.0, "queue orders: waiting messages rose from 0 to 12,345 at 10:03:00"),
        (WAITING, 250.0, 999.0, "queue orders: waiting time p95 rose from 250 µs to 999 µs at 10:03:00"),
    ],
)
def test_a_sentence_says_what_changed_from_what_to_what_and_when(measure, usual, value, said):
    assert sentence("queue", "orders", measure, value, usual, at(180), 10.0) == said
