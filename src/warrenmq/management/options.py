"""Options of the HTTP server."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

# Bytes per second. A client that reads a response more slowly is disconnected.
MIN_RATE = 1024


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Limits of connections and times, trusted proxies and allowed hosts.

    `header_seconds`: from the connection, or the last response, to the end of a request's headers.
    `body_seconds`: from there to the end of the request.
    `read_seconds`: to read buffered parts of a response, at MIN_RATE.
    `trusted_proxies`: peers whose X-Forwarded-For and X-Forwarded-Proto count. `allowed_hosts`: further Host headers.
    """

    max_connections: int = 500
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    read_seconds: float = 30.0
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    allowed_hosts: frozenset[str] = frozenset()
