"""Random faults for thousands of messages: nothing confirmed is lost, no call hangs, all consumers come back.

A short look; `python tools/client_storm.py` goes on for minutes. WARREN_TEST_SEED repeats one storm.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from .storm import Storm

SECONDS = 5.0


@pytest.mark.timeout(240)
def test_storm(face: Any, broker_url: str) -> None:
    seed = int(os.environ.get("WARREN_TEST_SEED") or random.randrange(2**32))
    print("seed", seed)  # shown when the test fails
    tally = Storm(face, broker_url, seed, SECONDS).run()
    print(tally)
    assert tally.problems == []
    assert tally.recoveries > 0, "it was no storm"
    assert tally.confirmed > 0
