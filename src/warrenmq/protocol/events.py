"""The events of a client's connection: one small value per method, content or failure.

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
    """Which side ended a connection. NETWORK: neither side sent a close."""

    CLIENT = "client"
    SERVER = "server"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class Opened:
    """The handshake has succeeded: channels can be opened."""

    tuning: Tuning
    server_properties: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MethodReceived:
    """A method without content. A channel.close has been answered already."""

    channel: int
    method: spec.Method


@dataclass(frozen=True, slots=True)
class ContentReceived:
    """A complete message. `properties` decodes the raw `header`, which may raise MalformedProperties."""

    channel: int
    method: ContentMethod
    header: bytes
    body: bytes

    @property
    def properties(self) -> BasicProperties:
        return decode(self.header, _FLAGS_AT)


@dataclass(frozen=True, slots=True)
class Blocked:
    """The server has stopped reading from publishers."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unblocked:
    """The server reads from publishers again."""


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The end: write the remaining output, then close the socket. `reply_code` 0: no close method was sent."""

    by: ClosedBy
    reply_code: int
    reply_text: str
    class_id: int = 0
    method_id: int = 0


Event: TypeAlias = Opened | MethodReceived | ContentReceived | Blocked | Unblocked | ConnectionClosed
