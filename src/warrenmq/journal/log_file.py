"""The format of commit log files: a file head, and epochs with consecutive sequence numbers.

docs/formats/log.md draws it. An epoch belongs to the log only if it has the expected sequence and the salt of its file:
a reused file still holds older epochs, with lower sequences, and a client cannot know the salt to fake an epoch in a
message body.
"""

from __future__ import annotations

import os
import re
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from warrenmq.journal.errors import UnknownVersion
from warrenmq.journal.files import Data

# docs/formats/log.md says what each version added.
VERSION = 5
READABLE = (1, 2, 3, 4, 5)
FILE_MAGIC = b"WARRENLG"
EPOCH_MAGIC = 0x57455031
FILE_SIZE = 32 * 2**20
MAX_PAYLOAD = 2**32 - 1

_FILE_HEAD = Struct("<8sIIQII")  # magic, version, salt, first sequence, 0, checksum of the 28 bytes before
FILE_HEAD_SIZE = _FILE_HEAD.size
_EPOCH_HEAD = Struct("<IIQQQII")  # magic, payload length, sequence, synced sequence, time in ms, salt, checksum
EPOCH_HEAD_SIZE = _EPOCH_HEAD.size
_SALT_OFFSET = 32  # in the epoch head; the checksum covers bytes 4 to 36 of the head, and the payload
_U32 = Struct("<I")
_NAME = re.compile(r"(\d{20})\.log")


class LogFile(NamedTuple):
    """A file of the log. `last` is `first` - 1 while it holds no epoch; `size` is the end of its last epoch."""

    first: int
    last: int
    path: str
    size: int


class Epoch(NamedTuple):
    sequence: int
    time_ms: int
    payload: memoryview
    file: str  # name


def log_name(first: int) -> str:
    """Return the name of the log file that begins with this epoch."""
    return f"{first:020}.log"


def parse_log_name(name: str) -> int | None:
    """Return the first epoch of a log file; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_file_head(first: int, salt: int) -> bytes:
    checked = _FILE_HEAD.pack(FILE_MAGIC, VERSION, salt, first, 0, 0)[:-4]
    return checked + _U32.pack(crc32c(checked))


def encode_epoch_head(payload: Data, sequence: int, synced: int, time_ms: int, salt: int) -> bytes:
    """Return the head of an epoch; `synced` is the last epoch that was durable when this one was written."""
    head = _EPOCH_HEAD.pack(EPOCH_MAGIC, len(payload), sequence, synced, time_ms, salt, 0)[:-4]
    return head + _U32.pack(crc32c(payload, crc32c(head[4:])))


def random_salt() -> int:
    """Return a number that no client can know; never 0, which unused blocks hold."""
    return int.from_bytes(os.urandom(4), "little") or 1


class EpochSpan(NamedTuple):
    """A whole epoch in a file: `start` and `end` of its payload."""

    sequence: int
    synced: int
    time_ms: int
    salt: int
    start: int
    end: int


def parse_file_head(data: bytes, path: str) -> tuple[int, int] | None:
    """Return first sequence and salt; None if the head is damaged. Raise UnknownVersion for a newer version."""
    if len(data) < FILE_HEAD_SIZE:
        return None
    magic, version, salt, first, _, checksum = _FILE_HEAD.unpack_from(data)
    if magic != FILE_MAGIC or crc32c(data[: FILE_HEAD_SIZE - 4]) != checksum:
        return None
    if version not in READABLE:
        raise UnknownVersion(path, version)
    return first, salt


def epoch_at(data: bytes, offset: int) -> EpochSpan | str:
    """Return the whole epoch at `offset`, or why there is none."""
    start = offset + EPOCH_HEAD_SIZE
    if start > len(data):
        return "it ends within the head of an epoch"
    magic, length, sequence, synced, time_ms, salt, checksum = _EPOCH_HEAD.unpack_from(data, offset)
    if magic != EPOCH_MAGIC:
        return "no epoch begins here"
    end = start + length
    if end > len(data):
        return "it ends within an epoch"
    checked = crc32c(data[offset + 4 : offset + EPOCH_HEAD_SIZE - 4])
    if crc32c(memoryview(data)[start:end], checked) != checksum:
        return "the checksum of an epoch does not match"
    return EpochSpan(sequence, synced, time_ms, salt, start, end)


def find_epochs(data: bytes, offset: int, salts: set[int], at_least: int) -> list[EpochSpan]:
    """Return all whole epochs from `offset` on with one of the salts and a sequence of `at_least` or more.

    They are found by their salt, which is rare; a message body could repeat the magic millions of times.
    """
    places: list[EpochSpan] = []
    for salt in salts:
        pattern = _U32.pack(salt)
        hit = offset + _SALT_OFFSET - 1
        while (hit := data.find(pattern, hit + 1)) >= 0:
            found = epoch_at(data, hit - _SALT_OFFSET)
            if not isinstance(found, str) and found.sequence >= at_least:
                places.append(found)
                hit = found.end
    return sorted(places, key=lambda place: place.start)
