"""The order of the suite: what takes long begins first, so that no process is left with it at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

# Files with few but long tests: Spark sessions and browsers.
LONG = ("pipeline/analysis/test_kills.py", "pipeline", "ui", "adversity")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))  # stable: the order within a file stays


def _rank(path: Path) -> int:
    for rank, place in enumerate(LONG):
        if path.is_relative_to(HERE / place):
            return rank
    return len(LONG)
