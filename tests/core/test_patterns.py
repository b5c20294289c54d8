"""Regular expressions written by users: matches, refusals, and bounded time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from warrenmq.core.patterns import MAX_PATTERN_LENGTH, MAX_TEXT_BYTES, Pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("log", ["log", "my.logs"], ["lo", ""]),
        ("^log$", ["log"], ["logs", "log\n"]),
        (r"orders\.(eu|us)$", ["orders.eu", "my-orders.us"], ["orders.asia"]),
        ("", ["", "anything"], []),
        (".*", ["", "anything", "x" * 2 * MAX_TEXT_BYTES], []),
        ("^.é$", ["éé", "aé"], ["a", "éa"]),
        ("(?i)^LOG$", ["log", "Log"], ["logs"]),
    ],
)
def test_a_pattern_matches_somewhere_in_the_text(pattern: str, matching: list[str], others: list[str]) -> None:
    compiled = Pattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in others if compiled.matches(text)] == []


def test_names_that_are_not_utf_8_match_byte_by_byte() -> None:
    name = b"caf\xe9\xff".decode("utf-8", "surrogateescape")
    for pattern in ("^caf..$", "^.*$", f"{name}$", "[^x]$", f"^caf[\udce9]{name[-1]}$"):
        assert Pattern(pattern).matches(name), pattern
    for pattern in ("^caf.$", "^caf..?é$", "^cafe"):
        assert not Pattern(pattern).matches(name), pattern


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)b", "(?<!a)b", "a++", "(?>a)", r"a\Z"])
def test_what_needs_backtracking_is_refused_and_named(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"backreferences, look-around .* not supported"):
        Pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("[", "missing ]"),
        ("*a", "no argument for repetition operator"),
        ("a" * (MAX_PATTERN_LENGTH + 1), f"at most {MAX_PATTERN_LENGTH} are allowed"),
        ("(" * 2000 + ")" * 2000, f"at most {MAX_PATTERN_LENGTH} are allowed"),
        ("(a{1000}){1000}", "invalid repetition size"),
        ("(.{0,300}a){3}$", "pattern too large"),
    ],
)
def test_what_is_no_pattern_or_too_large_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Pattern(pattern)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_explodes_elsewhere_is_linear(pattern: str) -> None:
    assert not Pattern(pattern).matches("a" * 200 + "!")


def test_a_text_that_is_too_long_matches_no_expression() -> None:
    assert Pattern("^a+$").matches("a" * MAX_TEXT_BYTES)
    assert not Pattern("^a+$").matches("a" * (MAX_TEXT_BYTES + 1))


def test_the_engine_is_not_loaded_for_patterns_that_match_everything() -> None:
    code = """
import sys
from warrenmq.core.users import Users
users = Users()
users.add("guest", "guest")
users.grant("guest", None, ".*", ".*", "")
assert "re2" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
