"""The asyncio face's workers and inboxes: order, exceptions, and the end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.loops import on_a_loop
from tests.support.waiting import let_loop_run
from warrenmq.client.aio.worker import Inbox, Worker
from warrenmq.client.delivery import Delivery, Settler
from warrenmq.client.engine.consumers import Notification
from warrenmq.client.errors import ConsumerCancelled

LIMIT = 30.0


class Engine:
    """As much of an engine as a worker asks for."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.factory = SimpleNamespace(close_timeout=0.2)
        self.reports: list[tuple[str, BaseException, object]] = []
        self.dropped: list[object] = []
        self.work_queues = SimpleNamespace(remove=self.dropped.append)

    def report(self, context: str, error: BaseException, source: object) -> None:
        self.reports.append((context, error, source))


def make_worker() -> tuple[Worker, Any]:
    engine: Any = Engine()
    return Worker("test", engine), engine


def delivery(number: int, callback: Any = None, auto_ack: bool = False) -> Delivery:
    consumer: Any = SimpleNamespace(callback=callback, auto_ack=auto_ack)
    return Delivery(Settler(), consumer, "c", number, False, "", "", b"", b"%d" % number)


@on_a_loop
async def test_callbacks_plain_and_async_run_in_order_one_at_a_time() -> None:
    worker, _ = make_worker()
    seen: list[Any] = []

    async def slow(each: Delivery) -> None:
        seen.append(("begin", each.delivery_tag))
        await asyncio.sleep(0)
        seen.append(("end", each.delivery_tag))

    worker.put([delivery(1, slow), delivery(2, lambda each: seen.append(each.delivery_tag))])
    worker.put([Notification("notice", None, seen.append, 3)])
    worker.stop(is_cancel=True)
    assert await worker.ended()
    assert seen == [("begin", 1), ("end", 1), 2, 3]


@on_a_loop
async def test_exceptions_are_reported_and_the_next_is_run() -> None:
    worker, engine = make_worker()
    seen: list[int] = []

    async def fail(each: Delivery) -> None:
        raise RuntimeError("on purpose")

    async def cancelled(each: Delivery) -> None:
        raise asyncio.CancelledError

    worker.put([delivery(1, fail), delivery(2, cancelled), delivery(3, lambda each: seen.append(3))])
    worker.stop(is_cancel=True)
    await worker.ended()
    assert seen == [3]
    assert [(context, type(error)) for context, error, _ in engine.reports] == [
        ("consumer callback", RuntimeError),
        ("consumer callback", asyncio.CancelledError),
    ]


@on_a_loop
async def test_at_the_end_notices_are_run_and_what_cannot_be_settled_is_dropped() -> None:
    worker, engine = make_worker()
    seen: list[Any] = []

    def note(each: Delivery) -> None:
        seen.append(each.delivery_tag)

    worker.put(
        [
            delivery(1, note),
            delivery(2, note, auto_ack=True),
            Notification("close callback", None, seen.append, "closed"),
        ]
    )
    worker.stop()
    await worker.ended()
    assert seen == [2, "closed"]
    assert engine.dropped == [worker]


@on_a_loop
async def test_callback_that_waits_for_the_workers_end_does_not_wait_for_itself() -> None:
    worker, _ = make_worker()
    answers: list[bool] = []

    async def close() -> None:
        worker.stop()
        answers.append(await worker.ended())

    worker.put([Notification("close", None, close)])
    await let_loop_run(0.01)
    assert answers == [False]
    assert await worker.ended()


@on_a_loop
async def test_callback_that_never_ends_is_cancelled_in_the_end() -> None:
    worker, _ = make_worker()
    fate: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            fate.append("cancelled")
            raise

    worker.put([Notification("long", None, for_ever)])
    await asyncio.sleep(0)
    worker.stop()
    assert await worker.ended()
    assert fate == ["cancelled"]


@on_a_loop
async def test_callbacks_that_never_wait_leave_the_loop_time_to_breathe() -> None:
    worker, _ = make_worker()
    seen: list[int] = []
    worker.put([Notification("n", None, seen.append, number) for number in range(1000)])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 0 < len(seen) < 1000
    worker.stop()
    await worker.ended()
    assert seen == list(range(1000))


@on_a_loop
async def test_full_worker_calls_on_drained() -> None:
    worker, _ = make_worker()
    drained: list[int] = []
    worker.is_full, worker.resume_at = True, 5

    def on_drained() -> None:
        drained.append(worker.pending())
        worker.is_full = False

    worker.on_drained = on_drained
    worker.put([Notification("n", None, lambda: None) for _ in range(20)])
    worker.stop()
    await worker.ended()
    assert drained == [5]


# -- iteration


@on_a_loop
async def test_inbox_returns_deliveries_before_a_cancel_and_then_ends() -> None:
    inbox = Inbox()
    inbox.put([delivery(1), delivery(2)])
    inbox.stop(is_cancel=True)
    assert [await inbox.take(1), await inbox.take(1), await inbox.take(1)][2] is None


@on_a_loop
async def test_inbox_raises_why_the_server_ended_it() -> None:
    inbox = Inbox()
    inbox.put([delivery(1)])
    inbox.stop(ConsumerCancelled("c"), is_cancel=True)
    assert await inbox.take(1) is not None
    for _ in range(2):
        with pytest.raises(ConsumerCancelled):
            await inbox.take(1)


@on_a_loop
async def test_inbox_drops_at_a_close_what_cannot_be_settled() -> None:
    inbox = Inbox()
    inbox.put([delivery(1), delivery(2, auto_ack=True)])
    inbox.stop()
    taken = await inbox.take(1)
    assert taken is not None
    assert taken.delivery_tag == 2
    assert await inbox.take(1) is None


@on_a_loop
async def test_inbox_returns_none_on_timeout() -> None:
    inbox = Inbox()
    assert await inbox.take(0.01) is None
    inbox.put([delivery(1)])
    assert await inbox.take(0.01) is not None


@on_a_loop
async def test_several_readers_of_one_inbox_share_what_comes() -> None:
    inbox = Inbox()
    readers = [asyncio.ensure_future(inbox.take(LIMIT)) for _ in range(3)]
    await asyncio.sleep(0)
    readers[0].cancel()
    await asyncio.sleep(0)
    inbox.put([delivery(1), delivery(2)])
    taken = await asyncio.gather(*readers[1:])
    assert sorted(each.delivery_tag for each in taken if each is not None) == [1, 2]


@on_a_loop
async def test_reader_cancelled_as_it_is_woken_leaves_its_delivery_to_another() -> None:
    inbox = Inbox()
    first, second = asyncio.ensure_future(inbox.take(None)), asyncio.ensure_future(inbox.take(None))
    await asyncio.sleep(0)
    inbox.put([delivery(1)])
    first.cancel()
    taken = await asyncio.wait_for(second, LIMIT)
    assert taken is not None
    assert taken.delivery_tag == 1
