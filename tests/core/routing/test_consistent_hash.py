"""x-consistent-hash: shares by weight, keys that stay where they are, what is hashed, and refused weights."""

from __future__ import annotations

from collections import Counter
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warrenmq.core.routing import ConsistentHashMatcher, Traits
from warrenmq.core.routing.consistent_hash import validate
from warrenmq.protocol.properties import BasicProperties, content_header

KEYS = [f"key {number}" for number in range(3000)]


def make(weights: dict[str, int]) -> ConsistentHashMatcher:
    matcher = ConsistentHashMatcher()
    for name, weight in weights.items():
        matcher.bind(str(weight), {}, name)
    return matcher


def choose(matcher: ConsistentHashMatcher, key: str, properties: BasicProperties | None = None) -> object:
    found: dict[object, None] = {}
    properties = properties or BasicProperties()
    matcher.match(key, Traits(content_header(0, properties), properties.headers), found)
    (destination,) = found
    return destination


def place_all(weights: dict[str, int]) -> dict[str, object]:
    matcher = make(weights)
    return {key: choose(matcher, key) for key in KEYS}


queues = st.dictionaries(st.text(min_size=1, max_size=20), st.integers(1, 20), min_size=1, max_size=12)


@settings(max_examples=40)
@given(queues)
def test_each_destination_gets_a_share_by_its_weight(weights: dict[str, int]) -> None:
    counts = Counter(place_all(weights).values())
    total = sum(weights.values())
    for name, weight in weights.items():
        share = weight / total
        deviation = sqrt(len(KEYS) * share * (1 - share))
        assert abs(counts[name] - len(KEYS) * share) <= 6 * deviation, (name, counts)


@settings(max_examples=40)
@given(queues, st.integers(1, 20))
def test_a_destination_that_comes_takes_keys_and_moves_no_others(weights: dict[str, int], weight: int) -> None:
    new = "new" + "".join(weights)  # unlike any of them
    before, after = place_all(weights), place_all({**weights, new: weight})
    assert all(after[key] in (before[key], new) for key in KEYS)


@settings(max_examples=40)
@given(queues, st.data())
def test_a_destination_that_goes_leaves_its_keys_to_the_others(weights: dict[str, int], data: st.DataObject) -> None:
    leaving = data.draw(st.sampled_from(list(weights)))
    matcher = make({**weights, "staying" + "".join(weights): 1})
    before = {key: choose(matcher, key) for key in KEYS}
    matcher.unbind(str(weights[leaving]), {}, leaving)
    after = {key: choose(matcher, key) for key in KEYS}
    assert leaving not in after.values()
    assert all(after[key] == before[key] for key in KEYS if before[key] != leaving)


@settings(max_examples=20)
@given(queues, st.randoms(use_true_random=False))
def test_the_order_of_the_bindings_does_not_matter(weights: dict[str, int], random: object) -> None:
    shuffled = list(weights.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert place_all(weights) == place_all(dict(shuffled))


def test_keys_are_placed_as_by_every_other_process_and_version() -> None:
    matcher = make({"a": 1, "b": 2, "c": 3})
    assert "".join(str(choose(matcher, str(number))) for number in range(24)) == "bcccaccacbbcbcacacbbccca"


def test_no_binding_leads_nowhere() -> None:
    found: dict[object, None] = {}
    ConsistentHashMatcher().match("key", None, found)
    assert found == {}


def test_of_several_bindings_the_first_counts_and_then_the_next() -> None:
    matcher = make({"a": 1, "b": 1})
    once = {key: choose(matcher, key) for key in KEYS}
    matcher.bind("50", {}, "b")
    assert {key: choose(matcher, key) for key in KEYS} == once
    matcher.unbind("1", {}, "b")
    assert {key: choose(matcher, key) for key in KEYS} == place_all({"a": 1, "b": 50})
    matcher.unbind("50", {}, "b")
    assert {choose(matcher, key) for key in KEYS} == {"a"}


def test_bindings_that_differ_in_arguments_are_removed_one_by_one() -> None:
    matcher = ConsistentHashMatcher()
    matcher.bind("1", {}, "queue")
    matcher.bind("1", {"tenant": 1}, "queue")
    matcher.unbind("1", {}, "queue")
    assert not matcher.is_empty()
    matcher.unbind("1", {"tenant": 1}, "queue")
    assert matcher.is_empty()


@pytest.mark.parametrize(
    ("header", "property", "values"),
    [
        ("tenant", None, [BasicProperties(headers={"tenant": number}) for number in range(60)]),
        ("tenant", None, [BasicProperties(headers={"tenant": str(number)}) for number in range(60)]),
        (None, "message_id", [BasicProperties(message_id=str(number)) for number in range(60)]),
        (None, "correlation_id", [BasicProperties(correlation_id=str(number)) for number in range(60)]),
        (None, "timestamp", [BasicProperties(timestamp=number) for number in range(60)]),  # type: ignore[arg-type]
    ],
)
def test_a_header_or_property_is_hashed_instead_of_the_key(
    header: str | None, property: str | None, values: list[BasicProperties]
) -> None:
    matcher = ConsistentHashMatcher(header, property)
    for name in "abcd":
        matcher.bind("1", {}, name)
    assert matcher.uses_message
    chosen = [choose(matcher, "one key", each) for each in values]
    assert set(chosen) == set("abcd")
    assert [choose(matcher, "another key", each) for each in values] == chosen
    without = BasicProperties(headers={"other": 1}, app_id="x")
    assert len({choose(matcher, key, without) for key in KEYS[:100]}) == 1


@pytest.mark.parametrize("key", ["1", "+5", "007", "10000"])
def test_positive_integers_are_weights(key: str) -> None:
    validate(key)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("", "The binding key must be an integer: <<>>"),
        ("abc", 'The binding key must be an integer: <<"abc">>'),
        (" 1", 'The binding key must be an integer: <<" 1">>'),
        ("1_0", 'The binding key must be an integer: <<"1_0">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        ("\u0661", 'The binding key must be an integer: <<"\u0661">>'),
        ("10001", "The binding key must not exceed 10000"),
        ("9" * 200, "The binding key must not exceed 10000"),
    ],
)
def test_other_keys_are_refused_with_rabbitmqs_text(key: str, words: str) -> None:
    matcher = ConsistentHashMatcher()
    with pytest.raises(ValueError, match="The binding key must") as refusal:
        matcher.bind(key, {}, "queue")
    assert str(refusal.value) == words
    assert matcher.is_empty()
