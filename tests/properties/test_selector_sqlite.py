"""Random selectors over random headers, compared with SQLite's evaluation of the same expression."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warrenmq.core.consumer_filter import make_filter
from warrenmq.protocol.properties import BasicProperties, content_header

# A selector refuses to compare a text with a number, where SQLite orders them: so each column has one type.
NUMBERS = ("i", "j", "r")
TEXTS = ("s", "t")
FLAGS = ("b", "c")

letters = st.text("abAB%_!'é😀\n", max_size=5)
integers = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
reals = st.one_of(st.sampled_from([0.0, 0.5, -2.5, 1e300, 1e-300]), st.floats(-1e6, 1e6))


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(number: float) -> str:
    # SQLite parses -9223372036854775808 as one number, a selector as the negation of a double.
    return f"({number!r})" if number != -(2**63) else "(-9223372036854775807 - 1)"


numbers: st.SearchStrategy[str] = st.recursive(
    st.one_of(st.sampled_from(NUMBERS), st.one_of(integers, reals).map(literal)),
    lambda inner: st.one_of(
        st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from("+-*/"), inner),
        st.builds(lambda a, b, c, op: f"({a} {op} {b} - {c})", inner, inner, inner, st.sampled_from("+-")),
        inner.map(lambda a: f"(- {a})"),
    ),
    max_leaves=4,
)
texts = st.one_of(st.sampled_from(TEXTS), letters.map(quote))
comparisons = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
maybe_not = st.sampled_from(["", "NOT "])


def like(text: str, negation: str, pattern: str, has_escape: bool) -> str:
    escape = ""
    if has_escape:  # only before what may be escaped
        pattern = pattern.replace("!", "!!").replace("b%", "b!%")
        escape = " ESCAPE '!'"
    return f"({text} {negation}LIKE {quote(pattern)}{escape})"


def listed(items: list[str]) -> str:
    return "(" + ", ".join(items) + ")"


def items(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(strategy, min_size=1, max_size=4).map(listed)


predicates = st.one_of(
    st.sampled_from([*FLAGS, "TRUE", "FALSE"]),
    st.builds(lambda a, op, b: f"({a} {op} {b})", numbers, comparisons, numbers),
    st.builds(lambda a, op, b: f"({a} {op} {b})", texts, comparisons, texts),
    st.builds(
        lambda a, op, b: f"({a} {op} {b})", st.sampled_from(FLAGS), st.sampled_from(["=", "<>"]), st.just("TRUE")
    ),
    st.builds(lambda a, no, b, c: f"({a} {no}BETWEEN {b} AND {c})", numbers, maybe_not, numbers, numbers),
    st.builds(lambda a, no, b, c: f"({a} {no}BETWEEN {b} AND {c})", texts, maybe_not, texts, texts),
    st.builds(lambda a, no, b: f"({a} {no}IN {b})", texts, maybe_not, items(letters.map(quote))),
    st.builds(
        lambda a, no, b: f"({a} {no}IN {b})", numbers, maybe_not, items(st.one_of(st.integers(-5, 5), reals).map(repr))
    ),
    st.builds(like, texts, maybe_not, letters, st.booleans()),
    st.builds(lambda a, no: f"({a} IS {no}NULL)", st.one_of(texts, numbers, st.sampled_from(FLAGS)), maybe_not),
)
conditions: st.SearchStrategy[str] = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds(lambda a, b, c: f"{a} OR {b} AND {c}", predicates, inner.map(lambda x: f"({x})"), predicates),
        inner.map(lambda a: f"(NOT ({a}))"),
        inner.map(lambda a: f"(({a}) IS NULL)"),
    ),
    max_leaves=8,
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "i": integers,
        "j": integers,
        "r": reals,
        "s": letters,
        "t": letters,
        "b": st.booleans(),
        "c": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        yield connection


@settings(max_examples=2000, deadline=None)
@given(condition=conditions, row=rows)
def test_a_selector_means_what_it_means_in_sqlite(
    database: sqlite3.Connection, condition: str, row: dict[str, Any]
) -> None:
    columns = ", ".join(f":{name} AS {name}" for name in (*NUMBERS, *TEXTS, *FLAGS))
    values = {name: row.get(name) for name in (*NUMBERS, *TEXTS, *FLAGS)}
    (expected,) = database.execute(f"SELECT ({condition}) FROM (SELECT {columns})", values).fetchone()
    consumer_filter = make_filter({"x-filter": condition})
    assert consumer_filter is not None
    header = content_header(0, BasicProperties(headers=row))
    assert consumer_filter.accepts(header) is (expected == 1)
