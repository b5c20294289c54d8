"""A TLS front before a plain broker, with a certificate made on the spot by the openssl command."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

LIMIT = 10.0


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
    """Listens on a port of its own, takes TLS off and passes on. One thread per connection and direction."""

    def __init__(self, port: int, certificate: Path, key: Path, client_certificate: Path | None = None) -> None:
        self._target = "127.0.0.1", port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        if client_certificate is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            self._context.load_verify_locations(client_certificate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="tls-front", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join(LIMIT)

    def _accept(self) -> None:
        while True:
            try:
                plain, _address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plain,), name="tls-line", daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            near = self._context.wrap_socket(plain, server_side=True)
            far = socket.create_connection(self._target, LIMIT)
        except OSError:
            plain.close()
            return
        self._sockets += [near, far]
        back = threading.Thread(target=self._pump, args=(far, near), name="tls-line", daemon=True)
        back.start()
        self._pump(near, far)
        back.join(LIMIT)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
