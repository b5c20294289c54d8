"""What a client's connection tells its owner: one small value for each thing that the server said or that went wrong.

`ConnectionClosed` is the last event of a connection, and there is exactly one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from warrenmq.protocol import spec
from warrenmq.protocol.content import ContentMethod
from warrenmq.protocol.handshake import Tuning
from warrenmq.protocol.properties import BasicProperties, decode

# Before the property flags a content header has its class, its weight and the size of the body.
_FLAGS_AT = 12


class ClosedBy(Enum):
    """Who ended a connection. NETWORK: neither side said goodbye."""

    CLIENT = "client"
    SERVER = "server"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Opened:
    """The handshake is over: channels can be opened."""

    tuning: Tuning
    server_properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MethodReceived:
    """A method without content. A channel.close has been answered already."""

    channel: int
    method: spec.Method


@dataclass(frozen=True, slots=True)
class ContentReceived:
    """A whole message. `header` is as it came; `properties` decodes it, which may raise MalformedProperties."""

    channel: int
    method: ContentMethod
    header: bytes
    body: bytes

    @property
    def properties(self) -> BasicProperties:
        return decode(self.header, _FLAGS_AT)


@dataclass(frozen=True, slots=True)
class Blocked:
    """The server does not read publishers for now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unblocked:
    """The server reads publishers again."""


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The end: write what is left, then close the socket. `reply_code` 0 means that no close method was said."""

    by: ClosedBy
    reply_code: int
    reply_text: str
    class_id: int = 0
    method_id: int = 0


Event: TypeAlias = Opened | MethodReceived | ContentReceived | Blocked | Unblocked | ConnectionClosed
