"""One SparkSession for all tests of a process: starting one takes seconds.

Tests that take the fixture `spark` are skipped, with the reason, where pyspark or Java is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from warrenmq.pipeline.spark.java import JavaNotFound
from warrenmq.pipeline.spark.session import QUICK_START_OPTIONS, SparkNotInstalled, make_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SPARK_TEST_LIMIT = 600  # seconds: a JVM on a machine with other work takes its time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Spark may take longer than others, unless they say how long themselves."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_LIMIT))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two cores of this machine, UTC, no page, small plans; set up as `warren analyze` sets it up."""
    try:
        session = make_session(
            "local[2]",
            "WarrenMQ tests",
            conf={"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"},
            java_options=QUICK_START_OPTIONS,
        )
    except (SparkNotInstalled, JavaNotFound) as missing:
        pytest.skip(str(missing).replace("\n", " "))
    yield session
    session.stop()
