"""The examples in the docstrings, and on the page, do what they say."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client-patterns.md"
MODULES = ["handling", "metrics", "sending"] + [
    f"blocking.{name}" for name in ("producer", "pull", "rpc", "service", "topic", "transaction")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_hold(name: str, broker_url: str) -> None:
    module = importlib.import_module(f"warrenmq.client.{name}")
    outcome = doctest.testmod(module, extraglobs={"url": broker_url})
    assert outcome.attempted > 0
    assert outcome.failed == 0


def examples() -> list[object]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [pytest.param(block, id=str(number)) for number, block in enumerate(blocks, start=1)]


@pytest.mark.parametrize("code", examples())
def test_page_holds(code: str, broker_url: str, tmp_path: Path) -> None:
    if "import opentelemetry" in code or "from opentelemetry" in code:
        pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    file = tmp_path / "example.py"
    file.write_text(code.replace("amqp://localhost", broker_url))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for printed in re.findall(r"print\(.*#  ?(.*)", code):
        assert printed in done.stdout
