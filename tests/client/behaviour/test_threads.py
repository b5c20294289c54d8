"""Ten threads on one connection: publishing, confirming, consuming and acking at once. No error, every order kept.

tools/client_storm.py does the same for a minute.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.support.waiting import wait_until

from .faces import PATIENCE
from .traffic import Talker, run_talkers

THREADS = 10
SECONDS = 2.0


def test_ten_threads_each_with_a_channel(connect: Connect) -> None:
    connection = connect()
    talkers = [Talker(connection, number) for number in range(THREADS)]
    run_talkers(talkers, SECONDS)
    for talker in talkers:
        talker.judge()


def test_ten_threads_on_one_channel(connect: Connect) -> None:
    """A channel may be shared: what one thread publishes stays in order, every confirmation is its own."""
    connection = connect()
    channel = connection.channel()
    channel.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    deadline = time.monotonic() + SECONDS / 2
    sent, failures, lock = [0] * THREADS, [], threading.Lock()
    tags: set[int] = set()

    def publish(number: int) -> None:
        try:
            while time.monotonic() < deadline:
                window = [channel.publish("", queue, b"%d %d" % (number, sent[number] + each)) for each in range(20)]
                sent[number] += len(window)
                for each in window:
                    each.result(PATIENCE)
                with lock:
                    tags.update(each.tag for each in window)
        except Exception as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE + SECONDS)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    assert tags == set(range(1, sum(sent) + 1)), "each message has a number of its own"
    seen: list[list[int]] = [[] for _ in range(THREADS)]
    done = threading.Event()
    received = 0

    def callback(delivery: Any) -> None:
        nonlocal received
        number, index = map(int, delivery.body.split())
        seen[number].append(index)
        received += 1
        delivery.ack()
        if received == sum(sent):
            done.set()

    channel.consume(queue, callback)
    assert done.wait(4 * PATIENCE), f"{received} of {sum(sent)}"
    assert seen == [list(range(count)) for count in sent]
    wait_until(lambda: channel.queue_declare(queue, passive=True).message_count == 0)


@pytest.mark.parametrize("count", [200])
def test_calls_of_many_threads_get_each_its_own_answer(connect: Connect, count: int) -> None:
    connection = connect()
    shared = connection.channel()
    failures: list[Exception] = []

    def ask(number: int) -> None:
        try:
            own = connection.channel()
            queue = own.queue_declare("", exclusive=True).queue
            for _ in range(count // 20):
                assert shared.queue_declare(queue, passive=True).queue == queue
                own.publish("", queue, queue)
                assert wait_until(lambda: shared.get(queue, auto_ack=True)).body == queue.encode()
            own.close()
        except Exception as failure:  # noqa: BLE001 - shown by the test
            failures.append(failure)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * PATIENCE)
    assert failures == []
    assert not any(thread.is_alive() for thread in threads)
    assert len(connection.channels) == 1
