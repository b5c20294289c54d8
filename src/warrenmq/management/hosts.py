"""Refuses requests for other hosts, as sent by a page whose name was rebound to the broker's address (DNS rebinding).

Served names: the one that the broker listens on, `localhost`, the machine's own, and the setting `allowed_hosts`.
Served addresses: those that the broker listens on; all, if it listens on every address. The port is not compared:
tunnels and containers map it. A request without a Host header (HTTP/1.0) does not come from a browser and is served.

/healthz and /metrics are served for any host: they are open anyway, and probes use many names.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from warrenmq.management.errors import Misdirected
from warrenmq.management.responses import error_response

OPEN_PATHS = frozenset({"/healthz", "/metrics"})
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:/@\s]+))(?::[0-9]{1,5})?")


class OwnHosts:
    """The hosts of one broker. `listening`: the names and addresses that it listens on."""

    def __init__(self, listening: Collection[str], allowed: Collection[str] = ()) -> None:
        self._names = {_plain(name) for name in (*listening, *allowed, socket.gethostname())}
        self._allows_any = "*" in allowed
        addresses = [ip_address(host) for host in listening if _is_address(host)]
        self._is_everywhere = any(address.is_unspecified for address in addresses)
        self._is_loopback = any(address.is_loopback for address in addresses)
        if self._is_everywhere or self._is_loopback:
            self._names.add("localhost")

    def include(self, host: str) -> bool:
        """Return True if this Host header names the broker."""
        if self._allows_any:
            return True
        parts = _HOST.fullmatch(host)
        if parts is None:
            return False
        name = _plain(parts["v6"] or parts["name"])
        if name in self._names or host.lower() in self._names:
            return True
        if not _is_address(name):
            return False
        return self._is_everywhere or (self._is_loopback and ip_address(name).is_loopback)


class HostCheck:
    """Passes on requests for the broker's own hosts; refuses others with 421."""

    def __init__(self, app: ASGIApp, hosts: OwnHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
        if host is None or scope["path"] in OPEN_PATHS or self._hosts.include(host):
            await self._app(scope, receive, send)
            return
        reason = f"the host '{host}' is not served; to allow it, add it to the setting allowed_hosts"
        await error_response(Misdirected(reason))(scope, receive, send)


def _plain(name: str) -> str:
    """Normalize: lower case, without the root's dot; addresses in their shortest form."""
    name = name.lower().removesuffix(".")
    return str(ip_address(name)) if _is_address(name) else name


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
