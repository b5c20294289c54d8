"""Topic matching: the table, RabbitMQ's odd keys, a plain model, and the cost of a match."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warrenmq.core.routing import TopicMatcher


def matches(matcher: TopicMatcher, key: str) -> set[object]:
    found: dict[object, None] = {}
    matcher.match(key, None, found)
    return set(found)


def fits(pattern: str, key: str) -> bool:
    matcher = TopicMatcher()
    matcher.bind(pattern, {}, "queue")
    return matches(matcher, key) == {"queue"}


def count_nodes(matcher: TopicMatcher) -> int:
    """Count the nodes below the root."""
    count = -1
    nodes = [matcher.root]
    while nodes:
        node = nodes.pop()
        count += 1
        nodes += [below for below in (*node.words.values(), node.star, node.rest) if below is not None]
    return count


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("aaa.*.bbb", "aaa.bbb.ccc", False),
        ("aaa.*.bbb", "aaa.ccc.bbb", True),
        ("#", "", True),
        ("#", "aaa", True),
        ("#", "aaa.bbb.ccc", True),
        ("aaa.#.ccc", "aaa.ccc", True),
        ("aaa.#.ccc", "aaa.aaa.bbb.ccc", True),
        ("aaa.#.ccc", "aaa.ccc.bbb", False),
        ("aaa.#.ccc", "aaa.ccc.bbb.ccc", True),
        ("#.ccc", "ccc", True),
        ("#.ccc", "aaa.bbb.ccc", True),
        ("#.ccc", "ccc.aaa", False),
        ("aaa.#", "aaa", True),
        ("aaa.#", "aaa.bbb.ccc", True),
        ("aaa.#", "aaab", False),
        ("*.aaa.bbb", "aaa.bbb", False),
        ("*.aaa.bbb", "aaa.aaa.bbb", True),
        ("aaa", "aaa", True),
        ("aaa", "aaa.bbb", False),
        ("aaa.bbb", "aaa", False),
        ("#.#", "aaa", True),
        ("#.#.#", "", True),
        ("aaa.#.#.ccc", "aaa.ccc", True),
        ("aaa.#.#.ccc", "aaa.bbb.bbb.ccc", True),
        ("#.bbb.#", "aaa.bbb.ccc", True),
        ("#.bbb.#", "bbb", True),
        ("#.bbb.#", "aaa.ccc", False),
        ("#.aaa.#.aaa.#", "aaa", False),
        ("#.aaa.#.aaa.#", "bbb.aaa.ccc.aaa", True),
        ("#.*", "", False),
        ("#.*", "aaa", True),
        ("#.*", "aaa.bbb", True),
        ("*.#", "", False),
        ("*.#", "aaa.bbb", True),
        ("#.*.#.*", "aaa", False),
        ("#.*.#.*", "aaa.bbb", True),
        ("*.#.*.aaa", "aaa.aaa", False),
        ("*.#.*.aaa", "bbb.ccc.aaa", True),
        ("*.*.*.*.*.#", "aaa.bbb.ccc.ddd.eee.fff", True),
        ("*.*.*.*.*.#", "aaa.bbb.ccc.ddd", False),
    ],
)
def test_pattern_fits_key(pattern: str, key: str, expected: bool) -> None:
    assert fits(pattern, key) is expected


# What RabbitMQ 3.10.8 did with all of these patterns bound at once.
ODD_PATTERNS = ["", "#", "*", ".", "a..b", "*.*", "a.*.b", "#.#", "#.*", "*.#", "..", "a#", "a.", "a.#", "*.", "#."]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("", {"", "#", "#.#"}),
        (".", {"#", ".", "*.*", "#.#", "#.*", "*.#", "*.", "#."}),
        ("a", {"#", "*", "#.#", "#.*", "*.#", "a.#"}),
        ("a..b", {"#", "a..b", "a.*.b", "#.#", "#.*", "*.#", "a.#"}),
        ("..", {"#", "#.#", "#.*", "*.#", "..", "#."}),
        ("a.", {"#", "*.*", "#.#", "#.*", "*.#", "a.", "a.#", "*.", "#."}),
        ("a#", {"#", "*", "#.#", "#.*", "*.#", "a#"}),
        (".a", {"#", "*.*", "#.#", "#.*", "*.#"}),
    ],
)
def test_empty_words_are_read_as_rabbitmq_reads_them(key: str, expected: set[str]) -> None:
    matcher = TopicMatcher()
    for pattern in ODD_PATTERNS:
        matcher.bind(pattern, {}, pattern)
    assert matches(matcher, key) == expected


def test_wildcards_in_the_key_of_a_message_are_ordinary_words() -> None:
    assert not fits("aaa.bbb", "aaa.*")
    assert not fits("aaa.bbb", "#")
    assert fits("aaa.*", "aaa.*")
    assert fits("*", "#")


def test_a_destination_that_fits_by_several_patterns_is_found_once() -> None:
    matcher = TopicMatcher()
    for pattern in ("a.b", "a.*", "a.#", "#", "#.b"):
        matcher.bind(pattern, {}, "queue")
    found: dict[object, None] = {}
    matcher.match("a.b", None, found)
    assert list(found) == ["queue"]


def test_the_order_of_destinations_is_the_same_at_every_match() -> None:
    matcher = TopicMatcher()
    for number, pattern in enumerate(["a.b", "*.b", "#", "a.#", "#.b", "a.*"]):
        matcher.bind(pattern, {}, number)
    orders = []
    for _ in range(3):
        found: dict[object, None] = {}
        matcher.match("a.b", None, found)
        orders.append(list(found))
    assert orders[0] == orders[1] == orders[2]
    assert set(orders[0]) == {0, 1, 2, 3, 4, 5}
    assert len(orders[0]) == 6


def test_unbinding_prunes_only_the_nodes_that_no_other_pattern_needs() -> None:
    matcher = TopicMatcher()
    matcher.bind("a.b", {}, "short")
    matcher.bind("a.b.*.#.c", {}, "long")
    assert count_nodes(matcher) == 5
    matcher.unbind("a.b.*.#.c", {}, "long")
    assert count_nodes(matcher) == 2
    assert matches(matcher, "a.b") == {"short"}
    matcher.bind("a.b.c", {}, "longer")
    matcher.unbind("a.b", {}, "short")
    assert count_nodes(matcher) == 3
    assert matches(matcher, "a.b.c") == {"longer"}
    matcher.unbind("a.b.c", {}, "longer")
    assert count_nodes(matcher) == 0


def model_fits(pattern: str, key: str) -> bool:
    """The rules of the specification, one word at a time."""
    pattern_words = tuple(pattern.split(".")) if pattern else ()
    key_words = tuple(key.split(".")) if key else ()

    @cache
    def fit(p: int, k: int) -> bool:
        if p == len(pattern_words):
            return k == len(key_words)
        if pattern_words[p] == "#":
            return fit(p + 1, k) or (k < len(key_words) and fit(p, k + 1))
        return k < len(key_words) and pattern_words[p] in ("*", key_words[k]) and fit(p + 1, k + 1)

    return fit(0, 0)


# Few words, so that patterns and keys meet often.
patterns = st.lists(st.sampled_from(["a", "b", "", "*", "#", "#"]), max_size=7).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=9).map(".".join)
bindings = st.tuples(patterns, st.integers(0, 5))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.booleans(), bindings), max_size=40), st.lists(keys, min_size=1, max_size=6))
def test_any_sequence_of_binds_and_unbinds_routes_as_the_model(
    steps: list[tuple[bool, tuple[str, int]]], asked: list[str]
) -> None:
    matcher = TopicMatcher()
    bound: list[tuple[str, int]] = []
    for is_bind, binding in steps:
        if is_bind:
            matcher.bind(binding[0], {}, binding[1])
            bound.append(binding)
        elif bound:
            # Unbind something that is there; which one follows from the drawn number.
            pattern, destination = bound.pop(binding[1] % len(bound))
            matcher.unbind(pattern, {}, destination)
        for key in asked[:1]:
            assert matches(matcher, key) == {d for p, d in bound if model_fits(p, key)}
    for key in asked:
        assert matches(matcher, key) == {d for p, d in bound if model_fits(p, key)}
    for pattern, destination in bound:
        matcher.unbind(pattern, {}, destination)
    assert matcher.is_empty()
    assert count_nodes(matcher) == 0


def visits(matcher: TopicMatcher, key: str) -> int:
    before = matcher.visited
    matches(matcher, key)
    return matcher.visited - before


def test_cost_follows_the_words_of_the_key_not_the_number_of_bindings() -> None:
    costs = []
    for count in (10, 10_000):
        matcher = TopicMatcher()
        for number in range(count):
            matcher.bind(f"region{number % 100}.*.sensor{number}.#", {}, number)
            matcher.bind(f"#.alarm{number}", {}, number)
        assert matches(matcher, "region7.room.sensor7.temperature.high") == {7}
        costs.append(visits(matcher, "region7.room.sensor7.temperature.high"))
    assert costs[0] == costs[1]


def test_many_hashes_do_not_blow_up() -> None:
    matcher = TopicMatcher()
    for pattern in ("#.#.#.#.#.#.a", "#.b.#.b.#.b.#.b.#.b.#.a", "#.*.#.*.#.*.#.*.a", "*.#.*.#.*.#.*.#"):
        matcher.bind(pattern, {}, pattern)
    key = ".".join(["b"] * 60)
    assert matches(matcher, key) == {"*.#.*.#.*.#.*.#"}
    assert visits(matcher, key) <= 61 * (count_nodes(matcher) + 1)


def test_a_key_whose_first_word_matches_nothing_visits_only_the_root() -> None:
    matcher = TopicMatcher()
    matcher.bind("a.b.c.d", {}, "queue")
    assert visits(matcher, ".".join(["z"] * 60)) == 1
