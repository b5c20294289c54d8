"""From the loop to the user's threads: in order, without loss, and to an end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from warrenmq.client.blocking.worker import Inbox, Worker
from warrenmq.client.delivery import Delivery, Settler
from warrenmq.client.engine.consumers import Notification
from warrenmq.client.errors import ClientError

LIMIT = 30.0


class Reports:
    """Stands in for the engine."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, BaseException, object]] = []

    def report(self, context: str, error: BaseException, source: object) -> None:
        self.heard.append((context, error, source))


def delivery(tag: int, callback: Callable[[Delivery], object] | None = None, auto_ack: bool = False) -> Delivery:
    consumer: Any = SimpleNamespace(callback=callback, auto_ack=auto_ack)
    return Delivery(Settler(), consumer, "c", tag, False, "", "q", b"", b"")


def start_worker() -> tuple[Worker, Reports]:
    reports = Reports()
    return Worker("warren-client-test-worker", reports), reports  # type: ignore[arg-type]


def test_callbacks_run_in_order_on_one_thread() -> None:
    worker, _ = start_worker()
    seen: list[int] = []
    threads: set[str] = set()

    def callback(each: Delivery) -> None:
        seen.append(each.delivery_tag)
        threads.add(threading.current_thread().name)

    for first in range(0, 1000, 10):
        worker.put([delivery(first + each, callback) for each in range(10)])
    done = threading.Event()
    worker.put([Notification("test", None, done.set)])
    assert done.wait(LIMIT)
    worker.stop()
    worker.join(LIMIT)
    assert seen == list(range(1000))
    assert threads == {"warren-client-test-worker"}
    assert not worker.is_alive


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(), KeyboardInterrupt()])
def test_what_a_callback_raises_is_reported_and_ends_nothing(error: BaseException) -> None:
    worker, reports = start_worker()
    done = threading.Event()

    def callback(each: Delivery) -> None:
        raise error

    failing = delivery(1, callback)
    worker.put([failing, Notification("test", None, done.set)])
    assert done.wait(LIMIT)
    worker.stop()
    worker.join(LIMIT)
    assert reports.heard == [("consumer callback", error, failing.consumer)]


def test_after_a_stop_only_what_cannot_come_again_is_run() -> None:
    worker, _ = start_worker()
    held, release = threading.Event(), threading.Event()
    seen: list[object] = []

    def hold() -> None:
        held.set()
        release.wait(LIMIT)

    def callback(each: Delivery) -> None:
        seen.append(each.delivery_tag)

    worker.put([Notification("test", None, hold)])
    assert held.wait(LIMIT)
    worker.put(
        [delivery(1, callback), delivery(2, callback, auto_ack=True), Notification("test", None, seen.append, "notice")]
    )
    assert worker.pending() == 3
    worker.stop()
    release.set()
    worker.join(LIMIT)
    assert seen == [2, "notice"]


def test_a_callback_may_wait_for_its_own_end() -> None:
    worker, _ = start_worker()
    done = threading.Event()

    def end() -> None:
        worker.stop()
        worker.join(LIMIT)
        done.set()

    worker.put([Notification("test", None, end)])
    assert done.wait(LIMIT)
    worker.join(LIMIT)
    assert not worker.is_alive


def test_full_worker_calls_on_drained() -> None:
    worker, _ = start_worker()
    drained = threading.Event()
    left: list[int] = []

    def on_drained() -> None:
        left.append(worker.pending())
        worker.is_full = False
        drained.set()

    worker.resume_at = 5
    worker.on_drained = on_drained
    worker.is_full = True
    worker.put([delivery(each, lambda _: None) for each in range(20)])
    assert drained.wait(LIMIT)
    worker.stop()
    worker.join(LIMIT)
    assert left == [5]


# -- an iterated consumer's inbox --------------------------------------------------------------------------------------


def test_inbox_returns_deliveries_in_order_and_none_on_timeout() -> None:
    inbox = Inbox()
    inbox.put([delivery(1), delivery(2)])
    assert [inbox.take(LIMIT).delivery_tag for _ in range(2)] == [1, 2]  # type: ignore[union-attr]
    assert inbox.take(0.01) is None


def test_after_a_cancel_the_rest_is_given() -> None:
    inbox = Inbox()
    inbox.put([delivery(1)])
    inbox.stop(is_cancel=True)
    assert inbox.take(LIMIT) is not None
    assert inbox.take(LIMIT) is None
    assert inbox.take(LIMIT) is None


def test_after_a_close_only_what_cannot_come_again_is_given() -> None:
    inbox = Inbox()
    inbox.put([delivery(1), delivery(2, auto_ack=True)])
    inbox.stop()
    assert inbox.take(LIMIT).delivery_tag == 2  # type: ignore[union-attr]
    assert inbox.take(LIMIT) is None


def test_the_error_is_raised_to_every_reader() -> None:
    inbox = Inbox()
    inbox.stop(ClientError("why"))
    for _ in range(3):
        with pytest.raises(ClientError, match="why"):
            inbox.take(LIMIT)


def test_the_first_stop_holds() -> None:
    inbox = Inbox()
    inbox.stop(ClientError("first"))
    inbox.stop(None)
    with pytest.raises(ClientError, match="first"):
        inbox.take(LIMIT)


def test_a_reader_who_waits_is_woken_by_the_end() -> None:
    inbox = Inbox()
    ended = threading.Event()

    def read() -> None:
        assert inbox.take(None) is None
        ended.set()

    readers = [threading.Thread(target=read, daemon=True) for _ in range(3)]
    for reader in readers:
        reader.start()
    inbox.stop()
    for reader in readers:
        reader.join(LIMIT)
    assert ended.is_set()
    assert not any(reader.is_alive() for reader in readers)


def test_full_inbox_calls_on_drained() -> None:
    inbox = Inbox()
    inbox.put([delivery(each) for each in range(4)])
    calls: list[int] = []
    inbox.is_full, inbox.resume_at = True, 2
    inbox.on_drained = lambda: calls.append(inbox.pending())
    inbox.take(LIMIT)
    assert calls == []
    inbox.take(LIMIT)
    assert calls == [2]


def test_take_rest_leaves_the_end_mark_for_other_readers() -> None:
    inbox = Inbox()
    inbox.put([delivery(1), delivery(2)])
    inbox.stop(is_cancel=True)
    assert [each.delivery_tag for each in inbox.take_rest()] == [1, 2]
    assert inbox.take(LIMIT) is None
