"""x-random and x-modulus-hash: one destination for each message, by chance or by the hash of the key."""

from __future__ import annotations

from collections import Counter

import pytest

from warrenmq.core.routing import ModulusHashMatcher, RandomMatcher, Traits

KEYS = [f"key {number}" for number in range(3000)]


def choose(matcher: RandomMatcher | ModulusHashMatcher, key: str = "", traits: Traits | None = None) -> object:
    found: dict[object, None] = {}
    matcher.match(key, traits or Traits(b"", None), found)
    (destination,) = found
    return destination


@pytest.mark.parametrize("make", [RandomMatcher, ModulusHashMatcher])
def test_bindings_have_equal_shares_whatever_their_keys(make: type[RandomMatcher | ModulusHashMatcher]) -> None:
    matcher = make()
    for number, name in enumerate("abc"):
        matcher.bind(f"ignored {number}", {}, name)
    matcher.bind("once more", {}, "c")
    counts = Counter(choose(matcher, key) for key in KEYS)
    assert counts.keys() == set("abc")
    assert all(600 < counts[name] < 900 for name in "ab")  # 750 and 150: six deviations
    assert 1300 < counts["c"] < 1700
    matcher.unbind("once more", {}, "c")
    matcher.unbind("ignored 2", {}, "c")
    assert {choose(matcher, key) for key in KEYS} == set("ab")


@pytest.mark.parametrize("make", [RandomMatcher, ModulusHashMatcher])
def test_no_binding_leads_nowhere(make: type[RandomMatcher | ModulusHashMatcher]) -> None:
    found: dict[object, None] = {}
    make().match("key", Traits(b"", None), found)
    assert found == {}


def test_chance_is_drawn_once_for_each_message_and_exchange() -> None:
    first, second = RandomMatcher(), RandomMatcher()
    for number in range(16):
        first.bind("", {}, number)
        second.bind("", {}, number)
    messages = [Traits(b"", None) for _ in range(200)]
    chosen = [choose(first, "", each) for each in messages]
    assert [choose(first, "", each) for each in messages] == chosen
    assert [choose(second, "", each) for each in messages] != chosen


def test_the_modulus_of_a_key_does_not_depend_on_the_order_of_the_bindings() -> None:
    one, other = ModulusHashMatcher(), ModulusHashMatcher()
    for name in "abcde":
        one.bind("", {}, name)
    for name in "decab":
        other.bind("", {}, name)
    assert [choose(one, key) for key in KEYS] == [choose(other, key) for key in KEYS]


def test_keys_are_placed_as_by_every_other_process_and_version() -> None:
    matcher = ModulusHashMatcher()
    for name in "abc":
        matcher.bind("", {}, name)
    assert "".join(str(choose(matcher, str(number))) for number in range(24)) == "bcaabaccbccbbbbccaccaaab"
