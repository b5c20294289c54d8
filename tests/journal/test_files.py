"""The real files: all of a write, as much of a read as there is, names that survive."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from warrenmq.journal.files import Files

DATA = bytes(range(256)) * 4


@pytest.fixture
def files() -> Files:
    return Files()


def limit_writes(monkeypatch: pytest.MonkeyPatch, limit: int) -> list[int]:
    """Make the system write no more than that at once, as it may; returns the sizes it was given."""
    sizes: list[int] = []
    whole: Callable[[int, bytes, int], int] = os.pwrite

    def pwrite(handle: int, data: bytes, offset: int) -> int:
        sizes.append(len(data))
        return whole(handle, bytes(data)[:limit], offset)

    def pwritev(handle: int, pieces: Sequence[bytes], offset: int) -> int:
        return pwrite(handle, b"".join(pieces), offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "pwritev", pwritev)
    return sizes


@pytest.mark.parametrize("limit", [1, 7, 100, 1000, 5000])
def test_a_short_write_is_completed(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    handle = files.create(str(tmp_path / "a"))
    limit_writes(monkeypatch, limit)
    files.write(handle, DATA, 3)
    files.writev(handle, (DATA[:10], b"", memoryview(DATA)[10:500], bytearray(DATA[500:])), 3 + len(DATA))
    files.close(handle)
    assert (tmp_path / "a").read_bytes() == bytes(3) + DATA + DATA


def test_a_usual_write_is_one_call(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = files.create(str(tmp_path / "a"))
    sizes = limit_writes(monkeypatch, 10_000)
    files.write(handle, DATA, 0)
    files.writev(handle, (DATA, DATA), 0)
    files.close(handle)
    assert sizes == [len(DATA), 2 * len(DATA)]


def test_errors_are_the_operating_systems(files: Files, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    handle = files.open_read(str(tmp_path / "a"))
    with pytest.raises(OSError, match="Bad file descriptor") as error:
        files.write(handle, b"x", 0)
    assert error.value.errno == errno.EBADF
    files.close(handle)
    with pytest.raises(FileNotFoundError):
        files.open(str(tmp_path / "none"))


def test_a_read_returns_fewer_bytes_at_the_end(files: Files, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    handle = files.open(str(tmp_path / "a"))
    assert files.read(handle, 10, 5) == DATA[5:15]
    assert files.read(handle, 5000, 1000) == DATA[1000:]
    assert files.read(handle, 10, 5000) == b""
    assert files.size(handle) == len(DATA)
    files.truncate(handle, 7)
    files.sync(handle)
    assert files.read(handle, 100, 0) == DATA[:7]
    files.close(handle)


def test_a_read_that_comes_in_parts_is_joined(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(DATA)
    handle = files.open_read(str(tmp_path / "a"))
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda handle, size, offset: whole(handle, min(size, 300), offset))
    assert files.read(handle, 1000, 10) == DATA[10:1010]
    assert files.read(handle, 5000, 10) == DATA[10:]
    files.close(handle)


def test_a_created_file_is_empty_even_if_it_was_there(files: Files, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    files.close(files.create(str(tmp_path / "a")))
    assert (tmp_path / "a").read_bytes() == b""


def test_names(files: Files, tmp_path: Path) -> None:
    folder = str(tmp_path / "x" / "y")
    assert files.list(folder) == []
    files.make_dirs(folder)
    files.make_dirs(folder)
    for name in "ba":
        files.close(files.create(f"{folder}/{name}"))
    files.sync_dir(folder)
    assert files.list(folder) == ["a", "b"]
    files.rename(f"{folder}/a", f"{folder}/b")
    assert files.list(folder) == ["b"]
    files.remove(f"{folder}/b")
    assert not files.exists(f"{folder}/b")
    files.close(files.create(f"{folder}/c"))
    files.remove_tree(str(tmp_path / "x"))
    files.remove_tree(str(tmp_path / "x"))
    assert not files.exists(str(tmp_path / "x"))
    assert files.free_space(str(tmp_path)) > 0


def test_handles_are_not_inherited_and_files_are_private(files: Files, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    for handle in (files.create(path), files.open(path), files.open_read(path)):
        assert not os.get_inheritable(handle)
        files.close(handle)
    assert os.stat(path).st_mode & 0o077 == 0


def test_more_pieces_than_the_system_takes_at_once(tmp_path: Path) -> None:
    """A compaction that keeps every other message of a page has that many."""
    files = Files()
    handle = files.create(str(tmp_path / "f"))
    pieces = [b"%05d" % number for number in range(5000)]
    files.writev(handle, pieces, 7)
    files.close(handle)
    assert (tmp_path / "f").read_bytes() == bytes(7) + b"".join(pieces)
