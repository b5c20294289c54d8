"""The option `filter`: comparisons joined by `and`, evaluated by executors before rows are passed to Spark.

    routing_key like 'orders.%' and header.tenant = 'acme' and priority >= 5 and value.country in ('DE', 'AT')

A comparison is a field, one of = != < <= > >= like, `not like`, in, and a literal: a 'text' (quotes are doubled), a
number, true or false. As in SQL, null and values of another type than the literal match nothing. In `like`, % matches
any text and _ one character.

Pure. `matches` is for a single value, `mask` for an Arrow column; both return the same.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.pipeline.errors import BadOption

if TYPE_CHECKING:
    import pyarrow as pa

Literal: TypeAlias = str | int | float | bool

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARROW = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_SYNONYMS = {"==": "=", "<>": "!="}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<operator><=|>=|<>|!=|==|=|<|>)
      | (?P<mark>[(),])
      | (?P<word>`[^`]+`|[A-Za-z_][\w.\-]*)
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison. `operator` is one of = != < <= > >= like, not like, in."""

    field: str
    operator: str
    literals: tuple[Literal, ...]

    def matches(self, value: object) -> bool:
        if isinstance(value, (bytes, bytearray)):
            value = value.decode("utf-8", "replace")
        literal = self.literals[0]
        if self.operator == "in":
            return any(_is_like_typed(value, each) and value == each for each in self.literals)
        if not _is_like_typed(value, literal):
            return False
        if self.operator in ("like", "not like"):
            is_match = _like_pattern(str(literal)).fullmatch(str(value)) is not None
            return is_match == (self.operator == "like")
        return _ORDERS[self.operator](value, literal)

    def mask(self, column: pa.Array) -> pa.Array:
        """Return true for the values of a column that match, false for all others, nulls included."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_binary(column.type):
            column = column.cast(pa.string())
        comparable = [literal for literal in self.literals if _is_comparable(column.type, literal)]
        if not comparable:
            return pa.array([False] * len(column), pa.bool_())
        if self.operator == "in":
            return pc.is_in(column, value_set=pa.array(comparable).cast(column.type))
        if self.operator in ("like", "not like"):
            found = pc.match_like(column, str(comparable[0]))
            found = found if self.operator == "like" else pc.invert(found)
        else:
            found = pc.call_function(_ARROW[self.operator], [column, pa.scalar(comparable[0])])
        return pc.fill_null(found, False)


def parse_filter(text: str) -> tuple[Condition, ...]:
    """Parse a filter; a record must match all its comparisons."""
    parser = _Parser(text)
    conditions = [parser.condition()]
    while parser.peek() is not None:
        parser.keyword("and")
        conditions.append(parser.condition())
    return tuple(conditions)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0

    def peek(self) -> tuple[str, str] | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def condition(self) -> Condition:
        kind, field = self._take("a field")
        if kind != "word":
            raise self._error(f"a field is expected, not {field}")
        return Condition(field.strip("`"), *self._comparison())

    def keyword(self, word: str) -> None:
        _, token = self._take(f"`{word}`")
        if token.lower() != word:
            raise self._error(f"`{word}` is expected, not {token}")

    def _comparison(self) -> tuple[str, tuple[Literal, ...]]:
        kind, token = self._take("a comparison")
        name = token.lower()
        if kind == "operator":
            return _SYNONYMS.get(token, token), (self._literal(),)
        if name == "in":
            return "in", self._list()
        if name == "not":
            self.keyword("like")
            name = "not like"
        if name in ("like", "not like"):
            literal = self._literal()
            if not isinstance(literal, str):
                raise self._error(f"{name} takes a text in single quotes, not {literal}")
            return name, (literal,)
        raise self._error(f"one of = != < <= > >= like in is expected, not {token}")

    def _list(self) -> tuple[Literal, ...]:
        self.keyword("(")
        literals = [self._literal()]
        while (following := self._take("`)`")[1]) == ",":
            literals.append(self._literal())
        if following != ")":
            raise self._error(f"`,` or `)` is expected, not {following}")
        return tuple(literals)

    def _literal(self) -> Literal:
        kind, token = self._take("a literal")
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return float(token) if set(token) & set(".eE") else int(token)
        if token.lower() in ("true", "false"):
            return token.lower() == "true"
        raise self._error(f"a 'text' in single quotes, a number, true or false is expected, not {token}")

    def _take(self, what: str) -> tuple[str, str]:
        token = self.peek()
        if token is None:
            raise self._error(f"{what} is expected at the end")
        self._at += 1
        return token

    def _error(self, text: str) -> BadOption:
        return BadOption(
            f"the option filter cannot be read: {text} (in {self._text!r}); comparisons are joined by `and`, "
            "like routing_key like 'orders.%' and header.tenant = 'acme'"
        )


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadOption(f"the option filter cannot be read at {text[at:].strip()[:40]!r} (in {text!r})")
        kind = match.lastgroup
        assert kind is not None
        tokens.append((kind, match.group(kind)))
        at = match.end()
    return tokens


def _like_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern of `like`; `re` caches it."""
    parts = (".*" if sign == "%" else "." if sign == "_" else re.escape(sign) for sign in pattern)
    return re.compile("".join(parts), re.DOTALL)


def _is_like_typed(value: object, literal: Literal) -> bool:
    """Return True if both are strings, both numbers or both booleans."""
    if isinstance(literal, bool) or isinstance(value, bool):
        return isinstance(literal, bool) and isinstance(value, bool)
    if isinstance(literal, str):
        return isinstance(value, str)
    return isinstance(value, (int, float))


def _is_comparable(kind: pa.DataType, literal: Literal) -> bool:
    """Return True if a column of this type can be compared with the literal."""
    from pyarrow import types

    if isinstance(literal, bool):
        return bool(types.is_boolean(kind))
    if isinstance(literal, str):
        return bool(types.is_string(kind) or types.is_large_string(kind))
    return bool(types.is_integer(kind) or types.is_floating(kind))
