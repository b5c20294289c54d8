"""A node that stops: its clients are notified, none can delay it, and nothing of it is left."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.support.loops import on_a_loop
from tests.support.ports import free_port
from tests.support.wire import Address, ConnectionRefusal, Refusal, WireConnection
from warrenmq.node import Node, NodeOptions, StartError

FORCED = Refusal("connection", 320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")


async def started(data_dir: Path | None = None, port: int = 0) -> Node:
    node = Node(NodeOptions(port=port, http_port=None, data_dir=data_dir))
    await node.start()
    return node


def dial(node: Node) -> WireConnection:
    return WireConnection(Address.of_url(node.url))


@on_a_loop
async def test_clients_are_notified_and_the_node_waits_for_their_reply() -> None:
    node = await started()
    connections = [await asyncio.to_thread(lambda: dial(node).open()) for _ in range(3)]
    stopping = asyncio.create_task(node.stop(grace=60))
    for connection in connections:
        assert await asyncio.to_thread(connection.expect_refusal) == FORCED
    await stopping
    assert node.ready() == (False, "stopped")
    assert node.broker.connection_count == 0


@on_a_loop
async def test_clients_that_do_not_answer_are_hung_up_on() -> None:
    node = await started()
    connection = await asyncio.to_thread(lambda: dial(node).open())
    await node.stop(grace=0.05)
    with pytest.raises(ConnectionRefusal) as refusal:
        await asyncio.to_thread(connection.read)
    assert refusal.value.refusal == FORCED
    await asyncio.to_thread(connection.expect_end)


@on_a_loop
async def test_clients_that_never_began_do_not_hold_it_up() -> None:
    node = await started()
    silent, begun = dial(node), dial(node)
    await asyncio.to_thread(begun.start)
    await node.stop(grace=3600)
    await asyncio.to_thread(silent.expect_end)
    await asyncio.to_thread(begun.expect_end)


@on_a_loop
async def test_no_client_can_connect_and_the_port_is_free() -> None:
    port = free_port()
    node = await started(port=port)
    await node.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=30)
    again = await started(port=port)
    assert again.amqp_port == port
    await again.stop()


@on_a_loop
async def test_stopping_twice_is_stopping_once() -> None:
    node = await started()
    await node.stop()
    await node.stop()


@on_a_loop
async def test_no_task_and_no_timer_is_left_behind() -> None:
    before = asyncio.all_tasks()
    node = await started()
    connection = await asyncio.to_thread(lambda: dial(node).open())
    await node.stop(grace=0.05)
    connection.socket.close()
    assert asyncio.all_tasks() == before


@on_a_loop
async def test_the_data_folder_is_given_back(tmp_path: Path) -> None:
    first = await started(tmp_path)
    with pytest.raises(StartError, match="is in use by another broker"):
        await started(tmp_path)
    await first.stop()
    second = await started(tmp_path)
    await second.stop()


@on_a_loop
async def test_a_port_in_use_is_said_in_one_line() -> None:
    first = await started()
    with pytest.raises(StartError) as error:
        await started(port=first.amqp_port)
    assert str(error.value).startswith(f"AMQP port in use: 127.0.0.1:{first.amqp_port}")
    assert "\n" not in str(error.value)
    await first.stop()
