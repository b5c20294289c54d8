"""File descriptors run out: a flood of connections leaves the storage its own, and a real shortage is waited for.

The attack of a whole `ulimit -n`, scaled down: the broker's process has a low limit.
"""

from __future__ import annotations

import fcntl
import os
import re
import resource
import socket
import struct
import termios
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import WireConnection

pytestmark = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")

LIMIT = 30.0
OPEN_FILES = 128
BODY = bytes(20_000)
SMALL_FILES = {"WARREN_TEST_LIMITS": "log_file_size=262144,segment_size=262144", "WARREN_LOG_LIMIT": "1MiB"}


@contextmanager
def broker_with(
    folder: Path, environ: dict[str, str] | None = None, http_port: str = "off", soft_limit: int = OPEN_FILES
) -> Iterator[BrokerProcess]:
    """A broker whose process may open few files."""
    settings = SMALL_FILES | (environ or {})
    with BrokerProcess(folder, settings, http_port=http_port, open_files=(soft_limit, OPEN_FILES)).ready() as broker:
        yield broker


@contextmanager
def silent_connections(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing; those that the broker refuses are among them."""
    connections = [socket.create_connection(("127.0.0.1", port), timeout=LIMIT) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def open_descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


def limit_of(broker: BrokerProcess, open_files: int) -> None:
    """Limit the descriptors of the process from now on."""
    hard = resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (open_files, hard))


def is_short(broker: BrokerProcess) -> bool:
    return "no file descriptors left" in broker.log()


def unread_bytes(connection: WireConnection) -> int:
    """What was sent and has not reached the other end."""
    return int(struct.unpack("i", fcntl.ioctl(connection.socket, termios.TIOCOUTQ, bytes(4)))[0])


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def http_port_of(broker: BrokerProcess) -> int:
    wait_until(lambda: "HTTP on http" in broker.log())
    found = re.search(r"HTTP on http://127\.0\.0\.1:(\d+)", broker.log())
    assert found
    return int(found[1])


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{http_port_of(broker)}/metrics", timeout=LIMIT) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def publish_durably(connection: WireConnection, count: int) -> None:
    channel = connection.channel(1)
    channel.call("queue.declare", queue="q", durable=True)
    channel.call("confirm.select")
    for _ in range(count):
        channel.publish(BODY, {"delivery_mode": 2}, routing_key="q")
        channel.expect("basic.ack")


@pytest.mark.parametrize("kind", ["AMQP", "HTTP"])
def test_a_flood_of_silent_connections_does_not_stop_the_broker(tmp_path: Path, kind: str) -> None:
    with broker_with(tmp_path / "data", http_port="0") as broker:
        port = http_port_of(broker) if kind == "HTTP" else broker.address.port
        with broker.connect() as publisher, silent_connections(port, 2 * OPEN_FILES) as flood:
            wait_until(lambda: sum(map(is_closed, flood)) > OPEN_FILES)
            publish_durably(publisher, 60)
            assert not broker.is_dead
            assert open_descriptors(broker) < OPEN_FILES
        assert "Too many open files" not in broker.log()
        assert broker.stop() == 0


def test_connections_above_the_limit_are_closed_at_once_and_counted(tmp_path: Path) -> None:
    with broker_with(tmp_path / "data", {"WARREN_MAX_CONNECTIONS": "4"}, http_port="0") as broker:
        clients = [broker.connect() for _ in range(4)]
        with silent_connections(broker.address.port, 5) as refused:
            wait_until(lambda: all(map(is_closed, refused)))
        counted = metrics(broker)
        assert counted['warren_connections_refused_total{reason="max_connections"}'] == 5
        assert counted["warren_connections"] == 4
        assert broker.log().count("connections refused") == 1
        clients[0].close()
        wait_until(lambda: metrics(broker)["warren_connections"] == 3)
        with broker.connect() as another:
            another.channel(1)


def test_connections_that_do_not_log_in_take_half_and_only_for_a_while(tmp_path: Path) -> None:
    settings = {"WARREN_MAX_CONNECTIONS": "6", "WARREN_HANDSHAKE_TIMEOUT": "1"}
    with broker_with(tmp_path / "data", settings, http_port="0") as broker:
        clients = [broker.connect() for _ in range(2)]
        with silent_connections(broker.address.port, 7) as silent:
            wait_until(lambda: sum(map(is_closed, silent)) >= 4)
            assert metrics(broker)['warren_connections_refused_total{reason="unauthenticated"}'] == 4
            wait_until(lambda: all(map(is_closed, silent)))  # by the deadline
        clients += [broker.connect() for _ in range(4)]
        for client in clients:
            client.close()


def test_the_limit_of_open_files_is_raised_to_what_the_system_allows(tmp_path: Path) -> None:
    with broker_with(tmp_path / "data", soft_limit=64) as broker:
        assert resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE) == (OPEN_FILES, OPEN_FILES)
        assert "connection limits: 56 AMQP, 8 HTTP (open files: 128)" in broker.log()


def test_more_connections_than_descriptors_cannot_be_asked_for(tmp_path: Path) -> None:
    with broker_with(tmp_path / "data", {"WARREN_MAX_CONNECTIONS": "100000"}) as broker:
        assert "max_connections lowered from 100000 to 56: the process may open only 128 files" in broker.log()


def test_without_a_free_descriptor_confirms_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    """The log rolls, pages are written, definitions made: all of that waits for descriptors, and none of it fails."""
    folder = tmp_path / "data"
    with broker_with(folder) as broker, broker.connect() as connection:
        channel = connection.channel(1)
        channel.call("queue.declare", queue="q", durable=True)
        channel.call("confirm.select")
        limit_of(broker, open_descriptors(broker))
        with silent_connections(broker.address.port, 20):  # cannot be accepted
            sent = 0
            while True:
                # A broker that waits for descriptors does not read: never send what its socket does not take.
                wait_until(lambda: is_short(broker) or unread_bytes(connection) < 2 * len(BODY))
                if is_short(broker):
                    break
                channel.publish(b"%d " % sent + BODY, {"delivery_mode": 2}, routing_key="q")
                sent += 1
                assert sent < 1000, "the storage never needed a descriptor"
            assert not broker.is_dead
            limit_of(broker, OPEN_FILES)
            wait_until(lambda: "writing resumed" in broker.log())
            confirmed = 0
            while confirmed < sent:
                ack = channel.expect("basic.ack")
                confirmed = ack.arguments["delivery_tag"] if ack.arguments["multiple"] else confirmed + 1
            channel.call("queue.declare", queue="another", durable=True)
        broker.connect().close()
        assert broker.log().count("Traceback") == 0
        assert broker.log().count("no file descriptors left") < 10
        broker.kill()
    with broker_with(folder) as broker, broker.connect() as connection:
        channel = connection.channel(1)
        channel.call("queue.declare", queue="another", durable=True, passive=True)
        numbers = []
        while (content := channel.get("q")) is not None:
            numbers.append(int(content.body.split()[0]))
        assert numbers == list(range(sent))
