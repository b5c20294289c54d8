"""Waiting and mutual exclusion on an event loop, for the modules that tools/unasync.py turns into blocking ones.

`blocking/primitives.py` has the same names for threads. Owned by one loop, where only an `await` lets others run: what
guards data between threads does nothing here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from warrenmq.client.confirms import Confirmation
from warrenmq.client.errors import CallTimedOut, ClientError

Future = asyncio.Future
Lock = asyncio.Lock
Task = asyncio.Task[None]
sleep = asyncio.sleep

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Guard:
    """A lock between threads; there is nothing to lock out here."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class Condition(Guard):
    """Like threading.Condition."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate is true; return False if it is not in time."""
        if predicate():
            return True
        try:
            async with asyncio.timeout(timeout):
                while not predicate():
                    await self._wait()
        except TimeoutError:
            return predicate()
        return True

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            self._waiters.remove(waiter)

    def notify_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    notify = notify_all


class Event(asyncio.Event):
    """An asyncio.Event whose `wait` takes a timeout, like that of threading.Event."""

    async def wait(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        try:
            async with asyncio.timeout(timeout):
                return await super().wait()
        except TimeoutError:
            return False


@asynccontextmanager
async def locked(lock: Lock, timeout: float, text: str) -> AsyncIterator[None]:
    """Hold the lock; raise CallTimedOut with this text if getting it and the block together take too long."""
    try:
        async with asyncio.timeout(timeout), lock:
            yield
    except TimeoutError as late:
        if isinstance(late, ClientError):
            raise
        raise CallTimedOut(text) from None


def new_future() -> Future[Any]:
    return asyncio.get_running_loop().create_future()


async def wait_for_result(future: Future[Result], timeout: float) -> Result:
    """Return the result; raise TimeoutError if it does not come in time."""
    async with asyncio.timeout(timeout):
        return await future


async def wait_for_confirm(confirmation: Confirmation, timeout: float) -> None:
    """Return when the broker has confirmed; raise what went wrong, or CallTimedOut."""
    if confirmation.done():
        return await confirmation
    try:
        async with asyncio.timeout(timeout):
            await confirmation
    except TimeoutError as late:
        if isinstance(late, ClientError):
            raise
        raise CallTimedOut("no confirm came from the broker in time") from None


def start(function: Callable[[], Coroutine[Any, Any, None]], name: str) -> Task:
    """Run the function in a task of its own."""
    return asyncio.create_task(function(), name=name)


async def join(task: Task, timeout: float | None) -> bool:
    """Wait for the end of the task; return False on timeout."""
    done, _ = await asyncio.wait([task], timeout=timeout)
    return bool(done)


async def call_user(function: Callable[[Argument], Any], argument: Argument) -> Any:
    """Call a plain or a coroutine function."""
    result = function(argument)
    return await result if inspect.isawaitable(result) else result


def check_callback(callback: Callable[..., object] | None) -> None:
    """Plain functions and coroutine functions are both fine here."""
