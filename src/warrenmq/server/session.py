"""A session: carries out the methods of one connection.

Receives methods from the message path (message_path.py, which handles published messages and acks itself), calls the
core, and replies through the outbox. Only here do refusals of the core and errors of the protocol become channel.close
or connection.close.

Owned by the loop thread.
"""

from __future__ import annotations

import logging
from asyncio import Future, ensure_future
from collections.abc import Callable
from typing import TYPE_CHECKING

from warrenmq.core.channel import Channel
from warrenmq.core.connection import Connection
from warrenmq.core.errors import AccessRefused, BrokerError, NotAllowed
from warrenmq.core.exchange import DEFAULT_EXCHANGE, Route
from warrenmq.core.reserved import is_system_stream
from warrenmq.core.vhost import VHost
from warrenmq.events import schema
from warrenmq.protocol import methods, spec
from warrenmq.protocol.errors import (
    ChannelError,
    CommandInvalid,
    MalformedArguments,
    ProtocolError,
    Scope,
    UnexpectedFrame,
    clip_reply_text,
    describe_payload,
)
from warrenmq.protocol.frames import FrameReader
from warrenmq.protocol.handshake import ServerHandshake, State, Tuning
from warrenmq.server.channel_methods import ChannelMethods
from warrenmq.server.flow import Alarms
from warrenmq.server.message_path import MessagePath, index_of
from warrenmq.server.outbox import ConnectionOutbox
from warrenmq.server.sasl import LoginRefused

if TYPE_CHECKING:
    from warrenmq.server.connection import AmqpConnection

log = logging.getLogger("warrenmq.session")

_PUBLISH = spec.BasicPublish.index
_MANDATORY = 1
_IMMEDIATE = 2


class Session:
    """The AMQP dialogue of one connection, from connection.start to the closing handshake."""

    __slots__ = (
        "_connection",
        "_login",
        "_messages",
        "broker",
        "channels",
        "core",
        "handshake",
        "is_closed",
        "outbox",
        "reader",
        "user",
        "vhost",
    )

    def __init__(self, connection: AmqpConnection, outbox: ConnectionOutbox, alarms: Alarms) -> None:
        options = connection.server.options
        self._connection = connection
        self.broker = connection.server.broker
        self.outbox = outbox
        self._messages = MessagePath(self, alarms, options.max_message_size)
        self.handshake = ServerHandshake(Tuning(options.channel_max, options.frame_max, options.heartbeat))
        # Before connection.tune-ok, frames are limited to the smallest frame_max that the protocol allows.
        self.reader = FrameReader(self._messages, spec.FRAME_MIN_SIZE)
        self.reader.accepts_content = False
        self.channels: dict[int, ChannelMethods] = {}
        self.user = ""
        self._login: Future[str] | None = None  # a login that has to wait
        self.vhost: VHost | None = None
        self.core: Connection | None = None  # the broker's side of this connection, from connection.open on
        self.is_closed = False  # a close was sent or received; further requests are ignored
        outbox.closes_channel = self.close_channel

    def begin(self) -> None:
        """The client has sent the protocol header."""
        connection = self._connection
        mechanisms = connection.server.authenticator.mechanisms_for(connection.peer)
        self.outbox.send(
            0,
            spec.ConnectionStart(
                server_properties=connection.server.properties,
                mechanisms=" ".join(mechanisms).encode(),
            ),
        )

    # -- used by the message path ------------------------------------------------------------------------------------

    def require_writable(self, channel: Channel, route: Route) -> None:
        """Raise a 403 unless the user may publish on this route; cached until the channel publishes elsewhere."""
        assert self.vhost is not None
        users = self.broker.users
        is_same_for_all_keys = users.require_publish(self.user, self.vhost.name, route.exchange.name, route.routing_key)
        channel.writable_exchange = route.exchange if is_same_for_all_keys else None
        channel.writable_revision = users.revision.number

    def block_publisher(self) -> None:
        """Stop reading this client, which has just published during an alarm."""
        self._connection.block_publisher()

    def find_route(self, method: bytes) -> Route:
        """Resolve a basic.publish that is not cached: new, or the topology has changed since."""
        index = index_of(method)
        if index != _PUBLISH:
            raise _unimplemented(index)
        address, exchange, key = _read_address(method)
        flags = method[-1]
        assert self.vhost is not None
        if exchange == DEFAULT_EXCHANGE and is_system_stream(self.vhost.name, key):
            self.broker.users.require(self.user, self.vhost.name, "write", "queue", key)
        return self.vhost.find_route(method, exchange, key, address, bool(flags & _MANDATORY), bool(flags & _IMMEDIATE))

    # -- methods -----------------------------------------------------------------------------------------------------

    def on_method(self, channel: int, payload: bytes) -> None:
        index = index_of(payload)
        if channel == 0:
            self._on_connection_method(methods.decode(payload))
            return
        if self.handshake.state is not State.RUNNING:
            raise _unexpected_frame(payload)
        state = self.channels.get(channel)
        if index == spec.ChannelOpen.index:
            self._open_channel(channel, payload)
            return
        if channel in self.reader.ignored_channels:
            self._on_closing_channel(channel, index)
            return
        if state is None:
            self.fail(ChannelError("expected 'channel.open'"), channel, index)
            return
        try:
            method = methods.decode(payload)
            if index == spec.ChannelClose.index:
                self._close_channel(channel)
            else:
                state.handle(method)
        except (BrokerError, ProtocolError) as refusal:
            self.fail(refusal, channel, index)

    def _on_connection_method(self, method: spec.Method) -> None:
        if self.is_closed:
            if isinstance(method, spec.ConnectionCloseOk):
                self._connection.finish()
            elif isinstance(method, spec.ConnectionClose):
                self.outbox.send(0, spec.ConnectionCloseOk())
        elif self.handshake.state is State.RUNNING:
            self._on_running_method(method)
        elif self.handshake.state is State.STARTING:
            self._log_in(self.handshake.start_ok(method))
        elif self.handshake.state is State.TUNING:
            tuning = self.handshake.tune_ok(method)
            self.reader.frame_max = tuning.frame_max
            self.outbox.buffer.frame_max = tuning.frame_max
        else:
            self._open_vhost(method)

    def _on_running_method(self, method: spec.Method) -> None:
        if isinstance(method, spec.ConnectionClose):
            self._end_channels()
            self.is_closed = True
            self.reader.close()
            self.outbox.send(0, spec.ConnectionCloseOk())
            self._connection.await_close()
        elif isinstance(method, spec.ConnectionUpdateSecret):
            self.outbox.send(0, spec.ConnectionUpdateSecretOk())
        else:
            raise self.handshake.unexpected(method)

    def _log_in(self, start_ok: spec.ConnectionStartOk) -> None:
        """Accept or refuse the login, or hold the reply until it is checked."""
        server = self._connection.server
        try:
            user = server.authenticator.login(start_ok.mechanism, start_ok.response, self._connection.peer)
        except LoginRefused as refusal:
            self._refuse_login(refusal)
            return
        if isinstance(user, str):
            self._accept_login(user)
        else:
            self.hold_reply()
            self._login = ensure_future(user)
            self._login.add_done_callback(self._on_login_checked)

    def _on_login_checked(self, login: Future[str]) -> None:
        if login.cancelled():
            return
        login.exception()  # mark it as retrieved, as the connection may be gone
        if login is self._login:
            self._connection.resume_after(lambda: self._end_login(login))

    def _end_login(self, login: Future[str]) -> None:
        self._login = None
        # Not raised here: the traceback would make a reference cycle with the future.
        refusal = login.exception()
        if isinstance(refusal, LoginRefused):
            self._refuse_login(refusal)
            return
        try:
            self._accept_login(login.result())
        except ProtocolError as error:
            self.fail_connection(error)

    def _refuse_login(self, refusal: LoginRefused) -> None:
        """Send connection.close if the client supports it, else abort."""
        # Unchecked refusals are as frequent as connections: as warnings they would fill the log.
        level = logging.WARNING if refusal.is_checked else logging.DEBUG
        log.log(level, "%s: login refused: %s", self._connection.name, clip_reply_text(str(refusal)))
        if self.handshake.capabilities.get("authentication_failure_close") is True:
            # The reason is only in the log; the client gets the text that RabbitMQ sends.
            text = (
                f"Login was refused using authentication mechanism {refusal.mechanism}. "
                "For details see the broker logfile."
            )
            self._close_connection(AccessRefused(text), 0)
        else:
            self._connection.abort()

    def _accept_login(self, user: str) -> None:
        self.user = user
        self.outbox.notifies_cancel = self.handshake.capabilities.get("consumer_cancel_notify") is True
        self.outbox.send(0, self.handshake.authenticated())

    def _open_vhost(self, method: spec.Method) -> None:
        try:
            self.vhost = self.broker.open_vhost(self.handshake.open(method), self.user)
        except BrokerError as refusal:
            self._close_connection(refusal, method.index)
            return
        self.core = self._connection.make_core(self.vhost)
        self.core.open()
        self._messages.routes = self.vhost.routes
        self._messages.channels = self.core.channels
        self.reader.accepts_content = True
        self.outbox.send(0, self.handshake.opened())
        self._connection.on_open()

    # -- channels ----------------------------------------------------------------------------------------------------

    def _open_channel(self, number: int, payload: bytes) -> None:
        methods.decode(payload)
        if number in self.channels:
            self.fail(ChannelError("second 'channel.open' seen"), number, spec.ChannelOpen.index)
            return
        limit = self.handshake.tuning.channel_max
        if len(self.channels) >= limit:
            text = f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max ({limit})"
            self._close_connection(NotAllowed(text), 0)
            return
        self.channels[number] = ChannelMethods(self, number)
        self._emit_channel(schema.CHANNEL_OPENED, number, 0)
        self.outbox.send(number, spec.ChannelOpenOk())

    def _close_channel(self, number: int) -> None:
        """Close a channel on the client's request."""
        self._drop_channel(number, schema.R_CHANNEL_CLOSED)
        self.reader.resume_channel(number)
        self.outbox.send(number, spec.ChannelCloseOk())

    def _on_closing_channel(self, number: int, index: int) -> None:
        """Handle a method on a channel that this side has closed: a crossing close, or the close-ok."""
        if index == spec.ChannelClose.index:
            self.outbox.send(number, spec.ChannelCloseOk())
        else:
            self.reader.resume_channel(number)

    def _drop_channel(self, number: int, reason: int) -> None:
        """Close the channel in the core; `reason` is recorded for the deliveries that it requeues."""
        assert self.core is not None
        del self.channels[number]
        self.core.close_channel(number, reason)
        self._emit_channel(schema.CHANNEL_CLOSED, number, reason)

    def _emit_channel(self, kind: int, number: int, reason: int) -> None:
        assert self.vhost is not None
        self.broker.emit(kind, self.vhost.name, connection=self._connection.full_name, channel=number, reason=reason)

    # -- held replies ------------------------------------------------------------------------------------------------

    def hold_reply(self) -> None:
        """Process nothing after the current method until `resume_when`."""
        self.reader.is_paused = True
        self._connection.hold_reply()

    def resume_when(self, level: int, reply: Callable[[], None]) -> None:
        """Call `reply` and resume the client when everything until now is durable to this level."""
        if self.is_closed:
            return
        self.broker.when_durable(self.core, level, lambda: self._connection.resume_after(reply))
        self._connection.server.ticker.schedule()

    def retry(self, channel: int, method: spec.Method) -> None:
        """Handle a method again that had to wait for a page from disk."""
        state = self.channels.get(channel)
        if state is not None:
            try:
                state.handle(method)
            except (BrokerError, ProtocolError) as refusal:
                self.fail(refusal, channel, method.index)

    # -- refusals ----------------------------------------------------------------------------------------------------

    def fail(self, refusal: BrokerError | ProtocolError, channel: int, index: int) -> None:
        """Close the channel or the connection with the code and text of the refusal."""
        if refusal.scope is Scope.CONNECTION or channel not in self.channels:
            self._close_connection(refusal, index)
            return
        # Clipped before it is logged: names that are not valid text must not break the log either.
        text = clip_reply_text(refusal.reply_text)
        log.info("%s channel %d: closed: %s", self._connection.name, channel, text)
        self._refuse_channel(channel, refusal.reply_code, text, index)

    def close_channel(self, channel: int, refusal: BrokerError, cause: str) -> None:
        """Close a channel on the broker's initiative."""
        text = clip_reply_text(refusal.reply_text)
        log.warning("%s channel %d: closed: %s (%s)", self._connection.name, channel, text, cause)
        self._refuse_channel(channel, refusal.reply_code, text, 0)

    def _refuse_channel(self, channel: int, reply_code: int, text: str, index: int) -> None:
        self._drop_channel(channel, schema.R_ERROR)
        self.reader.ignore_channel(channel)
        self.outbox.send(channel, spec.ChannelClose(reply_code, text, index >> 16, index & 0xFFFF))

    def fail_connection(self, error: ProtocolError) -> None:
        """Close with a protocol error; abort if the handshake is not complete or the connection is closing."""
        if self.is_closed:
            self._connection.abort()
        elif self.handshake.state in (State.STARTING, State.TUNING):
            log.warning("%s: handshake failed: %s", self._connection.name, error.reply_text)
            self._connection.abort()
        else:
            self._close_connection(error, error.class_id << 16 | error.method_id)

    def _close_connection(self, refusal: BrokerError | ProtocolError, index: int) -> None:
        if isinstance(refusal, ProtocolError) and (refusal.class_id or not _carries_method(refusal)):
            index = refusal.class_id << 16 | refusal.method_id
        self.close_connection(refusal.reply_code, refusal.reply_text, index)

    def close_connection(self, reply_code: int, reply_text: str, index: int = 0) -> None:
        """Send connection.close; the connection ends with the client's reply, or after a timeout."""
        if self.is_closed:
            return
        reply_text = clip_reply_text(reply_text)
        log.info("%s: closed: %s", self._connection.name, reply_text)
        self._end_channels()
        self.is_closed = True
        self.reader.close()
        self.outbox.send(0, spec.ConnectionClose(reply_code, reply_text, index >> 16, index & 0xFFFF))
        self._connection.await_close()

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Release everything; the connection is lost."""
        self._end_channels()
        self.is_closed = True
        self.reader.close()
        self._messages.end()
        self.outbox.closes_channel = None
        del self._connection  # breaks a reference cycle; a closed session gets no more calls

    def _end_channels(self) -> None:
        if self._login is not None:
            self._login.cancel()
            self._login = None
        for number in list(self.channels):
            self._drop_channel(number, schema.R_CONNECTION_CLOSED)
        if self.core is not None:
            self.core.close()

    # -- blocking ----------------------------------------------------------------------------------------------------

    @property
    def awaits_confirms(self) -> bool:
        """True if a publish waits for its epoch."""
        return any(state.channel.awaiting_epoch for state in self.channels.values())

    def send_blocked(self, reason: str) -> None:
        if self.handshake.capabilities.get("connection.blocked") is True and not self.is_closed:
            self.outbox.send(0, spec.ConnectionBlocked(reason))

    def send_unblocked(self) -> None:
        if self.handshake.capabilities.get("connection.blocked") is True and not self.is_closed:
            self.outbox.send(0, spec.ConnectionUnblocked())


def _read_address(method: bytes) -> tuple[bytes, str, str]:
    """Return the address of a publish as received, its exchange and its key; they need not be valid UTF-8."""
    address = method[6:-1]  # between the ids and ticket, and the flags
    exchange_size = address[0] if address else 0
    key_at = 2 + exchange_size
    if len(address) < key_at or len(address) != key_at + address[key_at - 1]:
        raise MalformedArguments(method[4:], _PUBLISH >> 16, _PUBLISH & 0xFFFF)
    name = address[1 : key_at - 1].decode("utf-8", "surrogateescape")
    return address, name, address[key_at:].decode("utf-8", "surrogateescape")


def _carries_method(refusal: ProtocolError) -> bool:
    """Return True if the close names the current method although the error has none."""
    return isinstance(refusal, ChannelError)


def _unimplemented(index: int) -> ProtocolError:
    return CommandInvalid("unimplemented method", index >> 16, index & 0xFFFF)


def _unexpected_frame(payload: bytes) -> ProtocolError:
    return UnexpectedFrame(describe_payload(spec.FRAME_METHOD, payload))
