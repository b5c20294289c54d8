"""Bytes that change anywhere on the way from the broker: every call ends, nothing breaks for good.

What is answered may be wrong then (TCP has a checksum against that); but no thread dies of it, no call hangs, and at
the end, without faults, the connection works as before.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import Any

from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.support.breaker import DOWN, Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .conftest import Watch, Watched

SECONDS = 4.0
SOON = 0.4
SHARE = 12  # one in this many frames is hit


def test_any_byte_may_be_wrong(watch: Watch, breaker: Breaker) -> None:
    seed = int(os.environ.get("WARREN_TEST_SEED") or random.randrange(2**32))
    print("seed", seed)  # shown when the test fails
    draw = random.Random(seed)

    def corrupt(frame: bytes) -> bytes:
        if draw.randrange(SHARE):
            return frame
        position = draw.randrange(len(frame))
        return frame[:position] + bytes([draw.randrange(256)]) + frame[position + 1 :]

    told = Inbox()
    settings: dict[str, Any] = {
        "call_timeout": 2.0,  # of what is replayed after a loss as well: no less, or a busy machine never gets through
        "connect_timeout": 1.0,
        "frame_max": 4096,  # a wrong length takes no more than this with it
        "exception_handler": lambda *args: told(args),
    }
    watched = wait_until(lambda: opened(watch, settings), "a connection")
    outcomes: Counter[str] = Counter()
    breaker.rewrite(DOWN, corrupt)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            outcomes[talk(watched.connection, draw)] += 1
        except (client.ClientError, TimeoutError) as failure:
            outcomes[type(failure).__name__] += 1
    print(outcomes)
    breaker.calm()
    breaker.reset()
    wait_until(lambda: is_well(watched.connection), "a connection that works")


def opened(watch: Watch, settings: dict[str, Any]) -> Watched | None:
    """A connection, if the machine is quick enough for the time that there is."""
    try:
        return watch(**settings)
    except client.ConnectionFailed:
        return None


def talk(connection: Any, draw: random.Random) -> str:
    """A little of everything, on a channel of its own."""
    channel, inbox = connection.channel(timeout=SOON), Inbox()
    channel.confirm_select(timeout=SOON)
    queue = channel.queue_declare("", exclusive=True, timeout=SOON).queue
    channel.consume(queue, inbox, auto_ack=bool(draw.randrange(2)))
    headers = client.Properties(headers={"text": "x" * 20, "list": [1, None, {"a": 1.5}]}, message_id="7")
    confirmations = [channel.publish("", queue, draw.randbytes(200), headers, mandatory=True) for _ in range(3)]
    for each in confirmations:
        each.exception(SOON)
    while inbox.count:
        inspect(inbox.next())
    channel.close(timeout=SOON)
    return "well"


def inspect(delivery: Any) -> None:
    """Look at all of it; properties that cannot be read say so."""
    try:
        assert isinstance(delivery.headers, dict)
    except client.ClientError:
        pass
    delivery.ack()


def is_well(connection: Any) -> bool:
    try:
        channel = connection.channel(timeout=PATIENCE)
        channel.confirm_select(timeout=PATIENCE)
        queue = channel.queue_declare("", exclusive=True, timeout=PATIENCE).queue
        channel.publish("", queue, b"x", mandatory=True).result(PATIENCE)
        found = channel.get(queue, auto_ack=True, timeout=PATIENCE)
    except (client.ClientError, TimeoutError):
        return False
    return found is not None and bool(found.body == b"x")
