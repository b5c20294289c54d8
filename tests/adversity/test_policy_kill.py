"""kill -9 of a broker whose policies change: what was answered counts, what was not may."""

from __future__ import annotations

import http.client
import random
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.test_kill import SMALL
from tests.support.crash import effort
from tests.support.traced import TracedProcess

NAMES = ("a", "b", "c")


def asked(broker: TracedProcess, path: str) -> dict[str, Any]:
    status, found = broker.ask(path)
    assert status == 200
    return {policy["name"]: policy["definition"]["max-length"] for policy in found}


@pytest.mark.parametrize("seed", range(effort(2)))
def test_every_change_that_was_answered_survives(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    folder = tmp_path / "data"
    known: dict[tuple[str, str], int | None] = {}
    for _ in range(2):
        kinds = ("policies", "operator-policies")
        with TracedProcess(folder, SMALL).ready() as broker:
            found = {(kind, name): n for kind in kinds for name, n in asked(broker, f"/api/{kind}").items()}
            assert found == {key: value for key, value in known.items() if value is not None}
            for _ in range(20):
                kind, name = chance.choice(kinds), chance.choice(NAMES)
                if chance.random() < 0.7:
                    number = chance.randrange(1000)
                    body = {"pattern": "^q", "definition": {"max-length": number}}
                    status, _answer = broker.ask(f"/api/{kind}/%2F/{name}", "PUT", body)
                    assert status == (201 if known.get((kind, name)) is None else 204)
                    known[kind, name] = number
                else:
                    status, _answer = broker.ask(f"/api/{kind}/%2F/{name}", "DELETE")
                    assert status == (404 if known.get((kind, name)) is None else 204)
                    known[kind, name] = None
            broker.kill()
            with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
                broker.ask("/api/policies")
    with TracedProcess(folder, SMALL).ready() as broker:
        limits = [value for value in known.values() if value is not None]
        assert (len(asked(broker, "/api/policies")) + len(asked(broker, "/api/operator-policies"))) == len(limits)
