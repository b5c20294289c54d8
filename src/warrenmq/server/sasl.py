"""SASL: who is this? PLAIN, AMQPLAIN and EXTERNAL, as RabbitMQ takes them.

Each mechanism reads the client's response; `Authenticator` decides. A malformed response is a protocol fault, a wrong
password a refusal: the client can be told only of the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from warrenmq.core.users import Users
from warrenmq.protocol.errors import ProtocolError, SyntaxRefused
from warrenmq.protocol.values import decode_table


class LoginRefused(Exception):
    """The credentials are well formed and wrong."""

    def __init__(self, mechanism: str, reason: str) -> None:
        super().__init__(reason)
        self.mechanism = mechanism


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a connection comes from, and the name its TLS certificate vouches for, if any."""

    host: str
    certificate_name: str | None = None

    @property
    def is_loopback(self) -> bool:
        if not self.host:
            return True  # a unix socket has no address and no network
        try:
            address = ip_address(self.host.split("%")[0])
        except ValueError:
            return False
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class Authenticator:
    """Checks logins against the broker's users."""

    def __init__(self, users: Users, loopback_users: frozenset[str]) -> None:
        self._users = users
        self._loopback_users = loopback_users

    def mechanisms_for(self, peer: Peer) -> tuple[str, ...]:
        """What is offered: EXTERNAL only to a client with a certificate, for some libraries choose it if they can."""
        return ("PLAIN", "AMQPLAIN") if peer.certificate_name is None else ("PLAIN", "AMQPLAIN", "EXTERNAL")

    def login(self, mechanism: str, response: bytes, peer: Peer) -> str | Awaitable[str]:
        """Return the user's name or raise LoginRefused; SyntaxRefused for a response that is no such response.

        One that has to ask elsewhere returns an awaitable of the same. The client is not read meanwhile; its handshake
        timeout goes on, and the awaitable is cancelled when the client is gone.
        """
        if mechanism == "PLAIN":
            name, password = _read_plain(response)
        elif mechanism == "AMQPLAIN":
            name, password = _read_amqplain(response)
        elif mechanism == "EXTERNAL":
            return self._login_external(peer)
        else:
            raise SyntaxRefused(f"unknown authentication mechanism '{mechanism}'")
        if not self._users.authenticate(name, password):
            raise LoginRefused(mechanism, f"user '{name}': unknown, or wrong password")
        if not self._may_come_from(name, peer):
            raise LoginRefused(mechanism, f"user '{name}' can only connect via localhost")
        return name

    def check(self, name: str, password: str, peer: Peer) -> bool:
        """The same for whoever does not speak AMQP."""
        return self._users.authenticate(name, password) and self._may_come_from(name, peer)

    def _may_come_from(self, name: str, peer: Peer) -> bool:
        return name not in self._loopback_users or peer.is_loopback

    def _login_external(self, peer: Peer) -> str:
        if peer.certificate_name is None:
            raise SyntaxRefused("EXTERNAL needs a TLS connection with a client certificate")
        if not self._users.exists(peer.certificate_name):
            raise LoginRefused("EXTERNAL", f"user '{peer.certificate_name}' is unknown")
        return peer.certificate_name


def _read_plain(response: bytes) -> tuple[str, str]:
    """RFC 4616: authorization identity (unused), name and password behind a zero octet each."""
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise SyntaxRefused("response to PLAIN is malformed")
    return _text(parts[1]), _text(parts[2])


def _read_amqplain(response: bytes) -> tuple[str, str]:
    """A field table without its length: LOGIN and PASSWORD."""
    table: Mapping[str, Any]
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except ProtocolError:
        raise SyntaxRefused("response to AMQPLAIN is malformed") from None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str):
        raise SyntaxRefused("response to AMQPLAIN has no LOGIN or no PASSWORD")
    return name, password


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "surrogateescape")
