"""The option filter: one grammar, and the same answer for values and for columns of Arrow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.pipeline.errors import BadOption
from warrenmq.pipeline.source.filters import Condition, parse_filter

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'warrenmq[spark]'")


def test_comparisons_are_read() -> None:
    assert parse_filter(
        "routing_key like 'orders.%' AND header.x-tenant = 'o''neill' and `value.a b` in (1, 2.5, true) "
        "and priority<>-3 and exchange not like '_x'"
    ) == (
        Condition("routing_key", "like", ("orders.%",)),
        Condition("header.x-tenant", "=", ("o'neill",)),
        Condition("value.a b", "in", (1, 2.5, True)),
        Condition("priority", "!=", (-3,)),
        Condition("exchange", "not like", ("_x",)),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a =",
        "= 3",
        "a = b",
        "a = 1 or b = 2",
        "a like 3",
        "a in 3",
        "a in (1",
        "a in (1 2)",
        "a = 'x",
        "a = 1 and",
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="filter"):
        parse_filter(text)


@pytest.mark.parametrize(
    ("text", "value", "is_accepted"),
    [
        ("a = 'x'", "x", True),
        ("a = 'x'", b"x", True),
        ("a = 'x'", None, False),
        ("a != 'x'", None, False),
        ("a != 'x'", "y", True),
        ("a = 1", 1.0, True),
        ("a = 1", "1", False),
        ("a = 1", True, False),
        ("a = true", True, True),
        ("a = true", 1, False),
        ("a >= 2.5", 3, True),
        ("a like 'a.%'", "a.b\nc", True),
        ("a like 'a_c'", "abc", True),
        ("a like 'a.c'", "abc", False),
        ("a not like 'a%'", "b", True),
        ("a not like 'a%'", None, False),
        ("a in ('x', 2)", 2, True),
        ("a in ('x', 2)", "y", False),
    ],
)
def test_values_are_compared_as_sql_does(text: str, value: object, is_accepted: bool) -> None:
    assert parse_filter(text)[0].matches(value) is is_accepted


texts = st.text("ab%_.", max_size=3)
numbers = st.integers(-3, 3)
literals = texts | numbers | st.booleans()
conditions = st.one_of(
    st.builds(Condition, st.just("a"), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), st.tuples(literals)),
    st.builds(Condition, st.just("a"), st.sampled_from(["like", "not like"]), st.tuples(texts)),
    st.builds(Condition, st.just("a"), st.just("in"), st.lists(literals, min_size=1, max_size=3).map(tuple)),
)
columns = st.one_of(
    st.lists(st.none() | texts, max_size=5).map(lambda values: (values, pa.string())),
    st.lists(st.none() | numbers, max_size=5).map(lambda values: (values, pa.int8())),
    st.lists(st.none() | st.booleans(), max_size=5).map(lambda values: (values, pa.bool_())),
)


@given(condition=conditions, column=columns)
def test_a_column_and_its_values_get_the_same_answer(condition: Condition, column: tuple[list[object], object]) -> None:
    values, kind = column
    assert condition.mask(pa.array(values, kind)).to_pylist() == [condition.matches(value) for value in values]
