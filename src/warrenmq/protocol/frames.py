"""Decodes frames into methods and contents, in one loop over the received bytes.

Sans-I/O. The reader calls its handler for each complete method or content, in order, however the input is cut into
chunks. The caller keeps an incomplete rest and passes it again before the next chunk. Memory is bounded by the frame
limit and the message limit, whatever the peer announces. A handler that must wait sets `is_paused`: the reader stops
after that method and leaves the rest to the caller.

The common case, a publish whose three frames are in one buffer, is read at once (`_read_content_at_once`).
Compiled when the package is built (frames.pxd): there `data` is read as a C pointer. Heads of frames and 64-bit numbers
are read in two ways (docs/decisions/0002): through `big_endian` acked messages cost 3 to 5 % more.
"""

import struct

try:
    import cython
except ImportError:
    from warrenmq.protocol.uncompiled import cython

from warrenmq.protocol import spec
from warrenmq.protocol.errors import FrameError, UnexpectedFrame, describe_payload

_METHOD = spec.FRAME_METHOD
_HEADER = spec.FRAME_HEADER
_BODY = spec.FRAME_BODY
_HEARTBEAT = spec.FRAME_HEARTBEAT
_END = spec.FRAME_END

_BASIC_CLASS = 60
_BASIC_PUBLISH = spec.BasicPublish.index
_BASIC_RETURN = spec.BasicReturn.index
_BASIC_DELIVER = spec.BasicDeliver.index
_BASIC_GET_OK = spec.BasicGetOk.index
_BASIC_ACK = spec.BasicAck.index
_CHANNEL_CLOSE = spec.ChannelClose.index
_CHANNEL_CLOSE_OK = spec.ChannelCloseOk.index

# Header frame payload: class id, weight, body size, property flags.
_HEADER_MIN_SIZE = 14
_FRAME_OVERHEAD = 8
_ACK_SIZE = 13
# Three short strings and a few bytes: a longer payload is invalid and is not kept until its content arrives.
_MAX_CONTENT_METHOD_SIZE = 1024
# Memory of a pending content besides its bytes: the object, its bytearray, its table entry (sys.getsizeof).
_PENDING_OVERHEAD = 300


_unpack_head = struct.Struct(">BHI").unpack_from
_unpack_header = struct.Struct(">BHIIQ").unpack_from


class FrameHandler:
    """Receives what the peer sent. Payloads are those of the frames: a method's begins with its ids."""

    __slots__ = ()

    def on_method(self, channel: int, payload: bytes) -> None:
        raise NotImplementedError

    def on_ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """Handle basic.ack, which the reader decodes because there is one per message."""
        raise NotImplementedError

    def on_content_header(self, channel: int, body_size: int) -> bool:
        """A body of that size follows in several frames. Return False to ignore the channel from now on."""
        raise NotImplementedError

    def on_buffered(self, channel: int, size: int) -> bool:
        """The reader holds `size` more bytes of an incomplete content. Return False to ignore the channel."""
        return True

    def on_released(self, size: int) -> None:
        """The reader holds `size` bytes less: a content is complete or was dropped."""

    def on_content(self, channel: int, method: bytes, header: bytes, body: bytes) -> None:
        raise NotImplementedError

    def on_heartbeat(self) -> None:
        raise NotImplementedError


class PendingContent:
    """An incomplete content. `size` is the number of bytes reported to the handler."""

    __slots__ = ("body", "header", "method", "missing", "size")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.header: bytes | None = None
        self.body = bytearray()  # not a list of chunks: a peer may send single bytes
        self.missing = 0
        self.size = 0


class FrameReader:
    """Reads one direction of one connection."""

    __slots__ = (
        "accepts_content",
        "frame_max",
        "handler",
        "ignored_channels",
        "is_closing",
        "is_paused",
        "pending",
        "resume_at",
    )

    def __init__(self, handler: FrameHandler, frame_max: int) -> None:
        self.handler = handler
        self.frame_max = frame_max
        self.pending: dict[int, PendingContent] = {}
        # Channels that this side has closed: only the peer's close or close-ok is accepted on them.
        self.ignored_channels: set[int] = set()
        # False during the handshake: nothing is buffered for the peer, and contents are unexpected methods.
        self.accepts_content = True
        # This side has closed the connection: only channel 0 is read.
        self.is_closing = False
        # Set by the handler of a method to stop reading for now.
        self.is_paused = False
        # After a ProtocolError: the position after the bad frame, or 0 if the framing is broken and nothing can follow.
        self.resume_at = 0

    def receive(self, buffer: bytes, end: int) -> int:
        """Read every complete frame of buffer[:end], or up to a pause; return the number of bytes used."""
        data = buffer
        position = 0
        while end - position >= 7:
            if cython.compiled:
                frame_type = data[position]
                channel = data[position + 1] << 8 | data[position + 2]
                size = _read_u32(data, position + 3)
            else:
                frame_type, channel, size = _unpack_head(data, position)
            if size > self.frame_max:
                self.resume_at = 0
                limit = self.frame_max - _FRAME_OVERHEAD
                raise FrameError(f"{describe_payload(frame_type, b'')}: {{frame_too_large,{size},{limit}}}")
            start = position + 7
            stop = start + size
            if stop >= end:
                break
            if data[stop] != _END:
                self.resume_at = 0
                raise FrameError(
                    describe_payload(frame_type, data[start:stop]) + f": {{invalid_frame_end_marker,{data[stop]}}}"
                )
            position = stop + 1
            self.resume_at = position
            if (self.is_closing or self.ignored_channels) and self._is_ignored(frame_type, channel, data[start:stop]):
                continue
            if frame_type == _METHOD and size >= 4:
                index = _read_u32(data, start)
                if self.pending and channel in self.pending:
                    self._refuse_in_content(channel)
                if channel == 0 or not self.accepts_content:
                    self.handler.on_method(channel, data[start:stop])
                    if self.is_paused:
                        break
                elif index == _BASIC_ACK and size == _ACK_SIZE:
                    self.handler.on_ack(channel, _read_u64(data, start + 4), data[start + 12] & 1 == 1)
                elif size <= _MAX_CONTENT_METHOD_SIZE and index in (
                    _BASIC_PUBLISH,
                    _BASIC_DELIVER,
                    _BASIC_GET_OK,
                    _BASIC_RETURN,
                ):
                    after = self._read_content_at_once(data, start - 7, position, end, channel, data[start:stop])
                    if after < position:
                        return after
                    position = after
                else:
                    self.handler.on_method(channel, data[start:stop])
                    if self.is_paused:
                        break
            else:
                self._receive_other(frame_type, channel, data[start:stop])
        return position

    def _read_content_at_once(
        self, data: bytes, begin: int, position: int, end: int, channel: int, method: bytes
    ) -> int:
        """Read the header and body frames after the method that begins at `begin`; return the next position.

        If only the end of a small content is missing, that is `begin`: reading it again costs less than keeping its
        parts. Otherwise its frames are read one by one.
        """
        if end - position >= 7 + _HEADER_MIN_SIZE + 1:
            if cython.compiled:
                header_type = data[position]
                header_channel = data[position + 1] << 8 | data[position + 2]
                size = _read_u32(data, position + 3)
                class_and_weight = _read_u32(data, position + 7)
                body_size = _read_u64(data, position + 11)
            else:
                header_type, header_channel, size, class_and_weight, body_size = _unpack_header(data, position)
            start = position + 7
            stop = start + size
            if (
                header_type == _HEADER
                and header_channel == channel
                and class_and_weight == _BASIC_CLASS << 16
                and size >= _HEADER_MIN_SIZE
                and size <= self.frame_max
                and stop < end
                and data[stop] == _END
            ):
                body_position = stop + 1
                if body_size == 0:
                    self.handler.on_content(channel, method, data[start:stop], b"")
                    return body_position
                # Compare body_size with the limit before adding to it: it may be any 64-bit number.
                if body_size <= self.frame_max - _FRAME_OVERHEAD:
                    body_start = body_position + 7
                    body_stop = body_start + body_size
                    if body_stop < end:
                        if data[body_stop] == _END and _is_frame(data, body_position, _BODY, channel, body_size):
                            self.handler.on_content(channel, method, data[start:stop], data[body_start:body_stop])
                            return body_stop + 1
                    elif (
                        body_stop - begin <= self.frame_max
                        and body_start <= end
                        and _is_frame(data, body_position, _BODY, channel, body_size)
                    ):
                        return begin
        pending = self.pending[channel] = PendingContent(method)
        self._buffer(channel, pending, len(method) + _PENDING_OVERHEAD)
        return position

    def _buffer(self, channel: int, pending: PendingContent, size: int) -> bool:
        """Report `size` more bytes to the handler; return False if the content was dropped."""
        pending.size += size
        if self.handler.on_buffered(channel, size):
            return True
        self.ignore_channel(channel)
        return False

    def _receive_other(self, frame_type: int, channel: int, payload: bytes) -> None:
        """Handle single header, body and heartbeat frames, and everything invalid."""
        if frame_type == _HEARTBEAT:
            if payload:
                raise FrameError(describe_payload(frame_type, payload) + ": unknown_frame")
            if channel != 0:
                raise UnexpectedFrame(describe_payload(frame_type, payload))
            self.handler.on_heartbeat()
            return
        if frame_type not in (_HEADER, _BODY) or (frame_type == _HEADER and len(payload) < _HEADER_MIN_SIZE):
            raise FrameError(describe_payload(frame_type, payload) + ": unknown_frame")
        if channel == 0:
            raise UnexpectedFrame(describe_payload(frame_type, payload))
        pending = self.pending.get(channel)
        if pending is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if frame_type == _HEADER:
            self._receive_header(channel, pending, payload)
        else:
            self._receive_body(channel, pending, payload)

    def _receive_header(self, channel: int, pending: PendingContent, payload: bytes) -> None:
        class_id = payload[0] << 8 | payload[1]
        if pending.header is not None or payload[2] or payload[3]:
            self._refuse_in_content(channel)
        if class_id != _BASIC_CLASS:
            raise UnexpectedFrame(
                f"expected content header for class {_BASIC_CLASS}, got one for class {class_id} instead",
                *_ids(pending.method),
            )
        pending.header = payload
        pending.missing = _read_u64(payload, 4)
        if pending.missing == 0:
            self._complete(channel, pending, b"")
        elif not self.handler.on_content_header(channel, pending.missing):
            self.ignore_channel(channel)
        else:
            self._buffer(channel, pending, len(payload))

    def _receive_body(self, channel: int, pending: PendingContent, payload: bytes) -> None:
        if pending.header is None:
            self._refuse_in_content(channel)
        if len(payload) > pending.missing:
            raise UnexpectedFrame(
                f"content body is longer than announced by {len(payload) - pending.missing} bytes",
                *_ids(pending.method),
            )
        pending.missing -= len(payload)
        if pending.missing == 0 and not pending.body:
            self._complete(channel, pending, payload)  # all in one frame: nothing to copy
            return
        if not self._buffer(channel, pending, len(payload)):
            return
        pending.body += payload
        if pending.missing == 0:
            self._complete(channel, pending, bytes(pending.body))

    def _complete(self, channel: int, pending: PendingContent, body: bytes) -> None:
        self._drop(channel)
        assert pending.header is not None
        self.handler.on_content(channel, pending.method, pending.header, body)

    def _refuse_in_content(self, channel: int) -> None:
        pending = self.pending[channel]
        if pending.header is None:
            expected = f"content header for class {_BASIC_CLASS}, got non content header frame instead"
        else:
            expected = "content body, got non content body frame instead"
        raise UnexpectedFrame(f"expected {expected}", *_ids(pending.method))

    def ignore_channel(self, channel: int) -> None:
        """Accept only close and close-ok on this channel until `resume_channel`."""
        self.ignored_channels.add(channel)
        self._drop(channel)

    def resume_channel(self, channel: int) -> None:
        """Hear the channel again, as one on which nothing has happened."""
        self.ignored_channels.discard(channel)
        self._drop(channel)

    def close(self) -> None:
        """Drop every content that is not complete, and hear nothing more but channel 0."""
        self.is_closing = True
        for channel in list(self.pending):
            self._drop(channel)

    def _drop(self, channel: int) -> None:
        pending = self.pending.pop(channel, None)
        if pending is not None:
            self.handler.on_released(pending.size)

    def _is_ignored(self, frame_type: int, channel: int, payload: bytes) -> bool:
        if channel == 0:
            return False
        if self.is_closing:
            return True
        if channel not in self.ignored_channels:
            return False
        if frame_type != _METHOD or len(payload) < 4:
            return True
        return _read_u32(payload, 0) not in (_CHANNEL_CLOSE, _CHANNEL_CLOSE_OK)


def frame(frame_type: int, channel: int, payload: bytes) -> bytes:
    """Encode a frame."""
    return b"%c%b%b%b\xce" % (frame_type, channel.to_bytes(2, "big"), len(payload).to_bytes(4, "big"), payload)


def _read_u64(data: bytes, at: int) -> int:
    if cython.compiled:
        value = 0
        for index in range(at, at + 8):
            value = value << 8 | data[index]
        return value
    return int.from_bytes(data[at : at + 8], "big")


def _read_u32(data: bytes, at: int) -> int:
    if cython.compiled:
        value = 0
        for index in range(at, at + 4):
            value = value << 8 | data[index]
        return value
    return int.from_bytes(data[at : at + 4], "big")


def _is_frame(data: bytes, at: int, frame_type: int, channel: int, size: int) -> bool:
    """Return True if a frame of that type and size begins there."""
    if cython.compiled:
        return (
            data[at] == frame_type and (data[at + 1] << 8 | data[at + 2]) == channel and _read_u32(data, at + 3) == size
        )
    return _unpack_head(data, at) == (frame_type, channel, size)


def _ids(method: bytes) -> tuple[int, int]:
    return method[0] << 8 | method[1], method[2] << 8 | method[3]


PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = frame(_HEARTBEAT, 0, b"")
