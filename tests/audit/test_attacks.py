"""Every attack of `make audit`, small: the broker holds, and a client beside the attacker loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit import unauthenticated, users
from tests.audit.target import Attack, Scale, attacked


@pytest.mark.parametrize("attack", [*unauthenticated.ATTACKS, *users.ATTACKS], ids=lambda attack: attack.name)
def test_the_broker_withstands(attack: Attack, tmp_path: Path) -> None:
    assert attacked(tmp_path / "data", attack, Scale(is_full=False))
