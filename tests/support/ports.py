"""Ports for brokers that are stopped and started again at the same address.

The system assigns ports from one range to listeners on port 0 and to outgoing connections: such a port may be in use
when a broker starts again on it. The ports of this module lie below that range, so that the system assigns none of
them.
"""

from __future__ import annotations

import random
import socket

_RANGE = range(15_000, 32_000)  # Linux assigns 32768 and up, others 49152 and up
_ATTEMPTS = 100


def free_port() -> int:
    """Return a port of the loopback address without a listener."""
    for _ in range(_ATTEMPTS):
        port = random.choice(_RANGE)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError(f"{_ATTEMPTS} ports were tried, and all are in use")
