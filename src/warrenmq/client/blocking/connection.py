"""A connection for any thread. Its event loop runs in a thread of its own, so heartbeats do not depend on callers.

The engine, owned by that loop, does the work. This module calls it from other threads, and ends its threads.
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
from warrenmq.client.connection_base import ConnectionBase
from warrenmq.client.engine.connection import EngineConnection
from warrenmq.client.engine.consumers import WorkQueue
from warrenmq.client.errors import ClientError, ConnectionClosed
from warrenmq.client.factory import ConnectionFactory, ConnectionOptions, as_factory

if TYPE_CHECKING:
    from warrenmq.client.engine.channel import EngineChannel

Result = TypeVar("Result")


def connect(
    url: str | Iterable[str] | ConnectionFactory | None = None, /, **options: Unpack[ConnectionOptions]
) -> Connection:
    """Open a connection that any thread may use.

    >>> with connect(url, name="example") as connection:
    ...     channel = connection.channel()
    ...     _ = channel.queue_declare("connect-example", auto_delete=True)
    ...     channel.confirm_select()
    ...     channel.publish("", "connect-example", "hello").result()
    ...     channel.get("connect-example", auto_ack=True).body
    b'hello'

    Raises ConnectionFailed if no address can be connected to, AuthenticationFailed if the login is refused.
    `attempts=10, wait=1` waits for a broker that is not up yet: ten attempts, one second apart.
    """
    return as_factory(url, options).connect()


class Connection(ConnectionBase):
    """A connection to the broker, with any number of channels. Opened by `connect` or a factory.

    After an unexpected loss it reconnects and redeclares everything that was declared on it (see Recovery); calls made
    meanwhile wait. It lives until `close`, or the end of the program.
    """

    _check_callback = staticmethod(check_callback)

    def __init__(self, factory: ConnectionFactory) -> None:
        """Use `connect` or `ConnectionFactory.connect`, which also open it."""
        self._given = factory
        self._call_timeout = factory.call_timeout
        self._workers: list[Worker] = []
        self._engine: EngineConnection
        self._thread = IoThread(f"warren-client-{factory.name or 'connecting'}")

    # -- channels ----------------------------------------------------------------------------------------------------

    def channel(self, timeout: float | None = None) -> Channel:
        """Open a channel, with the next free number."""
        limit = self.factory.call_timeout if timeout is None else timeout
        return self._thread.call(self._open_channel(limit), limit)

    @property
    def channels(self) -> Mapping[int, Channel]:
        """The open channels by number."""
        return {number: each.facade for number, each in list(self._engine.channels.items()) if each.is_open}

    # -- calls -------------------------------------------------------------------------------------------------------

    def update_secret(self, secret: str, reason: str = "", timeout: float | None = None) -> None:
        """Send the server a new secret (a fresh token) before the old one expires; a recovery logs in with it."""
        limit = self.factory.call_timeout if timeout is None else timeout
        self._thread.call(self._engine.update_secret(secret, reason, timeout), limit)

    def close(self, reply_code: int = 200, reply_text: str = "Goodbye", timeout: float | None = None) -> None:
        """Close the connection and end its threads. Any thread may call it, also from a callback.

        Waits for running callbacks, and until publishes are written, up to the timeout (None: close_timeout). Closing
        twice is allowed.
        """
        limit = self.factory.close_timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        try:
            if not self._thread.is_over:
                self._thread.call(self._engine.close(reply_code, reply_text, limit), limit)
        except ConnectionClosed:
            pass  # by another thread meanwhile
        finally:
            self.wait_for_threads(max(deadline - time.monotonic(), _MIN_WAIT))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

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

    # -- start and end -----------------------------------------------------------------------------------------------

    def _open(self, timeout: float | None) -> None:
        self._thread.start()
        given = self._given
        limit = given.connect_timeout * len(given.addresses) if given.attempts == 1 else _NO_LIMIT
        try:
            self._thread.call(self._begin(timeout), limit)
        except BaseException:
            self._thread.tell(self._thread.end)
            self._thread.join(_MIN_WAIT)
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
        """Start a worker; the engine asks for it, on the loop, when there is something for callbacks to do."""
        self._workers = [worker for worker in self._workers if worker.is_alive]
        worker = Worker(f"warren-client-{self.name}-{what}", engine)
        self._workers.append(worker)
        return worker

    # -- for io_thread, which closes forgotten connections -----------------------------------------------------------

    def ask_to_close(self) -> None:
        self._thread.spawn(self._close_quietly())

    async def _close_quietly(self) -> None:
        try:
            await self._engine.close(200, "the program ends", io_thread.EXIT_LIMIT)
        except ClientError:
            return  # there is nobody to report it to

    def wait_for_threads(self, limit: float) -> None:
        """Wait for the I/O thread and the workers to end, except for the calling one."""
        deadline = time.monotonic() + limit
        self._thread.join(limit)
        for worker in list(self._workers):
            worker.join(deadline - time.monotonic())

    def abandon(self) -> None:
        self._engine.shared.abandon()


# A close that has used up its time still waits this long for threads that are ending.
_MIN_WAIT = 1.0
_NO_LIMIT = 1e9
