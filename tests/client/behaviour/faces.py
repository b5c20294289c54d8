"""Both faces of the client behind one way of speaking, so that a test is written once.

A test speaks the blocking face. For `aio` each call goes to an event loop in a thread of its own and is awaited there,
with a limit: a call that does not end fails the test instead of hanging it. What comes back (connections, channels,
consumers, deliveries, confirmations) is wrapped the same way. Consumers' callbacks become coroutines that wait for the
test's function in a thread, so that it may block and call back, as on the blocking face's worker; listeners are called
as they are, on the loop, and must only take note.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ClassVar, Self

from warrenmq import client
from warrenmq.client import aio

PATIENCE = 30.0
"""Seconds until something that must come fails the test; no test waits for it on the good path."""

GLANCE = 0.25
"""Seconds to look for something that must not come."""


class Hung(Exception):
    """A call did not end."""


class Face:
    """One way to use the client."""

    name: ClassVar[str]

    def connect(self, *args: Any, **settings: Any) -> Any:
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        """What is still running that the client began; empty when all connections are closed."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the face itself needs."""


class BlockingFace(Face):
    name = "blocking"

    def connect(self, *args: Any, **settings: Any) -> Any:
        return client.connect(*args, **settings)

    def leftovers(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("warren-client")]


class AioFace(Face):
    name = "aio"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="aio-face", daemon=True)
        self._thread.start()
        self._listeners: dict[Callable[..., Any], Callable[..., Any]] = {}

    def connect(self, *args: Any, **settings: Any) -> Any:
        given = {name: self._listener(value) if callable(value) else value for name, value in settings.items()}
        return self.call(lambda: aio.connect(*args, **given))

    def leftovers(self) -> list[str]:
        return [f"{task.get_name()}: {task.get_coro()!r}" for task in self.run(self._other_tasks)]

    def close(self) -> None:
        self.run(lambda: self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()

    def call(self, make: Callable[[], Any]) -> Any:
        """Call on the loop, await what wants to be awaited, and wrap the result."""
        return self.wrap(self.run(make))

    def run(self, make: Callable[[], Any]) -> Any:
        async def work() -> Any:
            result = make()
            if inspect.isawaitable(result) and not isinstance(result, client.Confirmation):
                result = await result
            return result

        future = asyncio.run_coroutine_threadsafe(work(), self.loop)
        return self.wait(future, PATIENCE * 2)

    def wait(self, future: Future[Any], limit: float) -> Any:
        try:
            return future.result(limit)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise Hung(f"no end after {limit} seconds") from None

    def wrap(self, value: Any) -> Any:
        if isinstance(value, client.Confirmation):
            return AioConfirmation(self, value)
        kind = type(value)
        if isinstance(value, (client.Delivery, aio.Topic)) or hasattr(kind, "__aenter__") or hasattr(kind, "__aiter__"):
            return Wrapped(self, value)
        return value

    def unwrap(self, name: str, value: Any) -> Any:
        if isinstance(value, Wrapped):
            return value._real
        if callable(value) and not isinstance(value, type):
            return self._callback(value) if name in ("consume", "consumer") else self._listener(value)
        return value

    def _callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any) -> Any:
            return await asyncio.to_thread(function, *map(self.wrap, args))

        return call

    def _listener(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same for the same function, so that it can be removed."""
        return self._listeners.setdefault(function, lambda *args: function(*map(self.wrap, args)))

    async def _other_tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Wrapped:
    """Something of the aio face that is spoken to as if it were of the blocking one."""

    def __init__(self, face: AioFace, real: Any) -> None:
        self._face = face
        self._real = real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        if not inspect.isroutine(value):
            return self._face.wrap(value)

        def call(*args: Any, **named: Any) -> Any:
            given = [self._face.unwrap(name, each) for each in args]
            named = {key: self._face.unwrap(name, each) for key, each in named.items()}
            return self._face.call(lambda: value(*given, **named))

        return call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrapped) and self._real is other._real

    def __hash__(self) -> int:
        return id(self._real)

    def __repr__(self) -> str:
        return f"aio:{self._real!r}"

    def __iter__(self) -> Iterator[Any]:
        steps = self._face.run(lambda: self._real.__aiter__())
        while True:
            try:
                yield self._face.call(lambda: steps.__anext__())
            except StopAsyncIteration:
                return

    def __enter__(self) -> Self:
        entered = self._face.call(lambda: self._real.__aenter__())
        return self if entered is None else entered

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        result: bool | None = self._face.run(lambda: self._real.__aexit__(kind, error, trace))
        return result


class AioConfirmation:
    """A confirmation whose `result` waits on the loop."""

    def __init__(self, face: AioFace, real: Any) -> None:
        self._face = face
        self._real = real

    @property
    def tag(self) -> int:
        tag: int = self._real.tag
        return tag

    def __repr__(self) -> str:
        return repr(self._real)

    def done(self) -> bool:
        is_done: bool = self._real.done()
        return is_done

    def result(self, timeout: float = PATIENCE) -> None:
        async def wait() -> None:
            async with asyncio.timeout(timeout):
                await self._real

        future = asyncio.run_coroutine_threadsafe(wait(), self._face.loop)
        self._face.wait(future, timeout + PATIENCE)

    def exception(self, timeout: float = PATIENCE) -> BaseException | None:
        try:
            self.result(timeout)
        except client.PublishFailed as failed:
            return failed
        return None

    def add_done_callback(self, function: Callable[[Any], Any]) -> None:
        self._face.run(lambda: self._real.add_done_callback(lambda real: function(self)))


class Inbox:
    """What a callback or listener was given: `inbox` itself is the callback. Any thread."""

    def __init__(self) -> None:
        self._items: queue.Queue[Any] = queue.Queue()

    def __call__(self, *args: Any) -> None:
        self._items.put(args[0] if len(args) == 1 else args)

    def take(self, count: int = 1) -> list[Any]:
        """Return the next N; fail the test if they do not come."""
        taken: list[Any] = []
        deadline = time.monotonic() + PATIENCE
        while len(taken) < count:
            try:
                taken.append(self._items.get(timeout=max(deadline - time.monotonic(), 0.001)))
            except queue.Empty:
                raise AssertionError(f"{len(taken)} came, not {count}: {taken}") from None
        return taken

    def next(self) -> Any:
        return self.take()[0]

    def until(self, accepts: Callable[[Any], bool]) -> Any:
        """The next one that is accepted; those before it are dropped."""
        while True:
            found = self.next()
            if accepts(found):
                return found

    def stays_empty(self, seconds: float = GLANCE) -> bool:
        try:
            self._items.get(timeout=seconds)
        except queue.Empty:
            return True
        return False

    @property
    def count(self) -> int:
        return self._items.qsize()


def make_face(name: str) -> Face:
    return BlockingFace() if name == "blocking" else AioFace()
