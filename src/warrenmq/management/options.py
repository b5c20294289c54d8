"""What can be set about the HTTP side."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

# Bytes per second. A client that reads a response more slowly is cut off.
LEAST_RATE = 1024


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The most connections at a time, how many seconds a client may take, and who may ask under which name.

    `header_seconds`: from the connection, or the last response, to the end of a request's headers.
    `body_seconds`: from there to the end of the request.
    `read_seconds`: to read from a response that waits for it, at LEAST_RATE.
    `trusted_proxies`: whose X-Forwarded-For and X-Forwarded-Proto count. `allowed_hosts`: further Host headers.
    """

    max_connections: int = 500
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    read_seconds: float = 30.0
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    allowed_hosts: frozenset[str] = frozenset()
