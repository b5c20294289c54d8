"""One client's socket: bytes in to the session, the session's output out, and the time limits of both.

All connections of a server read into one shared buffer: a connection owns memory only for a frame that has not come
whole, and for what came behind a method whose answer is held back: until that is given, nothing more is read, so that
all answers keep their order. The server's sweep (see listener.py) calls `check_time` a few times a second; there are
no timers here.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from collections.abc import Callable
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

# So much is read at once, and is a turn of its own: its messages and what they bring about fit the processor's cache.
READ_AT_ONCE = 128 * 1024
# The transport may hold this much for a slow reader before its consumers wait.
WRITE_HIGH_WATER = 512 * 1024
# A peer that neither reads nor stops asking is not heard any more from here on.
DEAF_PEER_LIMIT = 16 * 1024 * 1024
# A peer whose machine disappears is noticed within two minutes, also where no heartbeats were agreed on, or where it
# is not read and its heartbeats cannot be seen.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if hasattr(socket, name)
]
# What `poll` reports of a socket whose peer has closed its end; the last is Linux's, for input that is not read yet.
_PEER_GONE = select.POLLERR | select.POLLHUP | getattr(select, "POLLRDHUP", 0)
# How long a closing handshake may take.
CLOSE_TIMEOUT = 5.0
SHUTDOWN_TEXT = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"

# RabbitMQ takes the header of AMQP 0-9 for 0-9-1 too, and some old clients send it.
_HEADERS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")


class AmqpConnection(asyncio.BufferedProtocol):
    """Speaks AMQP with one client, who came in by `listener`."""

    __slots__ = (
        "_close_deadline",
        "_counted_leftover",
        "_counted_output",
        "_has_begun",
        "_heard",
        "_heartbeat",
        "_is_blocked",
        "_is_deaf",
        "_is_held",
        "_is_lost",
        "_leftover",
        "_opened_at",
        "_outbox",
        "_traffic",
        "_transport",
        "full_name",
        "listener",
        "name",
        "peer",
        "server",
        "session",
    )

    def __init__(self, server: AmqpServer, listener: Listener) -> None:
        self.server = server
        self.listener = listener
        self.name = "?"
        self.full_name = "?"  # as RabbitMQ names a connection: from where to where
        self.peer = Peer("")
        self._transport: Any = None
        self._leftover = b""
        self._counted_leftover = 0  # what of it and of the output is counted in Stats
        self._counted_output = 0
        self._has_begun = False
        self._heard = False
        self._is_blocked = False
        self._is_deaf = False
        self._is_held = False  # an answer waits, and all that came behind its method is the leftover
        self._is_lost = False  # the peer's frames cannot be told apart any more, or nobody listens to them
        self._close_deadline = 0.0
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
        self.server.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """The shared buffer, behind what is left of the last read; all of it where a large frame is under way."""
        view = self.server.receive_view
        size = len(self._leftover)
        if size:
            view[:size] = self._leftover
        return view[size : size + READ_AT_ONCE] if size < READ_AT_ONCE else view[size:]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        end = len(self._leftover) + nbytes
        self.server.broker.stats.bytes_in += nbytes
        self._traffic.bytes_in += nbytes
        if not self._has_begun:
            end = self._begin(end)
            if not self._has_begun:
                return
        if nbytes < READ_AT_ONCE:
            self.server.ticker.schedule()
        else:
            self.server.ticker.begin_piece()
        self._leftover = self._read_frames(end)
        if self._outbox.is_peer_slow:
            self._stop_listening_if_deaf()
        if nbytes >= READ_AT_ONCE:
            self.server.ticker.end_turn_early()
            if self.server.ticker.has_read_long():
                self._let_others_in()

    def _read_leftover(self) -> None:
        """Give the session what came while an answer was held back."""
        end = len(self._leftover)
        if end:
            self.server.ticker.schedule()
            self.server.receive_view[:end] = self._leftover
            self._leftover = self._read_frames(end)
            if self._outbox.is_peer_slow:
                self._stop_listening_if_deaf()

    def _read_frames(self, end: int) -> bytes:
        """Give the buffer to the session; what is left is the beginning of a frame, or what came behind a held one."""
        view = self.server.receive_view
        while not self._is_lost:
            # Compiled, the buffer is read in place; plain Python needs bytes, whose slices can be kept and hashed.
            data: Any = self.server.receive_buffer if IS_COMPILED else bytes(view[:end])
            try:
                used = self.session.reader.receive(data, end)
                return bytes(view[used:end]) if used < end else b""
            except ProtocolError as error:
                self.session.fail_connection(error)
            except Exception:
                # A bug, not the peer's fault: it costs this connection, and the others go on.
                log.exception("%s: internal error", self.name)
                self.session.close_connection(spec.INTERNAL_ERROR, "INTERNAL_ERROR")
            # The peer's answer to our close comes behind the frame at fault, if the framing is whole.
            resume_at = self.session.reader.resume_at
            self._is_lost = self._is_lost or resume_at == 0
            rest = bytes(view[resume_at:end])
            end = len(rest)
            view[:end] = rest
        return b""

    def _begin(self, end: int) -> int:
        """Read the protocol header; gives the number of bytes behind it, moved to the front of the buffer."""
        view = self.server.receive_view
        if end < len(PROTOCOL_HEADER):
            self._leftover = bytes(view[:end])
            return 0
        header = bytes(view[: len(PROTOCOL_HEADER)])
        if header not in _HEADERS:
            log.warning("%s: not AMQP 0-9-1: %r", self.name, header)
            self._outbox.send_raw(PROTOCOL_HEADER)
            self._outbox.flush()
            self._transport.close()
            self._has_begun = True
            return 0
        self._has_begun = True
        self.session.begin()
        rest = bytes(view[len(PROTOCOL_HEADER) : end])
        view[: len(rest)] = rest
        return len(rest)

    def eof_received(self) -> bool:
        """Close the transport; a peer that does not read what is left to be written has a few seconds to."""
        self._close_deadline = self.server.now() + CLOSE_TIMEOUT
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None or not self.session.is_closed:
            log.info("%s: connection lost%s", self.name, f": {error}" if error else "")
        self._outbox.transport = None
        self._outbox.flush()  # to nowhere: what was gathered is released
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
        if self._is_deaf:
            self._is_deaf = False
            self._resume_reading()
        self._outbox.peer_caught_up()

    # -- reading and not reading -------------------------------------------------------------------------------------

    def block_publisher(self) -> None:
        """An alarm is raised and this client publishes: stop reading it."""
        if not self._is_blocked and not self.session.is_closed and self._transport is not None:
            self._is_blocked = True
            self.server.alarms.blocked[self] = None
            self._transport.pause_reading()
            self.session.tell_blocked(self.server.alarms.reason())

    def unblock_publisher(self) -> None:
        self._is_blocked = False
        self._resume_reading()
        self.session.tell_unblocked()

    def hold(self) -> None:
        """An answer has to wait: read nothing until `go_on`."""
        self._is_held = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def go_on(self, then: Callable[[], None]) -> None:
        """Do what was held back, then hear the client again, beginning with what has come already."""
        if self._transport is None or not self._is_held:
            return
        self._end_hold()
        self.server.ticker.schedule()
        try:
            then()
        except Exception:
            log.exception("%s: internal error", self.name)
            self.session.close_connection(spec.INTERNAL_ERROR, "INTERNAL_ERROR")
        if not self._is_held:
            self._read_leftover()
        self._resume_reading()

    def _end_hold(self) -> None:
        self._is_held = False
        self.session.reader.is_paused = False

    def _let_others_in(self) -> None:
        """Read no more until the loop has looked at the other sockets."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self.server.ticker.call_soon(self._resume_reading)

    def _stop_listening_if_deaf(self) -> None:
        waiting = self._transport.get_write_buffer_size() + self._outbox.buffer.size
        if not self._is_deaf and waiting > DEAF_PEER_LIMIT:
            self._is_deaf = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not (self._is_blocked or self._is_deaf or self._is_held):
            self._transport.resume_reading()
            self._heartbeat.received_at = self.server.now()

    def _count_buffers(self) -> None:
        """Count what waits to be read as whole frames, and what waits for the peer to read it."""
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
        """Return True if the peer has closed its end of a socket that is not read, so that the loop cannot see it."""
        raw_socket = self._transport.get_extra_info("socket")
        if raw_socket is None:
            return False
        poll = select.poll()
        poll.register(raw_socket.fileno(), _PEER_GONE)
        return bool(poll.poll(0))

    # -- time --------------------------------------------------------------------------------------------------------

    def check_time(self, now: float) -> None:
        """Send a heartbeat that is due; hang up on a peer that is silent, or too slow to begin or to end."""
        if self._transport is None:
            return
        self._count_buffers()
        if self._close_deadline:
            if now >= self._close_deadline:
                self.abort()
            return
        if self.session.handshake.state is not State.RUNNING:
            if now - self._opened_at >= self.server.options.handshake_timeout:
                log.warning("%s: handshake timed out", self.name)
                self.abort()
            return
        if (self._is_blocked or self._is_deaf) and self._is_peer_gone():
            # Nothing of it was confirmed, and all that it holds is wanted back.
            log.info("%s: the client hung up while it was not read", self.name)
            self.abort()
            return
        self._check_heartbeat(now)

    def _check_heartbeat(self, now: float) -> None:
        heartbeat = self._heartbeat
        if self._heard or self._is_blocked or self._is_deaf or self._is_held:
            self._heard = False
            heartbeat.received_at = now
        if self._outbox.has_written:
            self._outbox.has_written = False
            heartbeat.sent_at = now
        if heartbeat.is_missed(now):
            log.warning("%s: missed heartbeats, timeout: %d s", self.name, heartbeat.interval)
            self.abort()
        elif heartbeat.is_due(now):
            self._outbox.send_raw(HEARTBEAT_FRAME)

    # -- the end -----------------------------------------------------------------------------------------------------

    def make_core(self, vhost: VHost) -> Connection:
        """Describe this connection to the broker: the client has opened a virtual host."""
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

    def opened(self) -> None:
        """The handshake is over."""
        assert self.session.vhost is not None
        self.server.has_opened(self)
        log.info("%s: user '%s' opened vhost '%s'", self.name, self.session.user, self.session.vhost.name)
        self._heartbeat = Heartbeat(self.session.handshake.tuning.heartbeat, self.server.now())
        self._emit(schema.CONNECTION_OPENED, 0)

    def _emit(self, kind: int, reason: int) -> None:
        assert self.session.vhost is not None
        self.server.broker.emit(kind, self.session.vhost.name, connection=self.full_name, reason=reason)

    def shut_down(self, code: int = spec.CONNECTION_FORCED, text: str = SHUTDOWN_TEXT) -> None:
        """The broker stops: say so to a client that can understand it, hang up on one that has not begun."""
        if self.session.handshake.state is State.RUNNING:
            self.session.close_connection(code, text)
        else:
            self.abort()

    def finish(self) -> None:
        """The closing handshake is over: write what is left, then close."""
        self._outbox.flush()
        if self._transport is not None:
            self._transport.close()

    def finish_later(self) -> None:
        """A close was said: the peer answers, or closes its end, or has a few seconds to."""
        self._close_deadline = self.server.now() + CLOSE_TIMEOUT
        if self._is_blocked:
            self._is_blocked = False
            self.server.alarms.blocked.pop(self, None)
        if self._is_held:
            self._end_hold()
            self._read_leftover()  # the client's own goodbye may be among it
        self._resume_reading()

    def abort(self) -> None:
        """Hang up at once."""
        self._is_lost = True
        if self._transport is not None:
            self._transport.abort()


def _certificate_name(transport: asyncio.BaseTransport) -> str | None:
    """The common name of the client's certificate, where TLS asked for one."""
    certificate = transport.get_extra_info("peercert")
    for part in certificate.get("subject", ()) if certificate else ():
        for key, value in part:
            if key == "commonName":
                return str(value)
    return None
