"""One server listens at several addresses: all its connections share the broker, and all end with it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.support.loops import on_a_loop
from tests.support.wire import Address, WireConnection
from warrenmq.core.broker import Broker
from warrenmq.core.users import EVERYTHING
from warrenmq.server.clock import system_time_ms
from warrenmq.server.listener import AmqpServer, Listener
from warrenmq.server.options import ServerOptions
from warrenmq.storage.memory_store import MemoryStorage


def make_server() -> AmqpServer:
    broker = Broker(MemoryStorage())
    broker.users.add("guest", "guest")
    broker.users.grant("guest", None, EVERYTHING, EVERYTHING, EVERYTHING)
    return AmqpServer(broker, ServerOptions(), system_time_ms)


async def dial(listener: Listener) -> WireConnection:
    return await asyncio.to_thread(lambda: WireConnection(Address(listener.host, listener.port)).open())


@on_a_loop
async def test_clients_of_all_listeners_share_one_broker() -> None:
    server = make_server()
    first = await server.listen("127.0.0.1", 0)
    second = await server.listen("127.0.0.1", 0)
    assert server.listeners == [first, second]
    assert server.port == first.port != second.port
    here, there = await dial(first), await dial(second)
    await asyncio.to_thread(lambda: here.channel(1).call("queue.declare", queue="q"))
    await asyncio.to_thread(lambda: there.channel(1).call("queue.declare", queue="q", passive=True))
    assert [connection.listener for connection in server._connections] == [first, second]
    for connection in (here, there):
        connection.socket.close()
    await server.stop(grace=30)


@on_a_loop
async def test_a_stop_closes_all_listeners() -> None:
    server = make_server()
    listeners = [await server.listen("127.0.0.1", 0) for _ in range(2)]
    connections = [await dial(listener) for listener in listeners]
    await server.stop(grace=0)
    for listener, connection in zip(listeners, connections, strict=True):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((listener.host, listener.port), timeout=30)
        connection.socket.close()
    assert server.broker.connection_count == 0


@on_a_loop
async def test_an_address_that_cannot_be_had_leaves_the_others_as_they_are() -> None:
    server = make_server()
    listener = await server.listen("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        await server.listen("127.0.0.1", listener.port)
    assert server.listeners == [listener]
    (await dial(listener)).socket.close()
    await server.stop(grace=30)


@on_a_loop
async def test_a_server_that_could_not_listen_stops() -> None:
    server = make_server()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        await server.listen("127.0.0.1", taken.getsockname()[1])
    await server.stop(grace=30)
    assert server.listeners == []
