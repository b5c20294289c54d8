"""Regular expressions written by users: in permissions, policies and trace rules.

They run in RE2, in linear time, and never in `re`, where one pattern can block the broker for hours. The sizes of
pattern, program and text are limited, so a match takes at most 4 ms on a text of `MAX_TEXT_BYTES`, and less than 1 ms
on a name. RE2 has no backreferences and no look-around; its `\\d` and `\\w` are ASCII.

RE2 is imported with the first expression: that takes 10 ms, and most brokers use only `.*`.
"""

from __future__ import annotations

from typing import Any

MAX_PATTERN_LENGTH = 1_000
MAX_TEXT_BYTES = 1_024
EVERYTHING = ".*"

_MEMORY = 1 << 17  # bytes of one compiled expression: about 2,000 instructions
_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~"  # literal after a backslash
_SPECIAL = ".+()[]|^$\\"
_UNSUPPORTED = "backreferences, look-around and possessive groups are not supported (RE2 syntax)"


class Pattern:
    """A compiled expression. Immutable."""

    __slots__ = ("_expression", "_prefix", "text")

    def __init__(self, text: str) -> None:
        """ValueError: the pattern is invalid; the text is one line."""
        self.text = text
        self._expression = None if text in ("", EVERYTHING) else _compile(text)
        self._prefix = _literal_prefix(text)  # most names do not start with it, and RE2 takes 1 us to find out

    def matches(self, text: str) -> bool:
        """Return True if it matches anywhere in the text. Texts above MAX_TEXT_BYTES match only `.*` and ""."""
        if self._expression is None:
            return True
        if not text.startswith(self._prefix):
            return False
        encoded = _encode(text)
        return len(encoded) <= MAX_TEXT_BYTES and self._expression.search(encoded) is not None


def _compile(text: str) -> Any:
    if len(text) > MAX_PATTERN_LENGTH:
        raise ValueError(f"it has {len(text)} characters, at most {MAX_PATTERN_LENGTH} are allowed")
    import re2

    options = re2.Options()
    options.max_mem = _MEMORY
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(_encode(text), options)
    except re2.error as error:
        problem = error.args[0] if error.args else error
        if isinstance(problem, bytes):
            problem = problem.decode("utf-8", "replace")
        is_foreign = problem.startswith(("invalid perl operator", "invalid escape sequence", "bad repetition operator"))
        raise ValueError(f"{problem}; {_UNSUPPORTED}" if is_foreign else problem) from None


def _literal_prefix(pattern: str) -> str:
    """Return a prefix that every text matched by this valid pattern has; not necessarily the longest."""
    if not pattern.startswith("^") or "|" in pattern:
        return ""
    found: list[str] = []
    at = 1
    while at < len(pattern):
        char = pattern[at]
        if char in "*?{":
            return "".join(found[:-1])  # the last one is optional
        if char == "\\" and at + 1 < len(pattern) and pattern[at + 1] in _PUNCTUATION:
            at += 1
            char = pattern[at]
        elif char in _SPECIAL or not char.isascii():
            break
        found.append(char)
        at += 1
    return "".join(found)


def _encode(text: str) -> bytes:
    """Encode a name; RE2 takes lone surrogates, of names that are not UTF-8, as one character each."""
    return text.encode("utf-8", "surrogatepass")
