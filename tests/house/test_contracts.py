"""The house stays as drawn: who imports whom, how large a file is, what lies beside a compiled module."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import warrenmq

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "warrenmq"
DECLARATIONS = sorted(SOURCE.rglob("*.pxd"))
LONGEST_FILE = 600

# Declarations of C constants and inline functions, which other modules cimport; the .py is for uncompiled use.
HEADERS = {
    "warrenmq.events.fields",
    "warrenmq.events.memory",
    "warrenmq.events.records",
    "warrenmq.events.schema",
    "warrenmq.protocol.big_endian",
}

# Where tests may call `sleep`: what waits for conditions, and what is a peer or a program of its own.
TESTS = ROOT / "tests"
MAY_SLEEP = (
    "audit/target.py",
    "client/breaker/storm.py",
    "interop/celery_app.py",
    "interop/clients",
    "support/breaker.py",
    "support/waiting.py",
)

# Who makes HTTP requests. management/ serves HTTP (a contract in pyproject.toml).
HTTP_CLIENTS = {"client/http.py", "pipeline/source/broker.py", "tracing/export_otlp.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_imports_keep_to_the_contracts() -> None:
    # In a process of its own: the linter reconfigures logging, which silences the package's loggers for later tests.
    lint = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    outcome = subprocess.run([sys.executable, "-c", lint], capture_output=True, text=True, cwd=ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_cimports_keep_to_the_contracts() -> None:
    cimports = {
        (module_of(path), imported) for path in DECLARATIONS for imported in cimported_modules(path.read_text())
    }
    assert [pair for pair in sorted(cimports) if broken_contracts(*pair)] == []


def test_a_cimport_against_the_contracts_is_found() -> None:
    text = "cimport cython\nfrom warrenmq.core.turn cimport Turn\ncimport warrenmq.core.stats as stats\n"
    assert cimported_modules(text) == ["warrenmq.core.turn", "warrenmq.core.stats"]
    assert broken_contracts("warrenmq.core.turn", "warrenmq.storage.codec")  # upwards
    assert broken_contracts("warrenmq.storage.codec", "warrenmq.tracing.recorder")  # to a neighbour
    assert broken_contracts("warrenmq.client.delivery", "warrenmq.core.message")  # forbidden by a contract of its own
    assert not broken_contracts("warrenmq.storage.codec", "warrenmq.core.message")


def test_http_requests_are_made_in_three_modules() -> None:
    wanted = re.compile(r"^\s*(?:from|import) (?:http|httpx|requests|urllib\.(?:request|error))\b", re.MULTILINE)
    assert {name_of(path) for path in SOURCE.rglob("*.py") if wanted.search(path.read_text())} == HTTP_CLIENTS


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_tests_do_not_sleep(path: Path) -> None:
    if not any(path.is_relative_to(TESTS / place) for place in MAY_SLEEP):
        assert sleeps(path.read_text()) == []


def test_contributing_shows_the_layers_of_the_contract() -> None:
    drawn = " > ".join(" ".join(layer.split()) for layer in contracts_of_type("layers")[0]["layers"])
    assert drawn in " ".join((ROOT / "CONTRIBUTING.md").read_text().split())


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
    assert hot_modules() == {module_of(path) for path in DECLARATIONS} - HEADERS


def test_all_hot_modules_are_compiled_or_none() -> None:
    origins = {name: str(getattr(importlib.util.find_spec(name), "origin", None)) for name in hot_modules()}
    assert {name for name, origin in origins.items() if origin.endswith(".py") is warrenmq.COMPILED} == set()


def test_modules_with_a_compiled_branch_are_those_of_decision_2() -> None:
    branching = {name_of(path) for path in SOURCE.rglob("*.py") if "cython.compiled" in path.read_text()}
    text = (ROOT / "docs" / "decisions" / "0002-modules-with-a-compiled-branch.md").read_text()
    assert branching == set(re.findall(r"^\| `([\w/]+\.py)`", text, re.MULTILINE))


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


def hot_modules() -> set[str]:
    hot = next(
        statement.value
        for statement in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "HOT_MODULES"
    )
    assert isinstance(hot, ast.Dict)
    return {f"warrenmq.{ast.literal_eval(key)}" for key in hot.keys if key is not None}


def contracts_of_type(kind: str) -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [each for each in settings["tool"]["importlinter"]["contracts"] if each["type"] == kind]


def broken_contracts(importer: str, imported: str) -> list[str]:
    """The names of the import contracts that forbid this import."""
    layers = [re.split(r"\s*\|\s*", layer) for layer in contracts_of_type("layers")[0]["layers"]]
    levels = {package: level for level, packages in enumerate(layers) for package in packages}
    source, target = importer.split(".")[1], imported.split(".")[1]
    broken = ["layers"] if source != target and levels[source] >= levels[target] else []
    for contract in contracts_of_type("forbidden"):
        if contains(contract["source_modules"], importer) and contains(contract["forbidden_modules"], imported):
            broken.append(contract["name"])
    return broken


def contains(packages: list[str], module: str) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def module_of(path: Path) -> str:
    return "warrenmq." + name_of(path.with_suffix("")).replace("/", ".")


def cimported_modules(text: str) -> list[str]:
    """The modules of this package that a .pxd cimports."""
    return re.findall(r"^(?:from|cimport) (warrenmq\.[\w.]+)", text, re.MULTILINE)


def sleeps(text: str) -> list[str]:
    """Calls of `sleep` that wait for more than the next turn of a loop."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func) in ("sleep", "time.sleep", "asyncio.sleep") and ast.unparse(call.args[0]) != "0"
    ]


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
