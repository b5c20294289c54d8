"""Policies on disk: in the log and the catalog, after a restart, for `warren check`, for streams at the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept
from warrenmq.storage.check import check_folder


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "data")


def policies_of(kept: Kept) -> list[tuple[str, int]]:
    found = kept.broker.vhosts["/"].policies
    return [(policy.name, policy.priority) for policy in (*found.list(), *found.list(is_operator=True))]


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "crashed"])
@pytest.mark.parametrize("is_trimmed", [True, False], ids=["from the catalog", "from the log"])
def test_policies_are_there_again(kept: Kept, clean: bool, is_trimmed: bool) -> None:
    policies = kept.broker.vhosts["/"].policies
    arguments: dict[str, Any] = {"x-max-length": 9}
    kept.declare("q", **arguments)
    policies.set("p", "^q", {"max-length": 5}, 3)
    policies.set("gone", "^q", {"max-length": 1}, 4)
    policies.set("o", "", {"message-ttl": 7}, is_operator=True)
    policies.clear("gone")
    kept.settle()
    if is_trimmed:
        kept.checkpoint()
    kept.restart(clean)
    assert policies_of(kept) == [("p", 3), ("o", 0)]
    for queue in (kept.queue("q"), kept.declare("q2")):
        assert (queue.options.max_length, queue.options.message_ttl_ms) == (5, 7)
    kept.broker.vhosts["/"].policies.clear("p")
    kept.settle()
    kept.restart(clean)
    assert kept.queue("q").options.max_length == 9
    assert policies_of(kept) == [("o", 0)]


def test_a_check_counts_them(kept: Kept) -> None:
    kept.broker.vhosts["/"].policies.set("p", "^q", {"max-length": 5})
    kept.settle()
    kept.stop()
    report = check_folder(str(kept.folder))
    assert (report.damage, report.definitions["policy"], report.definitions["operator_policy"]) == ([], 1, 0)


def test_a_stream_is_kept_as_its_policy_says_from_the_start(kept: Kept) -> None:
    """An older limit of its arguments must not remove anything before the policy counts."""
    arguments: dict[str, Any] = {"x-queue-type": "stream", "x-max-length-bytes": 1000}
    arguments["x-stream-max-segment-size-bytes"] = 500
    kept.broker.vhosts["/"].policies.set("more", "^s", {"max-length-bytes": 1_000_000}, apply_to="streams")
    kept.declare("s", **arguments)
    for number in range(40):
        kept.publish([number], "s")
        kept.settle()
    assert kept.queue("s").message_count() == 40
    for count, clean in ((40, True), (60, False)):
        kept.restart(clean)
        for number in range(count, count + 20):
            kept.publish([number], "s")
            kept.settle()
        assert kept.queue("s").message_count() == count + 20
    kept.broker.vhosts["/"].policies.clear("more")
    kept.publish([80], "s")
    kept.settle()
    kept.restart()
    assert kept.queue("s").message_count() < 40
