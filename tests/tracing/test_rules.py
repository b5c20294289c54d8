"""Rules: what a person may write, what it means, and that samples are of whole biographies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.client import ClientChannel
from tests.support.storage import ManualStorage
from tests.support.tracing import TracedBroker
from warrenmq.core.message import address_of
from warrenmq.events import schema
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.memory_store import MemoryStorage
from warrenmq.tracing import rules as module
from warrenmq.tracing.rules import RuleBook, TraceRule, parse_rule, rules_of_flag


def test_a_rule_comes_back_as_it_was_written() -> None:
    definition = {"vhost": "a", "exchange": "^e", "queue": "q", "header": {"h": 1}, "ratio": 0.5, "enabled": False}
    rule = parse_rule("r", definition)
    assert rule == TraceRule("r", "a", "^e", "q", {"h": 1}, 0.5, False)
    assert rule.definition() == definition
    assert parse_rule("r", {}) == TraceRule("r")
    assert parse_rule("r", {"vhost": "*", "exchange": "", "queue": None}) == TraceRule("r")


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ({"ratio": 1.5}, "ratio is a number from 0 to 1"),
        ({"ratio": "all"}, "ratio is a number from 0 to 1"),
        ({"ratio": True}, "ratio is a number from 0 to 1"),
        ({"enabled": 1}, "enabled is true or false"),
        ({"queues": "q"}, "a rule has no 'queues'"),
        ({"queue": "("}, "queue is no regular expression"),
        ({"queue": 5}, "queue is a name or a pattern"),
        ({"header": []}, None),
        ({"header": ["a"]}, "header is an object"),
        ({"header": {"a": {}}}, "the header 'a' is compared with"),
        ({"header": {"a": "["}}, "the header 'a' is no regular expression"),
        ({"queue": r"(a)\1"}, "queue is no regular expression: .*backreferences"),
        ({"queue": "(" * 400 + ")" * 400 + "{1000}{1000}"}, "queue is no regular expression"),
        ({"queue": "x" * 1001}, "queue has 1001 characters, at most 1000 are allowed"),
        ({"ratio": float("nan")}, "ratio is a number from 0 to 1"),
        ({"ratio": float("inf")}, "ratio is a number from 0 to 1"),
        ({"header": {"a": float("nan")}}, "the header 'a' is compared with"),
        ({"header": {"a": float("inf")}}, "the header 'a' is compared with"),
        ({"header": {"a": 1 << 63}}, "the header 'a' needs a number of at most 64 bits"),
        ({"header": {"a" * 256: 1}}, "the name of a header has at most 255 bytes"),
        ({"header": {str(number): 1 for number in range(17)}}, "at most 16 are allowed"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(definition: dict[str, Any], why: str | None) -> None:
    if why is None:
        parse_rule("r", definition)
        return
    with pytest.raises(ValueError, match=why):
        parse_rule("r", definition)


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128])
def test_a_rule_needs_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="a name of at most 255 bytes"):
        parse_rule(name, {})


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders.eu", "my-orders"]),
        ("orders.eu", ["orders.eu"], ["orders-eu"]),
        ("^orders", ["orders", "orders.eu"], ["my-orders"]),
        (r"orders\.(eu|us)$", ["orders.eu", "my-orders.us"], ["orders.asia"]),
        ("*", ["", "anything"], []),
    ],
)
def test_patterns(pattern: str, matching: list[str], others: list[str]) -> None:
    rule = parse_rule("r", {"queue": pattern})
    assert all(rule.matches("/", "", [name]) for name in matching)
    assert not any(rule.matches("/", "", [name]) for name in others)


def test_the_default_exchange_has_a_name_in_rules() -> None:
    rule = parse_rule("r", {"exchange": "amq.default"})
    assert rule.matches("/", "", [])
    assert not rule.matches("/", "amq.direct", [])


@pytest.mark.parametrize(
    ("wanted", "headers", "is_match"),
    [
        ({"a": "x"}, {"a": "x"}, True),
        ({"a": "x"}, {"a": "xy"}, False),
        ({"a": "^x"}, {"a": "xy"}, True),
        ({"a": "x"}, {"b": "x"}, False),
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": "x", "b": 2}, {"a": "x", "b": 2, "c": 3}, True),
        ({"a": "*"}, {"a": "anything"}, True),
    ],
)
def test_headers(wanted: dict[str, Any], headers: dict[str, Any], is_match: bool) -> None:
    assert TraceRule("r", header=wanted).matches_headers(headers) is is_match


@pytest.mark.parametrize(("flag", "ratio"), [("all", 1.0), ("1", 1.0), ("0.01", 0.01), ("off", None), ("0", None)])
def test_the_flag(flag: str, ratio: float | None) -> None:
    rules = rules_of_flag(flag)
    assert [(rule.name, rule.ratio, rule.is_fixed) for rule in rules] == (
        [] if ratio is None else [("settings", ratio, True)]
    )


@pytest.mark.parametrize("flag", ["some", "2", "-1", "nan", ""])
def test_a_flag_that_makes_no_sense_is_refused(flag: str) -> None:
    with pytest.raises(ValueError, match='"off", "all" or a number from 0 to 1'):
        rules_of_flag(flag)


# -- what is kept ----------------------------------------------------------------------------------------------------


def kept(traced: TracedBroker) -> list[str | None]:
    return [event.message_id for event in traced.events() if event.kind == schema.PUBLISHED]


def publish_everywhere(channel: ClientChannel) -> None:
    for name in ("a", "b"):
        channel.bind("amq.direct", channel.declare(name), name)
        channel.publish(b"", name, message_id=f"default {name}")
        channel.publish(b"", name, "amq.direct", message_id=f"direct {name}")
        channel.publish(b"", name, headers={"kind": name}, message_id=f"header {name}")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"queue": "a"}, ["default a", "direct a", "header a"]),
        ({"exchange": "amq.direct"}, ["direct a", "direct b"]),
        ({"exchange": "amq.default", "queue": "b"}, ["default b", "header b"]),
        ({"header": {"kind": "b"}}, ["header b"]),
        ({"header": {"kind": "*"}, "queue": "a"}, ["header a"]),
        ({"vhost": "other"}, []),
    ],
)
def test_what_a_rule_keeps(rule: dict[str, Any], expected: list[str]) -> None:
    traced = TracedBroker([parse_rule("r", rule)])
    publish_everywhere(traced.client().channel())
    assert kept(traced) == expected


def test_of_several_rules_the_largest_ratio_counts() -> None:
    traced = TracedBroker([TraceRule("few", ratio=0.0001), TraceRule("q", queue="q"), TraceRule("none", ratio=0.0)])
    channel = traced.client().channel()
    channel.declare("q")
    for number in range(50):
        channel.publish(b"", "q", message_id=str(number))
    assert len(kept(traced)) == 50


def test_a_queue_that_is_bound_later_counts_from_then_on() -> None:
    traced = TracedBroker([TraceRule("r", queue="late")])
    channel = traced.client().channel()
    channel.publish(b"", "", "amq.fanout", message_id="before")
    channel.bind("amq.fanout", channel.declare("late"))
    channel.publish(b"", "", "amq.fanout", message_id="after")
    assert kept(traced) == ["after"]


@pytest.mark.parametrize("by", ["message_id", "correlation_id"])
def test_a_sample_has_all_messages_of_an_id_or_none(by: str) -> None:
    """So a message that is published again stays with its first life."""
    traced = TracedBroker([TraceRule("half", ratio=0.5)])
    channel = traced.client().channel()
    channel.bind("amq.fanout", channel.declare("q"))
    for _ in range(3):
        for number in range(300):
            channel.publish(b"", "q", "amq.fanout", **{by: f"id-{number}"})
    found: dict[str | None, int] = {}
    for event in traced.events():
        if event.kind == schema.PUBLISHED:
            key: str | None = getattr(event, by)
            found[key] = found.get(key, 0) + 1
    assert set(found.values()) == {3}
    assert 90 < len(found) < 210


def test_a_sample_of_messages_without_ids_has_whole_biographies() -> None:
    traced = TracedBroker([TraceRule("half", ratio=0.5)])
    channel = traced.client().channel()
    for name in "abc":
        channel.bind("amq.fanout", channel.declare(name))
    channel.consume(channel.vhost.queues["a"], no_ack=True)
    for _ in range(1000):
        channel.publish(b"", "", "amq.fanout")
    stories: dict[int, list[int]] = {}
    for event in traced.events():
        stories.setdefault(event.uid, []).append(event.kind)
    assert 350 < len(stories) < 650
    whole = [schema.PUBLISHED, schema.ROUTED, schema.ENQUEUED, schema.DELIVERED, schema.ENQUEUED, schema.ENQUEUED]
    assert all(kinds == whole for kinds in stories.values())


def test_rules_that_change_under_traffic_leave_neither_gap_nor_double() -> None:
    traced = TracedBroker([])
    channel = traced.client().channel()
    queue = channel.declare("q")
    channel.consume(queue, no_ack=True)
    wanted = []
    for number in range(400):
        if number % 100 == 25:
            traced.tracing.rules.set(TraceRule("r"))
        if number % 100 == 50:  # the same in other words: nothing may change
            traced.tracing.rules.set(TraceRule("s", queue="q"))
            traced.tracing.rules.forget("r")
        if number % 100 == 75:
            traced.tracing.rules.forget("s")
        if 25 <= number % 100 < 75:
            wanted.append(str(number))
        channel.publish(b"", "q", message_id=str(number))
        if number % 7 == 0:
            traced.broker.end_turn()
    assert kept(traced) == wanted
    assert len(traced.events()) == 4 * len(wanted)


def on_one_route(channel: ClientChannel, key: str) -> Callable[..., None]:
    """Publishes as a session does, which asks the vhost for a route once."""
    route = channel.vhost.make_route(channel.vhost.exchange(""), key, address_of("", key), False)

    def publish(**properties: Any) -> None:
        channel.core.publish(route, content_header(0, BasicProperties(**properties)), b"")

    return publish


def test_a_sample_on_a_route_has_its_share_of_every_kind() -> None:
    """Of those that no route is asked for too: a reply-to is looked at first."""
    traced = TracedBroker([TraceRule("tenth", ratio=0.1)])
    channel = traced.client().channel()
    channel.declare("q")
    publish = on_one_route(channel, "q")
    for number in range(20_000):
        publish(**({}, {"reply_to": "q"}, {"message_id": str(number % 50)}, {"priority": 1})[number % 4])
    published = [event for event in traced.events() if event.kind == schema.PUBLISHED]
    without_id = [event for event in published if event.message_id is None]
    assert 1_200 < len(without_id) < 1_800, "a tenth of 15,000, and chance is not that unkind in a million years"
    ids = {event.message_id for event in published} - {None}
    assert len(published) - len(without_id) == len(ids) * 5_000 // 25, "an id is in or out"


def test_messages_are_skipped_until_rules_change_or_the_firehose_is_on() -> None:
    traced = TracedBroker([TraceRule("elsewhere", exchange="other")])
    channel = traced.client().channel()
    channel.declare("q")
    publish = on_one_route(channel, "q")
    for _ in range(5):
        publish()
    assert traced.events() == []
    traced.tracing.rules.set(TraceRule("all"))
    publish()
    traced.tracing.rules.forget("all")
    publish()
    assert len({event.uid for event in traced.events()}) == 1
    channel.bind("amq.rabbitmq.trace", channel.declare("heard"), "publish.#")
    traced.tracing.firehose.switch("/", True)
    publish()
    publish()
    traced.broker.end_turn()
    assert channel.vhost.queues["heard"].message_count() == 2


# -- where rules are kept --------------------------------------------------------------------------------------------


def test_rules_are_there_after_a_restart() -> None:
    storage = MemoryStorage()
    rules = TracedBroker([], storage).tracing.rules
    rules.set(parse_rule("a", {"queue": "q", "ratio": 0.25, "header": {"x": 1}}))
    rules.set(parse_rule("b", {}))
    rules.forget("b")
    assert TracedBroker([], storage).tracing.rules.all() == [
        parse_rule("a", {"queue": "q", "ratio": 0.25, "header": {"x": 1}})
    ]


def test_rules_of_the_settings_cannot_be_changed() -> None:
    rules = TracedBroker(rules_of_flag("all")).tracing.rules
    for change in (lambda: rules.set(TraceRule("settings")), lambda: rules.forget("settings")):
        with pytest.raises(ValueError, match="comes from the broker's settings"):
            change()


@pytest.mark.parametrize(
    "stored", [{"queue": r"(a)\1"}, {"queue": "x" * 2000}, {"header": {"a": float("nan")}}, {"header": {"a": "(?=b)"}}]
)
def test_a_stored_rule_that_is_not_valid_any_more_is_disabled_with_a_warning(
    stored: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    TracedBroker([], storage).tracing.rules.set(TraceRule("old", **stored))
    traced = TracedBroker([], storage)
    (rule,) = traced.tracing.rules.all()
    assert (rule.name, rule.queue, rule.enabled) == ("old", stored.get("queue"), False)
    assert "the trace rule 'old' is disabled" in caplog.text
    channel = traced.client().channel()
    channel.declare("aa")
    channel.publish(b"", "aa", headers={"a": "b"})
    assert traced.events() == []


def test_the_number_of_rules_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RULES", 2)
    rules = TracedBroker([]).tracing.rules
    for name in "ab":
        rules.set(TraceRule(name))
    with pytest.raises(ValueError, match="there are 2 rules already"):
        rules.set(TraceRule("c"))
    assert not rules.set(TraceRule("a", ratio=0.5))


def test_a_rule_that_cannot_be_saved_is_not_listed() -> None:
    storage = ManualStorage()
    rules = TracedBroker([], storage).tracing.rules

    def refuse(kind: str, key: tuple[str, ...], definition: dict[str, Any]) -> None:
        raise ValueError("this cannot be written")

    storage.catalog.save = refuse  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="cannot be written"):
        rules.set(TraceRule("r"))
    assert rules.all() == []


def test_a_rule_of_the_settings_hides_one_of_the_catalog() -> None:
    storage = MemoryStorage()
    TracedBroker([], storage).tracing.rules.set(TraceRule("settings", ratio=0.5))
    (rule,) = TracedBroker(rules_of_flag("all"), storage).tracing.rules.all()
    assert (rule.ratio, rule.is_fixed) == (1.0, True)


def test_a_change_is_durable_work() -> None:
    storage = ManualStorage()
    rules: RuleBook = TracedBroker([], storage).tracing.rules
    work = storage.log.work
    assert rules.set(TraceRule("r"))
    assert not rules.set(TraceRule("r", ratio=0.5))
    assert rules.forget("r")
    assert not rules.forget("r")
    assert storage.log.work == work + 3
