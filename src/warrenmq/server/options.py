"""Options of the AMQP server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Defaults are RabbitMQ's, where it has them. `memory_limit` or `disk_free_limit` 0 means none.

    `max_connections` None: as many as the limit of open files allows.
    `busy_poll_us`: microseconds to poll the sockets after a turn before the loop sleeps (see ticker.py).
    `max_pause_us`: microseconds to pause at most after a turn, so that input accumulates (see moderation.py).
    """

    heartbeat: int = 60
    frame_max: int = 131072
    channel_max: int = 2047
    handshake_timeout: float = 10.0
    max_connections: int | None = None
    max_message_size: int = 134217728
    memory_limit: int = 0
    disk_free_limit: int = 50_000_000
    busy_poll_us: int = 0
    max_pause_us: int = 0
    default_user: str = "guest"
    default_pass: str = "guest"
    loopback_users: frozenset[str] = frozenset({"guest"})
