"""How many connections there may be at a time, and the connections that were refused.

Each connection takes a file descriptor, and the storage needs descriptors, too: what the process may open is shared
out between a reserve for the storage, HTTP and AMQP. Connections that have not opened a virtual host yet may take only
half of what AMQP has, so that silent ones do not keep clients out that have logged in.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("warrenmq.listener")

# Descriptors for the log, the catalog, segments, the event loop and its listeners: about 40 at the busiest.
RESERVE = 128
# HTTP takes an eighth of the rest, and no more than this.
HTTP_SHARE = 8
HTTP_MOST = 500
# The limit of a process that may open any number of files: what Linux has as its largest by default.
UNLIMITED = 1 << 20

LOG_INTERVAL = 60.0

# Why connections are refused, as in /metrics, and what the log line says.
MAX_CONNECTIONS = "max_connections"
UNAUTHENTICATED = "unauthenticated"
HTTP = "http"
_MEANING = {
    MAX_CONNECTIONS: "as many are open as max_connections allows",
    UNAUTHENTICATED: "half of max_connections are open and have not logged in",
    HTTP: "as many HTTP connections are open as max_http_connections allows",
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The most connections at a time. `unauthenticated` is part of `amqp`."""

    amqp: int
    http: int

    @property
    def unauthenticated(self) -> int:
        return max(1, self.amqp // 2)


def share_out(open_files: int, max_connections: int | None, max_http_connections: int | None) -> ConnectionLimits:
    """Divide the descriptors of the process. None: as many as the others leave."""
    left = open_files - min(RESERVE, open_files // 2)
    http = max(1, min(HTTP_MOST, left // HTTP_SHARE))
    if max_http_connections is not None:
        http = min(max_http_connections, max(1, left // 2))
    amqp = max(1, left - http)
    if max_connections is not None:
        amqp = min(max_connections, amqp)
    return ConnectionLimits(amqp, http)


def log_limits(
    limits: ConnectionLimits, open_files: int, max_connections: int | None, max_http_connections: int | None
) -> None:
    """Log what was shared out, and warn where it is less than what was asked for, or little."""
    log.info("at most %d AMQP and %d HTTP connections (open files: %d)", limits.amqp, limits.http, open_files)
    for name, wanted, allowed in (
        ("max_connections", max_connections, limits.amqp),
        ("max_http_connections", max_http_connections, limits.http),
    ):
        if wanted is not None and wanted > allowed:
            log.warning("%s is %d, but the limit of %d open files leaves only %d", name, wanted, open_files, allowed)
    if open_files < 2 * RESERVE:
        log.warning("only %d files may be open at a time (ulimit -n): too few for a busy broker", open_files)


def open_file_limit() -> int:
    """How many descriptors this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit() -> None:
    """Take as many descriptors as the system allows. For the owner of the process only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS does not take "unlimited"
            log.warning("the limit of open files stays at %d: %s", soft, error)


class Refusals:
    """Counts refused connections by reason, and logs each reason at most once a minute. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts = dict.fromkeys(_MEANING, 0)
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when, and the count then

    def note(self, reason: str) -> None:
        self.counts[reason] += 1
        count, now = self.counts[reason], self._clock()
        logged_at, logged = self._logged.get(reason, (now - LOG_INTERVAL, 0))
        if now - logged_at >= LOG_INTERVAL:
            self._logged[reason] = now, count
            log.warning("refused connections: %d since the last such line: %s", count - logged, _MEANING[reason])
