"""A storage that fails: nothing more is confirmed, clients are notified, and the operator sees why."""

from __future__ import annotations

import asyncio
import logging
import resource
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

import warrenmq
from tests.support.client import PERSISTENT
from tests.support.loops import on_a_loop
from tests.support.wire import Address, ConnectionRefusal, Refusal, WireConnection
from warrenmq.node import Node, NodeOptions, StorageFailed

REASON = "the disk is on fire"
TOLD = Refusal("connection", 541, f"INTERNAL_ERROR - storage failed: {REASON}")


def is_ours(record: logging.LogRecord) -> bool:
    """An error of the broker; asyncio may say at any time what became of another test's tasks."""
    return record.levelno >= logging.ERROR and record.name.startswith("warrenmq")


async def started(data_dir: Path, http_port: int | None = None) -> Node:
    node = Node(NodeOptions(port=0, http_port=http_port, data_dir=data_dir))
    await node.start()
    return node


@on_a_loop
async def test_clients_get_a_close_and_the_node_logs_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = await started(tmp_path, http_port=0)
    connection = await asyncio.to_thread(lambda: WireConnection(Address.of_url(node.url)).open())
    port = node.amqp_port
    assert not node.failed.done()
    node.broker.log_failed(REASON)
    assert await asyncio.to_thread(connection.expect_refusal) == TOLD
    assert await node.failed == REASON
    assert node.ready() == (False, f"storage failed: {REASON}")
    async with httpx.AsyncClient(timeout=30) as client:
        health = await client.get(f"http://127.0.0.1:{node.http_port}/healthz")
    assert (health.status_code, health.json()["reason"]) == (503, f"storage failed: {REASON}")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await node.stop()
    errors = [record.getMessage() for record in caplog.records if is_ours(record)]
    assert errors == [f"storage failed: {REASON}; nothing more is confirmed, the node stops"]


@on_a_loop
async def test_clients_that_do_not_answer_do_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warrenmq.node.FAILURE_GRACE", 0.05)
    node = await started(tmp_path)
    connection = await asyncio.to_thread(lambda: WireConnection(Address.of_url(node.url)).open())
    node.broker.log_failed(REASON)
    await node.stop(grace=3600)
    with pytest.raises(ConnectionRefusal):
        await asyncio.to_thread(connection.read)
    assert node.broker.connection_count == 0


@on_a_loop
async def test_the_folder_is_given_back_and_can_be_used_again(tmp_path: Path) -> None:
    node = await started(tmp_path)
    node.broker.log_failed(REASON)
    await node.stop()
    again = await started(tmp_path)
    await again.stop()


def test_leaving_the_block_of_a_broker_in_a_thread_raises_it(tmp_path: Path) -> None:
    broker = warrenmq.Broker(data_dir=tmp_path).start()
    connection = WireConnection(Address.of_url(broker.url)).open()
    node, thread = broker._node, broker._thread
    assert node is not None
    assert thread is not None
    assert thread._loop is not None
    thread._loop.call_soon_threadsafe(node.broker.log_failed, REASON)
    assert connection.expect_refusal() == TOLD
    with pytest.raises(StorageFailed, match=f"storage failed: {REASON}"):
        broker.stop()
    assert not broker.is_running


@on_a_loop
async def test_leaving_the_block_of_a_broker_in_the_loop_raises_it(tmp_path: Path) -> None:
    broker = await warrenmq.Broker(data_dir=tmp_path).astart()
    assert broker._node is not None
    broker._node.broker.log_failed(REASON)
    with pytest.raises(StorageFailed, match=REASON):
        await broker.astop()


def test_served_broker_that_cannot_write_exits_with_1_and_keeps_what_it_confirmed(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writing beyond it fails, and not for lack of space."""
    limit = 1 << 20
    command = [sys.executable, "-m", "warrenmq", "serve", "--port", "0", "--http-port", "off"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().split("amqp://127.0.0.1:")[1].split()[0])
    confirmed = publish_until_refused(Address("127.0.0.1", port))
    _, log = process.communicate(timeout=60)
    assert process.returncode == 1, log
    assert log.splitlines()[-1].startswith("warren: storage failed: ")
    assert "start the broker again" in log.splitlines()[-1]
    assert sum(" ERROR " in line for line in log.splitlines()) == 1
    assert "Traceback" not in log
    assert confirmed > 0
    with (
        warrenmq.Broker(data_dir=tmp_path / "data") as broker,
        WireConnection(Address.of_url(broker.url)).open() as connection,
    ):
        found = connection.channel().call("queue.declare", queue="q", passive=True)["message_count"]
    assert found >= confirmed


def publish_until_refused(address: Address) -> int:
    """Publish and wait for each confirm; return the number of confirms until the broker stopped."""
    confirmed = 0
    refusal: Refusal | None = None
    with WireConnection(address).open() as connection:
        channel = connection.channel()
        channel.call("queue.declare", queue="q", durable=True)
        channel.call("confirm.select")
        while refusal is None:
            channel.publish(b"x" * 20_000, {"delivery_mode": PERSISTENT}, routing_key="q")
            try:
                channel.expect("basic.ack")
                confirmed += 1
            except ConnectionRefusal as closed:
                refusal = closed.refusal
        connection.answer_close()
    assert refusal.code == 541
    return confirmed
