"""The breaker breaks what it says, and nothing else."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.breaker import DOWN, UP, Breaker, Fault, RandomFaults, ScriptedFaults

PATIENCE = 30.0
PREFACE = b"AMQP\x00\x00\x09\x01"


def frame(payload: bytes) -> bytes:
    return b"\x01\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"


def read(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := peer.recv(size - len(data))):
        data += more
    return data


class Ends:
    """A client and a server with the breaker between them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.breaker = Breaker(f"amqp://guest:guest@127.0.0.1:{self._listener.getsockname()[1]}/")
        self._sockets = [self._listener]

    def connect(self) -> tuple[socket.socket, socket.socket]:
        client = socket.create_connection(("127.0.0.1", self.breaker.port), PATIENCE)
        self._listener.settimeout(PATIENCE)
        server, _address = self._listener.accept()
        server.settimeout(PATIENCE)
        self._sockets += [client, server]
        client.sendall(PREFACE)
        assert read(server, len(PREFACE)) == PREFACE
        return client, server

    def close(self) -> None:
        self.breaker.close()
        for each in self._sockets:
            each.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def is_ended(peer: socket.socket) -> str:
    """How the other side ended: "end" or "reset"."""
    try:
        return "end" if peer.recv(1) == b"" else "data"
    except ConnectionResetError:
        return "reset"


def test_frames_pass_unchanged_however_they_are_cut(ends: Ends) -> None:
    client, server = ends.connect()
    draw = random.Random(1)
    stream = b"".join(frame(draw.randbytes(draw.choice([0, 1, 20, 70_000]))) for _ in range(60))

    def send() -> None:
        position = 0
        while position < len(stream):
            size = draw.choice([1, 7, 100, 50_000])
            client.sendall(stream[position : position + size])
            position += size

    sender = threading.Thread(target=send)
    sender.start()
    assert read(server, len(stream)) == stream
    sender.join(PATIENCE)
    server.sendall(stream[: len(stream)])
    assert read(client, len(stream)) == stream


@pytest.mark.parametrize("kind", ["reset", "end"])
def test_both_sides_see_the_end(ends: Ends, kind: str) -> None:
    client, server = ends.connect()
    getattr(ends.breaker, kind)()
    assert [is_ended(client), is_ended(server)] == [kind, kind]


@pytest.mark.parametrize("direction", [UP, DOWN])
def test_half_close_leaves_the_other_way_open(ends: Ends, direction: str) -> None:
    client, server = ends.connect()
    told, other = (server, client) if direction == UP else (client, server)
    ends.breaker.half_close(direction)
    assert is_ended(told) == "end"
    told.sendall(frame(b"still"))
    assert read(other, len(frame(b"still"))) == frame(b"still")


def test_damage_is_one_frame_with_a_type_that_does_not_exist(ends: Ends) -> None:
    client, server = ends.connect()
    ends.breaker.damage(UP)
    client.sendall(frame(b"one") + frame(b"two"))
    received = read(server, len(frame(b"one") * 2))
    assert received[0] not in (1, 2, 3, 8)
    assert received[1:] == frame(b"one")[1:] + frame(b"two")


def test_held_bytes_come_later_and_swallowed_ones_never(ends: Ends) -> None:
    client, server = ends.connect()
    ends.breaker.hold(UP)
    client.sendall(frame(b"held"))
    server.settimeout(0.1)
    with pytest.raises(TimeoutError):
        server.recv(1)
    ends.breaker.calm()
    server.settimeout(PATIENCE)
    assert read(server, len(frame(b"held"))) == frame(b"held")
    ends.breaker.swallow(UP)
    client.sendall(frame(b"gone"))
    server.settimeout(0.1)
    with pytest.raises(TimeoutError):
        server.recv(1)
    server.settimeout(PATIENCE)
    ends.breaker.calm()
    assert is_ended(client) == is_ended(server) == "reset", "no TCP goes on with a hole in it"


def test_refused_connections_are_reset_until_calm(ends: Ends) -> None:
    ends.breaker.refuse()
    with socket.socket() as refused, pytest.raises(ConnectionResetError):
        refused.settimeout(PATIENCE)
        refused.connect(("127.0.0.1", ends.breaker.port))  # the reset may come as early as this
        refused.recv(1)
    ends.breaker.calm()
    ends.connect()


def test_script_cuts_each_connection_after_a_number_of_bytes(ends: Ends) -> None:
    ends.breaker.fault_source = ScriptedFaults(Fault("end", UP, 8 + len(frame(b"1"))), Fault("reset", UP, 0))
    client, server = ends.connect()
    client.sendall(frame(b"1"))
    assert read(server, len(frame(b"1"))) == frame(b"1")
    client.sendall(frame(b"2"))
    assert is_ended(server) == "end"


def test_weather_is_the_same_for_the_same_seed() -> None:
    first, second, other = RandomFaults(1), RandomFaults(1), RandomFaults(2)
    drawn = [first.draw() for _ in range(100)]
    assert drawn == [second.draw() for _ in range(100)]
    assert drawn != [other.draw() for _ in range(100)]
    assert {fault.kind for fault in drawn if fault} == set(RandomFaults.KINDS)
