"""Queues for the programs: made, filled and counted over a plain socket, by none of the clients that are compared."""

from __future__ import annotations

import socket
import time
from typing import TypeVar

from warrenmq.protocol import spec
from warrenmq.protocol.connection import ClientConnection
from warrenmq.protocol.events import ConnectionClosed, Event, MethodReceived, Opened
from warrenmq.protocol.handshake import ClientHandshake, Tuning

CALL_LIMIT = 60.0
COUNT_LIMIT = 10.0
_CHUNK = 500

Answer = TypeVar("Answer", bound=spec.Method)


class Plumber:
    """One connection with one channel; every call waits for the broker's answer."""

    def __init__(self, port: int) -> None:
        # No heartbeat: between two calls nobody listens.
        handshake = ClientHandshake("PLAIN", b"\0guest\0guest", wanted=Tuning(0, 131072, 0))
        self._connection = ClientConnection(handshake, time.monotonic())
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=CALL_LIMIT)
        self._await(Opened)
        self._call(spec.ChannelOpen(), spec.ChannelOpenOk)

    def __enter__(self) -> Plumber:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._await(ConnectionClosed)
        self._socket.close()

    def declare(self, queue: str) -> None:
        self._call(spec.QueueDeclare(queue), spec.QueueDeclareOk)

    def fill(self, queue: str, count: int, body: bytes) -> None:
        """Publish N messages; return when the broker has them."""
        for start in range(0, count, _CHUNK):
            for _ in range(min(_CHUNK, count - start)):
                self._connection.publish(1, "", queue, body)
            self._flush()
        found = self.count(queue, count)
        if found != count:
            raise RuntimeError(f"{queue} holds {found} messages after {count} were published")

    def count(self, queue: str, due: int) -> int:
        """How many messages wait there. RabbitMQ counts before it has dealt with all that came: it is asked again."""
        deadline = time.monotonic() + COUNT_LIMIT
        while True:
            found = self._call(spec.QueueDeclare(queue, passive=True), spec.QueueDeclareOk).message_count
            if found == due or time.monotonic() > deadline:
                return found
            time.sleep(0.01)

    def delete(self, queue: str) -> None:
        self._call(spec.QueueDelete(queue), spec.QueueDeleteOk)

    def _call(self, method: spec.Method, answer: type[Answer]) -> Answer:
        self._connection.send_method(1, method)
        event = self._await(MethodReceived)
        if not isinstance(event, MethodReceived) or not isinstance(event.method, answer):
            raise RuntimeError(f"{method.name} was answered by {event}")
        return event.method

    def _await(self, kind: type[Event]) -> Event:
        while True:
            self._flush()
            data = self._socket.recv(65536)
            now = time.monotonic()
            for event in self._connection.receive(data, now) if data else self._connection.receive_eof():
                if isinstance(event, kind | ConnectionClosed):
                    self._flush()
                    return event

    def _flush(self) -> None:
        for chunk in self._connection.take_output(time.monotonic()):
            self._socket.sendall(chunk)
