"""What the tests of the analysis share: events in Parquet files instead of a broker, one job."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from warrenmq.events import schema
from warrenmq.pipeline import facts
from warrenmq.pipeline.count import partials
from warrenmq.pipeline.count.count_events import CountSpec, count_events
from warrenmq.pipeline.count.partials import Partial
from warrenmq.pipeline.jobs.job import Job, arrow_job, for_all_windows
from warrenmq.pipeline.jobs.tables import INT, TEXT, WINDOW, WINDOW_COLUMNS, aggregate, left_join, where, with_columns
from warrenmq.pipeline.options import AnalysisOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 16, 10, 0, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")
TYPES = {schema.TIME: TIME, schema.INT8: pa.int8(), schema.INT32: pa.int32(), schema.INT64: pa.int64()}
EVENTS = pa.schema([(column.name, TYPES.get(column.type, pa.string())) for column in schema.COLUMNS])
SPARK_TYPES = {schema.TIME: "timestamp", schema.INT8: "tinyint", schema.INT32: "int", schema.INT64: "bigint"}
DDL = ", ".join(f"{column.name} {SPARK_TYPES.get(column.type, 'string')}" for column in schema.COLUMNS)


def event(second: float, kind: int, **columns: Any) -> dict[str, Any]:
    """One event, N seconds after START."""
    time = START + timedelta(seconds=second)
    return {"time": time, "kind": kind, "uid": 1, "vhost": "/", "exchange": "shop", "publish_time": time} | columns


def publishes(second: float, count: int, key: str = "orders.eu") -> list[dict[str, Any]]:
    return [event(second, schema.PUBLISHED, uid=number + 1, routing_key=key, size=10) for number in range(count)]


class ParquetEvents:
    """Events in files of a folder; a streaming read takes them in the order in which they were written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        folder.mkdir()

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        table = pa.table({name: [row.get(name) for row in rows] for name in EVENTS.names}, EVENTS)
        self._files += 1
        path = self._folder / f".{self._files:04}.parquet"
        parquet.write_table(table, path)
        os.utime(path, (1e9 + self._files, 1e9 + self._files))  # Spark reads them in this order
        path.rename(self._folder / path.name[1:])

    def between(self, spark: SparkSession, counting: CountSpec) -> DataFrame:
        return _counted(spark.read.schema(DDL).parquet(str(self._folder)), counting)

    def since(self, spark: SparkSession, counting: CountSpec) -> DataFrame:
        reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return _counted(reader.parquet(str(self._folder)), counting)


def _counted(events: DataFrame, counting: CountSpec) -> DataFrame:
    return events.mapInArrow(lambda batches: count_events(batches, counting), partials.DDL)


def pieces_of(
    rows: Sequence[dict[str, Any]], settings: AnalysisOptions, wanted: Iterable[str] = facts.ALL
) -> list[Partial]:
    """What a micro-batch with these events brings."""
    table = pa.Table.from_pylist(list(rows), EVENTS)
    found = pa.Table.from_batches(count_events(table.to_batches(), CountSpec.of(settings, wanted)))
    return partials.partials_from_rows(found)


def count_job(needs: Iterable[str] = ("step",)) -> Job:
    """How many events of each kind there were, in this window and in that before: an answer with a history."""
    columns = WINDOW_COLUMNS | {"kind": TEXT, "count": INT, "before": INT}
    keys = ("window_start", "kind")
    answer = for_all_windows(count_with_history)
    return arrow_job("counts", "Counts", keys, answer, columns, "table", frozenset(needs), one_window)


def one_window(settings: AnalysisOptions) -> float:
    return settings.window_seconds


def count_with_history(found: pa.Table, settings: AnalysisOptions) -> pa.Table:
    here = aggregate(where(found, fact="step"), (*WINDOW, "kind"), count="sum")
    before = with_columns(here, window_start=here["window_end"], before=here["count"]).select(
        ["window_start", "kind", "before"]
    )
    both = left_join(here, before, ["window_start", "kind"])
    return with_columns(both, before=both["before"].fill_null(0))


class Heard:
    """The documents that would have gone to a broker, and what a reader of the stream makes of them."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []

    def write(self, *documents: dict[str, Any]) -> None:
        self.documents += documents

    def states(self) -> list[str]:
        return [row["state"] for document in self.documents if document["job"] == "status" for row in document["rows"]]

    def rows(self, job: str) -> list[dict[str, Any]]:
        """As a reader keeps them: windows that a document names are replaced, rows are kept by their keys."""
        return kept_rows([document for document in self.documents if document["job"] == job])


def kept_rows(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    last: tuple[Any, ...] = ()
    for document in documents:
        this = (document["run"], document["batch"])
        if this != last:
            gone = set(document["windows"])
            kept = {key: row for key, row in kept.items() if row["window_start"] not in gone}
        last = this
        for row in document["rows"]:
            kept[tuple(row[key] for key in document["keys"])] = row
    return [kept[key] for key in sorted(kept, key=str)]
