"""One client's socket: passes input to the session, writes the session's output, enforces the time limits of both.

A connection is in one state; `_enter` allows the transitions of this table and asserts that there is no other.

    state            may become                              reading may be paused by
    AWAITING_HEADER  HANDSHAKE FLUSHING ABORTED CLOSED       -
    HANDSHAKE        OPEN CLOSING FLUSHING ABORTED CLOSED    HELD_REPLY UNREAD_OUTPUT
    OPEN             CLOSING FLUSHING ABORTED CLOSED         ALARM HELD_REPLY UNREAD_OUTPUT
    CLOSING          DISCARDING FLUSHING ABORTED CLOSED      UNREAD_OUTPUT
    DISCARDING       FLUSHING ABORTED CLOSED                 UNREAD_OUTPUT
    FLUSHING         ABORTED CLOSED                          ALARM HELD_REPLY UNREAD_OUTPUT
    ABORTED          CLOSED                                  -
    CLOSED           -                                       -

Several reasons to pause may hold at a time; the socket is read again when none is left. All connections of a server
read into one shared buffer: a connection owns memory only for an incomplete frame, and for the input after a method
whose reply is held. Nothing more is read until that reply is sent, so replies keep their order. The server's sweep
(listener.py) calls `check_time` four times a second; there are no timers here.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any

from warrenmq.core.connection import Connection
from warrenmq.core.stats import Traffic
from warrenmq.events import schema
from warrenmq.protocol import spec
from warrenmq.protocol.errors import ProtocolError
from warrenmq.protocol.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from warrenmq.protocol.handshake import State
from warrenmq.protocol.heartbeat import Heartbeat
from warrenmq.protocol.output import IS_COMPILED
from warrenmq.server.outbox import ConnectionOutbox
from warrenmq.server.sasl import Peer
from warrenmq.server.session import Session

if TYPE_CHECKING:
    from warrenmq.core.vhost import VHost
    from warrenmq.server.listener import AmqpServer, Listener

log = logging.getLogger("warrenmq.connection")

# Read at most this much at once. A full read is a turn of its own: its messages, and what they cause, fit the
# processor's cache.
READ_SIZE = 128 * 1024
# Pause consumers when the transport holds this much for a slow reader.
WRITE_HIGH_WATER = 512 * 1024
# Stop reading a peer that keeps sending requests while this much output waits for it.
UNREAD_OUTPUT_LIMIT = 16 * 1024 * 1024
# Detect a peer whose machine disappeared within two minutes, even without heartbeats, or while it is not read and its
# heartbeats cannot be seen.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)
]
# What `poll` reports for a socket whose peer has closed its end; Linux reports the last before the input is read.
_PEER_GONE = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)
# Seconds for a closing handshake, and for a peer to read the last output.
CLOSE_TIMEOUT = 5.0
SHUTDOWN_TEXT = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"

# RabbitMQ accepts the header of AMQP 0-9 for 0-9-1 too, and some old clients send it.
_HEADERS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")


class ConnectionState(IntEnum):
    """Life cycle of a connection, in order."""

    AWAITING_HEADER = 0
    HANDSHAKE = 1  # until connection.open-ok
    OPEN = 2
    CLOSING = 3  # a close was sent or received; the rest of the closing handshake is awaited
    DISCARDING = 4  # the same after broken framing: a close was sent, input is ignored
    FLUSHING = 5  # the transport closes when the last output is written
    ABORTED = 6  # the transport closes at once
    CLOSED = 7


class ReadPause(IntFlag):
    """Reasons not to read the socket."""

    NONE = 0
    ALARM = 1  # the client publishes while memory or disk is short
    HELD_REPLY = 2  # a reply waits for the disk or a login check; later input is the leftover
    UNREAD_OUTPUT = 4  # the client sends requests and does not read the replies


_AWAITING_HEADER, _HANDSHAKE, _OPEN, _CLOSING, _DISCARDING, _FLUSHING, _ABORTED, _CLOSED = ConnectionState
_ENDS = frozenset({_FLUSHING, _ABORTED, _CLOSED})
_ALL_PAUSES = ReadPause.ALARM | ReadPause.HELD_REPLY | ReadPause.UNREAD_OUTPUT
TRANSITIONS: dict[ConnectionState, frozenset[ConnectionState]] = {
    _AWAITING_HEADER: _ENDS | {_HANDSHAKE},
    _HANDSHAKE: _ENDS | {_OPEN, _CLOSING},
    _OPEN: _ENDS | {_CLOSING},
    _CLOSING: _ENDS | {_DISCARDING},
    _DISCARDING: _ENDS,
    _FLUSHING: _ENDS - {_FLUSHING},
    _ABORTED: frozenset({_CLOSED}),
    _CLOSED: frozenset(),
}
PAUSES: dict[ConnectionState, ReadPause] = {
    _AWAITING_HEADER: ReadPause.NONE,
    _HANDSHAKE: ReadPause.HELD_REPLY | ReadPause.UNREAD_OUTPUT,
    _OPEN: _ALL_PAUSES,
    _CLOSING: ReadPause.UNREAD_OUTPUT,
    _DISCARDING: ReadPause.UNREAD_OUTPUT,
    _FLUSHING: _ALL_PAUSES,
    _ABORTED: ReadPause.NONE,
    _CLOSED: ReadPause.NONE,
}


class AmqpConnection(asyncio.BufferedProtocol):
    """Speaks AMQP with one client, accepted by `listener`."""

    __slots__ = (
        "_checked_bytes_in",
        "_checked_bytes_out",
        "_close_deadline",
        "_counted_leftover",
        "_counted_output",
        "_heartbeat",
        "_leftover",
        "_opened_at",
        "_outbox",
        "_pauses",
        "_traffic",
        "_transport",
        "full_name",
        "listener",
        "name",
        "peer",
        "server",
        "session",
        "state",
    )

    def __init__(self, server: AmqpServer, listener: Listener) -> None:
        self.server = server
        self.listener = listener
        self.name = "?"
        self.full_name = "?"  # "client -> server", as in RabbitMQ
        self.state = ConnectionState.AWAITING_HEADER
        self.peer = Peer("")
        self._transport: Any = None
        self._leftover = b""
        self._pauses = ReadPause.NONE
        self._counted_leftover = 0  # bytes of leftover and output that Stats counts
        self._counted_output = 0
        self._checked_bytes_in = 0  # traffic at the last heartbeat check
        self._checked_bytes_out = 0
        self._close_deadline = 0.0  # of the states after OPEN
        self._opened_at = server.now()
        self._heartbeat = Heartbeat(0, self._opened_at)
        self._traffic = Traffic()
        self._outbox = ConnectionOutbox(server.ticker, server.broker.stats, self._traffic, server.pool, 4096)
        self.session = Session(self, self._outbox, server.alarms)

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self._outbox.transport = transport
        address = transport.get_extra_info("peername")
        if address:
            self.peer = Peer(str(address[0]), _certificate_name(transport))
            self.name = self.full_name = f"{address[0]}:{address[1]}"
            here = transport.get_extra_info("sockname")
            if here:
                self.full_name = f"{self.name} -> {here[0]}:{here[1]}"
        raw_socket = transport.get_extra_info("socket")
        if raw_socket is not None and raw_socket.family in (socket.AF_INET, socket.AF_INET6):
            raw_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for level, option, value in _KEEPALIVE:
                raw_socket.setsockopt(level, option, value)
            if IS_COMPILED and transport.get_extra_info("ssl_object") is None:
                self._outbox.fd = raw_socket.fileno()
        self.server.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the shared buffer after the leftover of the last read; all of it while a large frame arrives."""
        view = self.server.receive_view
        size = len(self._leftover)
        if size:
            view[:size] = self._leftover
        return view[size : size + READ_SIZE] if size < READ_SIZE else view[size:]

    def buffer_updated(self, nbytes: int) -> None:
        end = len(self._leftover) + nbytes
        self.server.broker.stats.bytes_in += nbytes
        self._traffic.bytes_in += nbytes
        if self.state is _AWAITING_HEADER:
            end = self._read_header(end)
            if not end:
                return
        if nbytes < READ_SIZE:
            self.server.ticker.schedule()
        else:
            self.server.ticker.begin_large_read()
        self._leftover = self._read_frames(end)
        if self._outbox.is_peer_slow:
            self._check_unread_output()
        if nbytes >= READ_SIZE:
            self.server.ticker.end_turn_early()
            if self.server.ticker.has_read_too_long():
                self._yield_to_others()

    def _read_leftover(self) -> None:
        """Pass the input that arrived while a reply was held to the session."""
        end = len(self._leftover)
        if end:
            self.server.ticker.schedule()
            self.server.receive_view[:end] = self._leftover
            self._leftover = self._read_frames(end)
            if self._outbox.is_peer_slow:
                self._check_unread_output()

    def _read_frames(self, end: int) -> bytes:
        """Pass the buffer to the session; return the rest: an incomplete frame, or input after a held reply."""
        view = self.server.receive_view
        while self.state is not _DISCARDING and self.state is not _ABORTED:
            # Compiled, the buffer is read in place; plain Python needs bytes, whose slices can be kept and hashed.
            data: Any = self.server.receive_buffer if IS_COMPILED else bytes(view[:end])
            try:
                used = self.session.reader.receive(data, end)
                return bytes(view[used:end]) if used < end else b""
            except ProtocolError as error:
                self.session.fail_connection(error)
            except Exception:
                # A bug of the broker: only this connection is closed.
                log.exception("%s: closed: internal error", self.name)
                self.session.close_connection(spec.INTERNAL_ERROR, "INTERNAL_ERROR")
            # The peer's reply to our close follows the frame at fault, unless the framing is broken.
            resume_at = self.session.reader.resume_at
            if resume_at == 0:
                if self.state is _CLOSING:
                    self._enter(_DISCARDING)
                return b""
            rest = bytes(view[resume_at:end])
            end = len(rest)
            view[:end] = rest
        return b""

    def _read_header(self, end: int) -> int:
        """Read the protocol header; return the number of bytes after it, moved to the front of the buffer."""
        view = self.server.receive_view
        if end < len(PROTOCOL_HEADER):
            self._leftover = bytes(view[:end])
            return 0
        self._leftover = b""
        header = bytes(view[: len(PROTOCOL_HEADER)])
        if header not in _HEADERS:
            log.warning("%s: closed: not an AMQP 0-9-1 client, it sent %r", self.name, header)
            self._outbox.send_raw(PROTOCOL_HEADER)
            self._close_deadline = self.server.now() + CLOSE_TIMEOUT
            self.finish()
            return 0
        self._enter(_HANDSHAKE)
        self.session.begin()
        rest = bytes(view[len(PROTOCOL_HEADER) : end])
        view[: len(rest)] = rest
        return len(rest)

    def eof_received(self) -> bool:
        """Let the transport close; the peer has CLOSE_TIMEOUT to read the remaining output."""
        self._close_deadline = self.server.now() + CLOSE_TIMEOUT
        self._enter(_FLUSHING)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None or not self.session.is_closed:
            log.info("%s: connection lost%s", self.name, f": {error}" if error else "")
        self._enter(_CLOSED)
        self._outbox.transport = None
        self._outbox.fd = -1
        self._outbox.flush()  # releases the output
        self._transport = None
        self._leftover = b""
        self._count_buffers()
        was_closed = self.session.is_closed
        self.server.ticker.schedule()
        self.session.end()
        if self.session.vhost is not None:
            self._emit(schema.CONNECTION_CLOSED, 0 if was_closed else schema.R_ERROR)
        self.server.remove(self)

    def pause_writing(self) -> None:
        self._outbox.peer_is_slow()
        self._count_buffers()

    def resume_writing(self) -> None:
        if self._pauses & ReadPause.UNREAD_OUTPUT:
            self._resume(ReadPause.UNREAD_OUTPUT)
        self._outbox.peer_caught_up()

    # -- pausing the socket ------------------------------------------------------------------------------------------

    def block_publisher(self) -> None:
        """Stop reading this client, which publishes while an alarm is raised."""
        if self.state is _OPEN and not self._pauses & ReadPause.ALARM:
            self._pause(ReadPause.ALARM)
            self.server.alarms.blocked[self] = None
            self.session.send_blocked(self.server.alarms.reason())

    def unblock_publisher(self) -> None:
        self._resume(ReadPause.ALARM)
        self.session.send_unblocked()

    def hold_reply(self) -> None:
        """Read nothing more until `resume_after`: a reply has to wait."""
        self._pause(ReadPause.HELD_REPLY)

    def resume_after(self, reply: Callable[[], None]) -> None:
        """Send the held reply, then read the client again, beginning with the leftover."""
        if not self._pauses & ReadPause.HELD_REPLY:
            return
        self._drop_held_reply()
        self.server.ticker.schedule()
        try:
            reply()
        except Exception:
            log.exception("%s: closed: internal error", self.name)
            self.session.close_connection(spec.INTERNAL_ERROR, "INTERNAL_ERROR")
        if not self._pauses & ReadPause.HELD_REPLY:
            self._read_leftover()
        self._read_unless_paused()

    def _drop_held_reply(self) -> None:
        self._pauses &= ~ReadPause.HELD_REPLY
        self.session.reader.is_paused = False

    def _pause(self, reason: ReadPause) -> None:
        """Stop reading for this reason; a state that does not allow it reads no more anyway."""
        if reason & PAUSES[self.state]:
            self._pauses |= reason
            assert self._transport is not None
            if not self._transport.is_closing():
                self._transport.pause_reading()

    def _resume(self, reason: ReadPause) -> None:
        self._pauses &= ~reason
        self._read_unless_paused()

    def _read_unless_paused(self) -> None:
        if self._transport is not None and not self._pauses:
            self._transport.resume_reading()
            self._heartbeat.received_at = self.server.now()

    def _yield_to_others(self) -> None:
        """Do not read until the loop has polled the other sockets."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self.server.ticker.call_soon(self._read_unless_paused)

    def _check_unread_output(self) -> None:
        waiting = self._transport.get_write_buffer_size() + self._outbox.buffer.size
        if waiting > UNREAD_OUTPUT_LIMIT and not self._pauses & ReadPause.UNREAD_OUTPUT:
            self._pause(ReadPause.UNREAD_OUTPUT)

    def _count_buffers(self) -> None:
        """Update Stats with the size of the leftover and of the output that the peer has not read."""
        leftover = len(self._leftover)
        output = self._outbox.buffer.size
        if self._transport is not None:
            output += self._transport.get_write_buffer_size()
        stats = self.server.broker.stats
        stats.transit_bytes += leftover - self._counted_leftover
        stats.output_bytes += output - self._counted_output
        self._counted_leftover = leftover
        self._counted_output = output

    def _is_peer_gone(self) -> bool:
        """Return True if the peer has closed its end; the loop does not notice while the socket is not read."""
        raw_socket = self._transport.get_extra_info("socket")
        if raw_socket is None:
            return False
        poll = select.poll()
        poll.register(raw_socket.fileno(), _PEER_GONE)
        return bool(poll.poll(0))

    # -- time --------------------------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Send a heartbeat that is due; abort if the peer is silent, or too slow to open or to close."""
        if self._transport is None:
            return
        self._count_buffers()
        if self.state < _OPEN:
            if now - self._opened_at >= self.server.options.handshake_timeout:
                log.warning("%s: closed: handshake timed out", self.name)
                self.abort()
        elif self.state > _OPEN:
            if now >= self._close_deadline:
                self.abort()
        elif self._pauses & ~ReadPause.HELD_REPLY and self._is_peer_gone():
            # Abort at once: nothing of it is confirmed, and the memory it holds is needed.
            log.info("%s: the client closed the connection while reading from it was paused", self.name)
            self.abort()
        else:
            self._check_heartbeat(now)

    def _check_heartbeat(self, now: float) -> None:
        heartbeat = self._heartbeat
        traffic = self._traffic
        if self._pauses or traffic.bytes_in != self._checked_bytes_in:
            self._checked_bytes_in = traffic.bytes_in
            heartbeat.received_at = now
        if traffic.bytes_out != self._checked_bytes_out:
            self._checked_bytes_out = traffic.bytes_out
            heartbeat.sent_at = now
        if heartbeat.is_missed(now):
            log.warning("%s: closed: missed heartbeats, timeout: %d s", self.name, heartbeat.interval)
            self.abort()
        elif heartbeat.is_due(now):
            self._outbox.send_raw(HEARTBEAT_FRAME)

    # -- opening and closing -----------------------------------------------------------------------------------------

    def _enter(self, state: ConnectionState) -> None:
        """Change the state, if it is another one; pauses that the new one does not allow end."""
        if state is self.state:
            return
        assert state in TRANSITIONS[self.state], f"illegal transition from {self.state.name} to {state.name}"
        self.state = state
        if self._pauses:
            self._pauses &= PAUSES[state]
            if not self._pauses & ReadPause.ALARM:
                self.server.alarms.blocked.pop(self, None)

    def make_core(self, vhost: VHost) -> Connection:
        """Return the core's side of this connection: the client has opened `vhost`."""
        handshake = self.session.handshake
        peer = self._transport.get_extra_info("peername") or ("", 0)
        here = self._transport.get_extra_info("sockname") or (self.listener.host, self.listener.port)
        return Connection(
            vhost,
            self.session.user,
            self._outbox,
            name=self.full_name,
            traffic=self._traffic,
            peer_host=peer[0],
            peer_port=peer[1],
            host=here[0],
            port=here[1],
            connected_at_ms=self.server.broker.turn.now_ms,
            client_properties=handshake.client_properties,
            channel_max=handshake.tuning.channel_max,
            frame_max=handshake.tuning.frame_max,
            heartbeat=handshake.tuning.heartbeat,
        )

    def on_open(self) -> None:
        """The handshake is complete."""
        assert self.session.vhost is not None
        self._enter(_OPEN)
        self.server.on_open(self)
        log.info("%s: user '%s' opened vhost '%s'", self.name, self.session.user, self.session.vhost.name)
        self._heartbeat = Heartbeat(self.session.handshake.tuning.heartbeat, self.server.now())
        self._emit(schema.CONNECTION_OPENED, 0)

    def _emit(self, kind: int, reason: int) -> None:
        assert self.session.vhost is not None
        self.server.broker.emit(kind, self.session.vhost.name, connection=self.full_name, reason=reason)

    def shut_down(self, code: int = spec.CONNECTION_FORCED, text: str = SHUTDOWN_TEXT) -> None:
        """Close because the broker stops; abort if the handshake is not complete."""
        if self.session.handshake.state is State.RUNNING:
            self.session.close_connection(code, text)
        else:
            self.abort()

    def await_close(self) -> None:
        """A close was sent or received: the peer has CLOSE_TIMEOUT to reply or to close its end."""
        self._close_deadline = self.server.now() + CLOSE_TIMEOUT
        if self.state >= _FLUSHING:
            return
        was_held = self._pauses & ReadPause.HELD_REPLY
        self._enter(_CLOSING)
        if was_held:
            self._drop_held_reply()
            self._read_leftover()  # the client's own close may be in it
        self._read_unless_paused()

    def finish(self) -> None:
        """The closing handshake is complete: write the last output, then close."""
        self._outbox.flush()
        if self._transport is not None and self.state is not _ABORTED:
            self._enter(_FLUSHING)
            self._transport.close()

    def abort(self) -> None:
        """Close at once; input that was already received is ignored."""
        if self._transport is not None and self.state is not _ABORTED:
            self._enter(_ABORTED)
            self.session.reader.is_paused = True
            self._transport.abort()


def _certificate_name(transport: asyncio.BaseTransport) -> str | None:
    """Return the common name in the client's TLS certificate, if there is one."""
    certificate = transport.get_extra_info("peercert")
    for part in certificate.get("subject", ()) if certificate else ():
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None
