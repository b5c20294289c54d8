"""Policies: which one applies, what it changes and when, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.client import Client, ClientChannel, advance, make_broker
from warrenmq.core.broker import Broker
from warrenmq.core.options import DEFAULT_DELIVERY_LIMIT, DROP_HEAD, REJECT_PUBLISH, QueueOptions
from warrenmq.core.policies import APPLY_COST, MAX_POLICIES, SLICE, InvalidPolicy, Policies
from warrenmq.core.policy_keys import KEYS, keys_without_effect
from warrenmq.core.queue import Queue
from warrenmq.core.restore import restore_queue
from warrenmq.core.snapshot import PolicyView, policy_view
from warrenmq.core.vhost import VHost
from warrenmq.storage.memory_store import MemoryStorage

TYPES = ("classic", "quorum", "stream")


@pytest.fixture
def vhost(broker: Broker) -> VHost:
    return broker.vhosts["/"]


@pytest.fixture
def policies(vhost: VHost) -> Policies:
    return vhost.policies


def declare(vhost: VHost, name: str, type: str = "classic", **arguments: Any) -> Queue:
    given = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    return vhost.declare_queue(name, True, False, False, {"x-queue-type": type, **given}, None)


def name_of(vhost: VHost, queue: Queue) -> str | None:
    return policy_view(vhost, queue).policy


# -- which one applies


def test_a_policy_applies_to_queues_that_exist_and_to_those_declared_later(vhost: VHost, policies: Policies) -> None:
    before = declare(vhost, "logs.a")
    other = declare(vhost, "orders")
    assert policies.set("limit", "^logs", {"max-length": 5, "message-ttl": 100}) is True
    after = declare(vhost, "logs.b")
    for queue in (before, after):
        assert (queue.options.max_length, queue.options.message_ttl_ms) == (5, 100)
    assert other.options == QueueOptions(is_durable=True)


def test_a_policy_that_is_cleared_or_replaced_applies_no_more(vhost: VHost, policies: Policies) -> None:
    queue = declare(vhost, "q", max_length=9)
    declared = queue.options
    policies.set("limit", "^q", {"max-length": 5})
    assert policies.set("limit", "^q", {"message-ttl": 5}) is False
    assert (queue.options.max_length, queue.options.message_ttl_ms) == (9, 5)
    policies.set("limit", "^x", {"message-ttl": 5})
    assert queue.options == declared
    policies.set("limit", "^q", {"message-ttl": 5})
    assert policies.clear("limit") is True
    assert queue.options == declared
    assert policy_view(vhost, queue) == PolicyView(None, None, {})
    assert policies.clear("limit") is False


def test_the_highest_priority_applies_and_of_equal_ones_the_first_by_name(vhost: VHost, policies: Policies) -> None:
    queue = declare(vhost, "q")
    for name, priority in (("zeta", 1), ("middle", 1), ("low", -7), ("half", 0.5)):
        policies.set(name, "", {"max-length": len(name)}, priority)
    assert (name_of(vhost, queue), queue.options.max_length) == ("middle", 6)
    policies.set("alpha", "", {"message-ttl": 1}, 1)
    assert (name_of(vhost, queue), queue.options.max_length) == ("alpha", None)
    left = []
    while (applied := name_of(vhost, queue)) is not None:
        left.append(applied)
        policies.clear(applied)
    assert left == ["alpha", "middle", "zeta", "half", "low"]
    assert policies.list() == []


def test_a_policy_whose_priority_falls_makes_room_for_another(vhost: VHost, policies: Policies) -> None:
    queue = declare(vhost, "q")
    policies.set("a", "", {"max-length": 1}, 5)
    policies.set("b", "", {"max-length": 2}, 4)
    policies.set("a", "", {"max-length": 1}, 3)
    assert queue.options.max_length == 2
    assert [policy.name for policy in policies.list()] == ["b", "a"]


@pytest.mark.parametrize(
    ("apply_to", "types"),
    [
        ("all", {"classic", "quorum", "stream", "exchange"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", {"exchange"}),
    ],
)
def test_apply_to_names_the_types(vhost: VHost, policies: Policies, apply_to: str, types: set[str]) -> None:
    queues = [declare(vhost, type, type) for type in TYPES]
    policies.set("p", "", {"max-length-bytes": 5, "alternate-exchange": "amq.fanout"}, apply_to=apply_to)
    found = {queue.name for queue in queues if queue.options.max_length_bytes == 5}
    assert found == types - {"exchange"}
    assert (vhost.exchanges["amq.direct"].alternate == "amq.fanout") is ("exchange" in types)


def test_a_policy_with_a_key_that_a_type_does_not_support_leaves_that_type_to_others(
    vhost: VHost, policies: Policies
) -> None:
    queues = {type: declare(vhost, type, type) for type in TYPES}
    policies.set("quorum", "", {"delivery-limit": 3, "max-length-bytes": 1}, 9)
    policies.set("streams", "", {"max-age": "1h", "max-length-bytes": 2}, 8)
    policies.set("mirrors", "", {"ha-mode": "all", "max-length-bytes": 3}, 7)
    assert {type: name_of(vhost, queue) for type, queue in queues.items()} == {
        "classic": "mirrors",
        "quorum": "quorum",
        "stream": "streams",
    }
    assert queues["stream"].options.max_age_ms == 3_600_000
    assert queues["quorum"].options.delivery_limit == 3


def test_no_policy_applies_to_what_is_the_brokers_own(broker: Broker, vhost: VHost, policies: Policies) -> None:
    own = vhost.declare_queue("warren.analysis", True, False, False, {"x-queue-type": "stream"}, None)
    reader = declare(vhost, "warren.reader.one")
    policies.set("all", "", {"max-length-bytes": 1, "alternate-exchange": "amq.fanout"})
    policies.set("bound", "", {"max-length-bytes": 1}, is_operator=True)
    broker.add_vhost("other")
    again = broker.vhosts["other"].declare_queue("q", False, False, False, {}, None)
    assert (own.options.max_length_bytes, reader.options.max_length_bytes, again.options.max_length_bytes) == (
        None,
        1,
        None,
    )
    assert vhost.exchanges[""].alternate is None


def test_exclusive_and_server_named_queues_have_policies_too(channel: ClientChannel, policies: Policies) -> None:
    policies.set("p", r"^amq\.gen-", {"expires": 1000})
    assert channel.declare(exclusive=True).options.unused_ms == 1000


def test_what_is_deleted_and_declared_again_is_matched_again(vhost: VHost, policies: Policies) -> None:
    policies.set("p", "", {"max-length": 5})
    queue = declare(vhost, "q")
    vhost.remove_queue(queue)
    assert policy_view(vhost, queue).policy is None
    policies.clear("p")
    policies.set("o", "", {"max-length": 6})
    assert declare(vhost, "q").options.max_length == 6


def test_a_redeclaration_compares_arguments_only(vhost: VHost, policies: Policies) -> None:
    queue = declare(vhost, "q", max_length=9)
    policies.set("p", "", {"max-length": 5})
    assert declare(vhost, "q", max_length=9) is queue
    assert queue.arguments["x-max-length"] == 9


# -- many queues


def test_a_policy_for_many_queues_is_applied_in_several_turns(broker: Broker, vhost: VHost, policies: Policies) -> None:
    queues = [declare(vhost, f"q{number}") for number in range(3 * SLICE // APPLY_COST)]
    policies.set("limit", "", {"max-length": 5})
    applied = []
    while (count := sum(queue.options.max_length == 5 for queue in queues)) < len(queues):
        applied.append(count)
        assert len(applied) < 10
        broker.timers.advance(broker.turn.now_ms)
    assert len(applied) > 2
    assert applied[0] <= SLICE // APPLY_COST


def test_changes_while_a_policy_is_applied_come_after_it(broker: Broker, vhost: VHost, policies: Policies) -> None:
    queues = [declare(vhost, f"q{number}") for number in range(SLICE)]
    policies.set("a", "", {"max-length": 5}, 1)
    policies.set("b", "", {"max-length": 6}, 2)
    policies.set("a", "", {"max-length": 7}, 1)
    late = declare(vhost, "late")
    vhost.delete_queue("q999", None, False, False)
    again = declare(vhost, "q999")
    assert (late.options.max_length, again.options.max_length) == (6, 6)
    policies.clear("b")
    advance(broker, 0)
    left = [queue for queue in queues if queue.name != "q999"] + [late, again]
    assert {queue.options.max_length for queue in left} == {7}


def test_no_pass_goes_on_in_a_virtual_host_that_is_deleted(broker: Broker) -> None:
    vhost = broker.add_vhost("busy")
    queues = [declare(vhost, f"q{number}") for number in range(SLICE)]
    vhost.policies.set("limit", "", {"max-length": 5})
    limited = [queue.options.max_length for queue in queues]
    assert limited[-1] is None
    broker.delete_vhost("busy")
    advance(broker, 0)
    assert [queue.options.max_length for queue in queues] == limited


# -- what it changes


@pytest.mark.parametrize("key", ["message-ttl", "expires", "max-length", "max-length-bytes", "consumer-timeout"])
def test_the_lower_limit_holds(vhost: VHost, policies: Policies, key: str) -> None:
    field = {
        "message-ttl": "message_ttl_ms",
        "expires": "unused_ms",
        "max-length": "max_length",
        "max-length-bytes": "max_length_bytes",
        "consumer-timeout": "consumer_timeout_ms",
    }[key]
    queue = vhost.declare_queue("q", True, False, False, {"x-" + key: 50}, None)
    for value, effective in ((40, 40), (60, 50)):
        policies.set("p", "", {key: value})
        assert getattr(queue.options, field) == effective
    for value, effective in ((30, 30), (55, 50)):
        policies.set("o", "", {key: value}, is_operator=True)
        assert getattr(queue.options, field) == effective


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "effective"),
    [
        (None, None, None, DEFAULT_DELIVERY_LIMIT),
        (5, None, None, 5),
        (-1, None, None, None),
        (-1, 7, None, 7),
        (9, -1, None, 9),
        (9, 7, None, 7),
        (None, -1, 4, 4),
        (None, 7, -1, 7),
        (-1, -5, -2, None),
    ],
)
def test_a_negative_delivery_limit_is_none(
    vhost: VHost,
    policies: Policies,
    argument: int | None,
    policy: int | None,
    operator: int | None,
    effective: int | None,
) -> None:
    if policy is not None:
        policies.set("p", "", {"delivery-limit": policy})
    if operator is not None:
        policies.set("o", "", {"delivery-limit": operator}, is_operator=True)
    queue = declare(vhost, "q", "quorum", **({} if argument is None else {"delivery_limit": argument}))
    assert queue.options.delivery_limit == effective


def test_other_arguments_win_over_the_policy(vhost: VHost, policies: Policies) -> None:
    policies.set("p", "", {"dead-letter-exchange": "policy", "dead-letter-routing-key": "k", "overflow": DROP_HEAD})
    queue = declare(vhost, "q", dead_letter_exchange="argument", overflow=REJECT_PUBLISH)
    assert queue.options.dead_letter_exchange == "argument"
    assert queue.options.dead_letter_routing_key == "k"
    assert queue.options.overflow == REJECT_PUBLISH


def test_the_overflow_of_a_quorum_queue_is_that_of_the_operator_policy_then_of_the_policy(
    vhost: VHost, policies: Policies
) -> None:
    queue = declare(vhost, "q", "quorum", overflow=DROP_HEAD)
    policies.set("p", "", {"overflow": REJECT_PUBLISH})
    assert queue.options.overflow == REJECT_PUBLISH
    policies.set("o", "", {"overflow": DROP_HEAD}, is_operator=True)
    assert queue.options.overflow == DROP_HEAD


def test_limits_of_streams_are_those_of_the_policy_and_an_operator_policy_never_raises_them(
    vhost: VHost, policies: Policies
) -> None:
    arguments = {"max_length_bytes": 50, "max_age": "1s", "stream_max_segment_size_bytes": 5}
    queue = declare(vhost, "s", "stream", **arguments)
    policies.set("o", "", {"max-length-bytes": 60}, is_operator=True)
    assert queue.options.max_length_bytes == 50
    policies.set("p", "", {"max-length-bytes": 70, "max-age": "2s", "stream-max-segment-size-bytes": 9})
    assert queue.options == QueueOptions(
        "stream", is_durable=True, max_length_bytes=60, max_age_ms=2000, segment_bytes=9
    )
    policies.clear("o", is_operator=True)
    assert queue.options.max_length_bytes == 70


def test_at_least_once_needs_a_quorum_queue_that_rejects_publishes(broker: Broker, vhost: VHost) -> None:
    heard: list[str] = []
    broker.warning_log.on_warning = heard.append
    queue = declare(vhost, "q", "quorum", dead_letter_exchange="x", dead_letter_strategy="at-least-once")
    assert not queue.options.is_dead_letter_at_least_once
    assert "falls back to dead-letter-strategy at-most-once" in heard[0]
    vhost.policies.set("p", "", {"overflow": REJECT_PUBLISH})
    assert queue.options.is_dead_letter_at_least_once


def test_an_alternate_exchange_by_policy_takes_what_finds_no_queue(channel: ClientChannel, policies: Policies) -> None:
    queue = channel.declare("lost")
    channel.bind("amq.fanout", queue)
    own = channel.declare_exchange("own", alternate="amq.direct")
    exchange = channel.declare_exchange("orders")
    channel.publish(b"0", "nowhere", "orders")
    policies.set("p", "^(orders|own)$", {"alternate-exchange": "amq.fanout"}, apply_to="exchanges")
    channel.publish(b"1", "nowhere", "orders")
    assert (exchange.alternate, own.alternate) == ("amq.fanout", "amq.direct")
    assert channel.declare_exchange("orders.new").alternate is None
    policies.clear("p")
    channel.publish(b"2", "nowhere", "orders")
    assert queue.message_count() == 1


def test_a_queue_shows_which_policies_apply_and_what_they_set(vhost: VHost, policies: Policies) -> None:
    queue = declare(vhost, "q")
    policies.set("p", "", {"max-length": 9, "message-ttl": 5})
    policies.set("o", "", {"max-length": 7, "expires": 8}, is_operator=True)
    settings = {"max-length": 7, "message-ttl": 5, "expires": 8}
    assert policy_view(vhost, queue) == PolicyView("p", "o", settings)
    assert policy_view(vhost, vhost.exchanges["amq.topic"]) == PolicyView("p", "o", settings)


def test_type_durability_and_deduplication_stay(vhost: VHost, policies: Policies) -> None:
    queue = declare(vhost, "q", "quorum", durability="os", message_deduplication=True)
    declared = queue.options
    policies.set("p", "", {"max-length": 9})
    for field in ("type", "is_durable", "durability", "deduplication"):
        assert getattr(queue.options, field) == getattr(declared, field)


def test_arguments_that_an_older_version_did_not_check_do_not_count(vhost: VHost, policies: Policies) -> None:
    wrong = {
        "x-queue-type": "quorum",
        "x-delivery-limit": "many",
        "x-consumer-timeout": {},
        "x-dead-letter-strategy": 1,
    }
    restore_queue(vhost, {"name": "old", "auto_delete": False, "arguments": wrong})
    queue = vhost.queues["old"]
    assert (queue.options.delivery_limit, queue.options.consumer_timeout_ms) == (DEFAULT_DELIVERY_LIMIT, None)
    policies.set("p", "", {"delivery-limit": 5, "consumer-timeout": 6})
    assert (queue.options.delivery_limit, queue.options.consumer_timeout_ms) == (5, 6)


# -- what is refused


@pytest.mark.parametrize(
    ("definition", "complaint"),
    [
        ({}, "no policy provided"),
        ([], "definition must be a dictionary: []"),
        ("x", 'definition must be a dictionary: <<"x">>'),
        ({"foo": "bar"}, '[{<<"foo">>,<<"bar">>}] are not recognised policy settings'),
        (
            {"foo": 1, "bar": [1, "x", {"y": None}]},
            '[{<<"bar">>,[1,<<"x">>,#{<<"y">> => null}]},{<<"foo">>,1}] are not recognised policy settings',
        ),
        ({"max-priority": 5}, '[{<<"max-priority">>,5}] are not recognised policy settings'),
        ({"single-active-consumer": True}, '[{<<"single-active-consumer">>,true}] are not recognised policy settings'),
        ({"queue-type": "quorum"}, '[{<<"queue-type">>,<<"quorum">>}] are not recognised policy settings'),
        (
            {"federation-upstream": "all"},
            '[{<<"federation-upstream">>,<<"all">>}] are not recognised policy settings: '
            "WarrenMQ has no federation, leave the key out",
        ),
        ({"foo": 1, "max-length": -1}, "-1 is not a valid maximum length"),
        ({"message-ttl": -1, "expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": "5"}, '<<"5">> is not a valid maximum length'),
        ({"max-length": True}, "true is not a valid maximum length"),
        ({"max-length": None}, "null is not a valid maximum length"),
        ({"max-length": 5.5}, "5.5 is not a valid maximum length"),
        ({"max-length": 1 << 63}, f"{1 << 63} is not a valid maximum length"),
        ({"message-ttl": "1h"}, '<<"1h">> is not a valid message TTL'),
        ({"overflow": "x"}, '<<"x">> is not a valid overflow value'),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-strategy": "twice"}, '<<"twice">> is not a valid dead letter strategy'),
        ({"delivery-limit": "no"}, '<<"no">> is not a valid delivery limit'),
        ({"max-age": "1x"}, '<<"1x">> is not a valid max age'),
        ({"max-age": 3}, "3 is not a valid max age"),
        ({"alternate-exchange": None}, "null is not a valid alternate exchange name"),
        ({"queue-mode": "é"}, '<<"é">> is not a valid queue-mode value'),
        ({"queue-version": True}, "true is not a valid queue-version value"),
        ({"ha-params": {}}, "#{} is not a valid ha-params value"),
        ({"overflow": "\udce9"}, '<<"\ufffd\ufffd\ufffd">> is not a valid overflow value'),
    ],
)
def test_a_definition_that_is_not_valid_is_refused_with_rabbitmqs_text(
    policies: Policies, definition: Any, complaint: str
) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        policies.set("p", "", definition)
    assert str(refused.value) == f"Validation failed\n\n{complaint}\n"
    assert policies.list() == []


def test_all_faults_are_reported_in_rabbitmqs_order(policies: Policies) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        policies.set("p", "(", {"max-length": -5}, "x", "foo")
    assert str(refused.value).splitlines() == [
        "Validation failed",
        "",
        "-5 is not a valid maximum length",
        "apply-to 'foo' unrecognised; should be one of: 'queues', 'classic_queues', 'quorum_queues', 'streams', "
        "'exchanges', or 'all'",
        "pattern should be regular expression but is invalid: missing ): (",
        'priority should be a number, actually was <<"x">>',
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"pattern": 1}, {"priority": None}, {"priority": True}, {"priority": math.nan}, {"apply_to": 7}, {"name": ""}],
)
def test_a_policy_with_a_wrong_field_is_refused(policies: Policies, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicy):
        policies.set(**{"name": "p", "pattern": "", "definition": {"max-length": 1}, **wrong})


@pytest.mark.parametrize("key", sorted(KEYS))
def test_operator_policies_allow_limits_and_no_more(policies: Policies, key: str) -> None:
    allowed = {"consumer-timeout", "delivery-limit", "expires", "max-length", "max-length-bytes", "message-ttl"}
    allowed |= {"overflow", "queue-version", "queue-master-locator", "target-group-size", "member-placement-tag"}
    allowed |= {"max-in-memory-length", "max-in-memory-bytes"}
    samples = {"overflow": "drop-head", "queue-version": 2, "queue-master-locator": "client-local"}
    samples |= {"member-placement-tag": "a", "ha-params": 2, "ha-sync-batch-size": 2}
    value: Any = samples.get(key, "all" if key.startswith("ha-") else 5)
    if key in allowed or key.startswith("ha-"):
        assert policies.set("o", "", {key: value}, is_operator=True)
    else:
        with pytest.raises(InvalidPolicy, match="are not recognised policy settings"):
            policies.set("o", "", {key: value}, is_operator=True)


def test_keys_of_clusters_are_accepted_with_a_remark(broker: Broker, policies: Policies) -> None:
    heard: list[str] = []
    broker.warning_log.on_warning = heard.append
    definition = {"ha-mode": "exactly", "ha-params": 2, "queue-mode": "lazy", "max-length": 5}
    assert policies.set("mirrored", "", definition)
    assert heard == ["policy 'mirrored' in vhost '/' has keys without effect: ha-mode, ha-params, queue-mode"]
    assert keys_without_effect(definition) == ["ha-mode", "ha-params", "queue-mode"]
    assert policies.list()[0].definition == definition


def test_there_is_a_limit_of_policies(policies: Policies) -> None:
    for number in range(MAX_POLICIES):
        policies.set(str(number), "^x", {"max-length": 1})
    with pytest.raises(InvalidPolicy, match="the most"):
        policies.set("more", "^x", {"max-length": 1})
    policies.set("0", "^y", {"max-length": 1})
    policies.set("more", "^x", {"max-length": 1}, is_operator=True)


def test_a_pattern_that_would_take_re_for_ever_does_not_stall(vhost: VHost, policies: Policies) -> None:
    for number in range(200):
        declare(vhost, "a" * 200 + str(number))
    policies.set("slow", "^(([a-z])+)+$", {"max-length": 1})
    assert all(queue.options.max_length is None for queue in vhost.queues.values())


# -- they are kept


def test_policies_apply_after_a_restart_to_what_was_declared_before_and_after() -> None:
    storage = MemoryStorage()
    first = make_broker(storage).vhosts["/"]
    declare(first, "q", max_length=9)
    first.declare_exchange("x", "direct", True, False, False, {})
    first.policies.set("p", "", {"max-length": 5, "alternate-exchange": "amq.fanout"}, 1.5, "all")
    first.policies.set("o", "", {"message-ttl": 7}, is_operator=True)
    second = make_broker(storage).vhosts["/"]
    for queue in (second.queues["q"], declare(second, "new")):
        assert (queue.options.max_length, queue.options.message_ttl_ms) == (5, 7)
    assert second.exchanges["x"].alternate == second.exchanges["amq.topic"].alternate == "amq.fanout"
    assert second.policies.list() == first.policies.list()
    assert second.policies.list(is_operator=True) == first.policies.list(is_operator=True)


def test_a_policy_that_is_set_as_it_is_writes_nothing(broker: Broker, policies: Policies) -> None:
    policies.set("p", "", {"max-length": 5})
    work = broker.catalog.load("policy")
    broker.turn.has_defined = False
    policies.set("p", "", {"max-length": 5})
    assert broker.catalog.load("policy") == work
    assert not broker.turn.has_defined


def test_a_kept_policy_that_is_not_valid_stays_listed_and_applies_to_nothing() -> None:
    storage = MemoryStorage()
    kept = {"pattern": "", "definition": {"from-the-future": 1, "max-length": 1}, "priority": 0, "apply-to": "all"}
    make_broker(storage)
    storage.catalog.save("policy", ("/", "odd"), {"vhost": "/", "name": "odd", "arguments": kept})
    broker = make_broker(storage)
    assert "policy 'odd' in vhost '/' is not valid and not applied" in broker.recovery_warnings[0]
    vhost = broker.vhosts["/"]
    assert declare(vhost, "q").options.max_length is None
    assert [policy.name for policy in vhost.policies.list()] == ["odd"]
    assert vhost.policies.set("odd", "", {"max-length": 1}) is False
    assert vhost.queues["q"].options.max_length == 1


def test_the_policies_of_a_virtual_host_are_deleted_with_it() -> None:
    storage = MemoryStorage()
    broker = make_broker(storage)
    policies = broker.add_vhost("other").policies
    policies.set("p", "", {"max-length": 5})
    policies.set("o", "", {"max-length": 5}, is_operator=True)
    broker.delete_vhost("other")
    assert [*storage.catalog.load("policy"), *storage.catalog.load("operator_policy")] == []
    assert make_broker(storage).add_vhost("other").policies.list() == []


# -- arguments


@pytest.mark.parametrize(
    ("argument", "value", "complaint"),
    [
        ("x-delivery-limit", "many", "expected integer, got longstr"),
        ("x-consumer-timeout", "1s", "expected integer, got longstr"),
        ("x-consumer-timeout", -1, "{value_negative,-1}"),
        ("x-dead-letter-strategy", "twice", "invalid_dlx_strategy"),
        ("x-dead-letter-strategy", 1, "{unacceptable_type,signedint}"),
    ],
)
def test_arguments_of_quorum_queues_are_checked(vhost: VHost, argument: str, value: Any, complaint: str) -> None:
    with pytest.raises(Exception, match=argument) as refused:
        vhost.declare_queue("q", True, False, False, {"x-queue-type": "quorum", argument: value}, None)
    assert complaint in str(refused.value)
    vhost.declare_queue("q", True, False, False, {"x-queue-type": "quorum", "x-delivery-limit": -1}, None)


def test_a_consumer_may_ask_to_be_cancelled_on_failover() -> None:
    channel = Client(make_broker()).channel()
    queue = channel.declare("q")
    channel.consume(queue, arguments={"x-cancel-on-ha-failover": True})
    channel.publish(b"x", "q")
    assert len(channel.deliveries()) == 1
