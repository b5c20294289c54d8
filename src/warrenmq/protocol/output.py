"""Encodes methods and contents: the output of one connection, buffered until it is written.

It has a compiled and a plain branch (docs/decisions/0002), because C and Python are fast in different ways: C copies
bytes into one growing buffer, Python joins a list of them. Both produce the same bytes; tests/protocol/test_output.py
compares each with a simple encoder.

Compiled when the package is built (output.pxd).
"""

import struct
from typing import Any, TypeAlias

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

from warrenmq.protocol import big_endian

Pointer: TypeAlias = Any  # an unsigned char * in compiled code, unused in plain Python

IS_COMPILED: bool = cython.compiled

# A body of at least this size goes to the socket without being copied into the buffer.
BIG_BODY = 16 * 1024
_BIG_BODY = BIG_BODY  # the same as a C integer

_SCRATCH_SIZE = 64 * 1024
_MAX_POOLED = 32
_FRAME_OVERHEAD = 8
_DELIVER = 0x003C003C
_SETTLEMENT_FRAME = struct.Struct(">BHIIQBB")
_SETTLEMENT_SIZE = 13  # of ack, nack and reject: ids, tag, a byte of bits
_ACK = 0x003C0050
_CONTENT_START = struct.Struct(">IQ")  # class and weight, body size
_CONTENT_START_SIZE = 12
_BASIC = 60 << 16
_FRAME_HEAD = struct.Struct(">BHI")
_TAG = struct.Struct(">QB")
_METHOD_HEAD = struct.Struct(">BHII")  # with the method's ids
_NEXT_HEAD = struct.Struct(">BBHI")  # after the end byte of the previous frame


class BufferPool:
    """Buffers that connections borrow while they have output; idle connections hold none."""

    __slots__ = ("free",)

    def __init__(self) -> None:
        self.free: list[bytearray] = []


class OutputBuffer:
    """Collects frames; `take` returns them as buffers to be written in order."""

    __slots__ = ("capacity", "chunks", "frame_max", "length", "pool", "scratch", "size")

    def __init__(self, frame_max: int, pool: BufferPool) -> None:
        self.frame_max = frame_max
        self.pool = pool
        self.chunks: list[bytes | memoryview] = []
        self.scratch: bytearray | None = None
        self.capacity = 0
        self.length = 0  # bytes in the scratch
        self.size = 0  # bytes in total

    def put(self, frames: bytes) -> None:
        """Append encoded frames."""
        if cython.compiled:
            self._append(frames)
        else:
            self.chunks.append(frames)
        self.size += len(frames)

    def put_method(self, channel: int, payload: bytes) -> None:
        """Append a method frame."""
        self.put(_FRAME_HEAD.pack(1, channel, len(payload)) + payload + b"\xce")

    def put_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """Append basic.ack."""
        self.put_settlement(channel, _ACK, delivery_tag, multiple)

    def put_settlement(self, channel: int, index: int, delivery_tag: int, bits: int) -> None:
        """Append basic.ack, nack or reject: a delivery tag and a byte of bits."""
        if cython.compiled:
            total = _SETTLEMENT_SIZE + _FRAME_OVERHEAD
            at = big_endian.store_frame_head(self._reserve(total), 1, channel, _SETTLEMENT_SIZE)
            at = big_endian.store_u32(at, index)
            at = big_endian.store_u64(at, delivery_tag)
            at[0] = bits
            at[1] = 0xCE
            self.length += total
            self.size += total
            return
        self.put(_SETTLEMENT_FRAME.pack(1, channel, _SETTLEMENT_SIZE, index, delivery_tag, bits, 0xCE))

    def put_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        """Append a method with its content."""
        self.put_method(channel, method)
        self.put(_FRAME_HEAD.pack(2, channel, len(header)) + header + b"\xce")
        if body:
            self._put_body(channel, body)

    def put_message(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None:
        """Append a method with its content, given the encoded property list instead of a header."""
        method_size = len(method)
        list_size = len(properties)
        header_size = _CONTENT_START_SIZE + list_size
        body_size = len(body)
        is_small = body_size < _BIG_BODY and body_size + _FRAME_OVERHEAD <= self.frame_max
        total = method_size + header_size + 2 * _FRAME_OVERHEAD
        if is_small and body_size != 0:
            total += body_size + _FRAME_OVERHEAD
        if cython.compiled:
            at = big_endian.store_frame_head(self._reserve(total), 1, channel, method_size)
            at = big_endian.store_bytes(at, method, method_size)
            at[0] = 0xCE
            at = big_endian.store_frame_head(at + 1, 2, channel, header_size)
            at = big_endian.store_u32(at, _BASIC)
            at = big_endian.store_u64(at, body_size)
            at = big_endian.store_bytes(at, properties, list_size)
            at[0] = 0xCE
            if is_small and body_size != 0:
                at = big_endian.store_frame_head(at + 1, 3, channel, body_size)
                at = big_endian.store_bytes(at, body, body_size)
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
        """Append basic.deliver with its content; consumer_tag and address are encoded short strings."""
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
            at = big_endian.store_frame_head(at, 1, channel, method_size)
            at[0] = 0
            at[1] = 60
            at[2] = 0
            at[3] = 60
            at = big_endian.store_bytes(at + 4, consumer_tag, tag_size)
            at = big_endian.store_u64(at, delivery_tag)
            at[0] = redelivered
            at = big_endian.store_bytes(at + 1, address, address_size)
            at[0] = 0xCE
            at = big_endian.store_frame_head(at + 1, 2, channel, header_size)
            at = big_endian.store_bytes(at, header, header_size)
            at[0] = 0xCE
            if is_small and body_size != 0:
                at = big_endian.store_frame_head(at + 1, 3, channel, body_size)
                at = big_endian.store_bytes(at, body, body_size)
                at[0] = 0xCE
            self.length += total
            self.size += total
            if not is_small:
                self._put_body(channel, body)
            return
        # `take` joins them.
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
        """Append body frames of at most the negotiated size; large pieces are not copied."""
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

    def drop(self, count: int) -> None:
        """Drop the first bytes of the scratch, which holds all output; nothing if `count` is not positive."""
        if count == self.length:
            self.length = self.size = 0
            self._release()
        elif count > 0:
            at: Pointer = self.scratch
            self.chunks.append(at[count : self.length])
            self.size -= count
            self.length = 0

    def take(self) -> list[bytes | memoryview]:
        """Return the output since the last call."""
        self._seal()
        chunks = self.chunks
        self.chunks = []
        self.size = 0
        self._release()
        if not cython.compiled and len(chunks) > 1:
            return [b"".join(chunks)]
        return chunks

    def _release(self) -> None:
        """Return the scratch to the pool."""
        if self.scratch is not None:
            if self.capacity == _SCRATCH_SIZE and len(self.pool.free) < _MAX_POOLED:
                self.pool.free.append(self.scratch)
            self.scratch = None
            self.capacity = 0

    def _seal(self) -> None:
        """Move the content of the scratch to the list."""
        if self.length:
            at: Pointer = self.scratch
            self.chunks.append(at[: self.length])
            self.length = 0

    def _append(self, frames: bytes) -> None:
        size = len(frames)
        big_endian.store_bytes(self._reserve(size), frames, size)
        self.length += size

    def _reserve(self, size: int) -> Pointer:
        """Return a pointer to `size` free bytes. A full scratch is sealed: none grows, so that all fit the pool."""
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
