"""Ports for brokers that are stopped and started again at the same address.

The system hands out ports from a range of its own to whoever asks for any port, and to every outgoing connection: one
of those may be somebody else's by the time a broker wants it back. These lie below that range, so that nobody gets
one by chance.
"""

from __future__ import annotations

import random
import socket

_RANGE = range(15_000, 32_000)  # Linux gives away 32768 and up, others 49152 and up
_ATTEMPTS = 100


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    for _ in range(_ATTEMPTS):
        port = random.choice(_RANGE)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError(f"{_ATTEMPTS} ports were tried, and all are in use")
