"""What the HTTP paths answer, and how the server starts and stops."""

import asyncio
import signal
import socket
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pika
import pytest

import warrenmq
from tests.management.fakes import FakeNode
from warrenmq.core.broker import Broker
from warrenmq.management import server as http_server
from warrenmq.management.app import create_app
from warrenmq.management.server import HttpServer
from warrenmq.management.view import NodeView
from warrenmq.storage.memory_store import MemoryStorage


def view(
    is_ready: bool = True, reason: str = "", alarms: Sequence[str] = (), figures: dict[str, int] | None = None
) -> NodeView:
    return NodeView(
        Broker(MemoryStorage()),
        lambda: (is_ready, reason),
        lambda: 0.5,
        "9.9",
        lambda: list(alarms),
        lambda: figures or {},
    )


def get(path: str, node: NodeView | None = None) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(node or view(), listening=["broker"]))
        async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
            return await client.get(path)

    return asyncio.run(ask())


def test_health_of_a_ready_node() -> None:
    response = get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ready"})


def test_health_has_alarms_and_storage_figures() -> None:
    response = get("/healthz", view(alarms=["disk"], figures={"log_bytes": 5}))
    assert (response.status_code, response.json()) == (
        200,
        {"status": "ready", "alarms": ["disk"], "storage": {"log_bytes": 5}},
    )


def test_metrics_tell_of_alarms_and_storage() -> None:
    text = get("/metrics", view(alarms=["disk"], figures={"log_bytes": 5, "disk_free_bytes": 7})).text
    assert 'warren_alarm{resource="memory"} 0\nwarren_alarm{resource="disk"} 1\n' in text
    assert "warren_log_bytes 5\n" in text
    assert "warren_disk_free_bytes 7\n" in text


def test_health_of_a_node_that_is_not_ready_has_the_reason() -> None:
    response = get("/healthz", view(is_ready=False, reason="stopping"))
    assert (response.status_code, response.json()) == (503, {"status": "not ready", "reason": "stopping"})


def test_metrics_are_prometheus_text() -> None:
    response = get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "warren_loop_lag_seconds 0.5\n" in response.text
    assert 'warren_build_info{version="9.9"} 1\n' in response.text


def test_no_documentation_pages_are_served() -> None:
    assert [get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3


def test_a_path_that_is_none_and_a_wrong_method_are_refused_in_json() -> None:
    assert (get("/nothing").status_code, get("/nothing").json()["error"]) == (404, "Not Found")


def test_health_reports_a_failed_event_log_and_the_node_is_still_ready() -> None:
    node = FakeNode()
    node.log_failure = "no space left"
    response = get("/healthz", node.view())
    assert (response.status_code, response.json()) == (
        200,
        {"status": "ready", "tracing": {"failure": "no space left"}},
    )


def test_metrics_follow_what_clients_do() -> None:
    with warrenmq.Broker(http=True) as broker:

        def metric(name: str) -> float:
            lines = httpx.get(broker.http_url + "/metrics", timeout=30).text.splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))

        assert metric("warren_connections") == 0
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q")
            for _ in range(3):
                channel.basic_publish("", "q", b"x")
            method, _, _ = channel.basic_get("q")
            assert metric("warren_connections") == metric("warren_channels") == metric("warren_queues") == 1
            assert metric("warren_messages_published_total") == 3
            assert metric("warren_messages_ready") == 2
            assert metric("warren_messages_unacked") == 1
            channel.basic_ack(method.delivery_tag)
            channel.queue_declare("q", passive=True)  # answered after the ack was handled
            assert metric("warren_messages_acked_total") == 1
            assert metric("warren_messages_unacked") == 0
            assert metric("warren_received_bytes_total") > 0
            assert metric("warren_sent_bytes_total") > 0
        assert metric("warren_connections_opened_total") == 1


def test_server_reports_the_port_it_bound_and_frees_it_on_stop() -> None:
    async def scenario() -> None:
        server = HttpServer(view())
        await server.start("127.0.0.1", 0)
        assert server.port != 0
        async with httpx.AsyncClient(timeout=30) as client:
            assert (await client.get(f"http://127.0.0.1:{server.port}/healthz")).status_code == 200
        await server.stop()
        await server.stop()
        again = HttpServer(view())
        await again.start("127.0.0.1", server.port)
        await again.stop()

    asyncio.run(scenario())


class SlowLoad:
    """Stands in for loading the application, until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self._load = http_server._load
        monkeypatch.setattr(http_server, "_load", self)

    def __call__(self, *arguments: Any) -> Any:
        assert self.go.wait(30)
        return self._load(*arguments)


def test_requests_wait_while_the_application_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        load = SlowLoad(monkeypatch)
        server = HttpServer(view())
        await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(timeout=30) as client:
            asking = asyncio.create_task(client.get(f"http://127.0.0.1:{server.port}/healthz"))
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)  # the port is open already
            writer.close()
            assert not asking.done()
            load.go.set()
            assert (await asking).status_code == 200
        await server.stop()

    asyncio.run(scenario())


def test_server_that_is_stopped_while_it_loads_frees_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        load = SlowLoad(monkeypatch)
        server = HttpServer(view())
        await server.start("127.0.0.1", 0)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        load.go.set()
        await stopping
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)

    asyncio.run(scenario())


def test_application_that_cannot_be_loaded_is_logged_and_the_port_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> Any:
        raise ImportError("no fastapi here")

    async def scenario() -> None:
        monkeypatch.setattr(http_server, "_load", fail)
        server = HttpServer(view())
        await server.start("127.0.0.1", 0)
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)

    asyncio.run(scenario())
    assert "HTTP server failed" in caplog.text
    assert "no fastapi here" in caplog.text


def test_server_stops_although_a_client_keeps_its_connection() -> None:
    async def scenario() -> None:
        server = HttpServer(view())
        await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(timeout=30) as client:
            await client.get(f"http://127.0.0.1:{server.port}/healthz")
            await server.stop()

    asyncio.run(scenario())


def test_port_in_use_is_the_callers_error() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
            await HttpServer(view()).start("127.0.0.1", taken.getsockname()[1])

    asyncio.run(scenario())


def test_signals_of_the_process_are_left_alone() -> None:
    async def scenario() -> list[object]:
        server = HttpServer(view())
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        await server.start("127.0.0.1", 0)
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        await server.stop()
        return before == during

    assert asyncio.run(scenario())
