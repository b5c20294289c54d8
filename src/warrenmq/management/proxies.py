"""Determines the client's address behind the proxies in the setting `trusted_proxies`.

X-Forwarded-For is used only if the peer is a trusted proxy: the client is then its right-most untrusted address. From
any other peer it is ignored. But a request with the header came through some proxy, so it does not count as local:
otherwise a proxy on the same machine would open the `loopback_users` to everyone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from warrenmq.management.ports import Origin

log = logging.getLogger("warrenmq.http")

_ORIGIN = "warrenmq.origin"

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


class Proxies:
    """Sets the origin of each request (`origin_of`), and the scheme that its client used."""

    def __init__(self, app: ASGIApp, trusted: Iterable[Network]) -> None:
        self._app = app
        self._trusted = tuple(trusted)
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        client = scope.get("client")
        peer = str(client[0]) if client else ""
        hops = [hop.strip() for value in headers.getlist("x-forwarded-for") for hop in value.split(",")]
        if self._is_trusted(_address(peer)):
            scope = dict(scope)
            scope[_ORIGIN] = self._client_of(peer, hops)
            scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
            if scheme in ("http", "https"):
                scope["scheme"] = scheme
        else:
            is_forwarded = bool(hops) or "forwarded" in headers
            if is_forwarded and not self._has_warned:
                self._has_warned = True
                log.warning(
                    "ignored X-Forwarded-For from %s: if it is a proxy of yours, add it to trusted_proxies",
                    peer or "a local socket",
                )
            scope = {**scope, _ORIGIN: Origin(peer, is_direct=not is_forwarded)}
        await self._app(scope, receive, send)

    def _client_of(self, peer: str, hops: list[str]) -> Origin:
        """Walk back from the peer, past all trusted proxies."""
        found = peer
        for hop in reversed(hops):
            address = _address(hop)
            if address is None:  # not an address: only the proxy that wrote it is known
                return Origin(found, is_direct=False)
            found = str(address)
            if not self._is_trusted(address):
                break
        return Origin(found)

    def _is_trusted(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._trusted)


def origin_of(request: Request) -> Origin:
    """Return the origin of the request, as set by `Proxies`."""
    origin: Origin = request.scope[_ORIGIN]
    return origin


def _address(text: str) -> Address | None:
    """Parse an address with an optional port; an IPv4-mapped IPv6 address becomes IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
