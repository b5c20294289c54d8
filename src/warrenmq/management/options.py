"""What can be set about the HTTP side."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """`trusted_proxies`: whose X-Forwarded-For and X-Forwarded-Proto count. `allowed_hosts`: further Host headers."""

    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    allowed_hosts: frozenset[str] = frozenset()
