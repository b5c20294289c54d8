"""`warren policy` as a process: sets, lists and clears policies, and says what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rich.cells import cell_len

from tests.management.fakes import FakeNode
from tests.management.serving import served


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def url(node: FakeNode) -> Iterator[str]:
    with served(node) as url:
        yield url


def policy(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "warrenmq", "policy", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WARREN_", "COLUMNS"))}
    environ = inherited | {"PYTHONIOENCODING": "utf-8"}
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", env=environ, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


def test_a_policy_is_set_listed_and_cleared(node: FakeNode, url: str) -> None:
    queue = node.broker.vhosts["/"].declare_queue("logs", False, False, False, {}, None)
    wanted = ("set", "limit", "^logs", '{"max-length": 5, "ha-mode": "all"}', "--priority", "3", "--apply-to", "queues")
    assert policy(*wanted, "--url", url) == (
        0,
        "policy limit set\n",
        "warren: keys without effect on a single node: ha-mode\n",
    )
    assert queue.options.max_length == 5
    assert policy("set", "limit", "^logs", '{"max-length": 6}', "--url", url) == (0, "policy limit replaced\n", "")
    code, out, _ = policy("list", "--url", url)
    assert code == 0
    assert out.split()[:7] == ["vhost", "name", "pattern", "applies", "to", "priority", "definition"]
    assert out.split()[8:] == ["/", "limit", "^logs", "all", "0", "max-length:", "6"]
    assert policy("clear", "limit", "--url", url) == (0, "policy limit cleared\n", "")
    assert queue.options.max_length is None
    assert policy("list", "--url", url) == (0, "no policies\n", "")


def test_operator_policies_and_virtual_hosts_have_their_own(node: FakeNode, url: str) -> None:
    arguments = ("--operator", "--vhost", "other", "--url", url)
    assert policy("set", "a/b", "", '{"max-length": 5}', *arguments)[:2] == (0, "operator policy a/b set\n")
    code, out, _ = policy("list", "--json", *arguments)
    assert (code, json.loads(out)) == (
        0,
        [
            {
                "vhost": "other",
                "name": "a/b",
                "pattern": "",
                "apply-to": "all",
                "definition": {"max-length": 5},
                "priority": 0,
            }
        ],
    )
    assert node.broker.vhosts["other"].policies.get("a/b", is_operator=True)
    assert policy("list", "--operator", "--vhost", "/", "--url", url)[1] == "no operator policies\n"


def test_refusals_are_lines_on_stderr_and_exit_1(url: str) -> None:
    code, out, log = policy("set", "p", "(", '{"max-length": -1}', "--url", url)
    assert (code, out) == (1, "")
    assert log == (
        "warren: Validation failed: -1 is not a valid maximum length\n"
        "pattern should be regular expression but is invalid: missing ): (\n"
    )
    code, _, log = policy("set", "p", "", "max-length=5", "--url", url)
    assert (code, "the definition is not valid JSON" in log, "'{\"max-length\": 1000}'" in log) == (1, True, True)
    code, _, log = policy("clear", "nope", "--operator", "--url", url)
    assert code == 1
    assert "no operator policy 'nope' in vhost '/': see `warren policy list --operator`" in log
    code, _, log = policy("list", "--vhost", "nope", "--url", url)
    assert (code, log) == (1, "warren: no such vhost, or no access to it: 'nope'\n")


def test_a_broker_that_cannot_be_asked_exits_with_2(url: str) -> None:
    code, _, log = policy("list", "--url", "http://127.0.0.1:1")
    assert (code, "cannot reach a broker at http://127.0.0.1:1" in log) == (2, True)
    code, _, log = policy("list", "--url", url, "--user", "plain:secret")
    assert (code, "needs the tag 'administrator'" in log) == (2, True)
    assert policy("list", "--url", url, "--user", "guest:wrong")[0] == 2


def test_the_table_fits_80_columns_whatever_the_names_are(node: FakeNode, url: str) -> None:
    policies = node.broker.vhosts["/"].policies
    policies.set("受注" * 20, "^" + "x" * 200, {"dead-letter-exchange": "y" * 200, "max-length": 5}, 10**9)
    policies.set("\x1b[2J", "[[]red[]]", {"overflow": "drop-head"}, apply_to="classic_queues")
    code, out, _ = policy("list", "--url", url)
    assert code == 0
    assert [line for line in out.splitlines() if cell_len(line) > 80] == []
    assert "\x1b" not in out
    assert "classic_queues" in out
