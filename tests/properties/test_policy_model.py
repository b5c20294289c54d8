"""Random lives of policies, compared with a plain model: which policy applies where, and what comes of it.

The model computes everything anew from all policies; the broker changes only what a change concerns, in slices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.client import advance, make_broker
from warrenmq.core.options import queue_options
from warrenmq.core.patterns import Pattern
from warrenmq.core.policy_keys import KEYS
from warrenmq.core.snapshot import policy_view
from warrenmq.storage.memory_store import MemoryStorage

TYPES = ("classic", "quorum", "stream")
LIMITS = ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "consumer-timeout")
UNSUPPORTED = {
    "classic": {"max-age", "delivery-limit", "dead-letter-strategy"},
    "quorum": {"max-age", "queue-mode"},
    "stream": {*LIMITS, "overflow", "dead-letter-exchange", "dead-letter-strategy", "queue-mode"}
    - {"max-length-bytes", "consumer-timeout"},
}
PATTERNS = ("", ".*", "^a", "b$", "^ab?$", "^a+c", r"^a\.", "(a|b)c", "^[ab]", "^x")
NAMES = ("a", "ab", "ac", "b", "aac", "a.b", "c", "warren.reader.a")

numbers = st.integers(1, 5)
definitions = st.dictionaries(
    st.sampled_from([*LIMITS, "max-age", "overflow", "dead-letter-exchange", "dead-letter-strategy", "queue-mode"]),
    numbers,
    min_size=1,
    max_size=3,
).map(lambda found: {key: value_of(key, number) for key, number in found.items()})
operator_definitions = st.dictionaries(st.sampled_from([*LIMITS, "overflow"]), numbers, min_size=1, max_size=3).map(
    lambda found: {key: value_of(key, number) for key, number in found.items()}
)


def value_of(key: str, number: int) -> Any:
    if key == "overflow":
        return ("drop-head", "reject-publish", "reject-publish-dlx")[number % 3]
    if key == "dead-letter-strategy":
        return ("at-most-once", "at-least-once")[number % 2]
    if key == "queue-mode":
        return ("default", "lazy")[number % 2]
    if key == "delivery-limit":
        return number - 2  # negative: none
    return {"max-age": f"{number}s", "dead-letter-exchange": f"x{number}"}.get(key, number)


def supported(type: str) -> list[str]:
    return [key for key in (*LIMITS, "overflow", "dead-letter-exchange") if key not in UNSUPPORTED[type]]


policy_fields = st.tuples(
    st.sampled_from("pqrs"),
    st.sampled_from(PATTERNS),
    st.integers(-1, 1),
    st.sampled_from(["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"]),
)
steps = st.one_of(
    st.tuples(st.just("set"), policy_fields, definitions, st.just(False)),
    st.tuples(st.just("set"), policy_fields, operator_definitions, st.just(True)),
    st.tuples(st.just("clear"), st.sampled_from("pqrs"), st.booleans()),
    st.tuples(
        st.just("declare"),
        st.sampled_from(NAMES),
        st.sampled_from(TYPES).flatmap(
            lambda type: st.tuples(
                st.just(type), st.dictionaries(st.sampled_from(supported(type)), numbers, max_size=3)
            )
        ),
    ),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("restart")),
)


def applies(policy: dict[str, Any], type: str, name: str) -> bool:
    kinds = {"all": TYPES, "queues": TYPES, "exchanges": (), "streams": ("stream",)}
    chosen = kinds.get(policy["apply_to"]) if policy["apply_to"] in kinds else (policy["apply_to"].split("_")[0],)
    return (
        type in (chosen or ())
        and UNSUPPORTED[type].isdisjoint(policy["definition"])
        and re.search(policy["pattern"], name) is not None
    )


def choose(policies: dict[str, dict[str, Any]], type: str, name: str) -> str | None:
    matching = [each for each, policy in policies.items() if applies(policy, type, name)]
    return min(matching, key=lambda each: (-policies[each]["priority"], each), default=None)


def strictest(*limits: int | None) -> int | None:
    given = [limit for limit in limits if limit is not None]
    real = [limit for limit in given if limit >= 0]
    return min(real) if real else max(given, default=None)


def merged(type: str, arguments: dict[str, Any], policy: dict[str, Any], operator: dict[str, Any]) -> dict[str, Any]:
    """RabbitMQ's rules, key by key."""
    found = dict(arguments)
    for key in {*policy, *operator} - {"queue-mode"}:
        argument, mine, theirs = arguments.get("x-" + key), policy.get(key), operator.get(key)
        if key in LIMITS:
            if type == "stream" and key == "max-length-bytes" and mine is not None:
                argument = None
            value: Any = strictest(argument, mine, theirs)
        else:
            value = mine if theirs is None else theirs
            if argument is not None and not (type == "quorum" and key == "overflow"):
                value = argument
        found["x-" + key] = value
    return found


@pytest.fixture(scope="module")
def small_slices() -> Iterator[None]:
    """So that the steps of a life come between the slices of one pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warrenmq.core.policies.SLICE", 1)
        yield


@pytest.mark.usefixtures("small_slices")
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(steps, st.booleans()), max_size=25))
def test_any_life_leads_to_what_the_rules_say(life: list[tuple[tuple[Any, ...], bool]]) -> None:
    """Checked after each step that is marked, when all passes are over."""
    storage = MemoryStorage()
    broker = make_broker(storage)
    books: dict[bool, dict[str, dict[str, Any]]] = {False: {}, True: {}}
    queues: dict[str, tuple[str, dict[str, Any]]] = {}
    for (step, *what), is_checked in [*life, (("restart",), True)]:
        vhost = broker.vhosts["/"]
        if step == "set":
            (name, pattern, priority, apply_to), definition, is_operator = what
            is_new = vhost.policies.set(name, pattern, definition, priority, apply_to, is_operator)
            assert is_new == (name not in books[is_operator])
            books[is_operator][name] = {
                "pattern": pattern,
                "priority": priority,
                "apply_to": apply_to,
                "definition": definition,
            }
        elif step == "clear":
            name, is_operator = what
            assert vhost.policies.clear(name, is_operator) == (books[is_operator].pop(name, None) is not None)
        elif step == "declare":
            name, (type, given_arguments) = what
            if name not in queues:
                arguments = {"x-" + key: value_of(key, number) for key, number in given_arguments.items()}
                queues[name] = type, {"x-queue-type": type} | arguments
                vhost.declare_queue(name, True, False, False, queues[name][1], None)
        elif step == "delete":
            if queues.pop(what[0], None):
                vhost.delete_queue(what[0], None, False, False)
        else:
            broker = make_broker(storage)
        if not is_checked:
            continue
        advance(broker, 0)
        for name, (type, arguments) in queues.items():
            vhost = broker.vhosts["/"]
            chosen = choose(books[False], type, name), choose(books[True], type, name)
            view = policy_view(vhost, vhost.queues[name])
            assert (view.policy, view.operator_policy) == chosen
            settings_of = [
                books[is_operator][each]["definition"] if each is not None else {}
                for is_operator, each in zip((False, True), chosen, strict=True)
            ]
            expected = queue_options(True, merged(type, arguments, *settings_of))
            assert vhost.queues[name].options == expected


literals = st.sampled_from(
    ["a", "b", ".", r"\.", "-", "é", "+", "*", "?", "^", "$", "|", "(a)", "[ab]", "a{2}", r"\w", "{"]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(literals, max_size=6).map("".join), st.text("ab.-é", max_size=6), st.booleans())
def test_a_pattern_matches_what_re_matches(pattern: str, name: str, is_anchored: bool) -> None:
    """With its shortcut for names that do not begin as the pattern does."""
    pattern = "^" * is_anchored + pattern
    try:
        compiled = Pattern(pattern)
        expected = re.search(pattern, name, re.ASCII)
    except (ValueError, re.error):
        return
    assert compiled.matches(name) == (expected is not None)


def test_the_model_knows_the_keys_that_types_do_not_support() -> None:
    for type, keys in UNSUPPORTED.items():
        assert {key for key in keys if type not in KEYS[key].not_for} == set()
