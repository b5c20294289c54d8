"""A connection for any thread. Its loop lives in a thread of its own, which keeps heartbeats whatever callers do.

The engine, which belongs to the loop, does the work; this is the way to it, and the end of its threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from warrenmq.client.blocking import io_thread
from warrenmq.client.blocking.channel import Channel
from warrenmq.client.blocking.io_thread import IoThread
from warrenmq.client.blocking.primitives import check_callback
from warrenmq.client.blocking.worker import Worker
from warrenmq.client.engine.connection import EngineConnection, RecoveryEvent
from warrenmq.client.engine.consumers import WorkQueue
from warrenmq.client.engine.listener_list import do_nothing
from warrenmq.client.errors import ClientError, CloseReason, ConnectionClosed
from warrenmq.client.factory import ConnectionFactory, Settings, as_factory

if TYPE_CHECKING:
    from warrenmq.client.engine.channel import EngineChannel

Result = TypeVar("Result")


def connect(url: str | Iterable[str] | ConnectionFactory | None = None, /, **settings: Unpack[Settings]) -> Connection:
    """Open a connection that any thread may use.

    >>> with connect(url, name="example") as connection:
    ...     channel = connection.channel()
    ...     _ = channel.queue_declare("connect-example", auto_delete=True)
    ...     channel.confirm_select()
    ...     channel.publish("", "connect-example", "hello").result()
    ...     channel.get("connect-example", auto_ack=True).body
    b'hello'

    Raises ConnectionFailed when no address answers as it should, AuthenticationFailed when the login is refused.
    `attempts=10, wait=1` waits for a broker that is not up yet: ten attempts, one second apart.
    """
    return as_factory(url, settings).connect()


class Connection:
    """A connection to the broker, with as many channels as wanted. Made by `connect` or a factory.

    After an unexpected loss it comes back by itself, with everything that was declared on it (see Recovery); calls made
    meanwhile wait. It lives until `close`, or the end of the program.
    """

    def __init__(self, factory: ConnectionFactory) -> None:
        """Use `connect` or `ConnectionFactory.connect`, which open it too."""
        self._given = factory
        self._call_timeout = factory.call_timeout
        self._workers: list[Worker] = []
        self._engine: EngineConnection
        self._thread = IoThread(f"warren-client-{factory.name or 'connecting'}")

    # -- channels ----------------------------------------------------------------------------------------------------

    def channel(self, timeout: float | None = None) -> Channel:
        """Open a channel; its number is taken care of."""
        limit = self.factory.call_timeout if timeout is None else timeout
        return self._thread.call(self._open_channel(limit), limit)

    @property
    def channels(self) -> Mapping[int, Channel]:
        """The open ones by number, as they are now."""
        return {number: each.facade for number, each in list(self._engine.channels.items()) if each.is_open}

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """There is a link to the server now."""
        return self._engine.is_open

    @property
    def is_recovering(self) -> bool:
        """The link was lost, and another one is being made."""
        return self._engine.is_recovering

    @property
    def is_closed(self) -> bool:
        """It has ended for good."""
        return self._engine.is_closed

    @property
    def is_blocked(self) -> bool:
        """The server takes no publishes now, as it is short of memory or disk."""
        return self._engine.is_blocked

    @property
    def close_reason(self) -> CloseReason | None:
        return self._engine.close_reason

    @property
    def factory(self) -> ConnectionFactory:
        """The settings that hold: with the name that the connection has, and the last secret it was given."""
        return self._engine.factory

    @property
    def name(self) -> str:
        """As given, or one that was made up."""
        return self._engine.name or ""

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of the present link, or of the last one."""
        return self._engine.address

    @property
    def server_properties(self) -> Mapping[str, Any]:
        """What the server says of itself: product, version, capabilities."""
        return self._engine.server_properties

    # -- listeners: called on a worker thread of the connection's own ------------------------------------------------

    def add_blocked_listener(
        self, on_blocked: Callable[[str], object], on_unblocked: Callable[[], object] = do_nothing
    ) -> None:
        """Told when the server stops taking publishes (with its reason), and when it takes them again."""
        check_callback(on_blocked)
        check_callback(on_unblocked)
        self._engine.blocked_listeners.add((on_blocked, on_unblocked))

    def remove_blocked_listener(
        self, on_blocked: Callable[[str], object], on_unblocked: Callable[[], object] = do_nothing
    ) -> bool:
        """Return False if this pair was not there."""
        return self._engine.blocked_listeners.remove((on_blocked, on_unblocked))

    def add_close_listener(self, listener: Callable[[CloseReason], object]) -> None:
        """Told when the connection has ended for good: who began it, and why."""
        check_callback(listener)
        self._engine.close_listeners.add(listener)

    def remove_close_listener(self, listener: Callable[[CloseReason], object]) -> bool:
        """Return False if it was not there."""
        return self._engine.close_listeners.remove(listener)

    def add_recovery_listener(self, listener: Callable[[RecoveryEvent], object]) -> None:
        """Told of each step of a recovery: lost, trying, recovered, gave_up."""
        check_callback(listener)
        self._engine.recovery_listeners.add(listener)

    def remove_recovery_listener(self, listener: Callable[[RecoveryEvent], object]) -> bool:
        """Return False if it was not there."""
        return self._engine.recovery_listeners.remove(listener)

    def add_queue_renamed_listener(self, listener: Callable[[str, str], object]) -> None:
        """Told (old, new) when a server-named queue got another name in a recovery."""
        check_callback(listener)
        self._engine.renamed_listeners.add(listener)

    def remove_queue_renamed_listener(self, listener: Callable[[str, str], object]) -> bool:
        """Return False if it was not there."""
        return self._engine.renamed_listeners.remove(listener)

    # -- calls -------------------------------------------------------------------------------------------------------

    def update_secret(self, secret: str, reason: str = "", timeout: float | None = None) -> None:
        """Give the server a new secret (a fresh token); it is also the one for the next recovery."""
        limit = self.factory.call_timeout if timeout is None else timeout
        self._thread.call(self._engine.update_secret(secret, reason, timeout), limit)

    def close(self, reply_code: int = 200, reply_text: str = "Goodbye", timeout: float | None = None) -> None:
        """Say goodbye and end every thread of this connection; from any thread, also from a callback.

        Waits for callbacks that run just now, and for what was published to be written, up to the time-out (None:
        close_timeout). Closing twice is no error.
        """
        limit = self.factory.close_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            if not self._thread.is_over:
                self._thread.call(self._engine.close(reply_code, reply_text, limit), limit)
        except ConnectionClosed:
            pass  # somebody else was quicker
        finally:
            self.wait_for_threads(max(deadline - time.monotonic(), _LEAST_WAIT))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection {self.name!r} to {self.factory.url(self.address)}>"

    # -- for channels and consumers ----------------------------------------------------------------------------------

    def _call(self, coroutine: Coroutine[Any, Any, Result], timeout: float | None) -> Result:
        """Run it on the loop; the engine keeps the timeout."""
        return self._thread.call(coroutine, self._call_timeout if timeout is None else timeout)

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._thread.spawn(work())

    def _close_channel(self, channel: EngineChannel, code: int, text: str, timeout: float | None) -> None:
        limit = self.factory.close_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            if not self._thread.is_over:
                self._thread.call(channel.close(code, text, timeout=limit), limit)
        except ConnectionClosed:
            pass  # the channel ended with it
        if isinstance(channel.work_queue, Worker):
            channel.work_queue.join(deadline - time.monotonic())

    # -- beginning and end -------------------------------------------------------------------------------------------

    def _open(self, timeout: float | None) -> None:
        self._thread.start()
        given = self._given
        limit = given.connect_timeout * len(given.addresses) if given.attempts == 1 else _NO_LIMIT
        try:
            self._thread.call(self._begin(timeout), limit)
        except BaseException:
            self._thread.tell(self._thread.end)
            self._thread.join(_LEAST_WAIT)
            raise
        io_thread.remember(self)

    async def _begin(self, timeout: float | None) -> None:
        self._engine = EngineConnection(self._given, self._make_work_queue)
        self._engine.facade = self
        self._thread.rename(f"warren-client-{self.name}")
        await self._engine.connect(timeout)
        self._thread.spawn(self._end_with_engine())

    async def _end_with_engine(self) -> None:
        await self._engine.wait_ended()
        io_thread.forget(self)
        self._thread.end(self._engine.close_reason)

    async def _open_channel(self, limit: float) -> Channel:
        return Channel(self, await self._engine.channel(limit))

    def _make_work_queue(self, what: str, engine: EngineConnection) -> WorkQueue:
        """On the loop: the engine has something for callbacks that have no thread yet."""
        self._workers = [worker for worker in self._workers if worker.is_alive]
        worker = Worker(f"warren-client-{self.name}-{what}", engine)
        self._workers.append(worker)
        return worker

    # -- for io_thread's book of open connections --------------------------------------------------------------------

    def ask_to_close(self) -> None:
        self._thread.spawn(self._close_quietly())

    async def _close_quietly(self) -> None:
        try:
            await self._engine.close(200, "the program ends", io_thread.EXIT_LIMIT)
        except ClientError:
            return  # nobody is left to be told

    def wait_for_threads(self, limit: float) -> None:
        """Until the I/O thread and the workers have ended, except for the one that asks."""
        deadline = time.monotonic() + limit
        self._thread.join(limit)
        for worker in list(self._workers):
            worker.join(deadline - time.monotonic())

    def abandon(self) -> None:
        self._engine.shared.abandon()


# Even a close with no time left lets threads end that are ending.
_LEAST_WAIT = 1.0
_NO_LIMIT = 1e9
