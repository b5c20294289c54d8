"""The bridge to the loop: every call ends, whatever becomes of the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from warrenmq.client.blocking import io_thread
from warrenmq.client.blocking.io_thread import IoThread
from warrenmq.client.errors import CallTimedOut, ConnectionClosed, Misuse

LIMIT = 20.0


@pytest.fixture
def thread() -> Iterator[IoThread]:
    made = IoThread("warren-client-test")
    made.start()
    yield made
    made.tell(made.end)
    made.join(LIMIT)
    assert not made.is_alive


async def answer(value: int) -> int:
    return value


async def fail() -> None:
    raise KeyError("mine")


async def sleep_for_ever() -> None:
    await asyncio.Event().wait()


def test_call_returns_the_result_of_the_coroutine(thread: IoThread) -> None:
    assert thread.call(answer(3), LIMIT) == 3
    with pytest.raises(KeyError, match="mine"):
        thread.call(fail(), LIMIT)


def test_a_time_out_of_the_coroutine_is_its_own(thread: IoThread) -> None:
    async def time_out() -> None:
        raise CallTimedOut("queue.declare")

    with pytest.raises(CallTimedOut, match=r"queue\.declare"):
        thread.call(time_out(), LIMIT)


def test_no_call_waits_longer_than_the_limit(thread: IoThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_thread, "SLACK", 0.01)
    with pytest.raises(CallTimedOut, match="I/O thread"):
        thread.call(sleep_for_ever(), 0.01)


def test_the_thread_does_not_wait_for_itself(thread: IoThread) -> None:
    async def call_again() -> None:
        thread.call(answer(1), LIMIT)

    with pytest.raises(Misuse, match="itself"):
        thread.call(call_again(), LIMIT)


def test_calls_after_the_end_are_refused(thread: IoThread) -> None:
    thread.tell(thread.end)
    thread.join(LIMIT)
    with pytest.raises(ConnectionClosed):
        thread.call(answer(1), LIMIT)
    assert not thread.tell(lambda: None)
    thread.spawn(sleep_for_ever())  # closed without a word


def test_waiting_callers_raise_at_the_end(thread: IoThread) -> None:
    heard: list[BaseException] = []

    def wait() -> None:
        try:
            thread.call(sleep_for_ever(), LIMIT)
        except ConnectionClosed as error:
            heard.append(error)

    callers = [threading.Thread(target=wait) for _ in range(10)]
    for caller in callers:
        caller.start()
    thread.tell(thread.end)
    for caller in callers:
        caller.join(LIMIT)
    assert len(heard) == len(callers)


def test_what_was_spawned_ends_with_the_thread(thread: IoThread) -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await sleep_for_ever()
        finally:
            ended.set()

    thread.spawn(work())
    thread.call(answer(1), LIMIT)
    thread.tell(thread.end)
    assert ended.wait(LIMIT)
