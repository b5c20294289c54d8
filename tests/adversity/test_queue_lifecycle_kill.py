"""kill -9 under quorum queues with a delivery limit, and under single active consumers.

A real process, killed while consumers give messages back and started again on its folder: a message is never delivered
more often than its limit and the kills allow, none is lost before, and order is kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adversity.test_kill import SMALL
from tests.support.process import BrokerProcess
from tests.support.wire import Content, WireChannel

LIMIT = 3
COUNT = 400
SAC = {"x-single-active-consumer": True}


def declare_and_fill(broker: BrokerProcess, arguments: dict[str, Any], count: int) -> None:
    with broker.connect() as connection:
        channel = connection.channel()
        channel.call("queue.declare", queue="q", durable=True, arguments=arguments)
        channel.call("confirm.select")
        for number in range(count):
            channel.publish(b"%d" % number + bytes(200), {"delivery_mode": 2}, routing_key="q")
        while channel.expect("basic.ack")["delivery_tag"] < count:
            pass
        connection.close()


def number_of(content: Content) -> int:
    return int(content.body.partition(b"\0")[0])


def take(channel: WireChannel, count: int) -> list[Content]:
    return [channel.content() for _ in range(count)]


def depth(channel: WireChannel) -> int:
    return int(channel.call("queue.declare", queue="q", passive=True)["message_count"])


@pytest.mark.parametrize("count", [5, COUNT])
def test_the_delivery_count_survives_kills(tmp_path: Path, count: int) -> None:
    """In each life one round of all messages is given back, which is durable before the kill; then one is in flight."""
    folder = tmp_path / "data"
    counts: list[set[Any]] = []
    for life in range(LIMIT + 1):
        with BrokerProcess(folder, SMALL).ready() as broker:
            if life == 0:
                declare_and_fill(broker, {"x-queue-type": "quorum", "x-delivery-limit": LIMIT}, count)
            connection = broker.connect()
            channel = connection.channel()
            channel.call("basic.consume", queue="q", consumer_tag="one")
            delivered = take(channel, count)
            assert [number_of(each) for each in delivered] == list(range(count))
            counts.append({each.properties.get("headers", {}).get("x-delivery-count", 0) for each in delivered})
            channel.call("basic.cancel", consumer_tag="one")
            channel.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)
            assert depth(channel) == (count if life < LIMIT else 0)
            # What is durable behind it in the log is durable itself.
            channel.call("queue.declare", queue=f"mark {life}", durable=True)
            broker.kill()
            connection.socket.close()
        assert "Traceback" not in broker.log(), broker.log()
    assert counts == [{number} for number in range(LIMIT + 1)]
    with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        assert depth(connection.channel()) == 0


def test_a_kill_in_the_middle_of_deliveries_loses_no_message_and_counts_no_return_twice(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with BrokerProcess(folder, SMALL).ready() as broker:
        declare_and_fill(broker, {"x-queue-type": "quorum", "x-delivery-limit": LIMIT}, COUNT)
        connection = broker.connect()
        channel = connection.channel()
        channel.call("basic.qos", prefetch_count=COUNT)
        channel.call("basic.consume", queue="q")
        take(channel, COUNT // 2)
        broker.kill()
        connection.socket.close()
    with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
        channel = connection.channel()
        assert depth(channel) == COUNT
        channel.call("basic.consume", queue="q")
        delivered = take(channel, COUNT)
        assert [number_of(each) for each in delivered] == list(range(COUNT))
        # A delivery that the kill interrupted may be counted, as one that came back; nothing else is.
        assert {each.properties.get("headers", {}).get("x-delivery-count", 0) for each in delivered} <= {0, 1}


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_single_active_consumer_continues_in_order_after_a_kill(tmp_path: Path, queue_type: str) -> None:
    folder = tmp_path / "data"
    settled = 0
    for life in range(3):
        with BrokerProcess(folder, SMALL).ready() as broker:
            if life == 0:
                declare_and_fill(broker, SAC | {"x-queue-type": queue_type}, COUNT)
            connections = [broker.connect() for _ in range(3)]
            channels = [connection.channel() for connection in connections]
            for channel in channels:
                channel.call("basic.qos", prefetch_count=50)
                channel.call("basic.consume", queue="q")
            for active, connection in zip(channels[:2], connections[:2], strict=True):
                delivered = take(active, 50)
                assert [number_of(each) for each in delivered] == list(range(settled, settled + 50))
                active.send("basic.ack", delivery_tag=delivered[19].method["delivery_tag"], multiple=True)
                settled += 20
                # What is durable behind the acks in the log says that they are.
                connection.channel(2).call("queue.declare", queue=f"mark {life} {settled}", durable=True)
                connection.socket.close()
            assert number_of(channels[2].content()) == settled
            broker.kill()
            connections[2].socket.close()
        assert "Traceback" not in broker.log(), broker.log()
