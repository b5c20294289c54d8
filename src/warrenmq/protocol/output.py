"""Methods and contents to bytes: what one connection has to say, gathered until it is written.

One of two files that know whether they are compiled (docs/decisions/0002), because C and Python are fast in different
ways: C copies bytes into one growing buffer, Python joins a list of them.
Both give the same bytes; tests/protocol/test_output.py compares each with a plain encoder.

Compiled when the package is built (output.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.string import memcpy

Pointer: TypeAlias = Any  # an unsigned char * in compiled code, and never used in plain Python

IS_COMPILED: bool = cython.compiled

# A body from this size on is handed to the socket as it is, rather than copied into the buffer.
BIG_BODY = 16 * 1024
_BIG_BODY = BIG_BODY  # the same as a C integer

_SCRATCH_SIZE = 64 * 1024
_MAX_POOLED = 32
_FRAME_OVERHEAD = 8
_DELIVER = 0x003C003C
_SETTLEMENT_FRAME = struct.Struct(">BHIIQBB")
_SETTLEMENT_SIZE = 13  # of ack, nack and reject alike: the ids, the tag, a byte of bits
_ACK = 0x003C0050
_CONTENT_START = struct.Struct(">IQ")  # class and weight, the body's size
_CONTENT_START_SIZE = 12
_BASIC = 60 << 16
_FRAME_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">QB")
_METHOD_HEAD = struct.Struct(">BHII")  # with the method's ids
_NEXT_HEAD = struct.Struct(">BBHI")  # behind the end of the frame before


class BufferPool:
    """Buffers that connections borrow while they have something to say: idle ones hold none."""

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free: list[bytearray] = []


class OutputBuffer:
    """Gathers frames; `take` gives them as buffers to be written in order."""

    __slots__ = ("capacity", "chunks", "frame_max", "length", "pool", "scratch", "size")

    def __init__(self, frame_max: int, pool: BufferPool) -> None:
        self.frame_max = frame_max
        self.pool = pool
        self.chunks: list[bytes | memoryview] = []
        self.scratch: bytearray | None = None
        self.capacity = 0
        self.length = 0  # bytes in the scratch
        self.size = 0  # bytes in all

    def put(self, frames: bytes) -> None:
        """Whole frames, ready made."""
        if cython.compiled:
            self._append(frames)
        else:
            self.chunks.append(frames)
        self.size += len(frames)

    def put_method(self, channel: int, payload: bytes) -> None:
        """A method frame."""
        self.put(_FRAME_HEAD.pack(1, channel, len(payload)) + payload + b"\xce")

    def put_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """basic.ack."""
        self.put_settlement(channel, _ACK, delivery_tag, multiple)

    def put_settlement(self, channel: int, index: int, delivery_tag: int, bits: int) -> None:
        """basic.ack, nack or reject: methods that have a delivery tag and a byte of bits."""
        if cython.compiled:
            total = _SETTLEMENT_SIZE + _FRAME_OVERHEAD
            at = _write_head(self._reserve(total), 1, channel, _SETTLEMENT_SIZE)
            at = _write_u32(at, index)
            at = _write_u64(at, delivery_tag)
            at[0] = bits
            at[1] = 0xCE
            self.length += total
            self.size += total
            return
        self.put(_SETTLEMENT_FRAME.pack(1, channel, _SETTLEMENT_SIZE, index, delivery_tag, bits, 0xCE))

    def put_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """A method with its content."""
        self.put_method(channel, method)
        self.put(_FRAME_HEAD.pack(2, channel, len(header)) + header + b"\xce")
        if body:
            self._put_body(channel, body)

    def put_message(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        """A method with its content, whose header is made here of the encoded property list."""
        method_size = len(method)
        list_size = len(properties)
        header_size = _CONTENT_START_SIZE + list_size
        body_size = len(body)
        is_small = body_size < _BIG_BODY and body_size + _FRAME_OVERHEAD <= self.frame_max
        total = method_size + header_size + 2 * _FRAME_OVERHEAD
        if is_small and body_size != 0:
            total += body_size + _FRAME_OVERHEAD
        if cython.compiled:
            at = _write_head(self._reserve(total), 1, channel, method_size)
            at = _write_bytes(at, method, method_size)
            at[0] = 0xCE
            at = _write_head(at + 1, 2, channel, header_size)
            at = _write_u32(at, _BASIC)
            at = _write_u64(at, body_size)
            at = _write_bytes(at, properties, list_size)
            at[0] = 0xCE
            if is_small and body_size != 0:
                at = _write_head(at + 1, 3, channel, body_size)
                at = _write_bytes(at, body, body_size)
                at[0] = 0xCE
            self.length += total
        else:
            self.chunks += (
                _FRAME_HEAD.pack(1, channel, method_size),
                method,
                _NEXT_HEAD.pack(0xCE, 2, channel, header_size),
                _CONTENT_START.pack(_BASIC, body_size),
                properties,
                b"\xce",
            )
            if is_small and body_size != 0:
                self.chunks += (_FRAME_HEAD.pack(3, channel, body_size), body, b"\xce")
        self.size += total
        if not is_small:
            self._put_body(channel, body)

    def put_delivery(
        self,
        channel: int,
        consumer_tag: bytes,
        delivery_tag: int,
        redelivered: bool,
        address: bytes,
        header: bytes,
        body: bytes,
    ) -> None:
        """basic.deliver with its content; consumer_tag and address are wire short strings."""
        tag_size = len(consumer_tag)
        address_size = len(address)
        header_size = len(header)
        body_size = len(body)
        method_size = 13 + tag_size + address_size
        if cython.compiled:
            total = method_size + header_size + 2 * _FRAME_OVERHEAD
            is_small = body_size < _BIG_BODY and body_size + _FRAME_OVERHEAD <= self.frame_max
            if is_small and body_size != 0:
                total += body_size + _FRAME_OVERHEAD
            at = self._reserve(total)
            at = _write_head(at, 1, channel, method_size)
            at[0] = 0
            at[1] = 60
            at[2] = 0
            at[3] = 60
            at = _write_bytes(at + 4, consumer_tag, tag_size)
            at = _write_u64(at, delivery_tag)
            at[0] = redelivered
            at = _write_bytes(at + 1, address, address_size)
            at[0] = 0xCE
            at = _write_head(at + 1, 2, channel, header_size)
            at = _write_bytes(at, header, header_size)
            at[0] = 0xCE
            if is_small and body_size != 0:
                at = _write_head(at + 1, 3, channel, body_size)
                at = _write_bytes(at, body, body_size)
                at[0] = 0xCE
            self.length += total
            self.size += total
            if not is_small:
                self._put_body(channel, body)
            return
        # Joined with everything else when it is taken.
        self.chunks += (
            _METHOD_HEAD.pack(1, channel, method_size, _DELIVER),
            consumer_tag,
            _TAG.pack(delivery_tag, redelivered),
            address,
            _NEXT_HEAD.pack(0xCE, 2, channel, header_size),
            header,
        )
        self.size += method_size + header_size + 2 * _FRAME_OVERHEAD
        if body_size == 0:
            self.chunks.append(b"\xce")
        elif body_size < _BIG_BODY and body_size + _FRAME_OVERHEAD <= self.frame_max:
            self.chunks += (_NEXT_HEAD.pack(0xCE, 3, channel, body_size), body, b"\xce")
            self.size += body_size + _FRAME_OVERHEAD
        else:
            self.chunks.append(b"\xce")
            self._put_body(channel, body)

    def _put_body(self, channel: int, body: bytes) -> None:
        """Body frames of at most the negotiated size; large pieces are not copied."""
        limit = self.frame_max - _FRAME_OVERHEAD
        if len(body) < _BIG_BODY and len(body) <= limit:
            self.put(_FRAME_HEAD.pack(3, channel, len(body)) + body + b"\xce")
            return
        view = memoryview(body)
        for start in range(0, len(body), limit):
            piece = view[start : start + limit]
            self.put(_FRAME_HEAD.pack(3, channel, len(piece)))
            self._seal()
            self.chunks.append(piece)
            self.size += len(piece)
            self.put(b"\xce")

    def take(self) -> list[bytes | memoryview]:
        """Everything gathered since the last call."""
        self._seal()
        chunks = self.chunks
        self.chunks = []
        self.size = 0
        if self.scratch is not None:
            if self.capacity == _SCRATCH_SIZE and len(self.pool.free) < _MAX_POOLED:
                self.pool.free.append(self.scratch)
            self.scratch = None
            self.capacity = 0
        if not cython.compiled and len(chunks) > 1:
            return [b"".join(chunks)]
        return chunks

    def _seal(self) -> None:
        """Move what lies in the scratch to the list."""
        if self.length:
            at: Pointer = self.scratch
            self.chunks.append(at[: self.length])
            self.length = 0

    def _append(self, frames: bytes) -> None:
        size = len(frames)
        _write_bytes(self._reserve(size), frames, size)
        self.length += size

    def _reserve(self, size: int) -> Pointer:
        """A pointer to so many free bytes. A full scratch is sealed, so that none grows and all fit the pool."""
        if self.length + size > self.capacity:
            self._seal()
            if size > _SCRATCH_SIZE:
                self.scratch = bytearray(size)
                self.capacity = size
            elif self.capacity != _SCRATCH_SIZE:
                self.scratch = self.pool.free.pop() if self.pool.free else bytearray(_SCRATCH_SIZE)
                self.capacity = _SCRATCH_SIZE
        at: Pointer = self.scratch
        return at + self.length


def _write_head(at: Pointer, frame_type: int, channel: int, size: int) -> Pointer:
    at[0] = frame_type
    at[1] = channel >> 8
    at[2] = channel & 255
    at[3] = size >> 24 & 255
    at[4] = size >> 16 & 255
    at[5] = size >> 8 & 255
    at[6] = size & 255
    return at + 7


def _write_u32(at: Pointer, value: int) -> Pointer:
    at[0] = value >> 24 & 255
    at[1] = value >> 16 & 255
    at[2] = value >> 8 & 255
    at[3] = value & 255
    return at + 4


def _write_u64(at: Pointer, value: int) -> Pointer:
    at[0] = value >> 56 & 255
    at[1] = value >> 48 & 255
    at[2] = value >> 40 & 255
    at[3] = value >> 32 & 255
    at[4] = value >> 24 & 255
    at[5] = value >> 16 & 255
    at[6] = value >> 8 & 255
    at[7] = value & 255
    return at + 8


def _write_bytes(at: Pointer, data: bytes, size: int) -> Pointer:
    source: Pointer = data
    memcpy(at, source, size)
    return at + size
