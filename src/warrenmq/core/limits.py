"""Limits of virtual hosts and channels, and of the time that a delivery may stay unacked."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """0 means no limit. The first three are per virtual host; predeclared exchanges count.

    Limits do not affect what already exists or is recovered, nor the broker's own queues.
    """

    max_queues: int = 200_000
    max_exchanges: int = 100_000
    max_bindings: int = 1_000_000
    consumer_max_per_channel: int = 10_000
    consumer_timeout: int = 0  # milliseconds; queues may have their own
