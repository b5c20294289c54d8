"""The Spark data source "warrenmq": creates readers and writers from options.

Spark discovers it through the package `pyspark_warrenmq`.
"""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from warrenmq.pipeline.source.columns import check_filter_fields, check_names, schema_of
from warrenmq.pipeline.source.options import ReadOptions, parse_read_options

NAME = "warrenmq"


class WarrenMQ(DataSource):
    """Streams as DataFrames, and DataFrames as messages (docs/spark.md)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return schema_of(parse_read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from warrenmq.pipeline.source.readers import BatchReader

        return BatchReader(self._read_options(schema, is_streaming=False), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from warrenmq.pipeline.source.readers import StreamReader

        return StreamReader(self._read_options(schema, is_streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from warrenmq.pipeline.sink.writer import BatchWriter, parse_write_options

        return BatchWriter(parse_write_options(self.options, schema, overwrite=overwrite, is_streaming=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from warrenmq.pipeline.sink.writer import StreamWriter, parse_write_options

        return StreamWriter(parse_write_options(self.options, schema, overwrite=overwrite, is_streaming=True))

    def _read_options(self, schema: StructType, *, is_streaming: bool) -> ReadOptions:
        options = parse_read_options(self.options, is_streaming=is_streaming)
        check_filter_fields(options)
        check_names(options, schema.fieldNames())
        return options
