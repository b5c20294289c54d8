"""Connection limits, and counters of refused connections.

Each connection takes a file descriptor, and the storage needs some too: the descriptors of the process are divided into
a reserve for the storage, HTTP and AMQP. Connections that have not opened a virtual host yet may take only half of the
AMQP part, so that silent connections cannot keep clients out.

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
# HTTP gets an eighth of the rest, at most MAX_HTTP.
HTTP_SHARE = 8
MAX_HTTP = 500
# Assumed for a process without a limit: Linux's default for fs.nr_open.
UNLIMITED = 1 << 20

LOG_INTERVAL = 60.0

# Reasons for refusing a connection, as named in /metrics, and their texts in the log.
MAX_CONNECTIONS = "max_connections"
UNAUTHENTICATED = "unauthenticated"
HTTP = "http"
_TEXTS = {
    MAX_CONNECTIONS: "max_connections reached",
    UNAUTHENTICATED: "half of max_connections have not logged in",
    HTTP: "max_http_connections reached",
}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Maximum numbers of open connections. `unauthenticated` is part of `amqp`."""

    amqp: int
    http: int

    @property
    def unauthenticated(self) -> int:
        return max(1, self.amqp // 2)


def divide_descriptors(
    open_files: int, max_connections: int | None, max_http_connections: int | None
) -> ConnectionLimits:
    """Divide the descriptors of the process between AMQP and HTTP. None: as many as are left."""
    left = open_files - min(RESERVE, open_files // 2)
    http = max(1, min(MAX_HTTP, left // HTTP_SHARE))
    if max_http_connections is not None:
        http = min(max_http_connections, max(1, left // 2))
    amqp = max(1, left - http)
    if max_connections is not None:
        amqp = min(max_connections, amqp)
    return ConnectionLimits(amqp, http)


def log_limits(
    limits: ConnectionLimits, open_files: int, max_connections: int | None, max_http_connections: int | None
) -> None:
    """Log the limits; warn if one is lower than configured, or if descriptors are few."""
    log.info("connection limits: %d AMQP, %d HTTP (open files: %d)", limits.amqp, limits.http, open_files)
    for name, wanted, allowed in (
        ("max_connections", max_connections, limits.amqp),
        ("max_http_connections", max_http_connections, limits.http),
    ):
        if wanted is not None and wanted > allowed:
            log.warning(
                "%s lowered from %d to %d: the process may open only %d files; raise ulimit -n",
                name,
                wanted,
                allowed,
                open_files,
            )
    if open_files < 2 * RESERVE:
        log.warning("the process may open only %d files, too few for a busy broker; raise ulimit -n", open_files)


def open_file_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def raise_open_file_limit() -> None:
    """Raise the limit of open files as far as the system allows. For `warren serve`, which owns its process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # macOS does not accept "unlimited"
            log.warning("cannot raise the limit of open files from %d: %s", soft, error)


class Refusals:
    """Counts refused connections by reason, and logs each reason at most once a minute. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.counts = dict.fromkeys(_TEXTS, 0)
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # time and count of the last log line

    def record(self, reason: str) -> None:
        self.counts[reason] += 1
        count, now = self.counts[reason], self._clock()
        logged_at, logged = self._logged.get(reason, (now - LOG_INTERVAL, 0))
        if now - logged_at >= LOG_INTERVAL:
            self._logged[reason] = now, count
            log.warning("connections refused: %d (%s)", count - logged, _TEXTS[reason])
