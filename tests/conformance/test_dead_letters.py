"""Dead letters: why a message dies, where it goes, what is written on it, and when it goes no further."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.conftest import Connect
from tests.conformance.features import LONG_MS, Topology, deaths, history
from tests.support.wire import WireChannel
from tests.support.wire_format import Content

SHORT_MS = 50
SOON = str(SHORT_MS)


def die(topology: Topology, queue: str, body: bytes = b"dies", **properties: Any) -> None:
    """Publish a message to the queue and reject it."""
    topology.publish(queue, body, **properties)
    topology.reject(*topology.hold(queue))


def headers(message: Content) -> dict[str, Any]:
    return dict(message.properties["headers"])


# -- reasons ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "more"), [("basic.reject", {}), ("basic.nack", {}), ("basic.nack", {"multiple": True})]
)
def test_a_rejected_message_dies(topology: Topology, method: str, more: dict[str, bool]) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"dies")
    (tag,) = topology.hold(queue)
    topology.channel.send(method, delivery_tag=tag, requeue=False, **more)
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "rejected", 1)]


def test_messages_that_a_consumer_rejects_together_die_in_order(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    topology.channel.call("basic.consume", queue=queue)
    topology.publish(queue, b"one", b"two", b"three")
    for _ in range(3):
        last = topology.channel.content()["delivery_tag"]
    topology.channel.send("basic.nack", delivery_tag=last, multiple=True, requeue=False)
    died = topology.take(topology.name("grave"), 3)
    assert [message.body for message in died] == [b"one", b"two", b"three"]


def test_an_expired_message_dies(topology: Topology) -> None:
    queue = topology.queue(message_ttl=SHORT_MS, **topology.grave())
    topology.publish(queue, b"dies")
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "expired", 1)]


@pytest.mark.parametrize("reason", ["rejected", "expired", "maxlen"])
def test_a_quorum_queue_dead_letters_too(topology: Topology, reason: str) -> None:
    limits: dict[str, Any] = {"rejected": {}, "expired": {"message_ttl": SHORT_MS}, "maxlen": {"max_length": 1}}[reason]
    queue = topology.queue(queue_type="quorum", **limits, **topology.grave())
    topology.publish(queue, b"dies", *[b"stays"] if reason == "maxlen" else [], delivery_mode=2)
    if reason == "rejected":
        topology.reject(*topology.hold(queue))
    assert history(topology.take_one(topology.name("grave"))) == [(queue, reason, 1)]


def test_a_message_dropped_by_the_limit_is_dead_lettered(topology: Topology) -> None:
    queue = topology.queue(max_length=1, **topology.grave())
    topology.publish(queue, b"dies", b"stays")
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "maxlen", 1)]


@pytest.mark.parametrize("how", ["ack", "requeue", "no ack"])
def test_other_messages_do_not_die(topology: Topology, how: str) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"lives")
    if how == "no ack":
        topology.take_one(queue)
    else:
        (tag,) = topology.hold(queue)
        if how == "ack":
            topology.channel.send("basic.ack", delivery_tag=tag)
        else:
            topology.reject(tag, requeue=True)
    if how == "requeue":
        topology.take_one(queue)
    die(topology, queue, b"dies")
    assert topology.take_one(topology.name("grave")).body == b"dies"


def test_purging_does_not_dead_letter(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"purged")
    assert topology.channel.call("queue.purge", queue=queue)["message_count"] == 1
    die(topology, queue)
    assert topology.take_one(topology.name("grave")).body == b"dies"


def test_deleting_the_queue_does_not_dead_letter(topology: Topology) -> None:
    queue, other = topology.queue(**topology.grave()), topology.queue("other", **topology.grave())
    topology.publish(queue, b"deleted")
    assert topology.channel.call("queue.delete", queue=queue)["message_count"] == 1
    die(topology, other)
    assert topology.take_one(topology.name("grave")).body == b"dies"


def test_what_is_rejected_after_the_queue_is_gone_is_dropped(topology: Topology) -> None:
    queue, other = topology.queue(**topology.grave()), topology.queue("other", **topology.grave())
    topology.publish(queue, b"held")
    tags = topology.hold(queue)
    topology.channel.call("queue.delete", queue=queue)
    topology.reject(*tags)
    die(topology, other)
    assert topology.take_one(topology.name("grave")).body == b"dies"


# -- where it goes ---------------------------------------------------------------------------------------------------


def test_without_a_routing_key_of_its_own_it_keeps_the_key(topology: Topology) -> None:
    exchange = topology.exchange("dead", "direct")
    grave, queue = topology.queue("grave"), topology.queue(dead_letter_exchange=exchange)
    topology.bind(grave, exchange, queue)
    die(topology, queue)
    died = topology.take_one(grave)
    assert (died["exchange"], died["routing_key"]) == (exchange, queue)


def test_the_dead_letter_routing_key_replaces_the_key(topology: Topology) -> None:
    exchange = topology.exchange("dead", "direct")
    grave = topology.queue("grave")
    topology.bind(grave, exchange, "lost")
    queue = topology.queue(dead_letter_exchange=exchange, dead_letter_routing_key="lost")
    die(topology, queue)
    died = topology.take_one(grave)
    assert (died["exchange"], died["routing_key"]) == (exchange, "lost")
    assert deaths(died)[0]["routing-keys"] == [queue]


def test_a_topic_exchange_sees_the_new_key(topology: Topology) -> None:
    exchange = topology.exchange("dead", "topic")
    grave = topology.queue("grave")
    topology.bind(grave, exchange, "dead.#")
    queue = topology.queue(dead_letter_exchange=exchange, dead_letter_routing_key="dead.orders.7")
    die(topology, queue)
    assert topology.take_one(grave)["routing_key"] == "dead.orders.7"


def test_a_headers_exchange_sees_the_publishers_headers(topology: Topology) -> None:
    exchange = topology.exchange("dead", "headers")
    grave, other = topology.queue("grave"), topology.queue("other")
    topology.bind(grave, exchange, kind="order")
    topology.bind(other, exchange, kind="bill")
    queue = topology.queue(dead_letter_exchange=exchange)
    die(topology, queue, headers={"kind": "order"})
    assert headers(topology.take_one(grave))["kind"] == "order"
    assert topology.bodies(other) == []


def test_a_fanout_exchange_copies_the_dead_letter(topology: Topology) -> None:
    exchange = topology.exchange("dead")
    graves = [topology.queue("first"), topology.queue("second")]
    for grave in graves:
        topology.bind(grave, exchange)
    queue = topology.queue(dead_letter_exchange=exchange)
    die(topology, queue)
    assert [history(topology.take_one(grave)) for grave in graves] == [[(queue, "rejected", 1)]] * 2


def test_the_default_exchange_leads_to_the_queue_of_the_key(topology: Topology) -> None:
    grave = topology.queue("grave")
    queue = topology.queue(dead_letter_exchange="", dead_letter_routing_key=grave)
    die(topology, queue)
    died = topology.take_one(grave)
    assert (died["exchange"], died["routing_key"]) == ("", grave)


def test_where_the_exchange_is_missing_the_message_is_dropped(topology: Topology) -> None:
    queue = topology.queue(dead_letter_exchange=topology.name("missing"))
    topology.publish(queue, b"dies", b"next")
    topology.reject(*topology.hold(queue))
    assert topology.take_one(queue).body == b"next"


def test_an_exchange_that_is_declared_later_is_used(topology: Topology) -> None:
    queue, grave = topology.queue(dead_letter_exchange=topology.name("later")), topology.queue("grave")
    die(topology, queue, b"too early")
    topology.channel.barrier(queue)
    assert topology.channel.get(queue) is None
    topology.bind(grave, topology.exchange("later"))
    die(topology, queue)
    assert topology.take_one(grave).body == b"dies"


def test_where_no_queue_is_bound_the_message_is_dropped(topology: Topology) -> None:
    queue = topology.queue(dead_letter_exchange=topology.exchange("dead", "direct"))
    topology.publish(queue, b"dies", b"next")
    topology.reject(*topology.hold(queue))
    assert topology.take_one(queue).body == b"next"


def test_an_alternate_exchange_takes_what_finds_no_queue(topology: Topology) -> None:
    alternate, grave = topology.exchange("alternate"), topology.queue("grave")
    topology.bind(grave, alternate)
    exchange = topology.exchange("dead", "direct", **{"alternate-exchange": alternate})
    queue = topology.queue(dead_letter_exchange=exchange)
    die(topology, queue)
    died = topology.take_one(grave)
    assert (died["exchange"], died["routing_key"]) == (exchange, queue)


def test_an_exchange_bound_to_the_dead_letter_exchange_passes_it_on(topology: Topology) -> None:
    source, destination, grave = topology.exchange("dead"), topology.exchange("next"), topology.queue("grave")
    topology.channel.call("exchange.bind", source=source, destination=destination)
    topology.bind(grave, destination)
    queue = topology.queue(dead_letter_exchange=source)
    die(topology, queue)
    assert topology.take_one(grave)["exchange"] == source


def test_an_internal_exchange_takes_dead_letters(topology: Topology) -> None:
    exchange, grave = topology.name("dead"), topology.queue("grave")
    topology.channel.call("exchange.declare", exchange=exchange, type="fanout", internal=True)
    topology.bind(grave, exchange)
    queue = topology.queue(dead_letter_exchange=exchange)
    die(topology, queue)
    assert topology.take_one(grave).body == b"dies"


def test_a_waiting_consumer_gets_the_dead_letter(topology: Topology, connect: Connect) -> None:
    queue = topology.queue(**topology.grave())
    reader = connect().channel()
    reader.call("basic.consume", queue=topology.name("grave"), no_ack=True)
    die(topology, queue)
    died = reader.content()
    assert (died.body, died["redelivered"]) == (b"dies", False)


# -- CC and BCC ------------------------------------------------------------------------------------------------------


def test_all_keys_of_the_message_lead_on(topology: Topology) -> None:
    exchange = topology.exchange("dead", "direct")
    queue = topology.queue(dead_letter_exchange=exchange)
    graves = [topology.queue(label) for label in ("key", "copy", "blind")]
    for grave, key in zip(graves, (queue, "copy", "blind"), strict=True):
        topology.bind(grave, exchange, key)
    die(topology, queue, headers={"CC": ["copy"], "BCC": ["blind"]})
    for grave in graves:
        died = topology.take_one(grave)
        assert died["routing_key"] == queue
        assert deaths(died)[0]["routing-keys"] == [queue, "copy"]
        assert headers(died)["CC"] == ["copy"]
        assert "BCC" not in headers(died)


def test_the_dead_letter_routing_key_replaces_all_keys(topology: Topology) -> None:
    exchange = topology.exchange("dead", "direct")
    queue = topology.queue(dead_letter_exchange=exchange, dead_letter_routing_key="lost")
    lost, copy = topology.queue("lost"), topology.queue("copy")
    topology.bind(lost, exchange, "lost")
    topology.bind(copy, exchange, "copy")
    die(topology, queue, headers={"CC": ["copy"], "note": "stays"})
    died = topology.take_one(lost)
    assert deaths(died)[0]["routing-keys"] == [queue, "copy"]
    assert "CC" not in headers(died)
    assert headers(died)["note"] == "stays"
    assert topology.bodies(copy) == []


# -- what is written on it -------------------------------------------------------------------------------------------


def test_the_entry_of_a_death(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    before = int(time.time())
    die(topology, queue)
    (death,) = deaths(topology.take_one(topology.name("grave")))
    assert before - 1 <= death["time"] <= int(time.time()) + 1
    assert {key: value for key, value in death.items() if key != "time"} == {
        "count": 1,
        "reason": "rejected",
        "queue": queue,
        "exchange": "",
        "routing-keys": [queue],
    }


def test_the_fields_of_an_entry_have_the_types_that_clients_expect(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    die(topology, queue, expiration=str(LONG_MS))
    topology.await_depth(topology.name("grave"), 1)
    header = topology.header_bytes(topology.name("grave"))
    for field, tag in {
        "x-death": "A",
        "count": "l",
        "reason": "S",
        "queue": "S",
        "time": "T",
        "exchange": "S",
        "routing-keys": "A",
        "original-expiration": "S",
        "x-first-death-queue": "S",
        "x-first-death-reason": "S",
        "x-first-death-exchange": "S",
    }.items():
        assert bytes([len(field)]) + field.encode() + tag.encode() in header, field


def test_the_first_death_has_headers_of_its_own(topology: Topology) -> None:
    second = topology.queue("second", **topology.grave())
    first = topology.queue("first", dead_letter_exchange="", dead_letter_routing_key=second)
    fanout = topology.exchange("fanout")
    topology.bind(first, fanout)
    topology.channel.publish(b"dies", exchange=fanout)
    topology.reject(*topology.hold(first))
    topology.reject(*topology.hold(second))
    found = headers(topology.take_one(topology.name("grave")))
    assert found["x-first-death-queue"] == first
    assert found["x-first-death-reason"] == "rejected"
    assert found["x-first-death-exchange"] == fanout


def test_the_last_death_has_headers_of_its_own(topology: Topology, is_rabbitmq_3: bool) -> None:
    if is_rabbitmq_3:
        pytest.skip("new in RabbitMQ 3.13")
    second = topology.queue("second", message_ttl=SHORT_MS, **topology.grave())
    first = topology.queue("first", dead_letter_exchange="", dead_letter_routing_key=second)
    die(topology, first)
    found = headers(topology.take_one(topology.name("grave")))
    assert found["x-last-death-queue"] == second
    assert found["x-last-death-reason"] == "expired"
    assert found["x-last-death-exchange"] == ""
    assert found["x-first-death-reason"] == "rejected"


def test_the_most_recent_death_comes_first(topology: Topology, is_rabbitmq_3: bool) -> None:
    third = topology.queue("third", **topology.grave())
    second = topology.queue("second", dead_letter_exchange="", dead_letter_routing_key=third, message_ttl=SHORT_MS)
    first = topology.queue("first", dead_letter_exchange="", dead_letter_routing_key=second)
    die(topology, first)
    topology.reject(*topology.hold(third))
    died = topology.take_one(topology.name("grave"))
    newest, *older = history(died)
    assert newest == (third, "rejected", 1)
    assert (sorted(older, reverse=True) if is_rabbitmq_3 else older) == [(second, "expired", 1), (first, "rejected", 1)]
    assert {death["queue"]: death["routing-keys"] for death in deaths(died)} == {
        queue: [queue] for queue in (first, second, third)
    }


def test_two_reasons_in_one_queue_have_two_entries(topology: Topology) -> None:
    work, parked = topology.name("work"), topology.name("parked")
    topology.queue("parked", dead_letter_exchange="", dead_letter_routing_key=work)
    topology.queue("work", dead_letter_exchange="", dead_letter_routing_key=parked, max_length=1)
    die(topology, work)
    topology.reject(*topology.hold(parked))
    topology.await_depth(work, 1)
    topology.publish(work, b"pushes the other out")
    newest, *older = history(topology.take_one(parked))
    assert newest == (work, "maxlen", 1)
    assert sorted(older) == [(parked, "rejected", 1), (work, "rejected", 1)]


def test_a_queue_and_a_reason_share_one_entry(topology: Topology) -> None:
    queue = topology.queue(dead_letter_exchange="")
    topology.publish(queue, b"again")
    for _ in range(3):
        topology.reject(*topology.hold(queue))
    assert history(topology.take_one(queue)) == [(queue, "rejected", 3)]


def test_each_queue_of_a_retry_loop_counts_its_own_deaths(topology: Topology) -> None:
    waiting, work = topology.name("waiting"), topology.name("work")
    topology.queue("waiting", dead_letter_exchange="", dead_letter_routing_key=work, message_ttl=SHORT_MS)
    topology.queue("work", dead_letter_exchange="", dead_letter_routing_key=waiting)
    topology.publish(work, b"retry")
    for _ in range(2):
        topology.reject(*topology.hold(work))
    assert history(topology.take_one(work)) == [(waiting, "expired", 2), (work, "rejected", 2)]


def test_an_entry_that_counts_on_moves_to_the_front_and_keeps_its_first_time(topology: Topology) -> None:
    work, waiting = topology.name("work"), topology.name("waiting")
    topology.queue("waiting", dead_letter_exchange="", dead_letter_routing_key=work)
    topology.queue("work", dead_letter_exchange="", dead_letter_routing_key=waiting)
    topology.publish(work, b"retry")
    topology.reject(*topology.hold(work))
    topology.reject(*topology.hold(waiting))
    (message,) = topology.take(work, no_ack=False)
    assert history(message) == [(waiting, "rejected", 1), (work, "rejected", 1)]
    times = {death["queue"]: death["time"] for death in deaths(message)}
    topology.let_pass(1100)
    topology.reject(message["delivery_tag"])
    again = topology.take_one(waiting)
    assert history(again) == [(work, "rejected", 2), (waiting, "rejected", 1)]
    assert {death["queue"]: death["time"] for death in deaths(again)} == times


def test_the_headers_of_the_publisher_stay(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    given = {"note": "mine", "count": 7, "list": [1, "two"], "table": {"deep": True}}
    die(topology, queue, headers=given)
    found = headers(topology.take_one(topology.name("grave")))
    assert {key: value for key, value in found.items() if key in given} == given


def test_all_properties_but_the_expiration_stay(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    given: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 3,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
    }
    die(topology, queue, expiration=str(LONG_MS), **given)
    died = topology.take_one(topology.name("grave"))
    assert {key: value for key, value in died.properties.items() if key != "headers"} == given
    assert died.body == b"dies"


@pytest.mark.parametrize("reason", ["expired", "rejected", "maxlen"])
def test_the_expiration_is_removed_and_noted(topology: Topology, reason: str) -> None:
    queue = topology.queue(**topology.grave(), **({"max_length": 0} if reason == "maxlen" else {}))
    topology.publish(queue, b"dies", expiration=SOON if reason == "expired" else str(LONG_MS))
    if reason == "rejected":
        topology.reject(*topology.hold(queue))
    died = topology.take_one(topology.name("grave"))
    assert history(died) == [(queue, reason, 1)]
    assert deaths(died)[0]["original-expiration"] == (SOON if reason == "expired" else str(LONG_MS))
    assert "expiration" not in died.properties


def test_without_an_expiration_none_is_noted(topology: Topology) -> None:
    queue = topology.queue(message_ttl=SHORT_MS, **topology.grave())
    topology.publish(queue, b"dies")
    assert "original-expiration" not in deaths(topology.take_one(topology.name("grave")))[0]


def test_the_expired_message_does_not_expire_again(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"dies", expiration=SOON)
    topology.await_depth(topology.name("grave"), 1)
    topology.let_pass(2 * SHORT_MS)
    assert topology.bodies(topology.name("grave")) == [b"dies"]


def test_the_ttl_of_the_next_queue_begins_anew(topology: Topology) -> None:
    second = topology.queue("second", message_ttl=SHORT_MS, **topology.grave())
    first = topology.queue("first", message_ttl=SHORT_MS, dead_letter_exchange="", dead_letter_routing_key=second)
    topology.publish(first, b"dies")
    assert history(topology.take_one(topology.name("grave"))) == [(second, "expired", 1), (first, "expired", 1)]


def test_deaths_that_a_publisher_wrote_are_not_counted_on(topology: Topology, is_rabbitmq_3: bool) -> None:
    queue = topology.queue(**topology.grave())
    claimed = {"count": 5, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}
    die(topology, queue, headers={"x-death": [claimed]})
    died = topology.take_one(topology.name("grave"))
    assert history(died) == [(queue, "rejected", 6 if is_rabbitmq_3 else 1)]


def test_a_header_that_is_no_list_of_deaths_is_replaced(topology: Topology) -> None:
    queue = topology.queue(**topology.grave())
    die(topology, queue, headers={"x-death": "a text"})
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "rejected", 1)]


def test_a_consumer_may_publish_a_dead_letter_again(topology: Topology, is_rabbitmq_3: bool) -> None:
    queue = topology.queue(**topology.grave())
    die(topology, queue)
    died = topology.take_one(topology.name("grave"))
    topology.channel.publish(died.body, died.properties, routing_key=queue)
    topology.reject(*topology.hold(queue))
    again = topology.take_one(topology.name("grave"))
    assert history(again) == [(queue, "rejected", 2 if is_rabbitmq_3 else 1)]


# -- cycles ----------------------------------------------------------------------------------------------------------


def test_a_message_that_expires_back_into_its_queue_is_dropped(topology: Topology) -> None:
    queue = topology.queue(message_ttl=SHORT_MS, dead_letter_exchange="")
    topology.publish(queue, b"cycles")
    topology.await_depth(queue, 0)
    topology.let_pass(2 * SHORT_MS)
    assert topology.bodies(queue) == []


def test_a_message_that_expires_round_a_cycle_of_queues_is_dropped(topology: Topology) -> None:
    first, second = topology.name("first"), topology.name("second")
    topology.queue("second", message_ttl=SHORT_MS, dead_letter_exchange="", dead_letter_routing_key=first)
    topology.queue("first", message_ttl=SHORT_MS, dead_letter_exchange="", dead_letter_routing_key=second)
    topology.publish(first, b"cycles")
    topology.let_pass(6 * SHORT_MS)
    topology.await_depth(first, 0)
    topology.await_depth(second, 0)
    assert topology.bodies(first) + topology.bodies(second) == []


def test_a_cycle_with_a_rejection_goes_on(topology: Topology) -> None:
    work, waiting = topology.name("work"), topology.name("waiting")
    topology.queue("waiting", message_ttl=SHORT_MS, dead_letter_exchange="", dead_letter_routing_key=work)
    topology.queue("work", dead_letter_exchange="", dead_letter_routing_key=waiting)
    topology.publish(work, b"retry")
    for round_number in range(1, 4):
        topology.reject(*topology.hold(work))
        (message,) = topology.take(work, no_ack=False)
        assert history(message) == [(waiting, "expired", round_number), (work, "rejected", round_number)]
        topology.reject(message["delivery_tag"], requeue=True)


def test_a_rejected_message_goes_back_into_its_own_queue(topology: Topology) -> None:
    queue = topology.queue(dead_letter_exchange="")
    topology.publish(queue, b"first", b"second")
    topology.reject(*topology.hold(queue))
    topology.await_depth(queue, 2)
    again = topology.take(queue, 2)
    assert [(message.body, message["redelivered"]) for message in again] == [(b"second", False), (b"first", False)]


def test_a_message_that_was_rejected_before_the_cycle_is_dropped_in_it(topology: Topology) -> None:
    exchange = topology.exchange("round")
    cycle, grave = topology.queue("cycle", message_ttl=SHORT_MS, dead_letter_exchange=exchange), topology.queue("grave")
    for queue in (cycle, grave):
        topology.bind(queue, exchange)
    first = topology.queue("first", dead_letter_exchange="", dead_letter_routing_key=cycle)
    die(topology, first)
    died = topology.take_one(grave)
    assert history(died) == [(cycle, "expired", 1), (first, "rejected", 1)]
    topology.let_pass(3 * SHORT_MS)
    assert topology.bodies(cycle) == []
    assert topology.bodies(grave) == []


def test_only_the_queue_of_the_cycle_is_left_out(topology: Topology) -> None:
    exchange = topology.exchange("round")
    cycle, grave = topology.queue("cycle", message_ttl=SHORT_MS, dead_letter_exchange=exchange), topology.queue("grave")
    for queue in (cycle, grave):
        topology.bind(queue, exchange)
    topology.publish(cycle, b"cycles")
    assert history(topology.take_one(grave)) == [(cycle, "expired", 1)]
    topology.let_pass(3 * SHORT_MS)
    assert topology.bodies(cycle) + topology.bodies(grave) == []


def test_a_message_dropped_by_the_limit_does_not_return_to_its_queue(topology: Topology) -> None:
    queue = topology.queue(max_length=1, dead_letter_exchange="")
    topology.publish(queue, b"one", b"two", b"three")
    topology.channel.barrier(queue)
    topology.await_depth(queue, 1)
    assert topology.bodies(queue) == [b"three"]


# -- transactions and confirms ---------------------------------------------------------------------------------------


def test_a_rejection_in_a_transaction_dead_letters_at_the_commit(topology: Topology, connect: Connect) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"dies")
    worker = Topology(connect().channel(), topology.name)
    worker.channel.call("tx.select")
    worker.reject(*worker.hold(queue))
    worker.channel.barrier(queue)
    assert topology.bodies(topology.name("grave")) == []
    worker.channel.call("tx.commit")
    assert history(topology.take_one(topology.name("grave"))) == [(queue, "rejected", 1)]


def test_a_rejection_that_is_rolled_back_dead_letters_nothing(topology: Topology, connect: Connect) -> None:
    queue = topology.queue(**topology.grave())
    topology.publish(queue, b"lives")
    worker = Topology(connect().channel(), topology.name)
    worker.channel.call("tx.select")
    worker.reject(*worker.hold(queue))
    worker.channel.call("tx.rollback")
    worker.channel.close()
    assert topology.take_one(queue).body == b"lives"
    assert topology.bodies(topology.name("grave")) == []


def test_confirms_do_not_depend_on_dead_letters(topology: Topology) -> None:
    queue = topology.queue(max_length=0, dead_letter_exchange=topology.name("missing"))
    topology.confirm()
    topology.publish(queue, b"one", b"two")
    assert topology.answers(2) == ["ack", "ack"]


def test_a_dead_letter_is_never_returned_to_the_publisher(topology: Topology, channel: WireChannel) -> None:
    queue = topology.queue(max_length=0, dead_letter_exchange=topology.exchange("dead"))
    topology.confirm()
    channel.publish(b"one", routing_key=queue, mandatory=True)
    assert topology.answers(1) == ["ack"]
    channel.barrier(queue)
