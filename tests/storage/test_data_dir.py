"""The data folder: one broker at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warrenmq.storage.data_dir import DataDir, DataDirError

HOLDER = """
import sys
from pathlib import Path
from warrenmq.storage.data_dir import DataDir
DataDir(Path(sys.argv[1])).lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_folder_that_does_not_exist_is_made(tmp_path: Path) -> None:
    folder = DataDir(tmp_path / "a" / "b")
    folder.lock()
    assert (tmp_path / "a" / "b").is_dir()
    folder.unlock()


def test_a_second_one_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    first = DataDir(tmp_path)
    first.lock()
    with pytest.raises(DataDirError) as refusal:
        DataDir(tmp_path).lock()
    assert str(refusal.value) == f"the data folder {tmp_path} is in use by another broker (process {os.getpid()})"
    first.unlock()


def test_a_refused_one_leaves_the_lock_as_it_was(tmp_path: Path) -> None:
    first = DataDir(tmp_path)
    first.lock()
    for _ in range(2):
        with pytest.raises(DataDirError, match=str(os.getpid())):
            DataDir(tmp_path).lock()
    first.unlock()
    DataDir(tmp_path).lock()


def test_an_unlocked_folder_can_be_taken_again(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    folder.lock()
    folder.unlock()
    folder.unlock()
    other = DataDir(tmp_path)
    other.lock()
    other.unlock()


def test_two_folders_do_not_meet(tmp_path: Path) -> None:
    folders = [DataDir(tmp_path / name) for name in ("a", "b")]
    for folder in folders:
        folder.lock()
    for folder in folders:
        folder.unlock()


def test_a_file_in_the_way_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirError) as refusal:
        DataDir(tmp_path / "file").lock()
    assert str(refusal.value).startswith(f"cannot use the data folder {tmp_path / 'file'}: ")
    assert "\n" not in str(refusal.value)


def test_a_broker_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DataDirError, match=f"process {holder.pid}"):
            DataDir(tmp_path).lock()
        holder.kill()
        holder.wait()
    folder = DataDir(tmp_path)
    folder.lock()
    folder.unlock()
