"""Makes pictures of pages small: a PNG of 24-bit colours becomes one of the 256 colours that it has most of.

Pictures of pages are text and flat areas, so nobody sees the difference, and they take a third of the room.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Octets = NDArray[np.uint8]

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 256


def shrink(path: Path) -> None:
    """Write the file anew, as Chromium makes it (8 bits, RGB or RGBA, not interlaced) -> indexed."""
    pixels = _pixels(path.read_bytes())
    height, width, _ = pixels.shape
    flat = pixels.reshape(-1, 3).astype(np.uint32)
    codes = (flat[:, 0] << 16) | (flat[:, 1] << 8) | flat[:, 2]
    found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    palette = found[np.argsort(counts)[::-1][:COLOURS]]
    indices = _nearest(found, palette)[places].reshape(height, width).astype(np.uint8)
    lines = np.zeros((height, width + 1), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = indices
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [
        (b"IHDR", head),
        (b"PLTE", _rgb(palette).tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    ]
    path.write_bytes(SIGNATURE + b"".join(_chunk(kind, data) for kind, data in chunks))


def _nearest(found: NDArray[np.uint32], palette: NDArray[np.uint32]) -> NDArray[np.intp]:
    """For each colour the place of the most similar one in the palette."""
    chosen = _rgb(palette).astype(np.int32)
    result = np.empty(len(found), np.intp)
    for start in range(0, len(found), 4096):
        part = _rgb(found[start : start + 4096]).astype(np.int32)
        distances = ((part[:, None, :] - chosen[None, :, :]) ** 2).sum(axis=2)
        result[start : start + 4096] = distances.argmin(axis=1)
    return result


def _rgb(codes: NDArray[np.uint32]) -> Octets:
    return np.stack([(codes >> 16) & 255, (codes >> 8) & 255, codes & 255], axis=1).astype(np.uint8)


def _pixels(png: bytes) -> Octets:
    """Height x width x 3."""
    data = b""
    width = height = channels = 0
    for kind, content in _chunks(png):
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", content)
            if depth != 8 or colour not in (2, 6) or interlaced:
                raise ValueError("this is no picture that Chromium makes")
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            data += content
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    return _unfiltered(raw, channels).reshape(height, width, channels)[:, :, :3]


def _unfiltered(raw: Octets, step: int) -> Octets:
    """Undo the filters of PNG (its specification, section 9)."""
    lines = np.zeros((len(raw) + 1, raw.shape[1] - 1), np.uint8)
    for number, line in enumerate(raw):
        lines[number + 1] = _line(int(line[0]), line[1:].astype(np.int32), lines[number].astype(np.int32), step)
    return lines[1:]


def _line(kind: int, line: NDArray[np.int32], above: NDArray[np.int32], step: int) -> NDArray[np.int32]:
    if kind == 0:
        return line
    if kind == 2:
        return (line + above) & 255
    if kind == 1:
        return line.reshape(-1, step).cumsum(axis=0).reshape(-1) & 255
    values, upper = line.tolist(), above.tolist()
    for place in range(len(values)):
        left = values[place - step] if place >= step else 0
        corner = upper[place - step] if place >= step else 0
        guess = (left + upper[place]) // 2 if kind == 3 else _paeth(left, upper[place], corner)
        values[place] = (values[place] + guess) & 255
    return np.array(values, np.int32)


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    far = abs(guess - left), abs(guess - above), abs(guess - corner)
    if far[0] <= far[1] and far[0] <= far[2]:
        return left
    return above if far[1] <= far[2] else corner


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = len(SIGNATURE)
    while place < len(png):
        (length,) = struct.unpack_from(">I", png, place)
        yield png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        place += length + 12


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
