"""Faults between producer, service and broker: what was reported as sent is sent, and what was sent is handled."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.support.breaker import Breaker, RandomFaults
from tests.support.waiting import wait_until
from warrenmq import client

from .making import FAST, QUICK, InThread, count_of, make

MESSAGES = 2000
SENDERS = 4


@pytest.fixture
def seed() -> int:
    chosen = random.randrange(1_000_000)
    print(f"seed {chosen}")
    return chosen


@pytest.mark.timeout(240)
def test_nothing_that_was_sent_is_lost(
    face: Any, connect: Connect, broker_url: str, channel: Any, kept: str, seed: int
) -> None:
    handled: set[bytes] = set()
    lock = threading.Lock()

    def handle(delivery: Any) -> None:
        with lock:
            handled.add(delivery.body)

    settings: dict[str, Any] = {"recovery": FAST, "connect_timeout": 3.0, "close_timeout": 3.0, "call_timeout": 5.0}
    with Breaker(broker_url, RandomFaults(seed, calm_bytes=10_000, longest_delay=0.05)) as breaker:
        sending, serving = (open_in(connect, breaker.url, settings) for _ in range(2))
        patient = client.Retry(retries=10_000, interval=0.01, longest=0.1)
        handler = client.consumer(kept, concurrency=2)(handle)
        with ExitStack() as stack:
            enter_in(stack, lambda: make(face, "Service", serving, handler, retry=patient))
            producer = enter_in(
                stack, lambda: make(face, "SyncProducer", sending, routing_key=kept, **QUICK, retries=10_000)
            )

            def send(number: int) -> set[bytes]:
                bodies = [b"%d.%d" % (number, each) for each in range(MESSAGES // SENDERS)]
                return {body for body in bodies if producer.send(body).ok}

            calls = [InThread(send, number) for number in range(SENDERS)]
            sent = set().union(*(call.result(limit=90) for call in calls))
            assert len(sent) == MESSAGES
            breaker.calm()
            wait_until(
                lambda: sent <= handled and count_of(channel, kept) == 0,
                f"all were handled and, but for the last ones, acked; {dict(breaker.faults)}",
            )
        sending.close()
        serving.close()
        assert sum(breaker.faults.values()) > 0
    # Messages that were sent twice may be with the service when it closes; they come back.
    while (delivery := channel.get(kept, auto_ack=True)) is not None:
        assert delivery.body in handled


def enter_in(stack: ExitStack, make_one: Callable[[], Any]) -> Any:
    """Start despite faults, which may take more than one attempt: what is lost while starting is the caller's."""
    for _ in range(20):
        try:
            return stack.enter_context(make_one())
        except client.ClientError:
            continue
    raise AssertionError("too many faults")


def open_in(connect: Connect, url: str, settings: dict[str, Any]) -> Any:
    """Connect despite faults, which may take more than one attempt."""
    for _ in range(20):
        try:
            return connect(url, heartbeat=1, **settings)
        except client.ConnectionFailed:
            continue
    raise AssertionError("too many faults")
