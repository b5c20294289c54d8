"""What the tests of the analysis share: events in Parquet files instead of a broker, one collector, one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from warrenmq.events import schema
from warrenmq.pipeline.analysis.collectors import Collector
from warrenmq.pipeline.analysis.times import Range, iso
from warrenmq.pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 11, 16, 10, 0, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")
TYPES = {schema.TIME: TIME, schema.INT8: pa.int8(), schema.INT32: pa.int32(), schema.INT64: pa.int64()}
EVENTS = pa.schema([(column.name, TYPES.get(column.type, pa.string())) for column in schema.COLUMNS])
SPARK_TYPES = {schema.TIME: "timestamp", schema.INT8: "tinyint", schema.INT32: "int", schema.INT64: "bigint"}
DDL = ", ".join(f"{column.name} {SPARK_TYPES.get(column.type, 'string')}" for column in schema.COLUMNS)


def event(second: float, kind: int, **columns: Any) -> dict[str, Any]:
    """One event, so many seconds after START."""
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
        path.rename(self._folder / path.name[1:])

    def between(self, spark: SparkSession, covers: Range, columns: Sequence[str]) -> DataFrame:
        events = spark.read.schema(DDL).parquet(str(self._folder)).select(*columns)
        return events.where(f"time >= '{iso(covers.start)}' and time < '{iso(covers.end)}'")

    def since(self, spark: SparkSession, start: datetime, columns: Sequence[str]) -> DataFrame:
        reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder)).select(*columns).where(f"time >= '{iso(start)}'")


@dataclass(frozen=True)
class CountJob:
    """How many events of each kind there were, in this window and in that before: an answer with a history."""

    name: str = "counts"
    title: str = "Counts"
    keys: tuple[str, ...] = ("window_start", "kind")
    chart: str = "table"
    needs: frozenset[str] = frozenset({"step"})
    run: Callable[[Any, Settings], Any] = field(default_factory=lambda: count_with_history)

    def history(self, settings: Settings) -> float:
        return settings.window_seconds


def count_with_history(facts: DataFrame, settings: Settings) -> DataFrame:
    from pyspark.sql import functions

    here = facts.groupBy("window_start", "window_end", "kind").agg(functions.sum("count").alias("count"))
    before = here.select(
        functions.col("window_end").alias("window_start"), "kind", functions.col("count").alias("before")
    )
    return here.join(before, ["window_start", "kind"], "left").na.fill(0, ["before"])


def step_collector() -> Collector:
    from warrenmq.pipeline import facts

    return Collector(
        "facts",
        frozenset({"step", "key", "time"}),
        facts.EVENT_COLUMNS,
        "update",
        lambda settings: timedelta(seconds=settings.window_seconds),
        facts.facts_of,
        lambda changed, settings, batch: facts.bound(changed, settings),
    )


class Heard:
    """The documents that would have gone to a broker, and what a reader of the stream makes of them."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []

    def write(self, document: dict[str, Any]) -> None:
        self.documents.append(document)

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
