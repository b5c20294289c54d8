"""The documents tell the truth: their examples run, their links lead somewhere."""

import ast
import inspect
import re
import subprocess
import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import warrenmq
from warrenmq import client
from warrenmq.protocol import spec

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "warrenmq"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = (
    "README.md",
    "docs/embedding.md",
    "docs/client.md",
    "docs/client-migration.md",
    "docs/policies.md",
    "docs/streams.md",
    "docs/exchange-types.md",
    "docs/expiry.md",
    "docs/length-limits.md",
    "docs/dead-letters.md",
    "docs/priorities.md",
    "docs/single-active-consumer.md",
    "docs/topics.md",
    "docs/delivery-limit.md",
    "docs/consumer-timeout.md",
    "docs/consumer-filters.md",
    "docs/consumer-pace.md",
    "docs/retry.md",
    "docs/scheduled-messages.md",
    "docs/reports.md",
    "docs/queue-expiry.md",
)
DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"


def examples() -> list[tuple[str, str]]:
    found = []
    for name in EXAMPLES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
        found += [pytest.param(block, id=f"{name}-{number}") for number, block in enumerate(blocks, start=1)]
    return found


@pytest.mark.parametrize("code", examples())
def test_example_runs_as_it_is_written(code: str, tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    with warrenmq.Broker() as broker:  # stands for the server that the example expects on the default port
        file.write_text(code.replace(DEFAULT_URL, broker.url))
        command = ["-m", "pytest", "-q", str(file)] if "def test_" in code else [str(file)]
        result = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    for printed in re.findall(r"(?:print\(.*#|# prints)  ?(.*)", code):
        assert printed in result.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_that_exist(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert missing == []


def test_version_is_in_the_changelog() -> None:
    assert f"## [{warrenmq.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_architecture_names_every_module_of_the_inner_rooms() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = ("protocol", "core", "journal", "storage", "server", "management", "client", "events", "tracing")
    rooms += ("pipeline/source", "pipeline/sink", "pipeline/analysis")
    modules = {path.name for room in rooms for path in (ROOT / "src" / "warrenmq" / room).rglob("*.py")}
    modules -= {"__init__.py", "uncompiled.py"}
    assert [name for name in sorted(modules) if f"`{name}`" not in text and f"/{name}`" not in text] == []


FACES: dict[str, Any] = {
    "warrenmq": warrenmq,
    "client": client,
    "connection": client.Connection,
    "channel": client.Channel,
    "delivery": client.Delivery,
}
AMQP_METHODS = {method.name for method in spec.METHODS.values()}
REFERENCES = sorted(set(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "ancestors.md").read_text())))


@pytest.mark.parametrize("path", [name for name in REFERENCES if re.match(r"[\w/]+(\.py|/$)", name)])
def test_ancestors_names_code_that_exists(path: str) -> None:
    file, _, names = path.partition(":")
    assert (PACKAGE / file).exists() or (ROOT / file).exists()
    if names:
        node: ast.AST = ast.parse((PACKAGE / file).read_text())
        for name in names.split("."):
            node = {each.name: each for each in ast.iter_child_nodes(node) if hasattr(each, "name")}[name]


@pytest.mark.parametrize("name", [name for name in REFERENCES if name.partition(".")[0] in FACES and "." in name])
def test_ancestors_names_methods_and_parameters_of_the_client(name: str) -> None:
    if name not in AMQP_METHODS:
        first, *rest = name.partition("(")[0].split(".")
        found: Any = reduce(getattr, rest, FACES[first])
        parameters = set(re.findall(r"(\w+)=", name))
        assert not parameters or parameters <= set(inspect.signature(found).parameters)


@pytest.mark.parametrize(
    "name", [name for name in REFERENCES if re.fullmatch(r"(basic|confirm|exchange|queue|tx)\.\w+", name)]
)
def test_ancestors_names_methods_of_amqp(name: str) -> None:
    assert name in AMQP_METHODS
