"""What selectors mean, and where the faulty ones are wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warrenmq.core.consumer_filter import find_fault, make_filter
from warrenmq.core.selector import MAX_DEPTH, MAX_LENGTH, SelectorError, parse
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.protocol.values import LongString, Timestamp


def accepts(asked: Any, **properties: Any) -> bool:
    consumer_filter = make_filter({"x-filter": asked})
    assert consumer_filter is not None
    return consumer_filter.accepts(content_header(0, BasicProperties(**properties)))


HEADERS = {
    "region": "eu",
    "total": 250,
    "rate": 0.5,
    "urgent": True,
    "order.id": "a'b%c_d",
    "x-death-count": 3,
    "exact": Decimal("1.50"),
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "list": [1, 2],
    "table": {"a": 1},
    "bytes": LongString(b"\xff"),
    "none": None,
    "nan": float("nan"),
    "größe": 2**40,
}


@pytest.mark.parametrize(
    "text",
    [
        "region = 'eu'",
        "REGION IS NULL and Region is null",
        "region <> 'us'",
        "region != 'us'",
        "region > 'e' AND region < 'f'",
        "region IN ('eu', 'us') AND total NOT IN (1, -2, +2.5)",
        "total IN (250.0)",
        "total BETWEEN 250 AND 250 AND NOT total BETWEEN 251 AND 300 AND total NOT BETWEEN 1 AND 2",
        "total / 100 = 2 AND total / 100.0 = 2.5 AND -total / 100 = -2",
        "total - 100 - 50 = 100 AND 2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20 AND - - 2 = 2",
        "rate = .5 AND rate = 5e-1 AND 7. = 7 AND rate * 2 = 1",
        "urgent AND urgent = TRUE AND urgent <> FALSE AND NOT (NOT urgent)",
        "order.id = 'a''b%c_d'",
        "order.id LIKE 'a%d' AND order.id LIKE '_''%' AND order.id NOT LIKE 'a' AND order.id LIKE '%'",
        "order.id LIKE 'a''b!%c!_d' ESCAPE '!' AND order.id NOT LIKE 'a''b!%c!_e' ESCAPE '!'",
        '"x-death-count" = 3',
        "exact = 1.5",
        "at = 1767225600",
        "list IS NOT NULL AND table IS NOT NULL AND bytes IS NOT NULL",
        "none IS NULL AND nan IS NULL AND missing IS NULL",
        "größe = 1099511627776",
        "missing = 1 OR region = 'eu'",
        "NOT (missing = 1 AND region = 'us')",
        "(missing = 1) IS NULL",
        "total / 0 IS NULL",
        "9223372036854775807 + 1 > 0 AND 99999999999999999999 > 9223372036854775807",
        "NOT(region='us')AND(total>3)",
        "\n\ttotal > 3 ",
    ],
)
def test_these_match(text: str) -> None:
    assert accepts(text, headers=HEADERS)


@pytest.mark.parametrize(
    "text",
    [
        "region = 'EU'",
        "missing = 1",
        "NOT missing = 1",
        "missing <> 1",
        "missing OR region = 'us'",
        "NOT missing",
        "region = 1 OR region <> 1 OR total = '250' OR total <> '250' OR urgent = 1 OR urgent <> 1",
        "region",
        "total",
        "total AND urgent",
        "urgent IN (1)",
        "total LIKE '250'",
        "region + 1 > 0 OR region + 1 <= 0",
        "list = 1 OR list <> 1 OR list = list OR list <> list OR list < list",
        "missing IN (1) OR missing NOT IN (1)",
        "missing LIKE '%' OR missing NOT LIKE '%'",
        "missing BETWEEN 1 AND 2 OR missing NOT BETWEEN 1 AND 2",
        "1e308 * 10 - 1e308 * 10 = 0",
        "FALSE",
    ],
)
def test_these_do_not(text: str) -> None:
    assert not accepts(text, headers=HEADERS)


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("priority > 3", {"priority": 4}),
        ("message_id = 'm'", {"message_id": "m"}),
        ("correlation_id = 'c'", {"correlation_id": "c"}),
        ("content_type LIKE 'text/%'", {"content_type": "text/plain"}),
        ("content_encoding = 'gzip'", {"content_encoding": "gzip"}),
        ("type = 't'", {"type": "t"}),
        ("app_id = 'a'", {"app_id": "a"}),
        ("user_id = 'u'", {"user_id": "u"}),
        ("reply_to = 'r'", {"reply_to": "r"}),
        ("timestamp = 5", {"timestamp": datetime.fromtimestamp(5, UTC)}),
        ("delivery_mode = 2", {"delivery_mode": 2}),
        ("expiration = '100'", {"expiration": "100"}),
        ("cluster_id = 'x'", {"cluster_id": "x"}),
        ("priority = 4", {"priority": 4, "headers": {"priority": 1}}),
        ("priority = 1", {"headers": {"priority": 1}}),
        ('"priority" = 1', {"priority": 4, "headers": {"priority": 1}}),
        ("priority IS NULL AND type IS NULL AND region IS NULL", {}),
    ],
)
def test_a_name_is_that_of_a_property_and_else_of_a_header(text: str, properties: dict[str, Any]) -> None:
    assert accepts(text, **properties)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "expected a name or value, got the end at position 1"),
        ("a =", "expected a name or value, got the end at position 4"),
        ("a = 1 b", "expected the end, AND or OR, got 'b' at position 7"),
        ("a == 1", "expected a name or value, got '=' at position 4"),
        ("(a = 1", "expected ), got the end at position 7"),
        ("a = 'x", "the text has no closing quote: syntax error at position 5"),
        ('"" = 1', "the quoted name is empty or has no closing quote: syntax error at position 1"),
        ("a = 3x", "a name cannot begin with a digit: syntax error at position 5"),
        ("a; b", "unexpected character ';' at position 2"),
        ("a NOT 5", "expected BETWEEN, IN or LIKE, got 5 at position 7"),
        ("a IS 5", "expected NULL, got 5 at position 6"),
        ("a BETWEEN 1, 2", "expected AND, got ',' at position 12"),
        ("a IN 1", "expected (, got 1 at position 6"),
        ("a IN ()", "expected a text or number, got ')' at position 7"),
        ("a IN (-'x')", "expected a number, got 'x' at position 8"),
        ("a IN (1 2)", "expected , or ), got 2 at position 9"),
        ("a LIKE b", "expected a pattern in single quotes, got 'b' at position 8"),
        ("a LIKE 'x' ESCAPE 'ab'", "expected one character in single quotes, got 'ab' at position 19"),
        ("a LIKE 'x!y' ESCAPE '!'", "invalid pattern 'x!y': '!' may stand before %, _ and itself only at position 8"),
        ("a LIKE 'x!' ESCAPE '!'", "invalid pattern 'x!': nothing follows '!' at position 8"),
        ("1 + 1", "expected a condition, got a value at position 1"),
        ("a = 1 AND 'x'", "expected a condition, got a value at position 11"),
        ("a + 'x' = 1", "expected a number at position 5"),
        ("-(a = 1) = 1", "expected a number at position 3"),
        ("(" * 33 + "a" + ")" * 33, f"more than {MAX_DEPTH} levels of nesting at position 34"),
        ("NOT " * 33 + "a", f"more than {MAX_DEPTH} levels of nesting at position 133"),
        ("a" * (MAX_LENGTH + 1), f"a selector has {MAX_LENGTH} characters at most: too long at position 8193"),
    ],
)
def test_a_fault_is_reported_with_its_position(text: str, fault: str) -> None:
    with pytest.raises(SelectorError) as error:
        parse(text)
    assert str(error.value) == fault
    assert find_fault(text) == f'"{fault}"'


def test_a_large_pattern_is_refused() -> None:
    assert "invalid pattern" in find_fault(f"a LIKE '{'_' * 2000}'")


def test_long_chains_are_evaluated() -> None:
    assert accepts(" OR ".join(["a = 1"] * 800), headers={"a": 1})
    assert accepts("+".join(["a"] * 3000) + " = 3000", headers={"a": 1})
    assert accepts("*".join(["a"] * 3000) + " > 1e300", headers={"a": 2**62})


def test_a_text_too_long_to_be_matched_is_unknown() -> None:
    assert accepts("a LIKE 'x%'", headers={"a": "x" * 1024})
    assert not accepts("a LIKE 'x%' OR a NOT LIKE 'x%'", headers={"a": "x" * 1025})


@pytest.mark.parametrize(
    ("conditions", "is_wanted"),
    [
        ({"region": "eu", "total": 250}, True),
        ({"region": "eu", "total": 1}, False),
        ({"x-match": "any", "region": "eu", "total": 1}, True),
        ({"x-match": "any", "region": "us"}, False),
        ({"region": None}, True),
        ({"missing": None}, False),
        ({"x-death-count": 1}, True),
        ({"x-match": "all-with-x", "x-death-count": 1}, False),
        ({"x-match": "any-with-x", "x-death-count": 3, "region": "us"}, True),
        ({}, True),
        ({"x-match": "any"}, False),
    ],
)
def test_a_table_matches_as_a_headers_exchange_does(conditions: dict[str, Any], is_wanted: bool) -> None:
    assert find_fault(conditions) == ""
    assert accepts(conditions, headers=HEADERS) is is_wanted


@pytest.mark.parametrize("value", [5, None, True, [1], b"x"])
def test_a_filter_is_a_text_or_a_table(value: Any) -> None:
    assert find_fault(value).startswith('"expected a table or a text, got ')


def test_an_unknown_x_match_is_refused() -> None:
    assert "expected all, any, all-with-x, or any-with-x" in find_fault({"x-match": "some"})


def test_results_are_remembered_within_limits() -> None:
    consumer_filter = make_filter({"x-filter": "n > 500"})
    assert consumer_filter is not None
    for _ in range(2):
        for number in range(0, 20_000, 7):
            header = content_header(0, BasicProperties(headers={"n": number % 1000, "pad": "x" * (number // 10)}))
            assert consumer_filter.accepts(header) is (number % 1000 > 500)
    assert sum(map(len, consumer_filter.cache)) <= 32 << 10


def test_the_result_is_remembered_by_what_the_selector_uses() -> None:
    consumer_filter = make_filter({"x-filter": "priority > 3 AND n = 1"})
    assert consumer_filter is not None
    for number in range(100):
        for priority in (None, 3, 4):
            properties = BasicProperties(
                headers={"n": 1}, priority=priority, message_id=str(number), timestamp=Timestamp(number), type="a"
            )
            assert consumer_filter.accepts(content_header(number, properties)) is (priority == 4)
    assert len(consumer_filter.cache) == 3


@given(
    st.lists(
        st.builds(
            BasicProperties,
            headers=st.none() | st.dictionaries(st.sampled_from(["type", "app_id", "n"]), st.sampled_from(["a", "b"])),
            content_type=st.none() | st.just("a"),
            delivery_mode=st.sampled_from([None, 1, 2]),
            priority=st.sampled_from([None, 1, 2]),
            type=st.sampled_from([None, "a", "b"]),
            app_id=st.sampled_from([None, "a", "b"]),
            message_id=st.sampled_from([None, "a"]),
        ),
        max_size=30,
    ),
    st.sampled_from(["type = 'a'", "priority = 1 OR app_id = 'b'", "n = 'a' AND delivery_mode = 2", "type = app_id"]),
)
def test_what_is_remembered_changes_no_result(messages: list[BasicProperties], text: str) -> None:
    remembering = make_filter({"x-filter": text})
    assert remembering is not None
    for properties in messages:
        header = content_header(0, properties)
        fresh = make_filter({"x-filter": text})
        assert fresh is not None
        assert remembering.accepts(header) is fresh.accepts(header)
