"""The event log counted where it is read: the readers as Spark calls them, over a real broker, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'warrenmq[spark]'")

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tests.pipeline.source.brokers import publish
from tests.support.history import History, make_history
from warrenmq import Broker
from warrenmq.events.schema import STREAM_NAME
from warrenmq.pipeline import facts
from warrenmq.pipeline.count import partials
from warrenmq.pipeline.count.count_events import MATCH_PARTITIONS, CountSpec
from warrenmq.pipeline.count.datasource import EventCountSource
from warrenmq.pipeline.errors import BadOption, BadPayload
from warrenmq.pipeline.merge.facts import facts_from_events, facts_from_partials
from warrenmq.pipeline.options import AnalysisOptions

OPTIONS = AnalysisOptions()
ALL = CountSpec.of(OPTIONS, facts.ALL, MATCH_PARTITIONS)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def history() -> History:
    return make_history(800, seconds=120.0, seed=4)


@pytest.fixture(scope="module")
def broker(history: History) -> Iterator[Broker]:
    with Broker() as running:
        history.publish(running.url, rows=300)
        publish(running.url, "others", ["no arrow"])
        yield running


def source(broker: Broker, counting: CountSpec = ALL, **more: str) -> EventCountSource:
    options = {"url": broker.url, "stream": STREAM_NAME, "payload": "arrow", "counting": counting.to_json()} | more
    return EventCountSource(options)


def read(reader: Any, partitions: Any) -> list[partials.Partial]:
    travelled = pickle.loads(pickle.dumps(reader))  # executors get it pickled
    batches = [batch for partition in partitions for batch in travelled.read(partition)]
    return partials.partials_from_rows(pa.Table.from_batches(batches))


def facts_in(found: list[partials.Partial]) -> dict[Any, tuple[int, int]]:
    """Count and total time by the keys of a fact; parts of a window are added up."""
    places: dict[tuple[str, int], list[partials.Partial]] = {}
    for piece in found:
        if piece.kind != partials.TOTALS:
            places.setdefault((piece.kind, piece.key), []).append(piece)
    return added_up([row for some in places.values() for row in facts_from_partials(some, OPTIONS).to_pylist()])


def added_up(rows: list[Row]) -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for row in rows:
        key = tuple(row[name] for name in facts.FACT_KEYS if name != "part")
        count, total = found.get(key, (0, 0))
        found[key] = (count + row["count"], total + (row["total_us"] or 0))
    return found


def test_a_batch_read_in_several_tasks_yields_the_facts_of_all_events(broker: Broker, history: History) -> None:
    reader = source(broker, partitions="4").reader(None)  # type: ignore[arg-type]
    partitions = reader.partitions()
    assert len(partitions) == 4
    found = read(reader, partitions)
    assert sum(piece.events for piece in found) == history.rows
    assert max(piece.newest for piece in found) == int(history.columns["time"].max())
    assert facts_in(found) == added_up(facts_from_events(history.table(), OPTIONS).to_pylist())


def test_a_streaming_read_returns_the_same(broker: Broker, history: History) -> None:
    reader = source(broker, startingOffsets="earliest").streamReader(None)  # type: ignore[arg-type]
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        found = read(reader, reader.partitions(start, end))
    finally:
        reader.stop()
    assert facts_in(found) == added_up(facts_from_events(history.table(), OPTIONS).to_pylist())


def test_only_events_of_the_range_are_counted(broker: Broker, history: History) -> None:
    times = history.columns["time"]
    middle = int(times[0]) // 60_000_000 * 60_000_000 + 60_000_000
    early = replace(ALL, end=middle, id_end=middle)
    late = replace(ALL, start=middle, id_start=middle)
    counted = [sum(piece.events for piece in read(r, r.partitions())) for r in readers(broker, early, late)]
    assert counted == [int((times < middle).sum()), int((times >= middle).sum())]
    assert all(counted)


def readers(broker: Broker, *countings: CountSpec) -> list[Any]:
    return [source(broker, counting).reader(None) for counting in countings]  # type: ignore[arg-type]


def test_nothing_to_read_is_no_piece(broker: Broker) -> None:
    reader = source(broker).reader(None)  # type: ignore[arg-type]
    assert list(reader.read(InputPartition(None))) == []


def test_a_body_that_is_not_arrow_is_reported_with_its_offset(broker: Broker) -> None:
    reader = source(broker, stream="others", schema="time timestamp").reader(None)  # type: ignore[arg-type]
    with pytest.raises(BadPayload, match="offset 0 of 'others' is not an Arrow IPC stream"):
        read(reader, reader.partitions())


def test_its_own_option_is_none_of_the_public_source(broker: Broker) -> None:
    from warrenmq.pipeline.source.options import parse_read_options

    with pytest.raises(BadOption, match="no option `counting`"):
        parse_read_options({"url": broker.url, "stream": STREAM_NAME, "counting": "{}"})
