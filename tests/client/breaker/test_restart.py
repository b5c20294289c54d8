"""The broker itself goes and comes back: in order, killed, on the same port, with its data."""

from __future__ import annotations

from pathlib import Path

import pytest

import warrenmq
from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect, own_broker_only
from tests.support.breaker import Breaker
from tests.support.ports import free_port
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from warrenmq import client

from .conftest import FAST

pytestmark = own_broker_only
PERSISTENT = client.Properties(delivery_mode=2)


@pytest.fixture
def port() -> int:
    return free_port()


def test_broker_restarted_on_its_port(connect: Connect, port: int, tmp_path: Path) -> None:
    broker = warrenmq.Broker(port=port, data_dir=tmp_path).start()
    connection = connect(broker.url, recovery=FAST)
    events, inbox = Inbox(), Inbox()
    connection.add_recovery_listener(events)
    channel = connection.channel()
    channel.confirm_select()
    channel.exchange_declare("e", "topic", durable=True)
    channel.queue_declare("jobs", durable=True)
    channel.queue_bind("jobs", "e", "job.#")
    for number in range(20):
        channel.publish("e", "job.x", b"%d" % number, PERSISTENT)
    channel.wait_for_confirms(timeout=PATIENCE)
    broker.stop()
    lost = events.until(lambda event: event.kind == "lost")
    assert (lost.reason.by, lost.reason.reply_code) == ("server", 320)
    with pytest.raises((client.ConnectionLost, client.CallTimedOut)):
        channel.queue_declare("jobs", passive=True, timeout=0.1)
    broker = warrenmq.Broker(port=port, data_dir=tmp_path).start()
    events.until(lambda event: event.kind == "recovered")
    channel.consume("jobs", inbox)
    channel.publish("e", "job.x", b"20", PERSISTENT).result(PATIENCE)
    deliveries = inbox.take(21)
    assert [int(each.body) for each in deliveries] == list(range(21))
    deliveries[-1].ack(multiple=True)
    channel.recover()
    assert channel.queue_declare("jobs", passive=True).message_count == 0
    connection.close()
    broker.stop()


def test_broker_killed_loses_nothing_confirmed(connect: Connect, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with BrokerProcess(folder) as first:
        first.ready()
        with Breaker(f"amqp://guest:guest@127.0.0.1:{first.address.port}/%2F") as breaker:
            connection = connect(breaker.url, recovery=FAST, unconfirmed="resend")
            channel, inbox = connection.channel(), Inbox()
            channel.confirm_select()
            channel.queue_declare("jobs", durable=True)
            confirmations = [channel.publish("", "jobs", b"%d" % number, PERSISTENT) for number in range(300)]
            wait_until(lambda: confirmations[10].done())
            first.kill()
            with BrokerProcess(folder) as second:
                second.ready()
                breaker.aim(f"amqp://127.0.0.1:{second.address.port}")
                for each in confirmations:
                    each.result(2 * PATIENCE)
                channel.consume("jobs", inbox)
                seen: set[int] = set()
                while len(seen) < 300:
                    delivery = inbox.next()
                    seen.add(int(delivery.body))
                    delivery.ack()
                assert seen == set(range(300))
                connection.close()
                second.stop()


def test_transient_topology_comes_back_in_an_empty_broker(connect: Connect, port: int) -> None:
    broker = warrenmq.Broker(port=port).start()
    connection = connect(broker.url, recovery=FAST)
    events, inbox = Inbox(), Inbox()
    connection.add_recovery_listener(events)
    channel = connection.channel()
    channel.exchange_declare("e", "fanout")
    channel.queue_declare("q")
    channel.queue_bind("q", "e")
    channel.consume("q", inbox, auto_ack=True)
    for round_number in range(2):
        broker.stop()
        broker = warrenmq.Broker(port=port).start()
        events.until(lambda event: event.kind == "recovered")
        channel.publish("e", "", b"%d" % round_number)
        assert inbox.next().body == b"%d" % round_number
    connection.close()
    broker.stop()
