from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from warrenmq.pipeline import jobs
from warrenmq.pipeline.options import AnalysisOptions, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 seconds", 10), ("1 minute", 60), ("2 hours", 7200), ("500 milliseconds", 0.5)]
)
def test_lengths_of_time_are_read_as_spark_writes_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["10", "10s", "0 seconds", "-1 seconds", "a minute", ""])
def test_what_is_no_length_of_time_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write '10 seconds'"):
        AnalysisOptions(window=text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": "2 hours"},
        {"top": 0},
        {"threshold": 0.0},
        {"depth_limit": -1},
        {"lateness": "x"},
        {"stuck_after": -1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=r"\w"):
        AnalysisOptions(**wrong)


def test_jobs_are_found_by_name_and_an_unknown_one_is_answered_with_the_known():
    assert [job.name for job in jobs.by_name(["flow", "throughput"])] == ["throughput", "flow"]
    with pytest.raises(ValueError, match="no job 'nonsense'; the jobs are throughput, latency"):
        jobs.by_name(["nonsense"])
