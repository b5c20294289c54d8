"""The walks in docs/flows.md name functions and classes that exist, where they say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "warrenmq"
TEXT = (ROOT / "docs" / "flows.md").read_text()


def defined_names() -> set[str]:
    """Every class, `Class.member`, function and constant of the package."""
    names: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names |= names_of(node)
            if isinstance(node, ast.ClassDef):
                names |= {f"{node.name}.{member}" for each in ast.walk(node) for member in names_of(each)}
    return names


def names_of(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        plain = {target.id for target in targets if isinstance(target, ast.Name)}
        return plain | {target.attr for target in targets if isinstance(target, ast.Attribute)}
    return set()


NAMED = sorted(set(re.findall(r"`([A-Z]\w*(?:\.\w+)?|[a-z_]+_[a-z_]+)`", TEXT)))
FILES = sorted(set(re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", TEXT)))


def test_the_walks_name_something() -> None:
    assert len(NAMED) > 50


@pytest.mark.parametrize("path", FILES)
def test_named_files_exist(path: str) -> None:
    assert (SOURCE / path).exists() or (ROOT / path).exists()


def test_named_functions_exist() -> None:
    defined = defined_names()
    assert [name for name in NAMED if name not in defined] == []
