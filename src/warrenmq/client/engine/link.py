"""One TCP connection to one address, from connect to the end of its socket.

The link moves bytes between the socket and the ClientConnection, sends and checks heartbeats, and passes what it
received to its owner (engine/connection.py) after releasing the lock. It belongs to the loop; the ClientConnection is
used only under the shared lock, because other threads encode into its output.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Protocol, cast

from warrenmq.client.engine.channel_state import LinkListener, SharedConnection, close_reason_of
from warrenmq.client.errors import AuthenticationFailed, CloseReason, ConnectionFailed
from warrenmq.client.factory import ConnectionFactory
from warrenmq.client.url import Address
from warrenmq.protocol import events, spec
from warrenmq.protocol.connection import ClientConnection
from warrenmq.protocol.handshake import ClientHandshake, Tuning

# The transport buffers this much; further output stays in the protocol, where `output_limit` counts it.
_WRITE_HIGH_WATER = 1024 * 1024
# A timer this late means that our loop was blocked, not that the server was silent: restart the heartbeat time-out,
# once until data arrives.
_LATE_TIMER = 0.25
# A publishing thread writes at most this much itself.
_DIRECT_MAX = 64 * 1024
# How long the close may take to leave the socket.
_LINGER = 1.0


class LinkOwner(Protocol):
    """Owns the link. Called on the loop, without the lock."""

    def on_received(self, link: Link) -> None:
        """The link's listener has collected input."""

    def on_lost(self, link: Link, reason: CloseReason) -> None:
        """An open link has ended (called once); `link.closed` follows when the socket is closed."""

    def on_writable(self) -> None:
        """Output was written: publishers may retry."""


class Link(asyncio.Protocol):
    """The protocol of one socket."""

    def __init__(self, owner: LinkOwner, factory: ConnectionFactory, shared: SharedConnection) -> None:
        self._owner = owner
        self._factory = factory
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._handshake = ClientHandshake(
            factory.mechanism,
            factory.sasl_response(),
            factory.virtual_host,
            factory.requested_tuning(),
            factory.all_client_properties(),
        )
        self.listener = LinkListener(shared)
        self.protocol = ClientConnection(
            self._handshake, self._loop.time(), max_body_size=factory.max_body_size, content_handler=self.listener
        )
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._is_writing_paused = False
        self._socket: socket.socket | None = None
        self._unsent = b""  # the rest of a direct write
        self._is_reading_paused = False
        self._has_restarted_timeout = False
        self.has_ended = False
        self._opened: asyncio.Future[events.Opened] = self._loop.create_future()
        self._network_error: Exception | None = None
        self.end_reason: CloseReason | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.tuning = Tuning(0, 0, 0)

    # -- opening -----------------------------------------------------------------------------------------------------

    async def open(self, address: Address, tls: ssl.SSLContext | None) -> events.Opened:
        """Connect and shake hands under one deadline; on failure close the socket and raise ConnectionFailed."""
        host, port = address
        try:
            async with asyncio.timeout(self._factory.connect_timeout):
                await self._loop.create_connection(
                    lambda: self, host, port, ssl=tls, server_hostname=self._factory.tls_name(host) if tls else None
                )
                opened = await self._opened
        except TimeoutError:
            await self.abort()
            raise ConnectionFailed(f"no answer within {self._factory.connect_timeout} seconds") from None
        except (OSError, UnicodeError) as error:  # ssl.SSLError, socket.gaierror and ConnectionFailed are OSErrors
            await self.abort()
            if isinstance(error, ConnectionFailed):
                raise
            raise ConnectionFailed(str(error) or type(error).__name__) from error
        except BaseException:
            await self.abort()
            raise
        self.tuning = opened.tuning
        self._open_direct_socket()
        self._arm_timer()
        return opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it
        self._transport.set_write_buffer_limits(high=min(self._factory.output_limit, _WRITE_HIGH_WATER))
        self.flush()

    # -- input -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._has_restarted_timeout = False
        with self._shared.lock:
            self.protocol.receive(data, self._loop.time())
        self._dispatch()

    def eof_received(self) -> bool:
        with self._shared.lock:
            self.protocol.receive_eof()
        self._dispatch()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._network_error = exc
        with self._shared.lock:
            self.protocol.receive_eof()
        self._dispatch()
        if self._linger is not None:
            self._linger.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_reading(self) -> None:
        if not self._is_reading_paused and self._transport is not None and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._is_reading_paused and self._transport is not None:
            self._is_reading_paused = False
            with self._shared.lock:
                self.protocol.restart_heartbeat_timeout(self._loop.time())
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _dispatch(self) -> None:
        """Pass received events to the owner, and answers to the socket."""
        if self.protocol.output_size:
            self.flush()
        ended = None
        received, self.listener.events = self.listener.events, []
        rest: list[events.Event] = []
        for event in received:
            if isinstance(event, events.Opened):
                if not self._opened.done():
                    self._opened.set_result(event)
            elif isinstance(event, events.ConnectionClosed):
                ended = event
            else:
                rest.append(event)
        self.listener.events = rest
        self._owner.on_received(self)
        if ended is not None:
            self._end(ended)

    # -- output ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the output to the socket, unless its buffer is full."""
        if self._is_writing_paused or self._transport is None:
            return
        shared = self._shared
        with shared.lock:
            shared.is_flush_scheduled = False
            chunks = self.protocol.take_output(self._loop.time())
            if self._unsent:
                chunks.insert(0, self._unsent)
                self._unsent = b""
            # Under the lock too, so that `write_directly` cannot overtake it; the transport calls back only
            # `pause_writing`.
            if chunks and not self._transport.is_closing():
                self._transport.writelines(chunks)
        if shared.writable_callbacks:
            self._owner.on_writable()

    def write_directly(self) -> bool:
        """Write from the calling thread if the socket accepts it, under the lock; else return False."""
        assert self._transport is not None
        if self._socket is None or self._is_writing_paused or self._unsent or self._transport.get_write_buffer_size():
            return False
        if self.protocol.output_size > _DIRECT_MAX:
            return False
        data = b"".join(self.protocol.take_output(self._loop.time()))
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return True  # the link is broken; the loop will notice
        self._unsent = data[sent:]
        return not self._unsent

    def _open_direct_socket(self) -> None:
        """Duplicate the socket, because the loop may close its own at any time. Not for TLS."""
        assert self._transport is not None
        plain = self._transport.get_extra_info("socket")
        if self.has_ended or plain is None or self._transport.get_extra_info("sslcontext") is not None:
            return
        try:
            self._socket = socket.fromfd(plain.fileno(), plain.family, plain.type)
        except OSError:  # no file descriptors, or the socket is closed: the loop writes
            return
        self._socket.setblocking(False)

    def _close_direct_socket(self) -> None:
        with self._shared.lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self.flush()

    def send(self, channel: int, method: spec.Method) -> None:
        """Send a method without content; raise LocalMisuse if it is not allowed now."""
        with self._shared.lock:
            self.protocol.send_method(channel, method)
        self.flush()

    # -- timer -------------------------------------------------------------------------------------------------------

    def _arm_timer(self) -> None:
        with self._shared.lock:
            deadline = self.protocol.next_deadline()
        if deadline is not None and not self.has_ended:
            self._timer_due = max(deadline, self._loop.time() + 0.001)
            self._timer = self._loop.call_at(self._timer_due, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        is_late = now - self._timer_due > _LATE_TIMER
        with self._shared.lock:
            if self._is_reading_paused or (is_late and not self._has_restarted_timeout):
                self._has_restarted_timeout = True
                self.protocol.restart_heartbeat_timeout(now)
            self.protocol.check_time(now)
        self._dispatch()
        self._arm_timer()

    # -- closing -----------------------------------------------------------------------------------------------------

    def begin_close(self, reply_code: int, reply_text: str) -> None:
        """Start the close handshake; `closed` is set at its end."""
        with self._shared.lock:
            self.protocol.close(reply_code, reply_text)
        self.resume_reading()
        self._dispatch()

    async def abort(self) -> None:
        """Close the socket now, without a close method."""
        if self._transport is None:
            if not self.closed.done():
                self.closed.set_result(None)
            return
        self._transport.abort()
        await asyncio.wait((self.closed,), timeout=_LINGER)

    def _end(self, event: events.ConnectionClosed) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        self._close_direct_socket()
        self._close_socket(event)
        reason = self.end_reason = self._reason(event)
        if self._opened.done() and not self._opened.cancelled():
            self._owner.on_lost(self, reason)
        elif not self._opened.done():
            self._opened.set_exception(self._failure(reason))

    def _close_socket(self, event: events.ConnectionClosed) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if event.by is events.ClosedBy.NETWORK or self._is_writing_paused:
            transport.abort()
            return
        transport.close()
        self._linger = self._loop.call_later(_LINGER, transport.abort)

    def _reason(self, event: events.ConnectionClosed) -> CloseReason:
        reason = close_reason_of(event)
        if self._network_error is not None and event.by is events.ClosedBy.NETWORK:
            return CloseReason("network", 0, str(self._network_error), is_final=False)
        return reason

    def _failure(self, reason: CloseReason) -> ConnectionFailed:
        """Return the exception for a failed handshake."""
        sent_login = bool(self._handshake.server_properties) and self._handshake.tuning is None
        if sent_login and (reason.reply_code == spec.ACCESS_REFUSED or reason.by == "network"):
            return AuthenticationFailed(str(reason), reply_code=reason.reply_code)
        return ConnectionFailed(str(reason), reply_code=reason.reply_code)
