"""Answer: the jobs of the analysis, from facts to answers, one file each. `job.py` defines a job."""

from __future__ import annotations

from collections.abc import Iterable

from warrenmq.pipeline.jobs import (
    anomalies,
    backlog,
    consumers,
    dead_letters,
    duplicates,
    failures,
    flow,
    hot_keys,
    latency,
    priorities,
    retries,
    sessions,
    throughput,
    unroutable,
)
from warrenmq.pipeline.jobs.job import Job

ALL: tuple[Job, ...] = (
    throughput.JOB,
    latency.JOB,
    priorities.JOB,
    backlog.JOB,
    failures.JOB,
    retries.JOB,
    dead_letters.JOB,
    hot_keys.JOB,
    flow.JOB,
    consumers.JOB,
    duplicates.JOB,
    unroutable.JOB,
    anomalies.JOB,
    sessions.JOB,
)


def by_name(names: Iterable[str]) -> tuple[Job, ...]:
    """Return the jobs of these names, in the order of ALL."""
    chosen = set(names)
    unknown = chosen - {job.name for job in ALL}
    if unknown:
        known = ", ".join(job.name for job in ALL)
        raise ValueError(f"there is no job {sorted(unknown)[0]!r}; the jobs are {known}")
    return tuple(job for job in ALL if job.name in chosen)


__all__ = ["ALL", "Job", "by_name"]
