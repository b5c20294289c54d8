"""The data folder: one broker at a time."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from warrenmq.client import Properties, connect
from warrenmq.embedded import Broker
from warrenmq.journal.files import Files
from warrenmq.node import Node, NodeOptions, StartError
from warrenmq.storage.data_dir import DataDir, DataDirError
from warrenmq.storage.options import StorageOptions

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


def test_a_second_one_is_refused_and_reported_who_has_it(tmp_path: Path) -> None:
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


# -- other users -----------------------------------------------------------------------------------------------------


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def make_full_folder(folder: Path) -> None:
    """A folder with files of nearly every kind."""
    storage = StorageOptions(log_limit=6000, log_file_size=2048, window=2000, page=1000, segment_size=2500)
    with Broker(data_dir=folder, trace="all", storage=storage) as broker, connect(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.queue_declare("q", durable=True, arguments={"x-message-deduplication": True})
        for number in range(40):
            headers = {"x-deduplication-header": str(number)}
            channel.publish("", "q", b"." * 200, Properties(delivery_mode=2, headers=headers))
        channel.wait_for_confirms()
        for _ in range(3):
            channel.get("q", auto_ack=True)


def test_no_other_user_gets_into_what_the_broker_makes(tmp_path: Path, open_umask: None) -> None:
    folder = tmp_path / "above" / "data"
    make_full_folder(folder)
    found = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert found >= {"", ".sqlite", ".log", ".seg", ".dead", ".ids"}
    for path in (folder.parent, folder, *folder.rglob("*")):
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("name", ["lock", "version", "version.tmp", "catalog.sqlite", "catalog.sqlite-wal"])
def test_a_symbolic_link_is_refused_and_its_target_untouched(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    (folder / name).symlink_to(target)
    with pytest.raises(StartError, match=f"{name} is a symbolic link"), Broker(data_dir=folder):
        pass
    assert target.read_text() == "precious"


def test_a_link_in_place_of_a_file_that_is_made_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / "link").symlink_to(target)
    for use in (Files().create, Files().open, Files().open_read):
        with pytest.raises(OSError, match="symbolic"):
            use(str(tmp_path / "link"))
    assert target.read_text() == "precious"


def test_a_folder_of_its_own_is_no_reason_to_warn(tmp_path: Path) -> None:
    folder = DataDir(tmp_path / "data", is_strict=True)
    folder.lock()
    folder.unlock()
    assert folder.warnings == []


@pytest.mark.parametrize(("name", "mode"), [(".", 0o770), (".", 0o702), ("log", 0o720), ("version", 0o602)])
def test_what_others_may_write_to_is_reported_and_refused_in_strict_mode(name: str, mode: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "log").mkdir(parents=True)
    (folder / "version").write_text("1\n")
    for path in (folder / "version", folder):
        path.chmod(0o711 if path.is_dir() else 0o600)
    (folder / name).chmod(mode)
    data_dir = DataDir(folder)
    data_dir.lock()
    data_dir.unlock()
    (warning,) = data_dir.warnings
    assert warning.startswith(f"other users may write to {folder / name}")
    assert f"chmod -R go= {folder}" in warning
    with pytest.raises(DataDirError, match=r"strict mode refuses"):
        DataDir(folder, is_strict=True).lock()
    assert stat.S_IMODE((folder / name).stat().st_mode) == mode
    subprocess.run(warning.rpartition(": ")[2].split(), check=True)
    DataDir(folder, is_strict=True).lock()


def test_a_folder_that_others_may_look_into_is_reported_and_starts(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)
    data_dir = DataDir(folder, is_strict=True)
    data_dir.lock()
    data_dir.unlock()
    (warning,) = data_dir.warnings
    assert warning.startswith(f"other users may read the data folder {folder}")


def test_files_that_others_cannot_reach_are_no_reason_to_warn(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    (folder / "version").write_text("1\n")
    (folder / "version").chmod(0o666)
    data_dir = DataDir(folder)
    data_dir.lock()
    data_dir.unlock()
    assert data_dir.warnings == []


def test_the_flag_makes_a_warning_a_refusal(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StartError, match="strict mode"):
        asyncio.run(Node(NodeOptions(port=0, http_port=None, data_dir=folder, strict=True)).start())
    assert list(folder.iterdir()) == []
