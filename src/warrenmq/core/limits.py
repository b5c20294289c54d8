"""Limits for clients: what a virtual host and a channel hold at most, and how long a delivery may stay unacked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means none. The first three are for each virtual host; predeclared exchanges count.

    What exists stays as it is, also what a start recovers; and the broker's own queues are never refused.
    """

    max_queues: int = 200_000
    max_exchanges: int = 100_000
    max_bindings: int = 1_000_000
    consumer_max_per_channel: int = 10_000
    consumer_timeout: int = 0  # milliseconds; queues may have their own
