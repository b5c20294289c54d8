"""Every job over nothing, over one fact, and over facts or events of one kind only."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'warrenmq[spark]'")

from tests.pipeline.jobs.rows import event, event_table, fact, fact_table
from warrenmq.events import schema
from warrenmq.pipeline import facts as fact_kinds
from warrenmq.pipeline import jobs
from warrenmq.pipeline.jobs.answers import plain_rows
from warrenmq.pipeline.merge.facts import facts_from_events
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()
EVERY_JOB = pytest.mark.parametrize("job", jobs.ALL, ids=lambda job: job.name)
PLACE = {"exchange": "x", "routing_key": "k", "queue": "q", "depth": 1, "size": 1, "attempt": 2}
CONSUMER = {"consumer": "c", "connection": "n", "channel": 1}
IDS = {"message_id": "m", "correlation_id": "s", "priority": 5}


def rows_of(job, facts):
    """The answer as it is published; its columns are those of any other answer."""
    found = job.answer(facts, OPTIONS, 0)
    assert found.schema == job.answer(fact_table([]), OPTIONS, 0).schema
    return plain_rows(found)


@EVERY_JOB
def test_no_facts_give_an_answer_without_rows(job):
    assert rows_of(job, fact_table([])) == []


@EVERY_JOB
@pytest.mark.parametrize("kind_of_fact", sorted(fact_kinds.ALL))
def test_one_fact_is_answered(job, kind_of_fact):
    one = fact(kind_of_fact, 0, count=1, queue="q", exchange="x", name="1", kind="delivered")
    assert all(row["vhost"] == "/" for row in rows_of(job, fact_table([one])))


@EVERY_JOB
def test_events_of_one_kind_only_are_answered(job):
    """With all that an event can say, and with as little as possible."""
    for kind in schema.KIND_CODES:
        full = [event(second, kind, 64 * (second + 1), **PLACE, **CONSUMER, **IDS) for second in range(3)]
        bare = [event(second, kind) for second in range(3)]
        for rows in (full, bare, full[:1]):
            found = rows_of(job, facts_from_events(event_table(rows), OPTIONS))
            assert {row["window_start"] for row in found} <= {"2026-03-02T10:00:00.000000Z"}, kind
