"""Views of queues and channels: counters that agree with what happened."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.client import PERSISTENT, Client, ClientChannel, make_broker
from tests.support.rejecting import add_rejecting_queue
from tests.support.streams import STREAM
from warrenmq.core.broker import Broker
from warrenmq.core.queue import Queue
from warrenmq.core.snapshot import ChannelCounters, QueueView, channel_counters, queue_view
from warrenmq.storage.memory_store import MemoryStorage


def test_a_queue_that_nothing_happened_to(channel: ClientChannel) -> None:
    queue = channel.declare("q", exclusive=True, auto_delete=True)
    assert queue_view(queue) == QueueView(
        vhost="/",
        name="q",
        type="classic",
        is_durable=False,
        is_auto_delete=True,
        is_exclusive=True,
        arguments={},
        messages_ready=0,
        messages_unacked=0,
        messages_retrying=0,
        messages_paged=0,
        consumers=0,
        published=0,
        delivered=0,
        delivered_no_ack=0,
        redelivered=0,
        requeued=0,
        rejected=0,
        acked=0,
    )


def counts(queue: Queue) -> dict[str, int]:
    """The counters that are not 0."""
    view = queue_view(queue)
    names = ("published", "delivered", "delivered_no_ack", "redelivered", "requeued", "rejected", "acked")
    return {name: getattr(view, name) for name in names if getattr(view, name)}


def test_what_consumers_do_is_counted(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1234", "q")
    channel.consume(queue)
    first, second, third, _ = channel.deliveries()
    channel.ack(first.tag)
    channel.reject(second.tag, requeue=False)
    channel.reject(third.tag)
    channel.deliveries()
    assert counts(queue) == {
        "published": 4,
        "delivered": 5,
        "redelivered": 1,
        "requeued": 1,
        "rejected": 1,
        "acked": 1,
    }
    view = queue_view(queue)
    assert (view.messages_ready, view.messages_unacked, view.consumers) == (0, 2, 1)
    channel.ack(0, multiple=True)
    assert queue_view(queue).acked == 3


def test_deliveries_without_acks_are_counted(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("1", "q")
    channel.consume(queue, no_ack=True)
    channel.publish_all("2", "q")
    channel.bodies()
    channel.publish_all("3", "q")
    assert counts(queue) == {"published": 3, "delivered": 3, "delivered_no_ack": 3}


def test_basic_get_is_a_delivery(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12", "q")
    channel.get(queue, no_ack=True)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag)
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.ack(got.tag)
    assert counts(queue) == {
        "published": 2,
        "delivered": 3,
        "delivered_no_ack": 1,
        "redelivered": 1,
        "requeued": 1,
        "acked": 1,
    }


def test_a_purge_is_no_delivery(channel: ClientChannel, queue: Queue) -> None:
    channel.publish_all("12", "q")
    queue.purge()
    assert counts(queue) == {"published": 2}


def test_duplicates_are_not_published(channel: ClientChannel) -> None:
    queue = channel.declare("once", arguments={"x-message-deduplication": True})
    for _ in range(2):
        channel.publish(b"", "once", headers={"x-deduplication-header": "a"})
    assert counts(queue) == {"published": 1}


def test_counters_begin_with_the_broker() -> None:
    storage = MemoryStorage()
    channel = Client(make_broker(storage)).channel()
    channel.declare("q", durable=True)
    channel.publish_all("123", "q", delivery_mode=PERSISTENT)
    again = make_broker(storage)
    queue = again.vhosts["/"].queues["q"]
    view = queue_view(queue)
    assert (view.messages_ready, view.published) == (3, 0)
    channel = Client(again).channel()
    channel.publish_all("4", "q")
    channel.consume(queue)
    channel.deliveries()
    assert counts(queue) == {"published": 1, "delivered": 4, "redelivered": 3}


def test_a_stream_counts_each_reader(channel: ClientChannel) -> None:
    stream = channel.declare("s", durable=True, arguments=STREAM)
    channel.publish_all("123", "s")
    channel.consume(stream, prefetch=10, arguments={"x-stream-offset": "first"})
    first, *_ = channel.deliveries()
    channel.ack(first.tag)
    view = queue_view(stream)
    assert (view.type, view.messages_ready, view.messages_unacked) == ("stream", 3, 2)
    assert counts(stream) == {"published": 3, "delivered": 3, "acked": 1}
    channel.close()
    assert counts(stream) == {"published": 3, "delivered": 3, "requeued": 2, "acked": 1}


def test_a_channel_counts_what_it_did(broker: Broker, channel: ClientChannel, queue: Queue) -> None:
    add_rejecting_queue(channel.vhost)
    channel.core.select_confirms()
    channel.publish_all("12", "q")
    channel.publish(b"3", "nowhere")
    channel.publish(b"4", "full")
    channel.consume(queue)
    first, _ = channel.deliveries()
    channel.ack(first.tag)
    assert channel_counters(channel.core) == ChannelCounters(
        published=4, unroutable=1, confirmed=3, nacked=1, delivered=2, acked=1, unacked=1
    )


STEPS = ("publish", "consume", "ack", "ack all", "reject", "requeue", "get", "get no ack", "recover", "end turn")
steps = st.lists(st.sampled_from(STEPS), max_size=80)


@given(steps)
def test_derived_counters_agree_with_what_was_done(steps: list[str]) -> None:
    channel = Client(make_broker()).channel()
    queue = channel.declare("q")
    unacked: list[int] = []
    acked = 0
    for step in steps:
        if step == "publish":
            channel.publish(b"", "q")
        elif step == "consume" and not queue.consumers:
            channel.consume(queue, prefetch=3)
        elif step == "ack" and unacked:
            channel.ack(unacked.pop(0))
            acked += 1
        elif step == "ack all":
            channel.ack(0, multiple=True)
            acked += len(unacked)
        elif step == "reject" and unacked:
            channel.reject(unacked.pop(), requeue=False)
        elif step == "requeue" and unacked:
            channel.reject(unacked.pop(0))
        elif step == "get":
            channel.get(queue, no_ack=False)
        elif step == "get no ack":
            channel.get(queue, no_ack=True)
        elif step == "recover":
            channel.core.recover()
        elif step == "end turn":
            channel.deliveries()
        unacked = list(channel.core.ledger.unacked)
        view = queue_view(queue)
        counters = channel_counters(channel.core)
        assert (view.acked, counters.acked) == (acked, acked)
        assert view.messages_unacked == counters.unacked == len(unacked)
        assert view.delivered == counters.delivered
        gone = view.acked + view.rejected + view.delivered_no_ack
        assert view.published == view.messages_ready + view.messages_unacked + gone
