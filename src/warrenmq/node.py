"""A node: one broker with its storage and its edges, started and stopped in order.

The composition root: the only module that imports all packages of the broker. Needs a running event loop, which
`cli serve` and `embedded` provide. When the storage fails, the node closes its connections and completes `failed`; its
owner must then stop it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from warrenmq import __version__
from warrenmq.core.broker import Broker
from warrenmq.core.limits import Limits
from warrenmq.core.policies import Policy
from warrenmq.core.ports import Storage
from warrenmq.core.reserved import ADMINISTRATOR
from warrenmq.core.users import EVERYTHING
from warrenmq.journal.errors import JournalError
from warrenmq.management.options import HttpOptions
from warrenmq.management.ports import Origin
from warrenmq.management.server import HttpServer
from warrenmq.management.view import NodeView
from warrenmq.protocol import spec
from warrenmq.server.clock import SteadyClock
from warrenmq.server.disk_alarm import DiskAlarm
from warrenmq.server.flow import DISK, EVENTS
from warrenmq.server.limits import HTTP, divide_descriptors, log_limits, open_file_limit
from warrenmq.server.listener import AmqpServer
from warrenmq.server.options import ServerOptions
from warrenmq.server.sasl import Peer
from warrenmq.storage.data_dir import DataDir, DataDirError
from warrenmq.storage.definition_records import CatalogError
from warrenmq.storage.file_storage import FileStorage, without_collections
from warrenmq.storage.memory_store import MemoryStorage
from warrenmq.storage.options import StorageOptions
from warrenmq.tracing.service import Tracing, TracingOptions

log = logging.getLogger("warrenmq.node")

Result = TypeVar("Result")

# The current step, the bytes done and the bytes in total; called from another thread.
ProgressCallback = Callable[[str, int, int], None]

# The index of the event log, relative to the data folder.
INDEX = Path("tracing") / "index"

# Seconds that clients have to reply when the storage has failed.
FAILURE_GRACE = 1.0


class StartError(Exception):
    """The node cannot start; the text is one line."""


class StorageFailed(Exception):
    """The node stopped because its storage failed; the text is one line."""


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Options of a node. Port 0 means any free port; http_port None means no HTTP."""

    host: str = "127.0.0.1"
    port: int = 5672
    http_port: int | None = 15672
    max_http_connections: int | None = None  # None: an eighth of the open-file limit
    data_dir: Path | None = None
    strict: bool = False  # refuse a data folder that other users can write to
    server: ServerOptions = field(default_factory=ServerOptions)
    limits: Limits = field(default_factory=Limits)
    storage: StorageOptions = field(default_factory=StorageOptions)
    tracing: TracingOptions = field(default_factory=TracingOptions)
    http: HttpOptions = field(default_factory=HttpOptions)
    policies: Sequence[Policy] = ()  # set at each start
    operator_policies: Sequence[Policy] = ()


class Node:
    """One broker with its storage, AMQP and HTTP servers. `broker` is set by `start`.

    `failed` completes, with the reason, when the storage has failed.
    """

    broker: Broker
    tracing: Tracing
    failed: asyncio.Future[str]

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self._amqp: AmqpServer | None = None
        self._http: HttpServer | None = None
        self._data_dir = DataDir(options.data_dir, options.strict) if options.data_dir is not None else None
        self._files: FileStorage | None = None
        self._disk: DiskAlarm | None = None
        self._watching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._state = "starting"

    @property
    def host(self) -> str:
        return self.options.host

    @property
    def amqp_port(self) -> int:
        assert self._amqp is not None
        return self._amqp.port

    @property
    def http_port(self) -> int | None:
        return self._http.port if self._http is not None else None

    @property
    def url(self) -> str:
        server = self.options.server
        user, password = quote(server.default_user, safe=""), quote(server.default_pass, safe="")
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"amqp://{user}:{password}@{host}:{self.amqp_port}/"

    def ready(self) -> tuple[bool, str]:
        """Return whether the node accepts connections, and its state."""
        return self._state == "ready", self._state

    def loop_lag(self) -> float:
        """Return the delay of the last sweep, in seconds."""
        return self._amqp.loop_lag if self._amqp is not None else 0.0

    def figures(self) -> dict[str, int]:
        """Return figures of the storage for /metrics and /healthz."""
        figures = self._files.figures() if self._files is not None else {}
        if self._disk is not None and self._disk.free_bytes is not None:
            figures["disk_free_bytes"] = self._disk.free_bytes
        return figures

    def refused_connections(self) -> dict[str, int]:
        """Return the numbers of refused connections, by reason."""
        return self._amqp.refusals.counts if self._amqp is not None else {}

    def alarms(self) -> list[str]:
        """Return the resources that are short."""
        return sorted(self._amqp.alarms.raised) if self._amqp is not None else []

    # -- the start ---------------------------------------------------------------------------------------------------

    async def start(self, progress: ProgressCallback | None = None) -> None:
        """Lock the data folder, recover its contents, then listen; raise StartError if that fails."""
        self.failed = asyncio.get_running_loop().create_future()
        try:
            self._compose(await self._open_storage(progress))
            assert self._amqp is not None
            if self._disk is not None:
                await self._disk.check()  # before the first publisher
                self._watching = asyncio.create_task(self._disk.watch(), name="warrenmq-disk")
            await self._listen("AMQP", self.options.port, self._amqp.listen)
            await self._begin_tracing(self._amqp)
            if self.options.http_port is not None:
                view = NodeView(
                    self.broker,
                    self.ready,
                    self.loop_lag,
                    __version__,
                    self.alarms,
                    self.figures,
                    login=self.check_login,
                    traces=self.tracing.traces,
                    rules=self.tracing.rules,
                    firehose=self.tracing.firehose,
                    change=self.change,
                    tracing_state=self.tracing.state,
                    refused_connections=self.refused_connections,
                )
                http = replace(self.options.http, max_connections=self._amqp.limits.http)
                self._http = HttpServer(view, options=http, on_refused=partial(self._amqp.refusals.record, HTTP))
                await self._listen("HTTP", self.options.http_port, self._http.start)
        except (DataDirError, CatalogError, JournalError) as error:
            await self.stop()
            raise StartError(str(error)) from None
        except BaseException:
            await self.stop()
            raise
        log_limits(
            self._amqp.limits, open_file_limit(), self.options.server.max_connections, self.options.max_http_connections
        )
        if not self.failed.done():
            self._state = "ready"

    async def _open_storage(self, progress: ProgressCallback | None) -> Storage:
        if self._data_dir is None:
            return MemoryStorage()
        self._data_dir.lock()
        for line in self._data_dir.warnings:
            log.warning("%s", line)
        begun_at = time.monotonic()
        try:
            # In a thread, so that the loop still handles signals.
            storage = await asyncio.to_thread(FileStorage.open, self._data_dir, self.options.storage, progress)
        except OSError as error:
            raise StartError(f"cannot open the data folder {self._data_dir.path}: {error}") from None
        self._files = storage
        for line in storage.report:
            log.warning("%s", line)
        log.info(
            "recovered %s in %.2f s, replayed %d epochs of the log",
            self._data_dir.path,
            time.monotonic() - begun_at,
            storage.replayed_epochs,
        )
        return storage

    def _compose(self, storage: Storage) -> None:
        """Create the broker with its storage, and the AMQP server."""
        server = self.options.server
        self.tracing = Tracing(storage, self._tracing_options())
        clock = SteadyClock()
        with without_collections():
            self.broker = broker = Broker(storage, self.tracing.recorder, clock(), self.options.limits)
        self.tracing.attach(broker)
        for line in broker.recovery_warnings:
            log.warning("%s", line)
        broker.users.add(server.default_user, server.default_pass, (ADMINISTRATOR,))
        broker.users.grant(server.default_user, None, EVERYTHING, EVERYTHING, EVERYTHING)
        broker.on_failure = self._storage_failed
        limits = divide_descriptors(open_file_limit(), server.max_connections, self.options.max_http_connections)
        self._amqp = AmqpServer(broker, server, clock, limits)
        self._set_policies()
        if self._files is not None:
            measure = partial(self._files.files.free_space, self._files.root)
            self._disk = DiskAlarm(self._amqp.alarms, server.disk_free_limit, measure)
            self._files.start(asyncio.get_running_loop(), broker.log_failed, self._disk_is_full)
            broker.end_turn()  # writes the first definitions of a new folder

    def _set_policies(self) -> None:
        """Set the policies of the settings; they replace others of the same name."""
        for is_operator, policies in ((False, self.options.policies), (True, self.options.operator_policies)):
            for policy in policies:
                vhost = self.broker.vhosts.get(policy.vhost)
                if vhost is None:
                    log.warning("policy '%s' of the settings skipped: no vhost '%s'", policy.name, policy.vhost)
                    continue
                vhost.policies.set(
                    policy.name, policy.pattern, policy.definition, policy.priority, policy.apply_to, is_operator
                )

    def _disk_is_full(self, is_full: bool) -> None:
        assert self._disk is not None
        assert self._amqp is not None
        self._disk.set_writer_waiting(is_full)
        if is_full:
            self._amqp.block_unconfirmed_publishers()

    async def _begin_tracing(self, amqp: AmqpServer) -> None:
        await self.tracing.start(
            asyncio.get_running_loop(),
            amqp.ticker.schedule,
            lambda is_overloaded: amqp.alarms.set(EVENTS, is_overloaded),
            lambda: DISK in amqp.alarms.raised,
        )

    def _tracing_options(self) -> TracingOptions:
        """Return the options with the index of the event log in the data folder."""
        if self.options.data_dir is None:
            return self.options.tracing
        return replace(self.options.tracing, index_folder=str(self.options.data_dir / INDEX))

    async def change(self, work: Callable[[], Result]) -> Result:
        """Run `work` in a turn; return its result when its definitions are as durable as a declared queue."""
        assert self._amqp is not None
        self._amqp.ticker.schedule()
        result = work()
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.broker.when_durable(durable, self.broker.storage.log.reply_level, partial(_complete, durable))
        try:
            await durable
        finally:
            self.broker.withdraw(durable)
        return result

    async def check_login(self, name: str, password: str, origin: Origin) -> bool:
        """Return True if a login over HTTP is valid; raise TooManyFailures if it was not checked."""
        peer = Peer(origin.address, is_direct=origin.is_direct)
        return self._amqp is not None and await self._amqp.authenticator.check(name, password, peer)

    async def _listen(self, what: str, port: int, listen: Callable[[str, int], Awaitable[object]]) -> None:
        try:
            await listen(self.options.host, port)
        except OSError as error:
            where = f"{self.options.host}:{port}"
            if error.errno == errno.EADDRINUSE:
                raise StartError(
                    f"{what} port in use: {where} (choose another port, or stop the program that uses it)"
                ) from None
            reason = error.strerror or os.strerror(error.errno) if error.errno else str(error)
            raise StartError(f"cannot listen for {what} on {where}: {reason}") from None

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _end_tracing(self) -> None:
        """Stop tracing after the last client has gone, so that its events are recorded too."""
        self.broker.end_turn()
        await self.tracing.stop()

    def _storage_failed(self, reason: str) -> None:
        """Close all connections, and complete `failed`: nothing can be made durable any more."""
        log.error("storage failed: %s; nothing more is confirmed, the node stops", reason)
        self.failed.set_result(reason)
        if self._amqp is not None and self._state != "stopping":
            self._state = f"storage failed: {reason}"
            stopping = self._amqp.stop(FAILURE_GRACE, spec.INTERNAL_ERROR, f"INTERNAL_ERROR - storage failed: {reason}")
            self._closing = asyncio.get_running_loop().create_task(stopping)

    def require_storage(self) -> None:
        """Raise StorageFailed if the storage has failed."""
        if self.failed.done():
            raise StorageFailed(f"storage failed: {self.failed.result()}")

    async def stop(self, grace: float = 2.0) -> None:
        """Close connections with 320, stop listening, flush, unlock the data folder. Safe to call twice.

        Connections of clients that have not replied after `grace` seconds are aborted.
        """
        self._state = "stopping"
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        if self._http is not None:
            await self._http.stop()
            self._http = None
        if self._closing is not None:
            await self._closing
            await self.tracing.stop()
        elif self._amqp is not None:
            await self._amqp.stop(grace)
            await self._end_tracing()
            self.broker.end_turn()
        if self._files is not None:
            files, self._files = self._files, None
            await files.stop()
        if self._data_dir is not None:
            self._data_dir.unlock()
        self._state = "stopped"


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():  # its task may be cancelled
        future.set_result(None)
