"""SASL logins: PLAIN, AMQPLAIN and EXTERNAL, as RabbitMQ accepts them.

Each mechanism parses the client's response; `Authenticator` decides. A malformed response is a protocol error, a wrong
password a refusal; only a refusal is reported to the client. Logins over HTTP are checked here too, so that all failed
logins count against one limit (core/login_limit.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from warrenmq.core.login_limit import Attempt, LoginLimit, TooManyFailures
from warrenmq.core.users import Users
from warrenmq.protocol.errors import ProtocolError, SyntaxRefused
from warrenmq.protocol.values import decode_table

log = logging.getLogger("warrenmq.login")


class LoginRefused(Exception):
    """The credentials are wrong; or not checked (`is_checked` False), after too many failed logins."""

    def __init__(self, mechanism: str, reason: str, is_checked: bool = True) -> None:
        super().__init__(reason)
        self.mechanism = mechanism
        self.is_checked = is_checked


@dataclass(frozen=True, slots=True)
class Peer:
    """The client's address, and the name in its TLS certificate, if any.

    If not `is_direct`, the client connects through a proxy, and `host` may be the proxy's.
    """

    host: str
    certificate_name: str | None = None
    is_direct: bool = True

    @property
    def is_loopback(self) -> bool:
        if not self.is_direct:
            return False
        if not self.host:
            return True  # a unix socket has no address
        try:
            address = ip_address(self.host.split("%")[0])
        except ValueError:
            return False
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class Authenticator:
    """Checks logins against the broker's users, not faster than the limit allows."""

    def __init__(
        self,
        users: Users,
        loopback_users: frozenset[str],
        limit: LoginLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self._loopback_users = loopback_users
        self._limit = limit or LoginLimit()
        self._clock = clock

    def mechanisms_for(self, peer: Peer) -> tuple[str, ...]:
        """Return the mechanisms to offer: EXTERNAL only with a certificate, as some libraries choose it if offered."""
        return ("PLAIN", "AMQPLAIN") if peer.certificate_name is None else ("PLAIN", "AMQPLAIN", "EXTERNAL")

    def login(self, mechanism: str, response: bytes, peer: Peer) -> str | Awaitable[str]:
        """Return the user's name; raise LoginRefused, or SyntaxRefused for a malformed response.

        If the login has to wait, returns an awaitable of the same. The client is not read meanwhile; its handshake
        timeout keeps running, and the awaitable is cancelled when the connection ends.
        """
        if mechanism == "PLAIN":
            name, password = _read_plain(response)
        elif mechanism == "AMQPLAIN":
            name, password = _read_amqplain(response)
        elif mechanism == "EXTERNAL":
            return self._login_external(peer)
        else:
            raise SyntaxRefused(f"unknown authentication mechanism '{mechanism}'")
        now = self._clock()
        if not self._limit.is_free(peer.host, name, password, now):
            return self._login_later(mechanism, name, password, peer)
        self._decide(self._limit.begin(peer.host, name, password, now), mechanism, name, password, peer)
        return name

    async def check(self, name: str, password: str, peer: Peer) -> bool:
        """Return True if a login over HTTP is valid; raise TooManyFailures if it was refused unchecked."""
        try:
            await self._login_later("HTTP", name, password, peer)
        except LoginRefused as refusal:
            if not refusal.is_checked:
                raise TooManyFailures(self._limit.interval) from None
            log.warning("%s: HTTP login refused: %s", peer.host, refusal)
            return False
        return True

    async def _login_later(self, mechanism: str, name: str, password: str, peer: Peer) -> str:
        try:
            attempt = self._limit.begin(peer.host, name, password, self._clock())
        except TooManyFailures as refusal:
            raise LoginRefused(mechanism, f"user '{name}': {refusal}", is_checked=False) from None
        if attempt.wait > 0:
            try:
                await asyncio.sleep(attempt.wait)
            except asyncio.CancelledError:
                self._limit.end(attempt, None)
                raise
        self._decide(attempt, mechanism, name, password, peer)
        return name

    def _decide(self, attempt: Attempt, mechanism: str, name: str, password: str, peer: Peer) -> None:
        reason = ""
        if not self._users.authenticate(name, password):
            reason = f"user '{name}': unknown, or wrong password"
        elif not self._may_come_from(name, peer):
            # Counts as failed too: the time of the refusal must not reveal that the password is right.
            reason = f"user '{name}' can only connect via localhost"
        self._limit.end(attempt, not reason)
        if reason:
            raise LoginRefused(mechanism, reason)

    def _may_come_from(self, name: str, peer: Peer) -> bool:
        return name not in self._loopback_users or peer.is_loopback

    def _login_external(self, peer: Peer) -> str:
        if peer.certificate_name is None:
            raise SyntaxRefused("EXTERNAL needs a TLS connection with a client certificate")
        if not self._users.exists(peer.certificate_name):
            self._limit.failed += 1
            raise LoginRefused("EXTERNAL", f"user '{peer.certificate_name}' is unknown")
        return peer.certificate_name


def _read_plain(response: bytes) -> tuple[str, str]:
    """Parse RFC 4616: authorization identity (must be empty), name and password, separated by zero bytes."""
    parts = response.split(b"\0")
    if len(parts) != 3 or parts[0]:
        raise SyntaxRefused("response to PLAIN is malformed")
    return _text(parts[1]), _text(parts[2])


def _read_amqplain(response: bytes) -> tuple[str, str]:
    """Parse a field table without its length prefix: LOGIN and PASSWORD."""
    table: Mapping[str, Any]
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0, len(response) + 4)
    except ProtocolError:
        raise SyntaxRefused("response to AMQPLAIN is malformed") from None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str):
        raise SyntaxRefused("response to AMQPLAIN has no LOGIN or no PASSWORD")
    return name, password


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
