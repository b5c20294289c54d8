"""The Python that Spark starts on this machine: this one, without the zipped copy of pyspark that Spark puts first.

Nothing in that zip file is compiled, so each of Spark's Python processes would compile all of it: 1.5 s of a core
before it connects instead of 0.45 s, and Spark gives it ten seconds, however busy the machine is. The installed package
is the same code.
"""

from __future__ import annotations

import shlex
import sys
from hashlib import sha256
from pathlib import Path

from warrenmq.pipeline.spark.scripts import cache_folder, put_script


def python_program(cache: Path | None = None, executable: str = sys.executable) -> Path:
    """A program that is this Python, for PYSPARK_PYTHON; one for each environment."""
    name = f"python-{sha256(executable.encode()).hexdigest()[:12]}"
    return put_script((cache or cache_folder()) / "python" / name, _text(executable))


def _text(executable: str) -> str:
    return f"""#!/bin/sh
# Written by WarrenMQ: runs Python with the installed pyspark, which is compiled, not with Spark's zipped copy of it.
left=$PYTHONPATH: kept=
while [ -n "$left" ]; do
  part=${{left%%:*}} left=${{left#*:}}
  case $part in
    ''|*/python/lib/pyspark.zip|*/python/lib/py4j-*-src.zip) ;;
    *) kept=${{kept:+$kept:}}$part ;;
  esac
done
export PYTHONPATH="$kept"
# What pandas says of Spark's own use of it is nothing that a user could act on.
export PYTHONWARNINGS="${{PYTHONWARNINGS:+$PYTHONWARNINGS,}}ignore::FutureWarning:pyspark.worker"
exec {shlex.quote(executable)} "$@"
"""
