"""The output of a connection: straight to the socket where it takes it, through the transport otherwise, in order."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Iterator

import pytest

from tests.support.socketless import ManualLoop
from warrenmq.core.broker import Broker
from warrenmq.core.stats import Traffic
from warrenmq.protocol.output import IS_COMPILED, BufferPool
from warrenmq.server.clock import system_time_ms
from warrenmq.server.outbox import ConnectionOutbox
from warrenmq.server.ticker import Ticker
from warrenmq.storage.memory_store import MemoryStorage

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="uncompiled, the transport writes all output")

PIECE = 60_000


class Transport:
    """A transport that holds what it is given until `drain`."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.held = b""
        self.is_closed = False

    def write(self, data: bytes | memoryview) -> None:
        self.held += bytes(data)

    def writelines(self, chunks: Iterable[bytes | memoryview]) -> None:
        self.held += b"".join(bytes(chunk) for chunk in chunks)

    def get_write_buffer_size(self) -> int:
        return len(self.held)

    def is_closing(self) -> bool:
        return self.is_closed


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over TCP whose sending end, the first one, takes part of a large write."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def outbox(ends: tuple[socket.socket, socket.socket]) -> ConnectionOutbox:
    broker = Broker(MemoryStorage())
    ticker = Ticker(ManualLoop(), broker, system_time_ms)  # type: ignore[arg-type]
    outbox = ConnectionOutbox(ticker, broker.stats, Traffic(), BufferPool(), 131072)
    outbox.transport = Transport(ends[0])
    outbox.fd = ends[0].fileno()
    return outbox


def receive(end: socket.socket, size: int) -> bytes:
    """Read this many bytes, and see that there are no more."""
    pieces = b""
    while len(pieces) < size:
        pieces += end.recv(size - len(pieces))
    end.setblocking(False)
    with pytest.raises(BlockingIOError):
        end.recv(1)
    end.setblocking(True)
    return pieces


def send(outbox: ConnectionOutbox, data: bytes) -> None:
    outbox.send_raw(data)
    outbox.flush()


def test_output_goes_straight_to_the_socket(
    outbox: ConnectionOutbox, ends: tuple[socket.socket, socket.socket]
) -> None:
    for number in range(3):
        send(outbox, b"frame %d" % number)
    assert receive(ends[1], 21) == b"frame 0frame 1frame 2"
    assert outbox.transport.held == b""
    assert outbox.traffic.bytes_out == 21


def test_what_a_full_socket_does_not_take_goes_through_the_transport_in_order(
    outbox: ConnectionOutbox, ends: tuple[socket.socket, socket.socket]
) -> None:
    sent = b""
    while not outbox.transport.held:
        sent += (piece := random.randbytes(PIECE))
        send(outbox, piece)
    held = outbox.transport.held
    assert 0 < len(held) < PIECE, "the socket took a part of the last piece"
    taken = receive(ends[1], len(sent) - len(held))
    assert taken + held == sent
    send(outbox, b"later")  # behind what the transport holds, although the socket has room
    receive(ends[1], 0)
    assert outbox.transport.held == held + b"later"
    outbox.transport.held = b""
    send(outbox, b"direct again")
    assert receive(ends[1], 12) == b"direct again"


def test_the_descriptor_of_a_closing_transport_is_not_written_to(
    outbox: ConnectionOutbox, ends: tuple[socket.socket, socket.socket]
) -> None:
    outbox.transport.is_closed = True
    send(outbox, b"too late")
    receive(ends[1], 0)
    assert outbox.transport.held == b"too late"


def test_an_error_of_the_socket_is_left_to_the_transport(
    outbox: ConnectionOutbox, ends: tuple[socket.socket, socket.socket]
) -> None:
    ends[0].shutdown(socket.SHUT_WR)
    send(outbox, b"unsent")
    assert outbox.transport.held == b"unsent"


def test_large_bodies_go_through_the_transport(
    outbox: ConnectionOutbox, ends: tuple[socket.socket, socket.socket]
) -> None:
    outbox.buffer.put_content(1, b"method", b"header", bytes(70_000))
    outbox.flush()
    receive(ends[1], 0)
    assert len(outbox.transport.held) > 70_000
