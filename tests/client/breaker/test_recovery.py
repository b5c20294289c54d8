"""After every kind of loss the connection comes back by itself, with all that was declared on it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

import warrenmq
from tests.client.behaviour.faces import PATIENCE, Inbox
from tests.client.conftest import Connect, Namer
from tests.support.breaker import DOWN, UP, Breaker, Fault, ScriptedFaults
from tests.support.waiting import wait_until
from warrenmq import client
from warrenmq.server.options import ServerOptions

from .conftest import FAST, Watch, Watched

LOSSES: dict[str, Callable[[Breaker], None]] = {
    "reset": lambda breaker: breaker.reset(),
    "end": lambda breaker: breaker.end(),
    "half-close up": lambda breaker: breaker.half_close(UP),
    "half-close down": lambda breaker: breaker.half_close(DOWN),
    "damage up": lambda breaker: breaker.damage(UP),
    "damage down": lambda breaker: breaker.damage(DOWN),
    "silence": lambda breaker: breaker.swallow(DOWN),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_connection_comes_back_after_each_kind_of_loss(watch: Watch, breaker: Breaker, name: Namer, kind: str) -> None:
    watched = watch(heartbeat=1)
    channel = watched.channel()
    inbox, queue = Inbox(), name("queue")
    channel.queue_declare(queue)
    channel.consume(queue, inbox)
    LOSSES[kind](breaker)
    with contextlib.suppress(client.ConnectionLost):
        channel.publish("", queue, b"perhaps")  # traffic, so that there is something to damage
    lost = watched.wait_lost()
    assert lost.reason.is_final is False
    breaker.calm()
    watched.wait_recovered()
    assert breaker.connections_made >= 2
    assert watched.connection.is_open
    assert not watched.connection.is_recovering
    channel.publish("", queue, b"after")
    inbox.until(lambda delivery: delivery.body == b"after").ack()


def test_lost_connection_has_a_reason(watched: Watched, breaker: Breaker) -> None:
    breaker.refuse()
    breaker.reset()
    lost = watched.wait_lost()
    assert lost.reason.by == "network"
    assert lost.reason.reply_text
    trying = watched.events.until(lambda event: event.kind == "trying")
    assert trying.attempt == 1
    assert watched.events.until(lambda event: event.kind == "trying").attempt == 2
    assert watched.connection.is_recovering
    assert not watched.connection.is_open
    breaker.calm()
    watched.wait_recovered()


# -- topology


def test_topology_comes_back(watched: Watched, other: Any, name: Namer) -> None:
    source, middle, queue = name("source"), name("middle"), name("queue")
    channel = watched.channel()
    channel.exchange_declare(source, "topic", auto_delete=True)
    channel.exchange_declare(middle, "headers", auto_delete=True)
    channel.queue_declare(queue, exclusive=True, auto_delete=True, arguments={"x-max-length": 100})
    channel.exchange_bind(middle, source, "news.#")
    channel.queue_bind(queue, middle, "", {"x-match": "all", "lang": "de"})
    inbox = Inbox()
    channel.consume(queue, inbox, auto_ack=True)
    for round_number in range(3):
        watched.lose()
        other.publish(source, "news.today", b"no", client.Properties(headers={"lang": "fr"}))
        other.publish(source, "news.today", b"%d" % round_number, client.Properties(headers={"lang": "de"}))
        assert inbox.next().body == b"%d" % round_number
    assert inbox.stays_empty(0.1)


def test_server_named_queue_gets_a_new_name(watched: Watched, other: Any) -> None:
    renamed = Inbox()
    watched.connection.add_queue_renamed_listener(renamed)
    channel = watched.channel()
    old = channel.queue_declare("", exclusive=True).queue
    channel.queue_bind(old, "amq.topic", "to.it")
    inbox = Inbox()
    channel.consume(old, inbox, auto_ack=True)
    watched.lose()
    told_old, new = renamed.next()
    assert told_old == old
    assert new != old
    other.publish("amq.topic", "to.it", b"by binding")
    other.publish("", new, b"by name")
    assert {inbox.next().body for _ in range(2)} == {b"by binding", b"by name"}
    # The name that the program knows goes on working, over one more change.
    assert channel.queue_declare(old, passive=True).consumer_count == 1
    watched.lose()
    assert renamed.next()[1] not in (old, new)
    channel.queue_bind(old, "amq.topic", "more")
    assert channel.queue_purge(old) == 0
    other.publish("amq.topic", "more", b"again")
    assert inbox.next().body == b"again"


def test_what_was_deleted_does_not_come_back(watched: Watched, other: Any, connect: Connect, name: Namer) -> None:
    channel = watched.channel()
    queue, exchange, kept = name("queue"), name("exchange"), name("kept")
    channel.queue_declare(queue)
    channel.queue_declare(kept)
    channel.exchange_declare(exchange, "fanout")
    channel.queue_bind(queue, exchange)
    channel.queue_bind(kept, "amq.topic", "gone")
    channel.queue_delete(queue)
    channel.exchange_delete(exchange)
    channel.queue_unbind(kept, "amq.topic", "gone")
    watched.lose()
    with pytest.raises(client.NotFound):
        connect().channel().queue_declare(queue, passive=True)
    with pytest.raises(client.NotFound):
        connect().channel().exchange_declare(exchange, passive=True)
    other.confirm_select()
    other.publish("amq.topic", "gone", b"x").result(PATIENCE)
    assert other.queue_declare(kept, passive=True).message_count == 0


def test_what_deleted_itself_does_not_come_back(watched: Watched, connect: Connect, name: Namer) -> None:
    channel = watched.channel()
    queue, exchange = name("queue"), name("exchange")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    channel.queue_declare(queue, auto_delete=True)
    channel.queue_bind(queue, exchange)
    consumer = channel.consume(queue, Inbox())
    consumer.cancel()  # takes the queue with it, that its binding, that the exchange
    watched.lose()
    with pytest.raises(client.NotFound):
        connect().channel().queue_declare(queue, passive=True)
    with pytest.raises(client.NotFound):
        connect().channel().exchange_declare(exchange, passive=True)


def test_consumers_come_back_unless_cancelled(watched: Watched, other: Any, name: Namer) -> None:
    queues = [name(label) for label in "abc"]
    channel, inboxes = watched.channel(), [Inbox() for _ in queues]
    consumers = []
    for queue, inbox in zip(queues, inboxes, strict=True):
        channel.queue_declare(queue)
        consumers.append(channel.consume(queue, inbox, auto_ack=True))
    consumers[1].cancel()
    watched.lose()
    for queue in queues:
        other.publish("", queue, queue)
    assert inboxes[0].next().consumer_tag == consumers[0].tag
    assert inboxes[2].next().consumer_tag == consumers[2].tag
    assert inboxes[1].stays_empty(0.1)
    # They are the same consumers: cancelled by the old object.
    consumers[0].cancel()
    assert other.queue_declare(queues[0], passive=True).consumer_count == 0


def test_iteration_goes_on(watched: Watched, other: Any, name: Namer) -> None:
    queue = name("queue")
    channel = watched.channel()
    channel.queue_declare(queue)
    seen = []
    other.publish("", queue, b"0")
    for delivery in channel.consume(queue, auto_ack=True, timeout=PATIENCE):
        seen.append(int(delivery.body))
        if len(seen) == 4:
            break
        watched.lose()
        other.publish("", queue, b"%d" % len(seen))
    assert seen == [0, 1, 2, 3]


def test_prefetch_comes_back(watched: Watched, other: Any, name: Namer) -> None:
    queue = name("queue")
    channel = watched.channel()
    channel.queue_declare(queue)
    channel.qos(2)
    inbox = Inbox()
    channel.consume(queue, inbox)
    watched.lose()
    for _ in range(6):
        other.publish("", queue, b"x")
    held = inbox.take(2)
    assert inbox.stays_empty()
    held[1].ack(multiple=True)
    inbox.take(2)
    assert inbox.stays_empty(0.1)


def test_prefetch_of_the_channel_comes_back(watched: Watched, other: Any, name: Namer) -> None:
    queue = name("queue")
    channel = watched.channel()
    channel.queue_declare(queue)
    channel.qos(3, global_=True)
    inbox = Inbox()
    channel.consume(queue, inbox)
    channel.consume(queue, inbox)
    watched.lose()
    for _ in range(10):
        other.publish("", queue, b"x")
    inbox.take(3)
    assert inbox.stays_empty()


def test_several_channels_come_back_under_their_numbers(watched: Watched) -> None:
    channels = [watched.channel() for _ in range(5)]
    channels[1].close()
    before = [channel.number for channel in channels]
    watched.lose()
    for index in (0, 2, 3, 4):
        assert channels[index].queue_declare("", exclusive=True).queue
    assert [channel.number for channel in channels] == before
    assert not channels[1].is_open
    assert watched.channel().number == before[1]


def test_channel_closed_by_the_broker_stays_closed(watched: Watched, name: Namer) -> None:
    channel, told = watched.channel(), Inbox()
    channel.add_close_listener(told)
    with pytest.raises(client.NotFound):
        channel.queue_declare(name("missing"), passive=True)
    assert told.next().reply_code == 404
    watched.lose()
    assert not channel.is_open
    with pytest.raises(client.NotFound):
        channel.queue_declare("", exclusive=True)


def test_loss_is_not_reported_as_final_to_the_channel(watched: Watched) -> None:
    channel, told = watched.channel(), Inbox()
    channel.add_close_listener(lambda reason: told(reason) if reason.is_final else None)
    watched.lose()
    assert told.stays_empty(0.05)
    assert channel.is_open


def test_refused_declaration_does_not_stop_the_rest(watch: Watch, breaker: Breaker, other: Any, name: Namer) -> None:
    told = Inbox()
    watched = watch(exception_handler=lambda *args: told(args))
    channel = watched.channel()
    bad, good = name("bad"), name("good")
    channel.queue_declare(bad)
    channel.queue_declare(good)
    channel.queue_bind(bad, "amq.topic", "bad")
    channel.queue_bind(good, "amq.topic", "good")
    inbox = Inbox()
    channel.consume(good, inbox, auto_ack=True)
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    other.queue_delete(bad)
    other.queue_declare(bad, durable=True)
    breaker.calm()
    watched.wait_recovered()
    assert isinstance(told.next()[1], client.PreconditionFailed)
    other.publish("amq.topic", "good", b"x")
    assert inbox.next().body == b"x"
    assert channel.queue_declare("", exclusive=True).queue


def test_consumer_that_cannot_be_restored_is_notified(watch: Watch, breaker: Breaker, other: Any, name: Namer) -> None:
    """Its queue is gone and was another's to declare: the rest of the channel recovers, and somebody hears of it."""
    told, cancelled = Inbox(), Inbox()
    watched = watch(exception_handler=lambda *args: told(args))
    channel = watched.channel()
    gone, good = name("gone"), name("good")
    other.queue_declare(gone)
    other.queue_declare(good)
    inbox = Inbox()
    channel.consume(gone, Inbox(), on_cancel=cancelled)
    channel.consume(good, inbox, auto_ack=True)
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    other.queue_delete(gone)
    breaker.calm()
    watched.wait_recovered()
    assert isinstance(told.next()[1], client.NotFound)
    other.publish("", good, b"x")
    assert inbox.next().body == b"x"
    assert channel.is_open


def test_without_topology_only_connection_and_channels_come_back(watch: Watch, connect: Connect, name: Namer) -> None:
    watched = watch(recovery=client.Recovery(initial=0.01, topology=False))
    channel = watched.channel()
    channel.queue_declare(name("queue"), exclusive=True)
    watched.lose()
    with pytest.raises(client.NotFound):
        connect().channel().queue_declare(name("queue"), passive=True)
    assert channel.queue_declare("", exclusive=True).queue


@pytest.mark.parametrize("after", [0, 8, 500, 900, 1000, 1100, 1200, 1400, 1600, 1800])
@pytest.mark.parametrize("direction", [UP, DOWN])
def test_loss_in_the_middle_of_the_recovery(
    watched: Watched, breaker: Breaker, other: Any, name: Namer, after: int, direction: str
) -> None:
    """Wherever it hits - handshake, channels, declarations, consumers - the next attempt begins from the start."""
    channel = watched.channel()
    exchange, queue, inbox = name("exchange"), name("queue"), Inbox()
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    channel.queue_declare(queue, exclusive=True)
    for number in range(10):
        channel.queue_bind(queue, exchange, f"key.{number}")
    channel.qos(5)
    channel.consume(queue, inbox, auto_ack=True)
    kinds = ["reset", "end", "half-close"]
    breaker.fault_source = ScriptedFaults(*(Fault(kind, direction, after) for kind in kinds))
    breaker.reset()
    watched.wait_recovered()
    breaker.calm()

    def arrives() -> bool:
        # A fault that had not struck when the recovery was over may strike now.
        try:
            probe = channel.queue_declare(queue, passive=True)
        except (client.ConnectionLost, client.ChannelClosed):
            return False
        return bool(probe.consumer_count == 1)

    wait_until(arrives, "the consumer")
    other.publish(exchange, "key.9", b"x")
    assert inbox.next().body == b"x"
    assert channel.is_open


# -- addresses, attempts, logins


def test_next_address_takes_over(connect: Connect, broker_url: str) -> None:
    with Breaker(broker_url) as first, Breaker(broker_url) as second:
        connection = connect([first.url, second.url], recovery=FAST)
        events, channel = Inbox(), connection.channel()
        connection.add_recovery_listener(events)
        assert connection.address == ("127.0.0.1", first.port)
        first.refuse()
        first.reset()
        events.until(lambda event: event.kind == "recovered")
        assert connection.address == ("127.0.0.1", second.port)
        assert channel.queue_declare("", exclusive=True).queue
        connection.close()


def test_recovery_gives_up_after_its_attempts(watch: Watch, breaker: Breaker) -> None:
    watched = watch(recovery=client.Recovery(initial=0.01, longest=0.02, attempts=3))
    channel, closed = watched.channel(), Inbox()
    watched.connection.add_close_listener(lambda reason: closed(reason) if reason.is_final else None)
    consumer = channel.consume(channel.queue_declare("", exclusive=True).queue)
    breaker.refuse()
    breaker.reset()
    gave_up = watched.events.until(lambda event: event.kind == "gave_up")
    assert gave_up.attempt == 3
    assert closed.next().by == "network"
    assert not watched.connection.is_open
    assert not watched.connection.is_recovering
    with pytest.raises(client.ConnectionClosed):
        watched.channel()
    with pytest.raises(client.ConnectionClosed):
        for _delivery in consumer:
            pass
    with pytest.raises((client.ConnectionClosed, client.ChannelClosed)):
        channel.publish("", "q", b"x")


def test_without_recovery_a_loss_is_the_end(watch: Watch, breaker: Breaker) -> None:
    watched = watch(recovery=False)
    channel, closed = watched.channel(), Inbox()
    watched.connection.add_close_listener(closed)
    breaker.reset()
    reason = closed.next()
    assert (reason.by, reason.is_final) == ("network", True)
    with pytest.raises((client.ConnectionClosed, client.ChannelClosed)):
        channel.queue_declare("", exclusive=True)
    assert breaker.connections_made == 1


# -- calls


def in_thread(attempt: Callable[[], Any]) -> Inbox:
    """Make the call in a thread; its result or exception comes to the inbox."""
    inbox = Inbox()

    def run() -> None:
        try:
            inbox(("ended", attempt()))
        except Exception as failure:  # noqa: BLE001 - handed to the test
            inbox(("failed", failure))

    threading.Thread(target=run, daemon=True).start()
    return inbox


def test_call_that_waits_at_the_loss_raises(watched: Watched, breaker: Breaker) -> None:
    channel = watched.channel()
    breaker.hold(DOWN)
    said = breaker.bytes_passed(UP)
    outcome = in_thread(lambda: channel.queue_declare("", exclusive=True, timeout=60))
    wait_until(lambda: breaker.bytes_passed(UP) > said, "the call")
    assert outcome.stays_empty(0.1)
    breaker.refuse()
    breaker.reset()
    kind, failure = outcome.next()
    assert kind == "failed"
    assert isinstance(failure, client.ConnectionLost)
    breaker.calm()
    watched.wait_recovered()
    assert channel.queue_declare("", exclusive=True).queue


def test_call_begun_while_recovering_waits_for_it(watched: Watched, breaker: Breaker) -> None:
    channel = watched.channel()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    outcomes = [
        in_thread(lambda: channel.queue_declare("", exclusive=True).queue),
        in_thread(lambda: watched.connection.channel().number),
    ]
    assert all(outcome.stays_empty(0.1) for outcome in outcomes)
    breaker.calm()
    assert [outcome.next()[0] for outcome in outcomes] == ["ended", "ended"]


def test_consume_begun_while_recovering_is_sent_once(
    watched: Watched, breaker: Breaker, other: Any, name: Namer
) -> None:
    channel, queue, inbox = watched.channel(), name("queue"), Inbox()
    other.queue_declare(queue)
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    outcome = in_thread(lambda: channel.consume(queue, inbox, consumer_tag="mine", auto_ack=True))
    assert outcome.stays_empty(0.1)
    breaker.calm()
    kind, consumer = outcome.next()
    assert kind == "ended", consumer
    assert other.queue_declare(queue, passive=True).consumer_count == 1
    other.publish("", queue, b"x")
    assert inbox.next().body == b"x"
    assert breaker.connections_made == 2


def test_call_begun_while_recovering_times_out(watched: Watched, breaker: Breaker) -> None:
    channel = watched.channel()
    breaker.refuse()
    breaker.reset()
    watched.wait_lost()
    with pytest.raises((client.CallTimedOut, client.ConnectionLost)):
        channel.queue_declare("", exclusive=True, timeout=0.2)
    with pytest.raises((client.CallTimedOut, client.ConnectionLost)):
        watched.connection.channel(timeout=0.2)
    breaker.calm()
    watched.wait_recovered()


# -- the login changes while away


def test_refused_login_in_the_middle_is_tried_again(watch: Watch, breaker: Breaker, broker_url: str) -> None:
    watched = watch()
    channel = watched.channel()
    with warrenmq.Broker(server=ServerOptions(default_pass="another")) as strict:
        breaker.aim(strict.url)
        breaker.reset()
        watched.wait_lost()
        for _ in range(2):
            watched.events.until(lambda event: event.kind == "trying")
        breaker.aim(broker_url)
        watched.wait_recovered()
    assert channel.queue_declare("", exclusive=True).queue
