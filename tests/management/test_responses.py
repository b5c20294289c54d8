"""What every answer has in common, and what a bug or a client that leaves costs."""

from __future__ import annotations

import asyncio
import logging
import socket
from urllib.parse import urlsplit

import pytest

from tests.management.asking import GUEST, Browser
from tests.management.fakes import FakeNode
from tests.management.serving import served
from warrenmq.management.ports import Origin
from warrenmq.management.responses import SECURITY_HEADERS
from warrenmq.tracing.biography import Biography


class BrokenReader:
    async def biography(self, key: str) -> Biography | None:
        raise RuntimeError("a bug\nwith two lines")


def test_a_bug_is_500_with_all_headers_and_one_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    node.reader = BrokenReader()  # type: ignore[assignment]
    response = Browser(node).get("/api/traces/x", auth=GUEST)
    assert (response.status_code, response.json()["error"]) == (500, "internal_error")
    assert response.headers["Content-Type"] == "application/json"
    assert {name: response.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert "bug" not in response.text
    assert [record.exc_info is not None for record in caplog.records if record.levelno >= logging.WARNING] == [True]


def test_a_bug_is_logged_once_by_the_real_server(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    node.reader = BrokenReader()  # type: ignore[assignment]
    with served(node) as url, socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as client:
        head = "GET /api/traces/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        client.sendall(f"{head}Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n".encode())
        assert read_to_end(client).startswith(b"HTTP/1.1 500")
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_client_that_leaves_within_its_request_leaves_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    arrived = asyncio.Event()

    class Watched(FakeNode):
        async def login(self, name: str, password: str, origin: Origin) -> bool:
            arrived.set()
            return await super().login(name, password, origin)

    head = (
        "POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    with caplog.at_level(logging.DEBUG), served(Watched()) as url:
        where = urlsplit(url).hostname, urlsplit(url).port
        for _ in range(3):
            with socket.create_connection(where) as client:
                client.sendall(head.encode())
        # The server is through with those before it answers this one.
        with socket.create_connection(where) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert read_to_end(client).startswith(b"HTTP/1.1 200")
    assert not arrived.is_set()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [record for record in caplog.records if record.exc_info] == []


def read_to_end(client: socket.socket) -> bytes:
    received = b""
    while chunk := client.recv(65536):
        received += chunk
    return received
