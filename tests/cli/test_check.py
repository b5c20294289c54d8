"""`warren check` as a process: what it prints, and its exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storage.test_check import Folder, append, flip, queue_definition
from warrenmq.storage.data_dir import DataDir


def check(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    command = [sys.executable, "-m", "warrenmq", "check", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "data", [queue_definition("orders", 7), queue_definition("caf\udce9\n" + "x" * 90, 8)])


def test_clean_folder_is_reported_as_table_with_exit_0(folder: Folder) -> None:
    folder.segment([0, 1, 2])
    folder.log(append(3) + append(4, queue=8))
    code, out, log = check(folder.path)
    assert (code, log) == (0, "")
    assert re.search(r"^ *segment +1 +\d+ bytes +- +- *$", out, re.MULTILINE), out
    assert re.search(r"^ */ +orders +classic +queues/7 +4 *$", out, re.MULTILINE), out
    assert re.search(r"epochs 2 to 2 in the log, catalog at epoch 1\n(all|no) .*manifest", out), out
    assert out.splitlines()[-1] == "clean: 2 durable queues, 5 messages"


def test_damage_is_reported_with_losses_and_exit_1(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3])
    flip(segment, segment.stat().st_size - 1)
    code, out, _ = check(folder.path)
    assert code == 1
    assert "queues/7/00000000000000000000-0.seg\n" in out
    assert "    queue: orders\n    lost: 2 messages, at positions 2 to 3\n" in out
    assert out.splitlines()[-1] == "DAMAGED in 1 place; up to 2 messages lost, 2 durable queues, 2 messages left"


def test_a_remark_is_no_damage(folder: Folder) -> None:
    folder.segment([0, 1], queue=99)
    code, out, _ = check(folder.path)
    assert code == 0
    assert "Remarks\n  queues/99\n    folder of a deleted queue\n" in out


def test_it_fits_80_columns(folder: Folder) -> None:
    segment = folder.segment(list(range(10)), queue=8)
    flip(segment, 100)
    folder.segment([0], [1])
    folder.log(append(0, queue=8))
    _, out, _ = check(folder.path)
    path = str(folder.path)
    assert max(len(line) for line in out.splitlines() if path not in line) <= 80


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data", [queue_definition("\x1b[2Jcaf\u00e9\nx", 7)])
    segment = folder.segment([0, 1], [2, 3])
    flip(segment, segment.stat().st_size - 1)
    _, out, _ = check(folder.path)
    assert "\x1b" not in out
    assert "    queue: \\x1b[2Jcaf" in out
    assert " \\x1b[2Jcaf\u00e9\\nx " in out  # in the table of messages


def test_json_has_everything(folder: Folder) -> None:
    segment = folder.segment([0, 1], [2, 3])
    flip(segment, segment.stat().st_size - 1)
    code, out, _ = check("--json", folder.path)
    told = json.loads(out)
    assert code == 1
    assert (told["result"], told["messages"], told["version"]) == ("damaged", 2, "1")
    (finding,) = told["findings"]
    assert finding["is_damage"]
    assert finding["lost"] == "2 messages, at positions 2 to 3"
    names = {queue["name"]: queue["messages"] for queue in told["queues"]}
    assert names == {"orders": 2, "caf\udce9\n" + "x" * 90: 0}


def test_a_folder_in_use_is_one_line_and_exit_2(folder: Folder) -> None:
    owner = DataDir(folder.path)
    owner.lock()
    code, out, log = check(folder.path)
    owner.unlock()
    assert (code, out) == (2, "")
    assert re.fullmatch(r"warren: the data folder .* is in use by a broker \(process \d+\): stop it first\n", log)


def test_a_folder_that_is_none_is_one_line_and_exit_2(tmp_path: Path) -> None:
    assert check(tmp_path / "none") == (2, "", f"warren: {tmp_path / 'none'} is not a folder\n")
    code, out, _ = check("--json", tmp_path)
    assert code == 2
    assert json.loads(out)["error"] == f"{tmp_path} is not a WarrenMQ data folder"
