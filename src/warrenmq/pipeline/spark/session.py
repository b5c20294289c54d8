"""Makes a SparkSession for the analysis: any master, measured settings, nothing open to the network.

For programs that need a session of their own; an existing one (of a notebook) is not touched. Sets what Spark reads
from the environment of this process: JAVA_HOME, SPARK_LOCAL_IP, PYSPARK_PYTHON.
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
from warrenmq.pipeline.spark.launchers import python_launcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
INSTALL = "pip install 'warrenmq[spark]'"

LOGGING = Path(__file__).with_name("log4j2.properties")

# q.stop() while a foreachBatch runs overflows the default stack of the stream's thread.
DRIVER_JAVA_OPTIONS = "-Xss8m"

# For tests, where start-up matters more than throughput: the C1 compiler only, and a serial garbage collector.
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
    # Checksum files double the number of files in a checkpoint. (RocksDB state needs the default; the analysis keeps no
    # state in Spark.)
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Facts are a few thousand rows: replanning costs more than it gains.
    "spark.sql.adaptive.enabled": "false",
    # A busy machine may start Python workers late.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.master.rest.enabled": "false",
}


# For tables of a few thousand rows, where compiling and shuffling take longer than the rows themselves.
SMALL_TABLES = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class SparkNotInstalled(Exception):
    """pyspark or one of its dependencies is not installed; the text says what to do."""


def require_spark() -> None:
    """Raise SparkNotInstalled if Spark cannot be imported."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkNotInstalled(f"the analysis runs on Apache Spark, and {missing[0]} is not installed:\n    {INSTALL}")


def make_session(
    master: str = "local[*]",
    name: str = "WarrenMQ",
    *,
    conf: Mapping[str, str] | None = None,
    java_options: str = "",
    executor_environ: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on this master. `executor_environ` reaches executors, but no command line or plan."""
    require_spark()
    _prepare_environ(master)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    spark_conf = SparkConf().setMaster(master).setAppName(name)
    for key, value in (session_conf(master, java_options) | dict(conf or {})).items():
        spark_conf.set(key, value)
    # The settings so far are on the command line of the JVM, which all users of the machine can read: secrets come
    # later.
    SparkContext._ensure_initialized(conf=spark_conf)
    for key, value in (executor_environ or {}).items():
        spark_conf.set(f"spark.executorEnv.{key}", value)
    return SparkSession.builder.config(conf=spark_conf).getOrCreate()


@contextmanager
def running_session(
    master: str, name: str, conf: Mapping[str, str], executor_environ: Mapping[str, str]
) -> Iterator[SparkSession]:
    """Run a session until the end of the block. Local processes inherit the environment as well."""
    os.environ.update(executor_environ)
    spark = make_session(master, name, conf=conf, executor_environ=executor_environ)
    try:
        yield spark
    finally:
        spark.stop()


def small_table_session(spark: SparkSession) -> SparkSession:
    """Return a session of the same Spark for many short queries over small tables."""
    session = spark.newSession()
    for key, value in SMALL_TABLES.items():
        session.conf.set(key, value)
    return session


def session_conf(master: str, java_options: str = "") -> dict[str, str]:
    """Return the settings of a session on this master."""
    options = f"{DRIVER_JAVA_OPTIONS} {_logging_option()} {java_options}"
    conf = SETTINGS | {"spark.driver.extraJavaOptions": " ".join(options.split())}
    if is_local(master):
        conf |= {
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.sql.shuffle.partitions": str(min(local_cores(master), 8)),
        }
    return conf


def _logging_option() -> str:
    """A Spark configuration of the user's own decides what is logged."""
    return "" if "SPARK_CONF_DIR" in os.environ else f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"


def is_local(master: str) -> bool:
    """Return True if everything runs on this machine, so that nothing has to be reachable from outside."""
    return master.startswith("local") or f"//{LOOPBACK}:" in master or "//localhost:" in master


def local_cores(master: str) -> int:
    """Return how many tasks run at once: N of local[N], else all cores of this machine."""
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return int(inside)
    return 1 if master == "local" else os.cpu_count() or 1


def _prepare_environ(master: str) -> None:
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Executors run the Python of this process, not the first one on the PATH.
    program = str(python_launcher()) if is_local(master) else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", program)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", program)  # runs data sources beside the driver
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
