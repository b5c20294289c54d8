"""Connecting: URLs, several addresses, logins, TLS, properties of client and server, and all ways to fail."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.client.conftest import Connect
from tests.client.patterns.making import InThread
from tests.support.breaker import Breaker
from tests.support.waiting import wait_until
from warrenmq import client

from .tls import TlsFront, make_certificate

QUICK = {"connect_timeout": 5.0}


@pytest.fixture
def port(broker_url: str) -> int:
    found = urlsplit(broker_url).port
    assert found
    return found


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port where nobody listens, and which nobody else can get meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


# -- that succeed


def test_url_with_options(connect: Connect, port: int) -> None:
    connection = connect(f"amqp://guest:guest@127.0.0.1:{port}/%2F?heartbeat=7&name=from%20url")
    assert connection.is_open
    assert connection.name == "from url"
    assert not connection.is_blocked
    assert not connection.is_recovering


def test_settings_by_name_win_over_the_url(connect: Connect, port: int) -> None:
    url = f"amqp://guest:wrong@127.0.0.1:{port}/%2F?name=url"
    assert connect(url, password="guest", name="given").name == "given"


def test_factory_is_taken_for_a_url_and_changed(face: Any, port: int) -> None:
    factory = client.ConnectionFactory(host="127.0.0.1", port=port, name="one")
    changed = factory.with_(name="two")
    assert (factory.name, changed.name) == ("one", "two")
    for each in (factory, changed):
        connection = face.connect(each)
        assert connection.name == each.name
        connection.close()


def test_connection_has_a_name_of_its_own_when_none_is_given(connect: Connect) -> None:
    assert connect().name


def test_server_properties_are_available(connection: Any, port: int) -> None:
    properties = connection.server_properties
    assert properties["product"] in ("WarrenMQ", "RabbitMQ")
    assert properties["capabilities"]["publisher_confirms"] is True
    host, connected_port = connection.address
    assert (host, connected_port) == ("127.0.0.1", port)


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_login_by_each_mechanism(connect: Connect, mechanism: str) -> None:
    assert connect(mechanism=mechanism).is_open


def test_addresses_are_tried_in_turn(connect: Connect, port: int, closed_port: int, silent_port: int) -> None:
    addresses = [("127.0.0.1", closed_port), ("127.0.0.1", silent_port), ("127.0.0.1", port)]
    connection = connect(addresses=addresses, connect_timeout=2.0)
    assert connection.address == ("127.0.0.1", port)


def test_list_of_urls_is_tried_in_turn(connect: Connect, port: int, closed_port: int) -> None:
    urls = [f"amqp://guest:guest@127.0.0.1:{each}/%2F" for each in (closed_port, port)]
    assert connect(urls).address == ("127.0.0.1", port)


def test_context_manager_closes(face: Any, broker_url: str) -> None:
    with face.connect(broker_url) as connection:
        channel = connection.channel()
        assert connection.is_open
    assert not connection.is_open
    assert not channel.is_open


def test_heartbeat_may_be_off(connect: Connect) -> None:
    assert connect(heartbeat=0).channel().queue_declare("", exclusive=True).queue


def test_channel_numbers_are_used_again(connect: Connect) -> None:
    connection = connect(channel_max=3)
    channels = [connection.channel() for _ in range(3)]
    assert [channel.number for channel in channels] == [1, 2, 3]
    with pytest.raises(client.ClientError):
        connection.channel()
    channels[1].close()
    assert connection.channel().number == 2
    assert connection.is_open
    assert len(connection.channels) == 3


def test_channel_number_is_free_after_the_broker_closed_it(connect: Connect) -> None:
    connection = connect(channel_max=1)
    for _ in range(5):
        channel = connection.channel()
        assert channel.number == 1
        with pytest.raises(client.NotFound):
            channel.queue_declare("no such queue", passive=True)


# -- that fail


def test_wrong_password(connect: Connect) -> None:
    with pytest.raises(client.AuthenticationFailed) as failed:
        connect(password="wrong")
    assert isinstance(failed.value, ConnectionError)
    assert "ACCESS_REFUSED" in str(failed.value)
    assert "wrong" not in str(failed.value)


def test_wrong_password_is_not_tried_for_ever(connect: Connect, breaker: Breaker) -> None:
    with pytest.raises(client.AuthenticationFailed):
        connect(breaker.url, password="wrong")
    assert breaker.connections_made == 1


def test_unknown_virtual_host(connect: Connect) -> None:
    with pytest.raises(client.ConnectionFailed) as failed:
        connect(virtual_host="no such host")
    assert "no such host" in str(failed.value)


def test_refused_port(connect: Connect, closed_port: int) -> None:
    with pytest.raises(client.ConnectionFailed) as failed:
        connect(f"amqp://guest:guest@127.0.0.1:{closed_port}/%2F", **QUICK)
    assert str(closed_port) in str(failed.value)
    assert "guest:guest" not in str(failed.value)


def test_failures_of_all_addresses_are_reported(connect: Connect, closed_port: int, silent_port: int) -> None:
    with pytest.raises(client.ConnectionFailed) as failed:
        connect(addresses=[("127.0.0.1", closed_port), ("127.0.0.1", silent_port)], connect_timeout=0.3)
    assert len(failed.value.failures) == 2
    assert str(closed_port) in str(failed.value)
    assert str(silent_port) in str(failed.value)


def test_silent_server(connect: Connect, silent_port: int) -> None:
    with pytest.raises((client.ConnectionFailed, client.CallTimedOut)):
        connect(f"amqp://guest:guest@127.0.0.1:{silent_port}/%2F", connect_timeout=0.3)


def test_host_that_does_not_exist(connect: Connect) -> None:
    with pytest.raises(client.ConnectionFailed):
        connect("amqp://guest:guest@no-such-host.invalid/%2F", **QUICK)


@pytest.mark.parametrize("words", [b"AMQP\x00\x01\x00\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x01\x00\x00"])
def test_server_with_another_protocol(connect: Connect, words: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _address = listener.accept()
            peer.recv(8)
            peer.sendall(words)
            peer.close()

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(client.ConnectionFailed):
            connect(f"amqp://guest:guest@127.0.0.1:{listener.getsockname()[1]}/%2F", **QUICK)
        server.join(10)


@pytest.mark.parametrize(
    "settings",
    [
        {"heartbeat": -1},
        {"frame_max": 10},
        {"channel_max": 70_000},
        {"mechanism": "MAGIC"},
        {"unconfirmed": "forget"},
        {"connect_timeout": -1},
        {"nonsense": 1},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_make_no_sense(connect: Connect, settings: dict[str, Any]) -> None:
    with pytest.raises((client.Misuse, TypeError)):
        connect(**settings)


@pytest.mark.parametrize("url", ["http://localhost/", "amqp://host:port/", "amqp://h/?heartbeet=1", "amqp://h:99999/"])
def test_urls_that_are_none(connect: Connect, url: str) -> None:
    with pytest.raises(client.Misuse):
        connect(url)


# -- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def tls_port(port: int, certificate: tuple[Path, Path]) -> Iterator[int]:
    with TlsFront(port, *certificate) as front:
        yield front.port


def test_tls_with_a_context(connect: Connect, tls_port: int, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    channel = connect(f"amqps://guest:guest@localhost:{tls_port}/%2F", tls=context).channel()
    channel.confirm_select()
    queue = channel.queue_declare("", exclusive=True).queue
    channel.publish("", queue, b"x" * 1_000_000).result(30)
    assert channel.get(queue, auto_ack=True).body == b"x" * 1_000_000


def test_tls_with_options_of_the_url(connect: Connect, tls_port: int, certificate: tuple[Path, Path]) -> None:
    url = f"amqps://guest:guest@localhost:{tls_port}/%2F?cacertfile={certificate[0]}"
    assert connect(url).channel().queue_declare("", exclusive=True).queue


def test_tls_does_not_trust_just_anybody(connect: Connect, tls_port: int) -> None:
    with pytest.raises(client.ConnectionFailed) as failed:
        connect(f"amqps://guest:guest@localhost:{tls_port}/%2F", connect_timeout=30)
    assert "certificate" in str(failed.value).lower()


def test_tls_to_a_plain_port(connect: Connect, port: int) -> None:
    with pytest.raises(client.ConnectionFailed):
        connect(f"amqps://guest:guest@localhost:{port}/%2F", connect_timeout=2.0)


def test_tls_with_a_certificate_of_the_client(
    connect: Connect, port: int, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    own, key = make_certificate(tmp_path)
    options = f"cacertfile={certificate[0]}&certfile={own}&keyfile={key}"
    with TlsFront(port, *certificate, client_certificate=own) as front:
        connection = connect(f"amqps://guest:guest@localhost:{front.port}/%2F?{options}")
        assert connection.channel().queue_declare("", exclusive=True).queue
        connection.close()


def test_factory_without_anything_is_the_ecosystems() -> None:
    factory = client.ConnectionFactory()
    assert (factory.host, factory.port, factory.username, factory.virtual_host) == ("localhost", 5672, "guest", "/")
    assert client.ConnectionFactory("amqps://h").port == 5671
    assert factory.recovery.enabled


# -- a broker that is not up yet


def test_connecting_waits_for_a_broker_that_is_not_up_yet(
    connect: Connect, breaker: Breaker, caplog: pytest.LogCaptureFixture
) -> None:
    breaker.refuse()
    connecting = InThread(connect, breaker.url, attempts=None, wait=0.01)
    wait_until(lambda: breaker.connections_refused >= 3, "it tries")
    breaker.calm()
    assert connecting.result().is_open
    assert f"not reachable, retrying in 0.0 s: no connection to 127.0.0.1:{urlsplit(breaker.url).port}" in caplog.text


def test_attempts_are_counted_and_one_is_the_default(connect: Connect, breaker: Breaker) -> None:
    breaker.refuse()
    for settings, total in (({}, 1), ({"attempts": 3, "wait": 0}, 4)):
        with pytest.raises(client.ConnectionFailed):
            connect(breaker.url, **settings)
        assert breaker.connections_refused == total


def test_refused_login_or_virtual_host_is_not_tried_again(connect: Connect, breaker: Breaker) -> None:
    for number, (kind, settings) in enumerate(
        ((client.AuthenticationFailed, {"password": "wrong"}), (client.ConnectionFailed, {"virtual_host": "nowhere"})),
        1,
    ):
        with pytest.raises(kind) as caught:
            connect(breaker.url, attempts=None, wait=0, **settings)
        assert caught.value.is_refusal
        assert breaker.connections_made == number


def test_timeout_of_a_factorys_connect_bounds_all_attempts(face: Any, breaker: Breaker) -> None:
    breaker.refuse()
    factory = client.ConnectionFactory(breaker.url, attempts=None, wait=0.01)
    with pytest.raises(client.ConnectionFailed, match=r"within 0\.1 seconds"):
        if face.name == "blocking":
            factory.connect(timeout=0.1)
        else:
            face.run(lambda: factory.connect_async(timeout=0.1))


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"attempts": 1.5}, {"wait": -1}, {"wait": "soon"}])
def test_invalid_attempts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(client.Misuse):
        client.ConnectionFactory(**wrong)
