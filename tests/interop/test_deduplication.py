"""Clients written for RabbitMQ's plugin: declarations and publishes as its documentation shows them, by pika."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import warrenmq

pytestmark = pytest.mark.skipif("WARREN_TEST_URL" in os.environ, reason="another broker needs the plugin for this")


@pytest.fixture
def channel(broker_url: str) -> Iterator[BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        yield connection.channel()


def with_id(id: object, **headers: object) -> pika.BasicProperties:
    return pika.BasicProperties(delivery_mode=2, headers={"x-deduplication-header": id, **headers})


def test_an_exchange_by_the_digest_of_the_body(channel: BlockingChannel) -> None:
    channel.exchange_declare("dedup-x", "x-message-deduplication", arguments={"x-cache-size": "5"})
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "dedup-x")
    body = b"hello world"
    for _ in range(100):
        channel.basic_publish("dedup-x", "", body, with_id(md5(body).hexdigest()))
    assert channel.queue_declare(queue, passive=True).method.message_count == 1
    channel.exchange_delete("dedup-x")


def test_a_queue_with_confirms_and_mandatory(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True, arguments={"x-message-deduplication": True}).method.queue
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", queue, b"job", with_id("job-1"), mandatory=True)  # raises if returned or nacked
    method, _, body = channel.basic_get(queue, auto_ack=False)
    assert (method.message_count, body) == (0, b"job")
    channel.basic_ack(method.delivery_tag)
    channel.basic_publish("", queue, b"job", with_id("job-1"), mandatory=True)
    assert channel.queue_declare(queue, passive=True).method.message_count == 1


def test_a_transaction(channel: BlockingChannel) -> None:
    arguments = {"x-message-deduplication": True, "x-cache-size": 10, "x-deduplication-header": "order"}
    queue = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    properties = pika.BasicProperties(headers={"order": 4711})
    channel.tx_select()
    channel.basic_publish("", queue, b"1", properties)
    channel.tx_rollback()
    channel.basic_publish("", queue, b"2", properties)
    channel.basic_publish("", queue, b"3", properties)
    channel.tx_commit()
    assert channel.queue_declare(queue, passive=True).method.message_count == 1
    assert channel.basic_get(queue, auto_ack=True)[2] == b"2"


def test_a_bad_argument_closes_the_channel_with_406(channel: BlockingChannel) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
        channel.queue_declare("", arguments={"x-message-deduplication": True, "x-cache-size": 0})
    assert refused.value.reply_code == 406


def test_a_restart_remembers(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            warrenmq.Broker(data_dir=tmp_path / "data") as broker,
            pika.BlockingConnection(pika.URLParameters(broker.url)) as connection,
        ):
            channel = connection.channel()
            channel.confirm_delivery()
            arguments = {"x-message-deduplication": True, "x-queue-type": "stream"}
            channel.queue_declare("s", durable=True, arguments=arguments)
            for number in range(10):
                channel.basic_publish("", "s", b"%d" % number, with_id(f"query/1/{number}"))
            assert channel.queue_declare("s", passive=True).method.message_count == 10
