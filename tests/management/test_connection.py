"""HTTP clients that are slow on purpose are cut off, and there is a limit of connections; nobody else notices."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import httpx
import pytest
import uvicorn

from tests.management.fakes import FakeNode
from tests.support.loops import on_a_loop
from tests.support.waiting import let_time_pass, until
from warrenmq.management.connection import HttpConnection
from warrenmq.management.options import HttpOptions
from warrenmq.management.server import HttpServer

LIMIT = 30
QUICK = HttpOptions(max_connections=50, header_seconds=0.3, body_seconds=0.3, read_seconds=0.3)
# For clients that are to keep within the deadlines, also on a busy machine.
GENTLE = HttpOptions(max_connections=50, header_seconds=1.5, body_seconds=1.0, read_seconds=1.0)
HEADERS = b"POST /api/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEALTH_ONCE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def serving(options: HttpOptions, refused: list[None] | None = None) -> AsyncIterator[int]:
    """The real application; yields its port."""
    noted = [] if refused is None else refused
    server = HttpServer(FakeNode().view(), options=options, on_refused=lambda: noted.append(None))
    await server.start("127.0.0.1", 0)
    try:
        yield server.port
    finally:
        await server.stop()


@asynccontextmanager
async def serving_app(app: Any, options: HttpOptions) -> AsyncIterator[int]:
    """Any application behind the same connections."""
    listening = socket.create_server(("127.0.0.1", 0))
    connection: Any = partial(HttpConnection, options, None)
    config = uvicorn.Config(app, http=connection, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listening]))
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listening.close()


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server closes, or resets, the connection."""
    received = b""
    async with asyncio.timeout(LIMIT):
        with suppress(ConnectionResetError):
            while data := await reader.read(65536):
                received += data
    return received


async def parse_result(reader: asyncio.StreamReader) -> bytes:
    """The status line of one answer, whose body is read, too."""
    async with asyncio.timeout(LIMIT):
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.split(b":")[1]))
        return head.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "sent", [b"", HEADERS, HEADERS + b"\r\n", HEADERS + b"\r\n{"], ids=["nothing", "headers", "no body", "half a body"]
)
@on_a_loop
async def test_requests_that_are_never_finished_are_cut_off(caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(QUICK) as port:
            attackers = [await connect(port) for _ in range(20)]
            for _, writer in attackers:
                writer.write(sent)
            for reader, writer in attackers:
                assert await read_to_end(reader) == b""
                writer.close()
    assert caplog.records == []


@pytest.mark.parametrize("sent", [b"\x16\x03\x01 no HTTP\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 70_000])
@on_a_loop
async def test_non_http_input_is_refused_with_security_headers_and_not_logged(
    caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    with caplog.at_level(logging.WARNING):
        async with serving(GENTLE) as port:
            reader, writer = await connect(port)
            writer.write(sent)
            head, _, body = (await read_to_end(reader)).partition(b"\r\n\r\n")
            writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-content-type-options: nosniff" in head.lower()
    assert json.loads(body)["error"] == "bad_request"
    assert caplog.records == []


@pytest.mark.parametrize("before", [b"GET / HTTP/1.1\r\nX: ", HEADERS + b"\r\n"], ids=["headers", "body"])
@on_a_loop
async def test_a_trickle_of_bytes_does_not_extend_the_deadline(before: bytes) -> None:
    async with serving(QUICK) as port:
        reader, writer = await connect(port)
        writer.write(before)
        end = asyncio.create_task(read_to_end(reader))
        await until(lambda: end.done() or writer.write(b"x"), interval=0.02)
        assert await end == b""
        writer.close()


@on_a_loop
async def test_a_connection_that_is_kept_alive_has_the_same_deadlines_for_its_next_request() -> None:
    async with serving(GENTLE) as port:
        reader, writer = await connect(port)
        for _ in range(3):
            writer.write(HEALTH)
            assert await parse_result(reader) == b"HTTP/1.1 200 OK"
        writer.write(HEALTH[:10])
        assert await read_to_end(reader) == b""
        writer.close()
        reader, writer = await connect(port)
        writer.write(HEALTH)
        assert (await read_to_end(reader)).startswith(b"HTTP/1.1 200 OK")  # and then it is idle for too long
        writer.close()


@on_a_loop
async def test_connections_above_the_limit_are_closed_at_once() -> None:
    refused: list[None] = []
    async with serving(HttpOptions(max_connections=3, header_seconds=2 * LIMIT), refused) as port:
        kept = [await connect(port) for _ in range(3)]
        for _ in range(5):
            reader, writer = await connect(port)
            assert await read_to_end(reader) == b""
            writer.close()
        assert len(refused) == 5
        kept[0][1].close()
        async with asyncio.timeout(LIMIT):
            while True:
                reader, writer = await connect(port)
                writer.write(HEALTH_ONCE)
                if (await read_to_end(reader)).startswith(b"HTTP/1.1 200 OK"):
                    break
        for _, writer in kept[1:]:
            writer.close()


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """One response of many large pieces."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(1000):
        await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@on_a_loop
async def test_a_client_that_does_not_read_its_response_is_cut_off() -> None:
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await endless(scope, receive, send)
        finally:
            ended.set()

    async with serving_app(app, QUICK) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(HEALTH)
            async with asyncio.timeout(LIMIT):
                await ended.wait()


@on_a_loop
async def test_a_response_that_takes_long_is_not_cut_off() -> None:
    """Longer than every deadline: the application is slow, or waits for news to tell."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(8):
            await asyncio.to_thread(let_time_pass, GENTLE.read_seconds / 4)
            await send({"type": "http.response.body", "body": b".", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serving_app(app, GENTLE) as port, httpx.AsyncClient(timeout=LIMIT) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).text == "........"


@on_a_loop
async def test_a_client_that_reads_slowly_gets_all_of_its_response() -> None:
    """It takes longer than the deadline over it, and reads all the time."""
    size = 0
    async with serving_app(endless, GENTLE) as port:
        reader, writer = await connect(port)
        writer.write(HEALTH_ONCE)
        async with asyncio.timeout(LIMIT):
            while data := await reader.read(1 << 20):
                size += len(data)
                await asyncio.to_thread(let_time_pass, 0.005)
        writer.close()
    assert size > 100_000_000
