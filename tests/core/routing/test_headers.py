"""Headers matching: modes, RabbitMQ's equality of values, refusals, a plain model, and the cost of a match."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warrenmq.core.routing import HeadersMatcher, Traits
from warrenmq.core.routing.headers import validate

Table = dict[str, object]


def destinations(matcher: HeadersMatcher, headers: Table | None) -> list[object]:
    found: dict[object, None] = {}
    matcher.match("any key", Traits(b"", headers), found)
    return list(found)


def fits(arguments: Table, headers: Table | None) -> bool:
    matcher = HeadersMatcher()
    matcher.bind("", arguments, "queue")
    return destinations(matcher, headers) == ["queue"]


# What RabbitMQ 3.10.8 did with all of these bindings at once: arguments, and the numbers of the headers that fit.
MODE_HEADERS: list[Table | None] = [
    None,
    {},
    {"x-a": 1},
    {"a": 1},
    {"a": 2},
    {"a": 1, "x-a": 1},
    {"a": 1, "b": 2},
    {"b": 2},
    {"x-match": "all"},
    {"X-a": 1},
    {"a": None},
]
EVERY = set(range(len(MODE_HEADERS)))


@pytest.mark.parametrize(
    ("arguments", "fitting"),
    [
        ({}, EVERY),
        ({"x-match": "all"}, EVERY),
        ({"x-match": "any"}, set()),
        ({"x-match": "all-with-x"}, EVERY),
        ({"x-match": "any-with-x"}, set()),
        ({"x-a": 1}, EVERY),
        ({"x-a": 1, "x-match": "any"}, set()),
        ({"x-a": 1, "x-match": "all-with-x"}, {2, 5}),
        ({"x-a": 1, "x-match": "any-with-x"}, {2, 5}),
        ({"a": 1, "x-a": 1}, {3, 5, 6}),
        ({"a": 1, "x-a": 1, "x-match": "any"}, {3, 5, 6}),
        ({"a": 1, "x-a": 1, "x-match": "all-with-x"}, {5}),
        ({"a": 1, "x-a": 1, "x-match": "any-with-x"}, {2, 3, 5, 6}),
        ({"a": None, "x-match": "any"}, {3, 4, 5, 6, 10}),
        ({"a": None, "b": 2, "x-match": "all"}, {6}),
        ({"a": 1, "b": 2, "x-match": "any"}, {3, 5, 6, 7}),
        ({"X-a": 1}, {9}),
        ({"x-": 1, "x-match": "all"}, EVERY),
        ({"x": 1}, set()),
    ],
)
def test_modes_choose_as_rabbitmq_chooses(arguments: Table, fitting: set[int]) -> None:
    assert {number for number, headers in enumerate(MODE_HEADERS) if fits(arguments, headers)} == fitting


# Values that RabbitMQ 3.10.8 calls equal stand in one row; it calls values of different rows different.
EQUAL_VALUES: list[list[object]] = [
    [True],
    [False],
    [1, 1.0, datetime.fromtimestamp(1, UTC)],
    [0],
    [1.5],
    [Decimal("1")],
    [Decimal("1.0")],
    ["1", b"1"],
    [b"\xff"],
    ["", b""],
    ["true"],
    [[], {}],
    [[1]],
    [[1.0]],
    [[datetime.fromtimestamp(1, UTC)]],
    [[True]],
    [["a"]],
    [[b"a"]],
    [{"a": 1, "b": 2}],
    [{"b": 2, "a": 1}],
    [{"a": 1.0, "b": 2}],
]


def test_values_are_equal_where_rabbitmq_calls_them_equal() -> None:
    rows = [(row, value) for row, values in enumerate(EQUAL_VALUES) for value in values]
    for wanted_row, wanted in rows:
        for given_row, given_value in rows:
            for others in ({}, {"present": None}):  # filed under this condition, and compared as a further one
                fit = fits({**others, "k": wanted}, {"present": 1, "k": given_value})
                assert fit is (wanted_row == given_row), (wanted, given_value)


def test_a_void_argument_requires_presence_and_a_void_header_equals_nothing_else() -> None:
    assert fits({"k": None}, {"k": None})
    for value in [value for row in EQUAL_VALUES for value in row]:
        assert fits({"k": None}, {"k": value})
        assert not fits({"k": value}, {"k": None})
    assert not fits({"k": None}, {"other": None})


def test_the_routing_key_does_not_matter() -> None:
    matcher = HeadersMatcher()
    matcher.bind("some key", {"a": 1}, "queue")
    assert destinations(matcher, {"a": 1}) == ["queue"]


def test_destinations_come_oldest_binding_first_and_once() -> None:
    matcher = HeadersMatcher()
    matcher.bind("", {"b": 1}, "second")
    matcher.bind("", {"b": 1, "a": 1, "x-match": "any"}, "first")
    matcher.bind("", {}, "third")
    matcher.bind("", {"a": 1}, "second")
    assert destinations(matcher, {"a": 1, "b": 1}) == ["second", "first", "third"]


def test_bindings_that_fit_the_same_messages_are_removed_one_by_one() -> None:
    matcher = HeadersMatcher()
    matcher.bind("", {"a": 1}, "queue")
    matcher.bind("", {"a": 1.0, "x-match": "all"}, "queue")
    matcher.bind("key", {"a": 1}, "queue")
    matcher.unbind("", {"a": 1}, "queue")
    matcher.unbind("key", {"a": 1}, "queue")
    assert destinations(matcher, {"a": 1}) == ["queue"]
    matcher.unbind("", {"a": 1.0, "x-match": "all"}, "queue")
    assert destinations(matcher, {"a": 1}) == []
    assert matcher.is_empty()


@pytest.mark.parametrize("mode", ["all", "any", "all-with-x", "any-with-x"])
def test_known_modes_are_accepted(mode: str) -> None:
    validate({"x-match": mode})
    validate({"x-match": mode, "other": 1})


def test_no_mode_is_accepted() -> None:
    validate({})


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("foo", 'value <<"foo">>; expected all, any, all-with-x, or any-with-x'),
        ("", "value <<>>; expected all, any, all-with-x, or any-with-x"),
        ("ALL", 'value <<"ALL">>; expected all, any, all-with-x, or any-with-x'),
        ('a"b', 'value <<"a\\"b">>; expected all, any, all-with-x, or any-with-x'),
        ("a\\b\n", 'value <<"a\\\\b\\n">>; expected all, any, all-with-x, or any-with-x'),
        ("é", 'value <<"é">>; expected all, any, all-with-x, or any-with-x'),
        ("日本", "value <<230,151,165,230,156,172>>; expected all, any, all-with-x, or any-with-x"),
        ("nul\0", "value <<110,117,108,0>>; expected all, any, all-with-x, or any-with-x"),
        (1, "type signedint (value 1); expected longstr"),
        (1 << 40, "type long (value 1099511627776); expected longstr"),
        (True, "type bool (value true); expected longstr"),
        (False, "type bool (value false); expected longstr"),
        (None, "type void (value undefined); expected longstr"),
        (1.5, "type double (value 1.5); expected longstr"),
        (1e100, "type double (value 1.0e100); expected longstr"),
        (1e-7, "type double (value 1.0e-7); expected longstr"),
        (b"all", 'type binary (value <<"all">>); expected longstr'),
        (datetime.fromtimestamp(1, UTC), "type timestamp (value 1); expected longstr"),
        (Decimal("1.5"), "type decimal (value {1,15}); expected longstr"),
        ([], "type array (value []); expected longstr"),
        (["all"], 'type array (value [{longstr,<<"all">>}]); expected longstr'),
        ({}, "type table (value []); expected longstr"),
        ({"b": [True]}, 'type table (value [{<<"b">>,array,[{bool,true}]}]); expected longstr'),
    ],
)
def test_other_modes_are_refused_with_rabbitmqs_text(mode: object, words: str) -> None:
    with pytest.raises(ValueError, match="Invalid x-match field ") as refusal:
        validate({"x-match": mode})
    assert str(refusal.value) == f"Invalid x-match field {words}"
    matcher = HeadersMatcher()
    with pytest.raises(ValueError, match="Invalid x-match field "):
        matcher.bind("", {"x-match": mode}, "queue")
    assert matcher.is_empty()


def model_fits(arguments: Table, headers: Table) -> bool:
    """The rules of the specification, for values whose Python equality is RabbitMQ's."""
    mode = str(arguments.get("x-match", "all"))
    conditions = {
        name: value
        for name, value in arguments.items()
        if name != "x-match" and (mode.endswith("-with-x") or not name.startswith("x-"))
    }
    met = [name in headers and value in (None, headers[name]) for name, value in conditions.items()]
    return all(met) if mode.startswith("all") else any(met)


names = st.sampled_from(["a", "b", "c", "x-a"])
values = st.sampled_from([2, 3, "s", "t", None])
header_tables = st.dictionaries(names, values, max_size=4)
modes = st.sampled_from([{}, *({"x-match": mode} for mode in ("all", "any", "all-with-x", "any-with-x"))])
argument_tables = st.builds(lambda table, mode: {**table, **mode}, header_tables, modes)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), argument_tables, st.integers(0, 5)), max_size=30),
    st.lists(header_tables, min_size=1, max_size=6),
)
def test_any_sequence_of_binds_and_unbinds_routes_as_the_model(
    steps: list[tuple[bool, Table, int]], asked: list[Table]
) -> None:
    matcher = HeadersMatcher()
    bound: list[tuple[Table, int]] = []
    for is_bind, arguments, destination in steps:
        if is_bind:
            matcher.bind("", arguments, destination)
            bound.append((arguments, destination))
        elif bound:
            removed_arguments, removed = bound.pop(destination % len(bound))
            matcher.unbind("", removed_arguments, removed)
    for headers in asked:
        assert set(destinations(matcher, headers)) == {d for a, d in bound if model_fits(a, headers)}
    for arguments, destination in bound:
        matcher.unbind("", arguments, destination)
    assert matcher.is_empty()


def test_cost_follows_the_headers_of_the_message_not_the_number_of_bindings() -> None:
    costs = []
    for count in (10, 10_000):
        matcher = HeadersMatcher()
        for number in range(count):
            matcher.bind("", {"kind": "report", "tenant": number}, number)
            matcher.bind("", {"order": number, "invoice": number, "x-match": "any"}, -number)
        before = matcher.visited
        assert destinations(matcher, {"kind": "report", "tenant": 7, "order": 8}) == [7, -8]
        costs.append(matcher.visited - before)
    assert costs[0] == costs[1]
