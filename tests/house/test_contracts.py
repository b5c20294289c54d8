"""The house stays as drawn: who imports whom, how large a file is, what lies beside a compiled module."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "warrenmq"
DECLARATIONS = sorted(SOURCE.rglob("*.pxd"))
LONGEST_FILE = 600


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_imports_keep_to_the_contracts() -> None:
    # In a process of its own: the linter reconfigures logging, which silences the package's loggers for later tests.
    lint = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    outcome = subprocess.run([sys.executable, "-c", lint], capture_output=True, text=True, cwd=ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=name_of)
def test_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text()
    docstring = ast.get_docstring(ast.parse(text))
    assert docstring, "a module opens by saying what it is"
    if "Written by tools/" not in docstring:
        assert len(text.splitlines()) <= LONGEST_FILE, "which noun wants its own room?"


@pytest.mark.parametrize("path", DECLARATIONS, ids=name_of)
def test_declared_attributes_are_the_slots_of_the_class(path: Path) -> None:
    declared = declared_classes(path.read_text())
    slots = slotted_classes(path.with_suffix(".py").read_text())
    assert {name: declared[name] for name in declared} == {name: slots.get(name) for name in declared}


def test_every_module_with_declarations_is_listed_as_hot_and_no_other() -> None:
    hot = next(
        statement.value
        for statement in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "HOT_MODULES"
    )
    assert isinstance(hot, ast.Dict)
    listed = [ast.literal_eval(key) for key in hot.keys if key is not None]
    assert sorted(listed) == sorted(name_of(path.with_suffix("")).replace("/", ".") for path in DECLARATIONS)


def test_declaration_parser_reads_what_cython_reads() -> None:
    text = """
cimport cython

@cython.final
cdef class Point(Base):
    cdef public long long x, y
    cdef readonly bytes name  # why
    cdef dict _table
    @cython.locals(a=int)
    cpdef move(self, int a)
    cdef bint _hidden(self)

cpdef int helper(str a)
"""
    assert declared_classes(text) == {"Point": {"x", "y", "name", "_table"}}


def declared_classes(text: str) -> dict[str, set[str]]:
    """Class name -> attribute names, of a .pxd."""
    classes: dict[str, set[str]] = {}
    attributes: set[str] | None = None
    for line in text.splitlines():
        line = line.split("#")[0].rstrip()
        if opening := re.match(r"cdef class (\w+)", line):
            attributes = classes.setdefault(opening[1], set())
        elif line and not line[0].isspace():
            attributes = None
        elif attributes is not None and re.match(r"\s+cdef ", line) and "(" not in line:
            first, *further = line.split(",")
            attributes.add(first.split()[-1])
            attributes.update(name.strip() for name in further)
    return classes


def slotted_classes(text: str) -> dict[str, set[str] | None]:
    """Class name -> its own slots (None: it has none), of a .py; a slotted dataclass has its fields."""
    return {node.name: slots_of(node) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def slots_of(definition: ast.ClassDef) -> set[str] | None:
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in definition.decorator_list)
    fields: set[str] = set()
    for statement in definition.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__slots__":
            slots = ast.literal_eval(statement.value)
            return {slots} if isinstance(slots, str) else set(slots)
        if isinstance(statement, ast.AnnAssign) and "ClassVar" not in ast.unparse(statement.annotation):
            fields.add(ast.unparse(statement.target))
    return fields if is_dataclass else None
