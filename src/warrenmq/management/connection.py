"""One HTTP connection: uvicorn's protocol with deadlines for the client, and with a limit of connections.

A deadline belongs to a step: the headers of a request, its body, the reading of a response. Only the next step sets
a new one; single bytes do not extend it. There is none while the application works on a request.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from warrenmq.management.errors import BadRequest
from warrenmq.management.options import MIN_RATE, HttpOptions
from warrenmq.management.responses import SECURITY_HEADERS, error_response


class Step(Enum):
    HEADERS = "headers"  # awaited, also on a kept-alive connection
    BODY = "body"  # awaited
    RESPONSE = "response"  # the application is working on it
    READING = "reading"  # the client has to read a response


class HttpConnection(H11Protocol):
    """Closed at once if `max_connections` are open, and when the client takes too long over a step."""

    def __init__(self, options: HttpOptions, on_refused: Callable[[], None] | None, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._options = options
        self._on_refused = on_refused
        self._step: tuple[Step, object] | None = None  # and its request
        self._unread = 0  # bytes of responses that were unread when the deadline was set
        self._deadline: asyncio.TimerHandle | None = None

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self._options.max_connections:
            self.transport = transport
            transport.abort()
            if self._on_refused is not None:
                self._on_refused()
            return
        super().connection_made(transport)
        self._update_step()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_step()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_step()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_step()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    # -- uvicorn -----------------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_step()

    def send_400_response(self, msg: str) -> None:
        """Send the JSON error response for input that is not HTTP, and close the connection."""
        response = error_response(BadRequest(msg))
        own = {"Connection": "close", **SECURITY_HEADERS}.items()
        headers = [*response.raw_headers, *((name.encode(), value.encode()) for name, value in own)]
        head, body = h11.Response(status_code=400, headers=headers), h11.Data(bytes(response.body))
        try:
            for event in (head, body, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        except h11.LocalProtocolError:  # another response is under way
            self.transport.abort()
        self.transport.close()

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def _update_step(self) -> None:
        """Set a new deadline if the connection is in another step."""
        step = self._find_step(), self.cycle
        if step != self._step:
            self._step = step
            self._set_deadline()

    def _find_step(self) -> Step:
        if self.flow.write_paused or self.transport.is_closing():
            return Step.READING
        if self.conn.their_state is h11.SEND_BODY:
            return Step.BODY
        if self.cycle is None or self.cycle.response_complete:
            return Step.HEADERS
        return Step.RESPONSE

    def _set_deadline(self) -> None:
        self._cancel()
        assert self._step is not None
        seconds = {
            Step.HEADERS: self._options.header_seconds,
            Step.BODY: self._options.body_seconds,
            Step.READING: self._options.read_seconds,
        }.get(self._step[0])
        if seconds is not None:
            self._unread = self.transport.get_write_buffer_size()
            self._deadline = self.loop.call_later(seconds, self._on_deadline)

    def _on_deadline(self) -> None:
        step = self._step
        self._update_step()  # uvicorn may have closed it meanwhile
        if step != self._step:
            return
        read = self._unread - self.transport.get_write_buffer_size()
        if self._find_step() is Step.READING and read >= MIN_RATE * self._options.read_seconds:
            self._set_deadline()
        else:
            self.transport.abort()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
