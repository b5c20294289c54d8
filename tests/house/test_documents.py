"""The documents tell the truth: their examples run, their links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import warrenmq

ROOT = Path(__file__).resolve().parents[2]
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
    "docs/delivery-limit.md",
    "docs/consumer-timeout.md",
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
