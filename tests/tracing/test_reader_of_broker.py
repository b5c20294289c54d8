"""The reader over what a real broker records: the same story, read back by id, with its times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tests.support.tracing import TracedBroker, story
from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.tracing.biography import Biography
from warrenmq.tracing.export_otlp import OtlpExporter, OtlpOptions
from warrenmq.tracing.reader import Traces
from warrenmq.tracing.search import TraceQuery

Result = TypeVar("Result")


def ask(traced: TracedBroker, question: Callable[[Traces], Awaitable[Result]]) -> Result:
    async def flush() -> None:
        traced.make_batch()

    async def run() -> Result:
        log = traced.tracing.log
        log.flush = flush  # type: ignore[method-assign]
        traces = Traces(log)
        log.on_batch.append(traces.batch_added)
        await traces.start()
        try:
            return await asyncio.wait_for(question(traces), 30)
        finally:
            log.on_batch.remove(traces.batch_added)
            await traces.stop()

    return asyncio.run(run())


def biography_in(traced: TracedBroker, key: str) -> Biography:
    found = ask(traced, lambda traces: traces.biography(key))
    assert found is not None
    return found


def tell_the_story(traced: TracedBroker) -> None:
    """Fanout to three queues, a requeue, a second consumer, an ack and a republish."""
    channel = traced.client().channel()
    for name in "abc":
        channel.bind("amq.fanout", channel.declare(name))
    first = channel.consume(channel.vhost.queues["a"], "first", prefetch=1)
    channel.publish(b"body", "key", "amq.fanout", message_id="m-1", correlation_id="basket-9")
    traced.make_batch()
    channel.core.cancel(first.tag)
    channel.reject(1)
    channel.publish(b"other", "a", message_id="m-2")
    traced.make_batch()
    second = traced.client().channel()
    second.consume(channel.vhost.queues["a"], "second", prefetch=1)
    second.deliveries()  # the turn ends: it is there
    second.ack(1)
    headers = {"x-warren-source-id": uid_text(traced.events()[0].uid)}
    second.publish(b"again", "b", message_id="m-3", headers=headers)


def test_every_step_is_there_once_in_order_with_its_times() -> None:
    traced = TracedBroker()
    tell_the_story(traced)
    biography = biography_in(traced, "m-1")
    assert story(biography.events) == [
        "published",
        "routed",
        "enqueued a",
        "delivered a",
        "enqueued b",
        "enqueued c",
        "rejected a",
        "requeued a",
        "delivered a",
        "acked a",
        "published",
        "republished",
        "routed",
        "enqueued b",
    ]
    assert [(leg.queue, leg.outcome) for leg in biography.legs] == [
        ("a", "acked"),
        ("b", "waiting"),
        ("c", "waiting"),
        ("b", "waiting"),
    ]
    assert [(span.kind, span.consumer, span.attempt, span.outcome) for span in biography.legs[0].spans] == [
        ("waiting", None, 1, "delivered"),
        ("processing", "first", 1, "rejected"),
        ("waiting", None, 2, "delivered"),
        ("processing", "second", 2, "acked"),
    ]
    times = {(event.kind, event.attempt): event.time for event in biography.events if event.queue == "a"}
    leg = biography.legs[0]
    assert leg.processing_us == (
        times[schema.REJECTED, 1] - times[schema.DELIVERED, 1] + times[schema.ACKED, 2] - times[schema.DELIVERED, 2]
    )
    assert not biography.is_complete


def test_the_republished_one_leads_back_to_its_source() -> None:
    traced = TracedBroker()
    tell_the_story(traced)
    assert biography_in(traced, "m-3").events == biography_in(traced, "m-1").events


def test_searches_find_it() -> None:
    traced = TracedBroker()
    tell_the_story(traced)

    async def question(traces: Traces) -> list[list[str | None]]:
        queries = (TraceQuery(), TraceQuery(queue="c"), TraceQuery(correlation_id="basket-9"), TraceQuery(queue="d"))
        return [[trace.message_id for trace in (await traces.search(query)).traces] for query in queries]

    assert ask(traced, question) == [["m-3", "m-2", "m-1"], ["m-1"], ["m-1"], []]


def test_a_life_that_is_over_is_complete() -> None:
    traced = TracedBroker()
    channel = traced.client().channel()
    channel.declare("q")
    channel.publish(b"body", "q", message_id="m-1")
    channel.get(channel.vhost.queues["q"], no_ack=True)
    biography = biography_in(traced, "m-1")
    assert (biography.is_complete, biography.legs[0].outcome) == (True, "delivered")


def test_the_event_log_may_be_deleted() -> None:
    traced = TracedBroker()
    tell_the_story(traced)

    async def question(traces: Traces) -> tuple[bool, bool]:
        before = await traces.biography("m-1")
        client = traced.client()
        client.vhost.remove_queue(client.vhost.queues[schema.STREAM_NAME])
        gone = await traces.biography("m-1")
        client.channel().publish(b"new", "a", message_id="m-1")
        after = await traces.biography("m-1")
        assert after is not None
        assert story(after.events) == ["published", "routed", "enqueued a"]
        return before is not None, gone is None

    assert ask(traced, question) == (True, True)


def test_the_exporter_listens_to_the_event_log() -> None:
    traced = TracedBroker()
    exporter = OtlpExporter(OtlpOptions("http://127.0.0.1:9/", first_pause=0.001))
    traced.tracing.log.on_batch.append(exporter.batch_added)
    tell_the_story(traced)
    traced.make_batch()

    async def run() -> None:
        exporter.start()
        await exporter.stop()

    asyncio.run(run())
    assert exporter.dropped == 3 + 3 + 2  # publishes, waits and deliveries that are over; nobody listens at that port
