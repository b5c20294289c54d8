"""Dead letters: routing, headers and cycles."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, advance, assert_nothing_is_held, make_broker, waiting
from tests.support.rejecting import add_rejecting_queue
from warrenmq.core import dead_letter
from warrenmq.core.broker import Broker
from warrenmq.core.options import QueueOptions
from warrenmq.core.queue import Queue
from warrenmq.events import schema

NOW = 1_000_000


@pytest.fixture
def broker() -> Broker:
    return make_broker(now_ms=NOW)


def declare(channel: ClientChannel, name: str = "q", to: str = "dead", **arguments: Any) -> Queue:
    """A queue whose dead letters go to the queue `to`."""
    arguments = {key.replace("_", "-"): value for key, value in arguments.items()}
    return channel.declare(name, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to, **arguments})


def reject(channel: ClientChannel, queue: Queue) -> None:
    got = channel.get(queue, no_ack=False)
    assert got is not None
    channel.reject(got.tag, requeue=False)


def headers_of(queue: Queue) -> dict[str, Any]:
    (entry,) = queue.backlog
    headers = entry.message.properties.headers
    assert headers is not None
    return headers


def deaths_of(queue: Queue) -> list[tuple[str, str, int]]:
    return [(death["queue"], death["reason"], death["count"]) for death in headers_of(queue)["x-death"]]


def test_a_rejected_message(channel: ClientChannel, broker: Broker) -> None:
    dead = channel.declare("dead")
    queue = declare(channel)
    channel.publish(b"a", "q", "amq.direct")
    channel.bind("amq.direct", queue, "q")
    channel.publish(b"b", "q", "amq.direct", headers={"mine": 1, "CC": ["other"]}, message_id="7", delivery_mode=2)
    reject(channel, queue)
    (entry,) = dead.backlog
    message = entry.message
    assert (message.exchange, message.routing_key, message.body) == ("", "dead", b"b")
    assert (message.properties.message_id, message.properties.delivery_mode) == ("7", 2)
    headers = headers_of(dead)
    (death,) = headers.pop("x-death")
    assert death.pop("time").timestamp() == NOW // 1000
    assert death == {
        "count": 1,
        "reason": "rejected",
        "queue": "q",
        "exchange": "amq.direct",
        "routing-keys": ["q", "other"],
    }
    assert headers == {
        "mine": 1,
        "x-first-death-exchange": "amq.direct",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-last-death-exchange": "amq.direct",
        "x-last-death-queue": "q",
        "x-last-death-reason": "rejected",
    }
    assert broker.stats.dead_lettered[schema.R_REJECTED] == 1
    channel.get(dead)
    assert_nothing_is_held(broker)


def test_the_numbers_have_the_types_that_clients_cast_to(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    queue = declare(channel)
    channel.publish(b"a", "q")
    reject(channel, queue)
    (entry,) = dead.backlog
    assert b"\x05countl\0\0\0\0\0\0\0\1" in entry.message.header
    assert b"\x04timeT" in entry.message.header


def test_an_expired_message_loses_its_expiration(channel: ClientChannel, broker: Broker) -> None:
    dead = channel.declare("dead")
    declare(channel)
    channel.publish(b"a", "q", expiration="50", priority=3)
    advance(broker, 66)
    (entry,) = dead.backlog
    assert (entry.message.properties.expiration, entry.message.properties.priority) == (None, 3)
    assert headers_of(dead)["x-death"][0]["original-expiration"] == "50"
    advance(broker, 1000)
    assert waiting(dead) == "a"


def test_a_dropped_head(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    queue = declare(channel, x_max_length=1)
    channel.publish_all("ab", "q")
    assert (waiting(queue), waiting(dead)) == ("b", "a")
    assert deaths_of(dead) == [("q", "maxlen", 1)]


@pytest.mark.parametrize(("overflow", "letters"), [("reject-publish", ""), ("reject-publish-dlx", "b")])
def test_a_rejected_publish(channel: ClientChannel, overflow: str, letters: str) -> None:
    dead = channel.declare("dead")
    queue = declare(channel, x_max_length=1, x_overflow=overflow)
    channel.publish_all("ab", "q")
    assert (waiting(queue), waiting(dead)) == ("a", letters)


def test_without_a_key_of_its_own_a_dead_letter_keeps_its_keys(channel: ClientChannel) -> None:
    channel.declare_exchange("dlx")
    queue = channel.declare("q", arguments={"x-dead-letter-exchange": "dlx"})
    dead = [channel.declare(name) for name in ("one", "two", "hidden")]
    for each, key in zip(dead, ("q", "cc", "bcc"), strict=True):
        channel.bind("dlx", each, key)
    channel.publish(b"a", "q", headers={"CC": ["cc"], "BCC": ["bcc"]})
    reject(channel, queue)
    assert [waiting(each) for each in dead] == ["a", "a", "a"]
    assert headers_of(dead[0])["CC"] == ["cc"]


def test_a_key_of_its_own_takes_the_place_of_cc(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    queue = declare(channel)
    channel.publish(b"a", "q", headers={"CC": ["nowhere"]})
    reject(channel, queue)
    assert "CC" not in headers_of(dead)
    assert headers_of(dead)["x-death"][0]["routing-keys"] == ["q", "nowhere"]


def test_a_headers_exchange_sees_the_new_headers(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    channel.bind("amq.headers", dead, **{"x-match": "all-with-x", "x-first-death-reason": "rejected"})
    queue = channel.declare("q", arguments={"x-dead-letter-exchange": "amq.headers"})
    channel.publish(b"a", "q")
    reject(channel, queue)
    assert waiting(dead) == "a"


def test_without_their_exchange_dead_letters_are_dropped(channel: ClientChannel, broker: Broker) -> None:
    said: list[str] = []
    broker.warning_log.on_warning = said.append
    queue = channel.declare("q", arguments={"x-dead-letter-exchange": "later"})
    channel.publish_all("ab", "q")
    reject(channel, queue)
    assert len(said) == 1
    assert "'later'" in said[0]
    dead = channel.declare("dead")
    channel.declare_exchange("later", "fanout")
    channel.bind("later", dead)
    reject(channel, queue)
    assert waiting(dead) == "b"


def test_an_internal_exchange_takes_dead_letters(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    channel.declare_exchange("inner", "fanout", internal=True)
    channel.bind("inner", dead)
    queue = channel.declare("q", arguments={"x-dead-letter-exchange": "inner"})
    channel.publish(b"a", "q")
    reject(channel, queue)
    assert waiting(dead) == "a"


def test_deaths_are_counted_by_queue_and_reason(channel: ClientChannel, broker: Broker) -> None:
    work = declare(channel, "work", "wait")
    wait = declare(channel, "wait", "work", x_message_ttl=100)
    channel.publish(b"a", "work")
    for _ in range(3):
        reject(channel, work)
        advance(broker, 116)
    assert deaths_of(work) == [("wait", "expired", 3), ("work", "rejected", 3)]
    headers = headers_of(work)
    assert (headers["x-first-death-queue"], headers["x-last-death-queue"]) == ("work", "wait")
    assert headers["x-last-death-exchange"] == ""
    assert len(wait.backlog) == 0


def test_deaths_that_a_client_wrote_are_not_counted(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    queue = declare(channel)
    forged = {"x-death": [{"queue": "q", "reason": "rejected", "count": 99}], "x-first-death-queue": "mine"}
    channel.publish(b"a", "q", headers=forged)
    reject(channel, queue)
    assert deaths_of(dead) == [("q", "rejected", 1)]
    assert headers_of(dead)["x-first-death-queue"] == "q"


def test_a_cycle_without_a_rejection_ends(channel: ClientChannel, broker: Broker) -> None:
    one = declare(channel, "one", "two", x_message_ttl=100)
    two = declare(channel, "two", "one", x_message_ttl=100)
    channel.publish(b"a", "one")
    advance(broker, 116)
    assert waiting(two) == "a"
    advance(broker, 116)
    assert (waiting(one), waiting(two), broker.stats.dead_letter_cycles) == ("", "", 1)
    assert_nothing_is_held(broker)


def test_a_queue_that_is_its_own_dead_letter_queue(channel: ClientChannel, broker: Broker) -> None:
    queue = declare(channel, "q", "q", x_message_ttl=100)
    channel.publish(b"a", "q")
    reject(channel, queue)
    assert waiting(queue) == "a"
    advance(broker, 116)
    assert (waiting(queue), broker.stats.dead_letter_cycles) == ("", 1)


def test_a_long_chain_of_full_queues(channel: ClientChannel, broker: Broker) -> None:
    for number in range(dead_letter.MAX_DEATHS + 1):
        declare(channel, f"q{number}", f"q{number + 1}", x_max_length=0)
    channel.publish(b"a", "q1")
    last = broker.vhosts["/"].queues[f"q{dead_letter.MAX_DEATHS + 1}"] = channel.declare("last")
    channel.vhost._topology_changed()
    assert waiting(last) == ""
    channel.publish(b"b", "q1")
    assert waiting(last) == "b"
    assert len(headers_of(last)["x-death"]) == dead_letter.MAX_DEATHS
    channel.publish(b"c", "q0")  # one more than a header may hold
    assert (waiting(last), broker.stats.dead_letter_cycles) == ("b", 1)


def test_nothing_is_dead_lettered_by_a_purge_or_a_deletion(channel: ClientChannel, broker: Broker) -> None:
    dead = channel.declare("dead")
    queue = declare(channel)
    channel.publish_all("abc", "q")
    got = channel.get(queue, no_ack=False)
    queue.purge()
    channel.publish(b"d", "q")
    channel.delete(queue)
    assert got is not None
    channel.reject(got.tag, requeue=False)
    assert waiting(dead) == ""
    assert_nothing_is_held(broker)


def test_a_rejection_in_a_transaction_counts_when_it_is_committed(channel: ClientChannel) -> None:
    dead = channel.declare("dead")
    queue = declare(channel)
    channel.publish(b"a", "q")
    channel.core.select_transactions()
    reject(channel, queue)
    assert waiting(dead) == ""
    channel.core.commit()
    assert waiting(dead) == "a"


def test_dead_letters_are_delivered_in_the_turn_of_the_rejection(channel: ClientChannel, other: ClientChannel) -> None:
    other.consume(channel.declare("dead"))
    queue = declare(channel)
    channel.publish(b"a", "q")
    reject(channel, queue)
    assert other.bodies() == "a"


def test_options_that_change_at_run_time(channel: ClientChannel) -> None:
    dead, later = channel.declare("dead"), channel.declare("later")
    queue = channel.declare("q")
    channel.publish_all("abc", "q")
    channel.vhost.apply(queue, QueueOptions(dead_letter_exchange="", dead_letter_routing_key="dead"))
    reject(channel, queue)
    channel.vhost.apply(queue, QueueOptions(dead_letter_exchange="", dead_letter_routing_key="later"))
    reject(channel, queue)
    channel.vhost.apply(queue, QueueOptions())
    reject(channel, queue)
    assert (waiting(dead), waiting(later)) == ("a", "b")


# -- at-least-once


KEPT = QueueOptions(dead_letter_exchange="", dead_letter_routing_key="full", is_dead_letter_at_least_once=True)


def test_what_no_queue_takes_is_held(client: Client, channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.vhost.apply(queue, KEPT)
    channel.publish_all("ab", "q")
    reject(channel, queue)  # there is no such queue
    full = add_rejecting_queue(channel.vhost)
    reject(channel, queue)
    assert broker.stats.held_bytes > 0
    full.is_full = False
    advance(broker, dead_letter.RETRY_MS + 16)
    assert waiting(full) == "ab"
    assert broker.stats.dead_lettered[schema.R_REJECTED] == 2
    channel.get(full)
    channel.get(full)
    assert_nothing_is_held(broker)


def test_what_is_held_goes_with_its_queue(channel: ClientChannel, broker: Broker) -> None:
    queue = channel.declare("q")
    channel.vhost.apply(queue, KEPT)
    channel.publish_all("ab", "q")
    reject(channel, queue)
    channel.delete(queue)
    assert_nothing_is_held(broker)
    assert len(broker.timers) == 0


def test_what_is_held_follows_new_options(channel: ClientChannel, broker: Broker) -> None:
    queue, dead = channel.declare("q"), channel.declare("dead")
    channel.vhost.apply(queue, KEPT)
    channel.publish_all("ab", "q")
    reject(channel, queue)
    channel.vhost.apply(queue, QueueOptions(dead_letter_exchange="", dead_letter_routing_key="dead"))
    assert waiting(dead) == "a"
    channel.vhost.apply(queue, KEPT)
    reject(channel, queue)
    channel.vhost.apply(queue, QueueOptions())
    channel.get(dead)
    assert_nothing_is_held(broker)
