"""Writes past the cache: the same bytes in the same places, whatever their sizes, and what the system says if not."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warrenmq.journal import direct_writer
from warrenmq.journal.direct_writer import BLOCK
from warrenmq.journal.files import Data, SystemFiles

needs_direct_writes = pytest.mark.skipif(
    not direct_writer.IS_AVAILABLE, reason="uncompiled, or a system without O_DIRECT"
)

SIZES = st.one_of(
    st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK]),
    st.integers(0, 5 * BLOCK),
    st.integers(0, 3_000_000),
)
KINDS = (bytes, bytearray, memoryview)
PIECES = st.lists(st.tuples(SIZES, st.sampled_from(KINDS)), max_size=6)
NOISE = random.Random(1).randbytes(3_000_000 + 10_007)


def pieces_of(described: list[tuple[int, Any]], seed: int) -> list[Data]:
    """Pieces of these sizes and kinds, no two alike."""
    return [kind(NOISE[seed % 10_007 :][:size]) for seed, (size, kind) in enumerate(described, 31 * seed)]


def is_direct(handle: int) -> bool:
    return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("direct") / "file"


@pytest.fixture
def handle(path: Path) -> Iterator[int]:
    handle = SystemFiles().create(str(path))
    yield handle
    os.close(handle)


@pytest.fixture(scope="module")
def quick_path(path: Path) -> Path:
    """A file that is written past the cache for certain."""
    handle = SystemFiles().create(str(path))
    is_written = direct_writer.DirectWriter().write(handle, [bytes(BLOCK)], 0)
    os.close(handle)
    if not is_written:
        pytest.skip("the file system of temporary files has no direct writes")
    return path


# -- the writer ------------------------------------------------------------------------------------------------------


@needs_direct_writes
@settings(deadline=None, max_examples=60)
@given(
    start=st.one_of(st.sampled_from([0, 1, BLOCK - 1, BLOCK]), st.integers(0, 3 * BLOCK)),
    stage_blocks=st.sampled_from([1, 2, 16]),
    writes=st.lists(PIECES, max_size=6),
)
def test_the_file_has_what_was_written(
    quick_path: Path, start: int, stage_blocks: int, writes: list[list[tuple[int, Any]]]
) -> None:
    """One write behind the other, over an older content that shows what is left out and what is too much."""
    older = b"\xee" * 50_000
    quick_path.write_bytes(older)
    model = bytearray(older)
    handle = os.open(quick_path, os.O_RDWR)
    try:
        writer = direct_writer.DirectWriter(stage_blocks * BLOCK if sum(map(size_of, writes)) < 500_000 else 64 * BLOCK)
        for number, described in enumerate(writes):
            pieces = pieces_of(described, number)
            assert writer.write(handle, pieces, start)
            assert not is_direct(handle)
            for piece in pieces:
                model[start : start + len(piece)] = piece
                start += len(piece)
        assert os.pread(handle, len(model) + 1, 0) == model
    finally:
        os.close(handle)


def size_of(described: list[tuple[int, Any]]) -> int:
    return sum(size for size, _ in described)


@needs_direct_writes
def test_whole_blocks_are_not_kept_in_memory(quick_path: Path) -> None:
    """Only the blocks that are not whole are, at both ends. Other file systems may have reasons to keep all."""
    named = subprocess.run(["stat", "-f", "-c", "%T", str(quick_path)], capture_output=True, text=True, check=False)
    if named.stdout.strip() not in ("ext2/ext3", "xfs"):
        pytest.skip(f"not a file system that is known to keep nothing: {named.stdout.strip()}")
    with open(quick_path, "r+b") as file:
        os.ftruncate(file.fileno(), 0)
        assert direct_writer.DirectWriter().write(file.fileno(), [NOISE[: 100 * BLOCK]], 10)
    try:
        seen = subprocess.run(
            ["fincore", "-nbo", "PAGES", str(quick_path)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no fincore")
    assert int(seen.stdout) <= 2 * max(1, os.sysconf("SC_PAGE_SIZE") // BLOCK)


@needs_direct_writes
def test_a_stage_is_made_of_blocks() -> None:
    for size in (0, BLOCK - 1, BLOCK + 1):
        with pytest.raises(ValueError, match="multiple of the block size"):
            direct_writer.DirectWriter(size)


@needs_direct_writes
def test_errors_are_the_operating_systems(quick_path: Path) -> None:
    writer = direct_writer.DirectWriter()
    handle = os.open(quick_path, os.O_RDONLY)
    for pieces in ([b"x"], [bytes(BLOCK)]):
        with pytest.raises(OSError, match="Bad file descriptor") as error:
            writer.write(handle, pieces, 0)
        assert error.value.errno == errno.EBADF
        assert not is_direct(handle)
    os.close(handle)
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.write(handle, [], 0)


@needs_direct_writes
def test_non_contiguous_buffers_are_refused(quick_path: Path) -> None:
    handle = os.open(quick_path, os.O_RDWR)
    data = bytearray(100)
    with pytest.raises(BufferError):
        direct_writer.DirectWriter().write(handle, [data, memoryview(b"abcd")[::2]], 0)
    data.append(1)  # nobody holds it any more
    os.close(handle)


@needs_direct_writes
def test_a_file_without_direct_writes_is_reported() -> None:
    handle = os.open("/dev/null", os.O_RDWR)
    assert not direct_writer.DirectWriter().write(handle, [bytes(3 * BLOCK)], 0)
    assert not is_direct(handle)
    os.close(handle)


LIMITED = """
import fcntl, os, resource, signal, sys
from warrenmq.journal.direct_writer import DirectWriter
from warrenmq.journal.files import SystemFiles

path, limit, start, size = sys.argv[1], *map(int, sys.argv[2:])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
files = SystemFiles()
handle = files.create(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    files.write_direct(handle, [bytes(range(256)) * (size // 256)], start)
except OSError as error:
    print(error.errno, bool(fcntl.fcntl(handle, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0)))
"""


@pytest.mark.parametrize("limit", [5 * BLOCK, 300 * BLOCK, 300 * BLOCK + 512, 300 * BLOCK + 99])
def test_a_short_write_continues_until_the_error_is_known(tmp_path: Path, limit: int) -> None:
    """A file may not grow beyond a limit: up to it all is written, also where the limit is in the middle of a block."""
    file = tmp_path / "file"
    command = [sys.executable, "-c", LIMITED, str(file), str(limit), "17", str(512 * BLOCK)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(errno.EFBIG), "False"]
    assert file.read_bytes() == (bytes(17) + bytes(range(256)) * 10_000)[:limit]


# What the system may do, and seldom does: stands before its `pwrite`, in a process of its own.
MOODS = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t pwrite64(int handle, const void *bytes, size_t size, off_t offset) {
    static int count;
    const char *mood = getenv("MOOD");
    int flags = fcntl(handle, F_GETFL);
    ssize_t written;
    count++;
    if (mood[0] == 'i' && count % 3) { errno = EINTR; return -1; }
    if (mood[0] == 'r' && count >= 4 && flags & O_DIRECT) { errno = EINVAL; return -1; }
    if (mood[0] == 'n' && count == 4) return 0;
    if (mood[0] == 's' && size > 700) {
        fcntl(handle, F_SETFL, flags & ~O_DIRECT);  /* for a part that is no whole block */
        written = syscall(SYS_pwrite64, handle, bytes, count % 3 ? (size > 4096 ? 4096 : 512) : 700, offset);
        fcntl(handle, F_SETFL, flags);
        return written;
    }
    return syscall(SYS_pwrite64, handle, bytes, size, offset);
}
ssize_t pwrite(int handle, const void *bytes, size_t size, off_t offset) {
    return pwrite64(handle, bytes, size, offset);
}
"""
MOODY = """
import fcntl, os, random, sys
from warrenmq.journal import direct_writer
from warrenmq.journal.files import SystemFiles

files = SystemFiles()
handle = files.open(sys.argv[1])
bytes = random.Random(5).randbytes(300_000)
writer = direct_writer.DirectWriter(8 * direct_writer.BLOCK)
direct_writer.DirectWriter = lambda: writer
print(files.write_direct(handle, [bytes[:5], bytes[5:100_000], bytes[100_000:]], 17))
print(bool(fcntl.fcntl(handle, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0)))
"""


@pytest.fixture(scope="module")
def moods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("moods")
    (folder / "moods.c").write_text(MOODS)
    library = folder / "moods.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "moods.c")], check=True)
    return library


@needs_direct_writes
@pytest.mark.parametrize(
    ("mood", "is_direct"), [("short", True), ("interrupted", True), ("refuses", False), ("nothing", False)]
)
def test_a_moody_system_is_borne(quick_path: Path, moods: Path, mood: str, is_direct: bool) -> None:
    """It writes less than it was given, is interrupted, refuses in the middle of it, or writes nothing at all."""
    quick_path.write_bytes(b"\xee" * 400_000)
    environment = os.environ | {"LD_PRELOAD": str(moods), "MOOD": mood}
    command = [sys.executable, "-c", MOODY, str(quick_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.split() == [str(is_direct), "False"]
    data = random.Random(5).randbytes(300_000)
    assert quick_path.read_bytes() == b"\xee" * 17 + data + b"\xee" * (100_000 - 17)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 4 << 20)
    for command in (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]):
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip(f"there is no {command[0]}")
        if result.returncode:
            pytest.skip(f"cannot make a small disk: {result.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@needs_direct_writes
def test_a_full_disk_is_reported_as_such(small_disk: Path) -> None:
    files = SystemFiles()
    handle = files.create(str(small_disk / "file"))
    try:
        assert files.write_direct(handle, [NOISE[:1_000_000]], 5)
        with pytest.raises(OSError, match="No space left") as error:
            files.write_direct(handle, [NOISE, NOISE], 1_000_005)
        assert error.value.errno == errno.ENOSPC
        assert not is_direct(handle)
        assert os.pread(handle, 1_000_000, 5) == NOISE[:1_000_000]
        os.ftruncate(handle, 5)  # room again
        assert files.write_direct(handle, [NOISE[:1_000_000]], 5)
        assert os.pread(handle, 2_000_000, 5) == NOISE[:1_000_000]
    finally:
        os.close(handle)


# -- the files of the system -----------------------------------------------------------------------------------------


class Writer:
    """Stands for the writer, where the file system refuses in the middle of a write."""

    made = 0

    def __init__(self) -> None:
        Writer.made += 1

    def write(self, handle: int, pieces: Sequence[Data], offset: int) -> bool:
        os.pwrite(handle, b"".join(pieces)[: 3 * BLOCK], offset)
        return False


def test_buffers_are_written_adjacent_to_each_other(path: Path, handle: int) -> None:
    files = SystemFiles()
    pieces = pieces_of([(10, bytes), (600_000, bytearray), (0, bytes), (700_001, memoryview)], 3)
    files.write_direct(handle, pieces, 100)
    files.write_direct(handle, [], 0)
    files.write_direct(handle, pieces, 100 + 1_300_011)
    assert path.read_bytes() == bytes(100) + 2 * b"".join(pieces)


def test_a_refusal_is_remembered_and_nothing_is_lost(path: Path, handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_writer, "IS_AVAILABLE", True)
    monkeypatch.setattr(direct_writer, "DirectWriter", Writer)
    monkeypatch.setattr(Writer, "made", 0)
    files = SystemFiles()
    for number in range(2):
        assert not files.write_direct(handle, [NOISE[:50_000], NOISE[:50_000]], number * 100_000)
    assert path.read_bytes() == NOISE[:50_000] * 4
    assert Writer.made == 1
    SystemFiles().write_direct(handle, [b"x"], 0)  # another one finds out for itself
    assert Writer.made == 2


def test_without_direct_writes_it_is_a_usual_write(path: Path, handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_writer, "IS_AVAILABLE", False)
    monkeypatch.setattr(direct_writer, "DirectWriter", None)
    assert not SystemFiles().write_direct(handle, [NOISE[:50_000], b"end"], 1)
    assert path.read_bytes() == b"\0" + NOISE[:50_000] + b"end"


@needs_direct_writes
def test_a_writer_is_reused_also_after_an_error(quick_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = direct_writer.DirectWriter
    monkeypatch.setattr(direct_writer, "DirectWriter", lambda: made.append(make()) or made[-1])
    files = SystemFiles()
    handle = files.open(str(quick_path))
    assert files.write_direct(handle, [NOISE], 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.write_direct(-1, [NOISE], 0)
    assert files.write_direct(handle, [NOISE], 0)
    files.close(handle)
    assert len(made) == 1
