"""The Python that Spark starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from warrenmq.pipeline.spark.launchers import python_launcher

ASK = "import os, sys; print(sys.executable); print(os.environ['PYTHONPATH']); print(sys.argv[1:])"


def test_it_is_this_python_without_the_zipped_copy_of_pyspark(tmp_path: Path) -> None:
    program = python_launcher(tmp_path / "a cache")
    given = f"/spark/python/lib/pyspark.zip:/my own:/spark/python/lib/py4j-0.10-src.zip::{tmp_path}"
    told = subprocess.run(
        [program, "-c", ASK, "two words", "*"], env={"PYTHONPATH": given}, capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines() == [sys.executable, f"/my own:{tmp_path}", "['two words', '*']"]
    assert program.stat().st_mode & 0o077 == 0
    assert python_launcher(tmp_path / "a cache") == program


def test_each_environment_has_its_own(tmp_path: Path) -> None:
    assert python_launcher(tmp_path, "/a/bin/python") != python_launcher(tmp_path, "/b/bin/python")
