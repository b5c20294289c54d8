"""Waiting and mutual exclusion between threads, under the names of `aio/primitives.py`: see there."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from time import sleep
from typing import Any, TypeVar

from warrenmq.client.confirms import Confirmation
from warrenmq.client.errors import CallTimedOut, Misuse

__all__ = [
    "Condition",
    "Event",
    "Future",
    "Guard",
    "Lock",
    "Task",
    "call_user",
    "check_callback",
    "join",
    "locked",
    "new_future",
    "sleep",
    "start",
    "wait_for_confirm",
    "wait_for_result",
]

Condition = threading.Condition
Event = threading.Event
Future = futures.Future
Guard = threading.Lock
Lock = threading.Lock

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Task = threading.Thread


@contextmanager
def locked(lock: threading.Lock, timeout: float, text: str) -> Iterator[None]:
    """Hold the lock; raise CallTimedOut with this text if it is not free in time. The block is not interrupted."""
    if not lock.acquire(timeout=timeout):
        raise CallTimedOut(text)
    try:
        yield
    finally:
        lock.release()


def new_future() -> Future[Any]:
    return futures.Future()


def wait_for_result(future: Future[Result], timeout: float) -> Result:
    """Return the result; raise TimeoutError if it does not come in time."""
    return future.result(timeout)


def wait_for_confirm(confirmation: Confirmation, timeout: float) -> None:
    """Return when the broker has confirmed; raise what went wrong, or CallTimedOut."""
    confirmation.result(timeout)


def start(function: Callable[[], None], name: str) -> Task:
    """Run the function in a thread of its own."""
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread


def join(thread: Task, timeout: float | None) -> bool:
    """Wait for the end of the thread; return False on timeout."""
    thread.join(timeout)
    return not thread.is_alive()


def call_user(function: Callable[[Argument], Any], argument: Argument) -> Any:
    return function(argument)


def check_callback(callback: Callable[..., object] | None) -> None:
    """Refuse a coroutine function, which would never be awaited."""
    if inspect.iscoroutinefunction(callback):
        raise Misuse("the blocking client calls plain functions; for coroutines use warrenmq.client.aio")
