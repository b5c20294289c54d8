"""pytest fixtures: a broker for a test, and one for a test run.

pytest imports this file in every project where WarrenMQ is installed, so its imports are light.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from warrenmq.embedded import Broker


@pytest.fixture
def warren() -> Iterator[Broker]:
    """A fresh broker for this test; clients connect to `warren.url`."""
    from warrenmq.embedded import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def warren_session() -> Iterator[Broker]:
    """One broker for all tests of the run that use it; they share its queues and exchanges."""
    from warrenmq.embedded import Broker

    with Broker() as broker:
        yield broker
