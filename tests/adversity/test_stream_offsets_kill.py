"""kill -9 under tracked consumers of a stream: none is ever ahead of its acks, and transactions move each message once.

A real process, killed at random moments and at the worst ones, started again on its folder.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import deque
from pathlib import Path

import pytest

from tests.adversity.test_kill import SMALL, expect_death
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.wire import ConnectionRefusal, EndOfStream, WireChannel
from tests.support.wire_format import Content

COUNT = 2500
BATCH = 10
TRACKED = {"x-stream-automatic-offset-tracking": True}


def fill(broker: BrokerProcess) -> None:
    with broker.connect() as connection:
        channel = connection.channel()
        channel.call("queue.declare", queue="s", durable=True, arguments={"x-queue-type": "stream"})
        channel.call("queue.declare", queue="out", durable=True)
        channel.call("confirm.select")
        for number in range(COUNT):
            channel.publish(b"%d" % number + bytes(500), routing_key="s")
        while channel.expect("basic.ack")["delivery_tag"] < COUNT:
            pass


def number_of(content: Content) -> int:
    return int(content.body.partition(b"\0")[0])


class Mover:
    """Moves messages from the stream to the queue, a batch in a transaction, wherever it has come to before."""

    def __init__(self) -> None:
        self.moved = 0  # committed in all lives
        self.begins: list[int] = []  # where each life has begun

    def run(self, broker: BrokerProcess) -> None:
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("basic.qos", prefetch_count=BATCH)
                channel.call("tx.select")
                channel.call("basic.consume", queue="s", consumer_tag="mover", arguments=TRACKED)
                pending: deque[Content] = deque([channel.content()])
                self.begins.append(number_of(pending[0]))
                while True:
                    self._move_batch(channel, pending)
        except (OSError, EndOfStream, ConnectionRefusal):
            return  # the broker is gone

    def _move_batch(self, channel: WireChannel, pending: deque[Content]) -> None:
        for _ in range(BATCH):
            content = pending.popleft() if pending else channel.content()
            channel.publish(content.body, {"delivery_mode": 2}, routing_key="out")
            channel.send("basic.ack", delivery_tag=content.method["delivery_tag"])
        channel.send("tx.commit")
        while (said := channel.read()).name != "tx.commit-ok":
            pending.append(channel.connection.read_content(said))
        self.moved += BATCH


class Reader:
    """Acks each message as it comes, and notes which it has acked."""

    def __init__(self) -> None:
        self.acked = 0  # all before this one
        self.wrong: list[str] = []

    def run(self, broker: BrokerProcess) -> None:
        try:
            with broker.connect() as connection:
                channel = connection.channel()
                channel.call("basic.qos", prefetch_count=100)
                channel.call("basic.consume", queue="s", consumer_tag="reader", arguments=TRACKED)
                content = channel.content()
                number = number_of(content)
                if number > self.acked:
                    self.wrong.append(f"it begins with {number}, and has acked all before {self.acked}")
                while True:
                    self.acked = max(self.acked, number + 1)
                    channel.send("basic.ack", delivery_tag=content.method["delivery_tag"])
                    content = channel.content()
                    if number_of(content) != number + 1:
                        self.wrong.append(f"{number_of(content)} came behind {number}")
                    number = number_of(content)
        except (OSError, EndOfStream, ConnectionRefusal):
            return


def start(broker: BrokerProcess, *workers: Mover | Reader) -> list[threading.Thread]:
    threads = [threading.Thread(target=each.run, args=(broker,), daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    return threads


def require_each_once(folder: Path, mover: Mover, reader: Reader) -> None:
    """Let both go on to the end: the queue has every message once, in order."""
    mover.begins.clear()
    with BrokerProcess(folder, SMALL).ready() as broker:
        threads = start(broker, mover, reader)
        with broker.connect() as connection:
            channel = connection.channel()
            channel.call("basic.qos", prefetch_count=1000)
            channel.call("basic.consume", queue="out", no_ack=True)
            assert [number_of(channel.content()) for _ in range(COUNT)] == list(range(COUNT))
            assert channel.call("queue.declare", queue="out", passive=True)["message_count"] == 0
        assert broker.stop() == 0, broker.log()
        for thread in threads:
            thread.join(60)
    assert (reader.wrong, reader.acked) == ([], COUNT)
    assert "Traceback" not in broker.log(), broker.log()


@pytest.mark.parametrize("seed", range(effort(1)))
def test_offsets_survive_kills_and_transactions_move_each_message_once(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    mover, reader = Mover(), Reader()
    folder = tmp_path / "data"
    for life in range(4):
        with BrokerProcess(folder, SMALL).ready() as broker:
            if life == 0:
                fill(broker)
            moved = mover.moved + choice.randrange(50, 500)
            threads = start(broker, mover, reader)
            while mover.moved < moved:
                assert not broker.is_dead, broker.log()
                threads[0].join(choice.random() * 0.02)
            if life == 2:
                assert broker.stop() == 0, broker.log()
            else:
                broker.kill()
            for thread in threads:
                thread.join(60)
    assert mover.begins == sorted(mover.begins)
    assert mover.begins[-1] > 0
    require_each_once(folder, mover, reader)


@pytest.mark.parametrize(
    "point", ["log.after_write:40", "log.after_sync:40", "transaction.mid:40", "checkpoint.after_sync:1", "stop.mid:1"]
)
def test_offsets_survive_kills_at_crash_points(point: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    mover, reader = Mover(), Reader()
    with BrokerProcess(folder, SMALL).ready() as broker:
        fill(broker)
        assert broker.stop() == 0
    with BrokerProcess(folder, SMALL | {"WARREN_TEST_CRASH_AT": point}).ready() as broker:
        threads = start(broker, mover, reader)
        if point.startswith("stop"):
            while mover.moved < 50:
                threads[0].join(0.01)
            assert broker.stop() == -signal.SIGKILL
        expect_death(broker)
        for thread in threads:
            thread.join(60)
    require_each_once(folder, mover, reader)
