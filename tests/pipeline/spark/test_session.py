"""What a session is set to. That it works is shown by every test with Spark."""

from __future__ import annotations

import pytest

from warrenmq.pipeline.spark import session
from warrenmq.pipeline.spark.session import SparkNotInstalled, is_local, local_cores, require_spark, session_conf


@pytest.mark.parametrize(
    ("master", "is_here"),
    [
        ("local", True),
        ("local[4]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://spark.example:7077", False),
        ("yarn", False),
        ("k8s://https://example:6443", False),
    ],
)
def test_only_a_master_of_this_machine_is_bound_to_loopback(master: str, is_here: bool) -> None:
    assert is_local(master) == is_here
    assert (session_conf(master).get("spark.driver.host") == "127.0.0.1") == is_here


def test_a_local_master_says_how_many_tasks_run_at_once() -> None:
    assert (local_cores("local"), local_cores("local[3]"), local_cores("local[2,4]")) == (1, 3, 2)
    assert local_cores("local[*]") >= 1


def test_stacks_are_deep_enough_for_a_stop_and_logs_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert session.LOGGING.is_file()
    first, logging, last = session_conf("local[2]", "-Xmx1g")["spark.driver.extraJavaOptions"].split()
    assert (first, last) == ("-Xss8m", "-Xmx1g")
    assert logging == f"-Dlog4j2.configurationFile={session.LOGGING.as_uri()}"
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert session_conf("local[2]")["spark.driver.extraJavaOptions"] == "-Xss8m"


def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SparkNotInstalled, match=r"pip install 'warrenmq\[spark\]'"):
        require_spark()
