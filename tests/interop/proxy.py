"""A TCP proxy between a client and the broker that can close all connections, or stop forwarding.

Runs in its own thread, which owns the sockets. The test only sets flags and requests a cut.
"""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Listens on a port of its own and passes every connection on to the broker."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        credentials = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{credentials}@127.0.0.1:{port}"))
        self._selector = selectors.DefaultSelector()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._upstream: set[socket.socket] = set()
        self._holds = threading.Event()
        self._connections_made = 0
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._requests: list[str] = []
        self._done = threading.Event()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._request("close")
        self._thread.join(10)

    @property
    def connections_made(self) -> int:
        return self._connections_made

    def cut(self) -> None:
        """End every connection abruptly; new ones are accepted."""
        self._request("cut")

    def hold(self) -> None:
        """Pass nothing more from the clients to the broker, as a client that hangs; the sockets stay open."""
        self._holds.set()

    def _request(self, what: str) -> None:
        self._done.clear()
        self._requests.append(what)
        self._wake_writer.send(b"!")
        self._done.wait(10)

    def _run(self) -> None:
        while True:
            for key, _events in self._selector.select():
                ready = key.fileobj
                if ready is self._listener:
                    self._accept()
                elif ready is self._wake_reader:
                    self._wake_reader.recv(1)
                    if self._handle(self._requests.pop(0)):
                        return
                elif isinstance(ready, socket.socket) and ready in self._peers:
                    self._pass_on(ready)

    def _handle(self, request: str) -> bool:
        for side in list(self._upstream):
            self._drop(side)
        if request == "close":
            self._listener.close()
            self._selector.close()
            self._wake_reader.close()
            self._wake_writer.close()
        self._done.set()
        return request == "close"

    def _accept(self) -> None:
        near, _address = self._listener.accept()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._connections_made += 1
        self._upstream.add(near)
        self._peers[near], self._peers[far] = far, near
        for side in (near, far):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(side, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        if source in self._upstream and self._holds.is_set():
            self._selector.unregister(source)
            return
        try:
            data = source.recv(65536)
            if data:
                self._peers[source].sendall(data)
                return
        except OSError:
            pass  # a reset by either side ends both, as an orderly end does
        self._drop(source)

    def _drop(self, side: socket.socket) -> None:
        for each in (side, self._peers[side]):
            del self._peers[each]
            self._upstream.discard(each)
            if each.fileno() in self._selector.get_map():
                self._selector.unregister(each)
            each.close()
