"""The AMQP server: its listeners, what their connections share, and the sweep that checks their time limits.

Owned by the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections import deque
from collections.abc import Callable
from functools import partial

from warrenmq import __version__
from warrenmq.core.broker import Broker
from warrenmq.core.memory import CONNECTION
from warrenmq.protocol import spec
from warrenmq.protocol.handshake import CAPABILITIES
from warrenmq.protocol.output import IS_COMPILED, BufferPool
from warrenmq.server.clock import Clock
from warrenmq.server.connection import SHUTDOWN_TEXT, AmqpConnection
from warrenmq.server.flow import Alarms
from warrenmq.server.limits import (
    MAX_CONNECTIONS,
    UNAUTHENTICATED,
    ConnectionLimits,
    Refusals,
    divide_descriptors,
    open_file_limit,
)
from warrenmq.server.options import ServerOptions
from warrenmq.server.sasl import Authenticator
from warrenmq.server.ticker import Ticker
from warrenmq.server.timer_driver import TimerDriver

log = logging.getLogger("warrenmq.listener")

# What RabbitMQ does not have.
OWN_CAPABILITIES = {"warrenmq.consumer_retry": True, "warrenmq.notes": True}

# All connections read into one buffer of this size (or two frames, if those are larger).
RECEIVE_BUFFER = 256 * 1024
# Every connection is checked four times a second, an eighth of them at a time: checking thousands at once would delay
# deliveries.
SWEEP_INTERVAL = 0.25
SWEEP_SLICES = 8
BACKLOG = 1024
# The RabbitMQ version whose behaviour clients may expect.
DIALECT_VERSION = "3.13.7"


class Listener:
    """One address at which the server accepts connections. `port` is the actual one, also if 0 was requested."""

    __slots__ = ("host", "port", "server")

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.server: asyncio.Server | None = None

    async def open(self, accept: Callable[[], asyncio.BaseProtocol]) -> None:
        """Listen; raise OSError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(accept, self.host, self.port, backlog=BACKLOG)
        self.port = int(self.server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        if self.server is not None:
            self.server.close()

    async def wait_closed(self) -> None:
        if self.server is not None:
            await self.server.wait_closed()


class AcceptedSocket(asyncio.Protocol):
    """A socket just accepted: becomes an `AmqpConnection`, or is closed if the limits are reached."""

    __slots__ = ("_listener", "_server")

    def __init__(self, server: AmqpServer, listener: Listener) -> None:
        self._server = server
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._server.admit():
            connection = AmqpConnection(self._server, self._listener)
            transport.set_protocol(connection)
            connection.connection_made(transport)
        else:
            transport.abort()  # type: ignore[attr-defined]


class AmqpServer:
    """The listeners and their connections. `clock` is the broker's.

    By default, `limits` follow from the options and the open-file limit of the process.
    """

    def __init__(
        self, broker: Broker, options: ServerOptions, clock: Clock, limits: ConnectionLimits | None = None
    ) -> None:
        self.broker = broker
        self.limits = limits or divide_descriptors(open_file_limit(), options.max_connections, None)
        self.refusals = Refusals(self.now)
        self._clock = clock
        self.options = options
        self.authenticator = Authenticator(broker.users, options.loopback_users, broker.login_limit)
        broker.warning_log.on_warning = partial(log.warning, "%s")
        self.alarms = Alarms(broker.stats, options.memory_limit, options.max_message_size)
        self.pool = BufferPool()
        self.receive_buffer = bytearray(max(RECEIVE_BUFFER, 2 * (options.frame_max + 8)))
        self.receive_view = memoryview(self.receive_buffer)
        self.loop_lag = 0.0
        self.properties = {
            # Clients choose their dialect by these two (docs/decisions/0006).
            "product": "RabbitMQ",
            "version": DIALECT_VERSION,
            "broker": f"WarrenMQ {__version__}",
            "platform": f"Python {platform.python_version()}",
            "copyright": "Copyright (c) the WarrenMQ authors",
            "information": "WarrenMQ speaks RabbitMQ's dialect. Licensed under the Apache License, Version 2.0",
            "cluster_name": f"warren@{platform.node()}",
            "capabilities": {**CAPABILITIES, **OWN_CAPABILITIES},
        }
        self._connections: dict[AmqpConnection, None] = {}
        self._unauthenticated: set[AmqpConnection] = set()  # no virtual host opened yet
        self._to_sweep: deque[AmqpConnection] = deque()  # closed ones are dropped when reached
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._timers: TimerDriver | None = None
        self._sweep_due = 0.0

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return self.listeners[0].port

    def now(self) -> float:
        return self._loop.time()

    async def listen(self, host: str, port: int) -> Listener:
        """Accept connections at one more address; raise OSError if it cannot be used."""
        if self._sweeper is None:
            self._start()
        listener = Listener(host, port)
        await listener.open(lambda: AcceptedSocket(self, listener))
        self.listeners.append(listener)
        return listener

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Uncompiled, the output of a turn is written after the pause, and a message costs more than a pause saves.
        max_pause = self.options.max_pause_us / 1e6 if IS_COMPILED else 0.0
        self.ticker = Ticker(self._loop, self.broker, self._clock, self.options.busy_poll_us / 1e6, max_pause)
        self.ticker.after_turn = self.alarms.check_memory
        self._timers = TimerDriver(self._loop, self.ticker, self.broker)
        self._sweep()

    async def stop(self, grace: float, code: int = spec.CONNECTION_FORCED, text: str = SHUTDOWN_TEXT) -> None:
        """Close all listeners, and every connection with this code; give clients `grace` seconds to reply."""
        if self._sweeper is None:
            return
        for listener in self.listeners:
            listener.close()
        for connection in list(self._connections):
            connection.shut_down(code, text)
        self.ticker.end_turn()
        try:
            async with asyncio.timeout(grace):
                await self._is_empty.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._is_empty.wait()
        self._sweeper.cancel()
        if self._timers is not None:
            self._timers.stop()
        for listener in self.listeners:
            await listener.wait_closed()

    def admit(self) -> bool:
        """Return True if one more connection is allowed; count it as refused if not."""
        if len(self._connections) >= self.limits.amqp:
            self.refusals.record(MAX_CONNECTIONS)
        elif len(self._unauthenticated) >= self.limits.unauthenticated:
            self.refusals.record(UNAUTHENTICATED)
        else:
            return True
        return False

    def add(self, connection: AmqpConnection) -> None:
        self._connections[connection] = None
        self._unauthenticated.add(connection)
        self._to_sweep.append(connection)
        self._is_empty.clear()
        self.broker.stats.connections_opened += 1
        self.broker.stats.definition_bytes += CONNECTION

    def on_open(self, connection: AmqpConnection) -> None:
        """The connection has logged in and opened a virtual host."""
        self._unauthenticated.discard(connection)

    def remove(self, connection: AmqpConnection) -> None:
        del self._connections[connection]
        self._unauthenticated.discard(connection)
        if not self._connections:
            self._is_empty.set()
        self.alarms.blocked.pop(connection, None)
        self.broker.stats.connections_closed += 1
        self.broker.stats.definition_bytes -= CONNECTION

    def block_unconfirmed_publishers(self) -> None:
        """Block connections that wait for confirms, as the disk is full and none can be sent."""
        for connection in list(self._connections):
            if connection.session.awaits_confirms:
                connection.block_publisher()

    def _sweep(self) -> None:
        """Check the time limits of the next slice of connections, and measure the lag of the loop."""
        now = self.now()
        if self._sweep_due:
            self.loop_lag = max(0.0, now - self._sweep_due)
        for _ in range(-(-len(self._to_sweep) // SWEEP_SLICES)):
            connection = self._to_sweep.popleft()
            if connection in self._connections:
                connection.check_time(now)
                self._to_sweep.append(connection)
        self.alarms.check_memory()  # memory is also released without a turn, when a peer reads its output
        self._sweep_due = self.now() + SWEEP_INTERVAL / SWEEP_SLICES
        self._sweeper = self._loop.call_at(self._sweep_due, self._sweep)
