"""A file of the ids that one queue or exchange has seen; written once and never changed.

A head, and rows of 24 bytes: 16 of the id and a number, oldest first, as in the commit log. docs/formats/ids.md draws
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from warrenmq.journal.errors import UnknownVersion
from warrenmq.journal.files import Files

MAGIC = b"WARRENID"
VERSION = 1
ROW_SIZE = 24
HEAD_SIZE = 40

_HEAD = Struct("<8sIQQIII")  # magic, version, owner, epoch, count, checksums of the rows and of the 36 bytes before
_ROW = Struct("<16sQ")
_U32 = Struct("<I")
_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{20})\.ids")


class IdsFile(NamedTuple):
    """The rows of a file, or why it is unusable."""

    rows: bytes
    fault: str | None = None


def ids_name(owner: int, epoch: int) -> str:
    return f"{owner:016x}-{epoch:020}.ids"


def parse_ids_name(name: str) -> tuple[int, int] | None:
    """Return owner and epoch; None for other names."""
    match = _NAME.fullmatch(name)
    return (int(match[1], 16), int(match[2])) if match else None


def encode_ids(ids: Iterable[tuple[bytes, int]]) -> bytes:
    """Encode ids and their numbers as rows."""
    pack = _ROW.pack
    return b"".join([pack(id, number) for id, number in ids])


def decode_ids(rows: bytes | bytearray) -> Iterator[tuple[bytes, int]]:
    return _ROW.iter_unpack(rows)


def encode_head(owner: int, epoch: int, rows: bytes) -> bytes:
    """Return the head of a file with these rows."""
    checked = _HEAD.pack(MAGIC, VERSION, owner, epoch, len(rows) // ROW_SIZE, crc32c(rows), 0)[:-4]
    return checked + _U32.pack(crc32c(checked))


def read_ids(files: Files, path: str) -> IdsFile:
    """Read a file of ids; raise UnknownVersion for a newer version."""
    handle = files.open_read(path)
    try:
        data = files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)
    if len(data) < HEAD_SIZE:
        return IdsFile(b"", "it ends within its head")
    magic, version, _, _, count, checksum, own = _HEAD.unpack_from(data)
    if magic != MAGIC or crc32c(data[: HEAD_SIZE - 4]) != own:
        return IdsFile(b"", "the checksum of its head does not match")
    if version != VERSION:
        raise UnknownVersion(path, version)
    rows = data[HEAD_SIZE : HEAD_SIZE + count * ROW_SIZE]
    if crc32c(rows) != checksum or len(rows) != count * ROW_SIZE:
        return IdsFile(b"", "the checksum of its ids does not match")
    return IdsFile(rows)
