"""A private broker inside a program: for tests and small programs.

`with Broker() as broker` runs it in a background thread with its own event loop; `async with Broker()` runs it in the
caller's loop. By default it listens on a free port of the loopback address and keeps nothing on disk. Leaving the block
closes connections and port, and ends the thread.

A broker whose storage fails closes its connections at once; stopping it then raises `StorageFailed`.

The node belongs to the loop that started it. The two threads share a future for the end of the start, and what is
scheduled on the loop: calls, and a stop request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from warrenmq.core.limits import Limits
from warrenmq.core.snapshot import QueueView, view_queue
from warrenmq.node import Node, NodeOptions
from warrenmq.server.options import ServerOptions
from warrenmq.storage.options import StorageOptions
from warrenmq.tracing.rules import rules_of_flag
from warrenmq.tracing.service import TracingOptions

Result = TypeVar("Result")

# Short, as a client in the same program may be blocked and unable to reply.
STOP_GRACE = 0.25


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of uvloop if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class Broker:
    """A private broker, started by entering a `with` or `async with` block, or by `start()`."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        http: bool = False,
        http_port: int = 0,
        data_dir: str | Path | None = None,
        server: ServerOptions | None = None,
        limits: Limits | None = None,
        storage: StorageOptions | None = None,
        trace: str | float = "off",
    ) -> None:
        self._options = NodeOptions(
            host=host,
            port=port,
            http_port=http_port if http else None,
            data_dir=None if data_dir is None else Path(data_dir),
            server=server or ServerOptions(),
            limits=limits or Limits(),
            storage=storage or StorageOptions(),
            tracing=TracingOptions(rules=rules_of_flag(str(trace))),
        )
        self._node: Node | None = None
        self._thread: _BrokerThread | None = None

    @property
    def url(self) -> str:
        """The URL for clients: `amqp://guest:guest@127.0.0.1:PORT/`."""
        return self._running_node().url

    @property
    def host(self) -> str:
        return self._running_node().host

    @property
    def port(self) -> int:
        return self._running_node().amqp_port

    @property
    def http_url(self) -> str:
        """The URL of the HTTP port; only with `Broker(http=True)`."""
        node = self._running_node()
        if node.http_port is None:
            raise RuntimeError("this broker has no HTTP port: create it with Broker(http=True)")
        return f"http://{node.host}:{node.http_port}"

    @property
    def is_running(self) -> bool:
        return self._node is not None

    def queues(self, vhost: str = "/") -> dict[str, QueueView]:
        """Return the queues of a virtual host by name, with their messages and consumers."""
        broker = self._running_node().broker
        if vhost not in broker.vhosts:
            raise KeyError(f"no virtual host '{vhost}'")

        def read() -> dict[str, QueueView]:
            found = broker.vhosts[vhost]
            return {name: view_queue(found, name)[0] for name in found.queues}

        return read() if self._thread is None else self._thread.call(read)

    def start(self) -> Broker:
        """Start in a background thread; return when clients can connect, or raise why it cannot start."""
        self._require_stopped()
        thread = _BrokerThread(self._options)
        self._node = thread.start()
        self._thread = thread
        return self

    def stop(self) -> None:
        """Stop, and return when the thread has ended; does nothing if not running."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._node = None
            thread.stop()
        elif self._node is not None:
            raise RuntimeError("this broker runs in an event loop: await astop(), or leave its `async with` block")

    async def astart(self) -> Broker:
        """Start in the running event loop."""
        self._require_stopped()
        node = Node(self._options)
        await node.start()
        self._node = node
        return self

    async def astop(self) -> None:
        """Stop a broker started by `astart`; does nothing if not running."""
        if self._thread is not None:
            raise RuntimeError("this broker runs in a thread: call stop(), or leave its `with` block")
        node, self._node = self._node, None
        if node is not None:
            await node.stop(grace=STOP_GRACE)
            node.require_storage()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def __aenter__(self) -> Broker:
        return await self.astart()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.astop()

    def __repr__(self) -> str:
        return f"<warrenmq.Broker {self.url}>" if self.is_running else "<warrenmq.Broker, not running>"

    def _running_node(self) -> Node:
        if self._node is None:
            raise RuntimeError("the broker is not running: use it as `with warrenmq.Broker() as broker:`")
        return self._node

    def _require_stopped(self) -> None:
        if self._node is not None:
            raise RuntimeError("the broker is already running")


class _BrokerThread:
    """Runs a node in its own thread, from start to stop."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._started: Future[Node] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested: asyncio.Event | None = None
        self._failure: BaseException | None = None
        # A daemon, so that a program that does not stop its broker can exit.
        self._thread = threading.Thread(target=self._run, name="warrenmq-broker", daemon=True)

    def start(self) -> Node:
        self._thread.start()
        try:
            return self._started.result()
        except BaseException:  # the start failed or the caller was interrupted: leave no thread behind
            self._end()
            raise

    def call(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the loop of the broker; return its result."""
        assert self._loop is not None
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as failure:  # noqa: BLE001 - raised in the calling thread
                done.set_exception(failure)

        self._loop.call_soon_threadsafe(run)
        return done.result()

    def stop(self) -> None:
        """Stop the node; raise what went wrong."""
        self._end()
        if self._failure is not None:
            raise self._failure

    def _end(self) -> None:
        if self._loop is not None and self._stop_requested is not None:
            try:
                self._loop.call_soon_threadsafe(self._stop_requested.set)
            except RuntimeError:  # the loop is closed: the run has ended
                pass
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as failure:  # noqa: BLE001 - raised in the thread that called start or stop
            if self._started.done():
                self._failure = failure
            else:
                self._started.set_exception(failure)

    async def _serve(self) -> None:
        self._stop_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        node = Node(self._options)
        await node.start()
        self._started.set_result(node)
        await self._stop_requested.wait()
        await node.stop(grace=STOP_GRACE)
        node.require_storage()
