"""Direct and fanout matchers, and what every matcher keeps to."""

import pytest

from warrenmq.core.routing import MATCHERS, DirectMatcher, FanoutMatcher, Matcher, Traits

# Those that lead a message to one destination only have tests of their own.
PICKING = ("x-consistent-hash", "x-least-loaded", "x-modulus-hash", "x-random")
ALL_FITTING = [kind for kind in MATCHERS if kind not in PICKING]


def destinations(matcher: Matcher, key: str = "") -> list[object]:
    found: dict[object, None] = {}
    matcher.match(key, Traits(b"", None), found)
    return list(found)


def test_direct_leads_a_key_to_all_its_destinations_oldest_first() -> None:
    matcher = DirectMatcher()
    for destination in ("third", "first", "second"):
        matcher.bind("key", {}, destination)
    matcher.bind("other", {}, "elsewhere")
    assert destinations(matcher, "key") == ["third", "first", "second"]
    assert destinations(matcher, "other") == ["elsewhere"]


def test_direct_takes_the_key_literally() -> None:
    matcher = DirectMatcher()
    matcher.bind("a.*", {}, "star")
    matcher.bind("#", {}, "hash")
    matcher.bind("", {}, "empty")
    assert destinations(matcher, "a.b") == []
    assert destinations(matcher, "a.*") == ["star"]
    assert destinations(matcher, "") == ["empty"]


def test_fanout_ignores_the_key() -> None:
    matcher = FanoutMatcher()
    matcher.bind("a", {}, "one")
    matcher.bind("b", {}, "two")
    assert destinations(matcher, "anything") == ["one", "two"]


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic"])
def test_bindings_that_differ_in_arguments_are_removed_one_by_one(kind: str) -> None:
    matcher = MATCHERS[kind]()
    matcher.bind("key", {}, "queue")
    matcher.bind("key", {"tenant": 1}, "queue")
    matcher.unbind("key", {}, "queue")
    assert destinations(matcher, "key") == ["queue"]
    matcher.unbind("key", {"tenant": 1}, "queue")
    assert destinations(matcher, "key") == []
    assert matcher.is_empty()


@pytest.mark.parametrize("kind", list(MATCHERS))
def test_a_new_matcher_is_empty_until_the_first_bind_and_after_the_last_unbind(kind: str) -> None:
    matcher = MATCHERS[kind]()
    assert matcher.is_empty()
    matcher.bind("1", {"h": 1}, "queue")
    assert not matcher.is_empty()
    matcher.unbind("1", {"h": 1}, "queue")
    assert matcher.is_empty()


@pytest.mark.parametrize("kind", ALL_FITTING)
def test_a_destination_found_before_is_not_added_again(kind: str) -> None:
    matcher = MATCHERS[kind]()
    matcher.bind("a", {}, "new")
    matcher.bind("a", {}, "known")
    found: dict[object, None] = {"known": None}
    matcher.match("a", None, found)
    assert list(found) == ["known", "new"]


@pytest.mark.parametrize("kind", list(MATCHERS))
def test_unbinding_what_was_never_bound_raises_and_changes_nothing(kind: str) -> None:
    matcher = MATCHERS[kind]()
    matcher.bind("1", {}, "queue")
    with pytest.raises(KeyError):
        matcher.unbind("1", {}, "stranger")
    with pytest.raises(KeyError):
        matcher.unbind("a.#.*", {"x-match": "any"}, "stranger")
    assert destinations(matcher, "1") == ["queue"]
    matcher.unbind("1", {}, "queue")
    assert matcher.is_empty()


@pytest.mark.parametrize("kind", list(MATCHERS))
def test_routes_by_headers_by_chance_and_by_load_depend_on_the_message(kind: str) -> None:
    assert MATCHERS[kind]().uses_message is (kind in ("headers", "x-least-loaded", "x-random"))


@pytest.mark.parametrize("kind", list(MATCHERS))
def test_a_matcher_that_leads_to_one_destination_looks_at_the_routing_key_alone(kind: str) -> None:
    assert MATCHERS[kind]().uses_all_keys is (kind not in PICKING)
