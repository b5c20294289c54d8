"""x-least-loaded: the destination with the least load, in turns among equals."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.routing import LeastLoadedMatcher, Traits


def choose(matcher: LeastLoadedMatcher, traits: Traits | None = None) -> str:
    found: dict[object, None] = {}
    matcher.match("key", traits or Traits(b"", None), found)
    (destination,) = found
    return str(destination)


def bound_to(loads: dict[str, int]) -> LeastLoadedMatcher:
    matcher = LeastLoadedMatcher(loads.__getitem__)
    for name in loads:
        matcher.bind("", {}, name)
    return matcher


def test_the_least_loaded_is_chosen_whatever_its_place_and_number_of_bindings() -> None:
    loads = {"a": 3, "b": 2, "c": 5}
    matcher = bound_to(loads)
    matcher.bind("once more", {"x": 1}, "a")
    assert [choose(matcher) for _ in range(3)] == ["b", "b", "b"]
    loads["c"] = 0
    assert choose(matcher) == "c"


def test_equals_take_turns() -> None:
    loads = {"a": 1, "b": 0, "c": 0, "d": 0}
    matcher = bound_to(loads)
    assert [choose(matcher) for _ in range(7)] == ["b", "c", "d", "b", "c", "d", "b"]
    matcher.unbind("", {}, "c")
    assert Counter(choose(matcher) for _ in range(10)) == {"b": 5, "d": 5}


def test_a_message_that_is_routed_again_goes_to_the_same_destination() -> None:
    loads = dict.fromkeys("abc", 0)
    first, second = bound_to(loads), bound_to(loads)
    choose(second)
    traits = Traits(b"", None)
    assert (choose(first, traits), choose(second, traits)) == ("a", "b")
    loads["a"] = loads["b"] = 9
    assert (choose(first, traits), choose(second, traits)) == ("a", "b")
    assert (choose(first), choose(second)) == ("c", "c")
    first.unbind("", {}, "a")
    assert choose(first, traits) == "c"


def test_no_binding_leads_nowhere() -> None:
    matcher = bound_to({"a": 0})
    matcher.unbind("", {}, "a")
    found: dict[object, None] = {}
    matcher.match("key", Traits(b"", None), found)
    assert (found, matcher.is_empty()) == ({}, True)


@given(st.lists(st.tuples(st.sampled_from(["bind", "unbind", "load", "match"]), st.integers(0, 4), st.integers(0, 3))))
def test_it_is_the_first_of_the_least_loaded_in_a_line_whose_chosen_one_goes_to_the_end(
    steps: list[tuple[str, int, int]],
) -> None:
    loads = dict.fromkeys(range(5), 0)
    matcher = LeastLoadedMatcher(loads.__getitem__)
    line: list[int] = []  # all destinations; the one whose turn it is comes first
    bindings: Counter[int] = Counter()
    for step, place, load in steps:
        if step == "bind":
            if not bindings[place]:
                line.append(place)
            bindings[place] += 1
            matcher.bind(str(bindings[place]), {}, place)
        elif step == "unbind" and bindings[place]:
            matcher.unbind(str(bindings[place]), {}, place)
            bindings[place] -= 1
            if not bindings[place]:
                line.remove(place)
        elif step == "load":
            loads[place] = load
        elif step == "match" and line:
            expected = min(line, key=loads.__getitem__)
            assert choose(matcher) == str(expected)
            line.remove(expected)
            line.append(expected)
    assert matcher.is_empty() is (not line)
