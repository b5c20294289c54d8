"""The pytest fixtures that come with the package: a broker for a test, and one for a whole test run.

pytest imports this file in every project where WarrenMQ is installed, so it imports nothing heavy itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from warrenmq.embedded import Broker


@pytest.fixture
def warren() -> Iterator[Broker]:
    """A fresh private broker for this test: `warren.url` is what a client connects to."""
    from warrenmq.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def warren_session() -> Iterator[Broker]:
    """One private broker for all tests of the run that ask for it; they share its queues and exchanges."""
    from warrenmq.embedded import Broker

    with Broker() as broker:
        yield broker
