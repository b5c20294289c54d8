"""The Python of docs/spark.md runs as it is written, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.pipeline.source.brokers import channel_to, declare_stream, publish
from warrenmq import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"


def test_the_examples_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    with Broker() as broker:
        publish(broker.url, "orders", ["one"])
        declare_stream(broker.url, "warren.events")
        declare_stream(broker.url, "totals")
        with channel_to(broker.url) as channel:
            channel.queue_declare("jobs")
            channel.publish("", "jobs", "one").result()
        names: dict[str, Any] = {"spark": spark, "url": broker.url, "totals": spark.range(2)}
        for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
            code = code.replace(DEFAULT_URL, broker.url).replace("/data/counts", str(tmp_path / "counts"))
            exec(compile(code, str(DOCUMENT), "exec"), names)
        assert names["orders"].isStreaming
        assert spark.read.parquet(str(tmp_path / "counts")).collect() == [("jobs", 1)]
        with channel_to(broker.url) as channel:
            assert channel.queue_declare("jobs", passive=True).message_count == 0
            assert channel.queue_declare("totals", passive=True).message_count == 2
