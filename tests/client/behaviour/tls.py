"""A TLS front before a plain broker, with a certificate made on the spot by the openssl command."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

LIMIT = 30.0


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and 127.0.0.1, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not there")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


class TlsFront:
    """Listens on a port of its own, takes TLS off and passes on.

    Runs on an event loop in a thread of its own: nobody may read and write one TLS session from two threads.
    """

    def __init__(self, port: int, certificate: Path, key: Path, client_certificate: Path | None = None) -> None:
        self._target = "127.0.0.1", port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        if client_certificate is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tls-front", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        serving = self._loop.run_until_complete(
            asyncio.start_server(self._serve, sock=self._listener, ssl=self._context)
        )
        self._loop.run_forever()
        serving.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        except asyncio.CancelledError:
            pass  # the front closes; asyncio's streams would log a task of theirs that ends cancelled
        finally:
            for each in (writer, far_writer):
                each.transport.abort()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass  # a side was reset: the other sees the end
    target.close()
