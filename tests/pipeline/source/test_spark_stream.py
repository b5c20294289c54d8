"""`spark.readStream.format("warrenmq")`: each record once, over restarts; limits; losses.

Queries are ended by availableNow; what a batch held is kept by foreachBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.source.brokers import fill_and_trim, publish, small_pages
from tests.pipeline.source.queries import finish
from warrenmq import Broker
from warrenmq.pipeline import streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


class Batches:
    """What each batch held, as (stream, offset). Raises once in the batch of this number, before it is kept."""

    def __init__(self, fails_at: int = -1) -> None:
        self.rows: dict[int, list[tuple[str, int]]] = {}
        self._fails_at = fails_at

    def __call__(self, frame: DataFrame, number: int) -> None:
        rows = [(row.stream, row.offset) for row in frame.select("stream", "offset").collect()]
        if number == self._fails_at:
            raise RuntimeError("killed in the middle")
        self.rows[number] = sorted(rows)

    @property
    def all(self) -> list[tuple[str, int]]:
        return sorted(row for rows in self.rows.values() for row in rows)


def start(frame: DataFrame, checkpoint: Path, function: Callable[[Any, int], None]) -> StreamingQuery:
    query = frame.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    return query.trigger(availableNow=True).start()


def run(frame: DataFrame, checkpoint: Path, function: Callable[[Any, int], None]) -> StreamingQuery:
    return finish(lambda: start(frame, checkpoint, function))


def offsets(stream: str, first: int, end: int) -> list[tuple[str, int]]:
    return [(stream, offset) for offset in range(first, end)]


def test_each_record_once_over_failures_and_restarts(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    publish(broker.url, "once", map(str, range(100)))
    publish(broker.url, "beside", map(str, range(20)))
    frame = streams(
        spark,
        broker.url,
        ["once", "beside"],
        streaming=True,
        startingOffsets="earliest",
        maxRecordsPerBatch=30,
        columns=["stream", "offset"],
    )
    batches = Batches(fails_at=2)
    with pytest.raises(Exception, match="killed in the middle"):
        run(frame, tmp_path, batches)
    assert batches.rows.keys() == {0, 1}
    assert [len(rows) for rows in batches.rows.values()] == [30, 30]  # by the limit, shared: 25 and 5
    publish(broker.url, "once", map(str, range(100, 110)))
    again = Batches()

    def work(rows: DataFrame, number: int) -> None:
        """What comes while it runs is left for the next run."""
        again(rows, number)
        publish(broker.url, "once", ["more"])

    query = run(frame, tmp_path, work)
    assert min(again.rows) == 2
    batches.rows |= again.rows
    assert batches.all == offsets("beside", 0, 20) + offsets("once", 0, 110)
    assert query.lastProgress is not None
    assert '"once": 110' in str(query.lastProgress["sources"][0]["latestOffset"]).replace("'", '"')


def test_a_lost_range_fails_or_is_skipped(spark: SparkSession, tmp_path: Path) -> None:
    with small_pages(tmp_path / "data") as broker:
        total = fill_and_trim(broker.url, "trimmed")
        options = {"startingOffsets": '{"trimmed": 0}', "columns": ["stream", "offset"]}
        frame = streams(spark, broker.url, "trimmed", streaming=True, **options)
        with pytest.raises(Exception, match="records of the stream 'trimmed' are gone, from offset 0"):
            run(frame, tmp_path / "a", Batches())
        batches = Batches()
        frame = streams(spark, broker.url, "trimmed", streaming=True, failOnDataLoss=False, **options)
        run(frame, tmp_path / "b", batches)
        kept = [offset for _, offset in batches.all]
        assert 0 < len(kept) < total
        assert kept == list(range(total - len(kept), total))
