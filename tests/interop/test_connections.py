"""Every client logs in, stays, is turned away, loses its connection and comes again."""

from __future__ import annotations

from urllib.parse import quote, urlsplit, urlunsplit

import pytest

from .clients.contract import Feature, Refused, Scope
from .conftest import Connect, Namer
from .proxy import Proxy


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}"))


def test_wrong_password_is_refused_with_a_reason(connect: Connect, broker_url: str) -> None:
    with pytest.raises(Refused) as refused:
        connect(with_login(broker_url, "guest", "wrong"))
    assert (refused.value.scope, refused.value.code) == (Scope.CONNECTION, 403)
    assert refused.value.text.startswith("ACCESS_REFUSED - Login was refused using authentication mechanism ")


@pytest.mark.needs(Feature.OPEN_REASON)
def test_unknown_virtual_host_is_refused(connect: Connect, broker_url: str) -> None:
    url = urlunsplit(urlsplit(broker_url)._replace(path="/" + quote("no such host")))
    with pytest.raises(Refused) as refused:
        connect(url)
    assert (refused.value.scope, refused.value.code) == (Scope.CONNECTION, 530)
    assert refused.value.text == "NOT_ALLOWED - vhost no such host not found"


def test_heartbeats_keep_an_idle_connection(connect: Connect) -> None:
    client = connect(heartbeat=1)
    channel = client.channel()
    client.idle(3.0)  # the broker leaves a silent client after two
    assert client.is_open
    assert channel.declare_queue(exclusive=True).messages == 0


def test_client_that_stops_its_heartbeats_is_let_go(connect: Connect, proxy: Proxy, name: Namer) -> None:
    queue = name("queue")
    hanging = connect(proxy.url, heartbeat=1).channel()
    hanging.declare_queue(queue)
    hanging.publish("", queue, b"held")
    hanging.consume(queue)
    hanging.take(1)
    proxy.hold()
    other = connect().channel()
    other.consume(queue)
    delivery = other.take(1)[0]
    assert (delivery.body, delivery.redelivered) == (b"held", True)


def test_client_comes_again_after_the_connection_was_lost(connect: Connect, proxy: Proxy, name: Namer) -> None:
    queue = name("queue")
    channel = connect(proxy.url).channel()
    channel.declare_queue(queue)
    channel.publish("", queue, b"held")
    channel.consume(queue)
    channel.take(1)
    proxy.cut()
    again = connect(proxy.url).channel()
    again.consume(queue)
    delivery = again.take(1)[0]
    assert (delivery.body, delivery.redelivered) == (b"held", True)
    again.ack(delivery.tag)


def test_many_connections_and_channels_come_and_go(connect: Connect, name: Namer) -> None:
    queue = name("queue")
    keeper = connect().channel()
    keeper.declare_queue(queue)
    keeper.consume(queue, no_ack=True)
    for number in range(10):
        client = connect()
        for _ in range(3):
            channel = client.channel()
            channel.select_confirms()
            channel.confirm("", queue, b"%d" % number)
            channel.close()
        client.close()
    assert len(keeper.take(30)) == 30


def test_channel_number_is_used_again_after_an_error(connect: Connect, name: Namer) -> None:
    client = connect()
    for _ in range(20):
        channel = client.channel()
        with pytest.raises(Refused) as refused:
            channel.declare_queue(name("missing"), passive=True)
        assert refused.value.code == 404
    assert client.channel().declare_queue(exclusive=True).messages == 0
