"""Makes the SparkSession of the pipeline: any master, settings that were measured, nothing open to the network.

A session that the caller has already (a notebook's) is not touched: this is for programs that need one of their own.
The environment of this process is given what Spark reads from it (JAVA_HOME, SPARK_LOCAL_IP, the Python to run).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from warrenmq.pipeline.spark.java import find_java
from warrenmq.pipeline.spark.python import python_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
INSTALL = "pip install 'warrenmq[spark]'"

LOGGING = Path(__file__).with_name("log4j2.properties")

# q.stop() while a foreachBatch runs overflows the default stack of the stream's thread.
DRIVER_JAVA_OPTIONS = "-Xss8m"

# Start-up counts more than speed in tests: the first compiler only, and no threads for collecting garbage.
QUICK_START_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # The default manager forks `chmod` for every file of a checkpoint: 309 ms for a micro-batch, this one 192 ms.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Checksums in files of their own double the files of a checkpoint. (State in RocksDB cannot do without the default;
    # the analysis keeps no state in Spark.)
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Facts are some thousand rows: replanning them costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # A Python worker that a busy machine starts late is no reason to fail a query.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.master.rest.enabled": "false",
}


# For tables of some thousand rows: compiling code for each plan and shuffling them about takes longer than the rows do.
SMALL_TABLES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class SparkMissing(Exception):
    """pyspark, or what it needs, is not installed; the text says what to do."""


def require_spark() -> None:
    """Raise SparkMissing where Spark cannot be imported."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(f"the analysis runs on Apache Spark, and {missing[0]} is not installed:\n    {INSTALL}")


def make_session(
    master: str = "local[*]",
    name: str = "WarrenMQ",
    *,
    settings: Mapping[str, str] | None = None,
    java_options: str = "",
    executor_environ: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this master. What is in `executor_environ` reaches executors and no command line or plan."""
    require_spark()
    _prepare_environ(master)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setMaster(master).setAppName(name)
    for key, value in (session_settings(master, java_options) | dict(settings or {})).items():
        conf.set(key, value)
    # The JVM starts with these on its command line, which every user of the machine can read: secrets come after.
    SparkContext._ensure_initialized(conf=conf)
    for key, value in (executor_environ or {}).items():
        conf.set(f"spark.executorEnv.{key}", value)
    return SparkSession.builder.config(conf=conf).getOrCreate()


@contextmanager
def running_session(
    master: str, name: str, settings: Mapping[str, str], executor_environ: Mapping[str, str]
) -> Iterator[SparkSession]:
    """A session that ends with the block. What runs on this machine inherits the environment as well."""
    os.environ.update(executor_environ)
    spark = make_session(master, name, settings=settings, executor_environ=executor_environ)
    try:
        yield spark
    finally:
        spark.stop()


def small_tables(spark: SparkSession) -> SparkSession:
    """A session of the same Spark, set up for many short queries over small tables."""
    session = spark.newSession()
    for key, value in SMALL_TABLES.items():
        session.conf.set(key, value)
    return session


def session_settings(master: str, java_options: str = "") -> dict[str, str]:
    """What a session on this master is set to."""
    options = f"{DRIVER_JAVA_OPTIONS} {_logging_option()} {java_options}"
    chosen = SETTINGS | {"spark.driver.extraJavaOptions": " ".join(options.split())}
    if is_local(master):
        chosen |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": str(min(local_cores(master), 8)),
        }
    return chosen


def _logging_option() -> str:
    """A user who has a configuration of Spark's own says there what is logged."""
    return "" if "SPARK_CONF_DIR" in os.environ else f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"


def is_local(master: str) -> bool:
    """Whether everything runs on this machine: nothing then has to be reached from elsewhere."""
    return master.startswith("local") or f"//{LOOPBACK}:" in master or "//localhost:" in master


def local_cores(master: str) -> int:
    """How many tasks run at once: N of local[N], all cores of local[*], else the cores of this machine."""
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return int(inside)
    return 1 if master == "local" else os.cpu_count() or 1


def _prepare_environ(master: str) -> None:
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Executors run the Python of this process, not the first one of the PATH.
    program = str(python_program()) if is_local(master) else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", program)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", program)  # what a source runs on beside the driver
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
