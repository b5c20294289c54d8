"""What holds for the whole suite: its order, in which long files begin first, Hypothesis without a stop-watch, and why
tests were skipped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Files with few but long tests: Spark sessions and browsers.
LONG = ("pipeline/analysis/test_kills.py", "pipeline", "ui", "adversity")
HERE = Path(__file__).parent

# How long an example takes, or to think of one, is a property of the machine. Other settings are made on top of these.
settings.register_profile("warren", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("warren")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))  # stable: the order within a file stays


def _rank(path: Path) -> int:
    for rank, place in enumerate(LONG):
        if path.is_relative_to(HERE / place):
            return rank
    return len(LONG)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason: a tool that is not installed skips a hundred tests."""
    reasons = Counter(report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} {reason[:1].lower()}{reason[1:]}")
