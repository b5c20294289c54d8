"""A running broker frees disk space: messages that stay do not hold on to the files of those that are gone.

With the broker's own segment size, over sockets and threads. tests/storage/test_compaction.py has the cases in small.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess
from tests.support.wire import WireConnection

MIB = 1 << 20
SEGMENT = 8 * MIB
PERSISTENT = {"delivery_mode": 2}
PATIENCE = 60.0
SETTINGS = {"WARREN_TEST_LIMITS": "window=4194304"}  # a queue of 30 MiB is paged out
STAYS = 200  # one message of this many


def disk_use(folder: Path) -> int:
    """The bytes in the segments of all queues; files may go while they are counted."""
    size = 0
    for path in folder.glob("queues/*/*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


def wait_for_little_dead(folder: Path, live: int, broker: BrokerProcess) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE / 0.05)):
        if disk_use(folder) <= 2 * live + SEGMENT:
            return
        pause.wait(0.05)
    raise AssertionError(f"{disk_use(folder):,} bytes on disk for {live:,} that live\n{broker.log()}")


def fill_and_thin_out(connection: WireConnection, bodies: list[bytes]) -> None:
    """Publish all, take all, ack all but some."""
    channel = connection.channel(1)
    channel.call("queue.declare", queue="q", durable=True)
    channel.call("confirm.select")
    for start in range(0, len(bodies), 100):
        for body in bodies[start : start + 100]:
            channel.publish(body, PERSISTENT, routing_key="q")
        while True:
            answer = channel.expect("basic.ack")
            if answer["delivery_tag"] == start + len(bodies[start : start + 100]):
                break
    consumer = connection.channel(2)
    consumer.call("basic.consume", queue="q")
    for number, body in enumerate(bodies):
        content = consumer.content()
        assert content.body == body
        if number % STAYS:
            consumer.send("basic.ack", delivery_tag=content["delivery_tag"])
    consumer.call("basic.qos", prefetch_count=1)  # all acks have arrived


@pytest.mark.parametrize("sizes", [(10_240,), (100, 102_400)], ids=["10 KiB", "100 B and 100 KiB"])
def test_the_files_of_acked_messages_go_though_a_few_messages_stay(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    folder = tmp_path / "data"
    count = len(sizes) * 30 * MIB // sum(sizes)
    bodies = [(b"%08d" % number).ljust(sizes[number % len(sizes)], b".") for number in range(count)]
    living = bodies[::STAYS]
    live = sum(map(len, living))
    with BrokerProcess(folder, SETTINGS).ready() as broker:
        with broker.connect() as connection:
            fill_and_thin_out(connection, bodies)
            wait_for_little_dead(folder, live, broker)
        assert broker.stop() == 0, broker.log()
    with BrokerProcess(folder, SETTINGS).ready() as broker:
        wait_for_little_dead(folder, live, broker)
        with broker.connect() as connection:
            channel = connection.channel(1)
            channel.call("basic.consume", queue="q", no_ack=True)
            assert [channel.content().body for _ in living] == living
        assert broker.stop() == 0, broker.log()
