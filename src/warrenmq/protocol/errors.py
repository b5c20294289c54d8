"""What goes wrong on the wire, with the words that the peer hears.

`ProtocolError` and its children: the remote side broke the protocol. `LocalMisuse`: our own caller asked for something
that the protocol cannot say. They share no ancestor but Exception, so that one is never taken for the other.

The codes and texts are those of RabbitMQ 3.10.8, asked over a socket:

| what the client sent                                       | answer, always of connection scope                      |
| ---------------------------------------------------------- | ------------------------------------------------------- |
| method arguments too short, too long, lying table length   | 501 "cannot decode <<0,0,5>>", ids of the method        |
| invalid UTF-8 in a short string argument                   | 501 "Malformed UTF-8 in shortstr", ids 0, 0             |
| a method or header frame too short to have its fixed part  | 501 "type 1, all octets = <<0,50>>: unknown_frame"      |
| unknown field type, or a value cut short, inside a table   | none, the socket is closed (here: 501 "cannot decode")  |
| unknown class or method                                    | none, the socket is closed (here: 540)                  |
| a known method that only a server sends                    | 503 "unimplemented method", ids of the method           |
| property list cut short, left over, or a bad headers table | 541 "INTERNAL_ERROR" with no explanation, ids 0, 0      |
| invalid UTF-8 in a table key or a property                 | accepted                                                |
| the property flags' continuation bit                       | ignored (here: 541; nothing can follow in 0-9-1)        |
| tables nested 3,000 deep                                   | accepted (here: 100 at most)                            |
"""

from enum import Enum
from typing import ClassVar

_REPLY_TEXT_MAX = 255
_SNIPPET_BYTES = 16
_ESCAPES = {ord(raw): f"\\{name}" for raw, name in zip('\n\t\r\v\b\f\x1b"\\', 'ntrvbfe"\\', strict=True)}
_PRINTABLE = frozenset((*range(0x20, 0x7F), *_ESCAPES))


class Scope(Enum):
    """What an error ends."""

    CHANNEL = "channel"
    CONNECTION = "connection"


class ProtocolError(Exception):
    """The peer broke the protocol. `class_id` and `method_id` name the method at fault, 0 where there is none."""

    reply_code: ClassVar[int] = 541
    code_name: ClassVar[str] = "INTERNAL_ERROR"
    scope: ClassVar[Scope] = Scope.CONNECTION

    def __init__(self, text: str = "", class_id: int = 0, method_id: int = 0) -> None:
        super().__init__(text or self.code_name)
        self.text = text
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> str:
        """The text of the close method: at most 255 bytes, cut as RabbitMQ cuts it."""
        return clip_reply_text(f"{self.code_name} - {self.text}" if self.text else self.code_name)


class FrameError(ProtocolError):
    """Bytes that are no frame, or a frame whose payload cannot be read."""

    reply_code = 501
    code_name = "FRAME_ERROR"


class MalformedValue(FrameError):
    """A string, table or number that does not end where it should, or is of no known type."""


class MalformedText(MalformedValue):
    """A short string argument that is not UTF-8."""

    def __init__(self) -> None:
        super().__init__("Malformed UTF-8 in shortstr")


class MalformedArguments(FrameError):
    """The arguments of a known method cannot be read."""

    def __init__(self, arguments: bytes, class_id: int, method_id: int) -> None:
        # Each byte takes two characters or more: what is cut here could not have been in the reply text.
        numbers = ",".join(map(str, arguments[:_REPLY_TEXT_MAX]))
        super().__init__(f"cannot decode <<{numbers}>>", class_id, method_id)


class SyntaxRefused(ProtocolError):
    """A field holds what cannot be used, such as an AMQPLAIN response without a login."""

    reply_code = 502
    code_name = "SYNTAX_ERROR"


class CommandInvalid(ProtocolError):
    """A method that this peer may not send, or not now."""

    reply_code = 503
    code_name = "COMMAND_INVALID"


class ChannelError(ProtocolError):
    """A channel that is not open, is open already, or is the wrong one for the method."""

    reply_code = 504
    code_name = "CHANNEL_ERROR"


class UnexpectedFrame(ProtocolError):
    """A well formed frame where another kind was due."""

    reply_code = 505
    code_name = "UNEXPECTED_FRAME"


class ResourceError(ProtocolError):
    """More than this side is willing to hold."""

    reply_code = 506
    code_name = "RESOURCE_ERROR"


class NotAllowed(ProtocolError):
    """Against what was negotiated, or what this peer may do."""

    reply_code = 530
    code_name = "NOT_ALLOWED"


class NotImplemented_(ProtocolError):  # noqa: N801 - the protocol's name; without the underscore it is a builtin
    """Something that this side does not do."""

    reply_code = 540
    code_name = "NOT_IMPLEMENTED"


class UnknownMethod(NotImplemented_):
    """A class or method id that AMQP 0-9-1 does not have."""

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"unknown method {{{class_id},{method_id}}}", class_id, method_id)


class InternalError(ProtocolError):
    """The wire's word for a fault that is told without its cause."""


class MalformedProperties(InternalError):
    """A property list that cannot be read. The exception says why; the peer hears what RabbitMQ says: nothing more."""

    @property
    def reply_text(self) -> str:
        return self.code_name


class LocalMisuse(ValueError):
    """Our own caller asked for what the wire cannot carry: a short string too long, an integer beyond 64 bits."""


def clip_reply_text(text: str) -> str:
    """Shorten the text to what a short string holds, with an ellipsis where something was cut."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > _REPLY_TEXT_MAX:
        return data[: _REPLY_TEXT_MAX - 3].decode("utf-8", "ignore") + "..."
    return data.decode()


def describe_payload(frame_type: int, payload: bytes) -> str:
    """Name a frame at fault by its type and its first bytes, as RabbitMQ words it."""
    if len(payload) <= _SNIPPET_BYTES:
        return f"type {frame_type}, all octets = {_format_bytes(payload)}"
    return f"type {frame_type}, first {_SNIPPET_BYTES} octets = {_format_bytes(payload[:_SNIPPET_BYTES])}"


def _format_bytes(data: bytes) -> str:
    """Write bytes as Erlang prints a binary: as text where all of it is printable, else as numbers."""
    if data and all(byte in _PRINTABLE for byte in data):
        return f'<<"{data.decode("ascii").translate(_ESCAPES)}">>'
    return f"<<{','.join(map(str, data))}>>"
