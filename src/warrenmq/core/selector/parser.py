"""From the text of a selector to an evaluator, by recursive descent.

    condition   = and { OR and }
    and         = not { AND not }
    not         = { NOT } predicate
    predicate   = sum [ comparison sum | IS [NOT] NULL
                      | [NOT] ( BETWEEN sum AND sum | IN "(" literal, ... ")" | LIKE text [ ESCAPE text ] ) ]
    sum         = product { (+ | -) product }
    product     = factor { (* | /) factor }
    factor      = { + | - } ( literal | name | "(" condition ")" )

Chains are evaluated in loops, so only what MAX_DEPTH limits is recursive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from warrenmq.core.selector import evaluate
from warrenmq.core.selector.evaluate import COMPARISONS, Evaluator
from warrenmq.core.selector.lexer import Kind, SelectorError, Token, tokenize

MAX_DEPTH = 32  # of parentheses, NOT and signs


class Name(NamedTuple):
    """A name in a selector; in double quotes it is that of a header, even if a property is called the same."""

    text: str
    is_quoted: bool


class Selector:
    """A parsed selector. Immutable."""

    __slots__ = ("_evaluate", "names", "text")

    def __init__(self, text: str, names: Sequence[Name], evaluator: Evaluator) -> None:
        self.text = text
        self.names = names
        self._evaluate = evaluator

    def matches(self, values: Sequence[Any]) -> bool:
        """Return True if the selector is true, neither false nor unknown, with these values of its `names`."""
        return self._evaluate(values) is True


def parse(text: str) -> Selector:
    """Parse a selector. SelectorError: it is not valid."""
    parser = _Parser(tokenize(text))
    evaluator = parser.parse()
    return Selector(text, list(parser.names), evaluator)


class _Type(Enum):
    """What is known of a value before it is evaluated."""

    CONDITION = auto()  # true, false or unknown
    NUMBER = auto()
    TEXT = auto()
    ANY = auto()


class _Node(NamedTuple):
    evaluate: Evaluator
    type: _Type
    position: int


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self.names: dict[Name, int] = {}

    def parse(self) -> Evaluator:
        node = self._condition()
        if self._next.kind is not Kind.END:
            raise self._unexpected("the end, AND or OR")
        return _as_condition(node)

    # -- tokens ------------------------------------------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _skip(self, kind: Kind, *values: str) -> str:
        """Take the next token if it is one of these, and return its value; else return nothing."""
        token = self._next
        if token.kind is kind and token.value in values:
            self._at += 1
            return str(token.value)
        return ""

    def _require(self, kind: Kind, value: str) -> None:
        if not self._skip(kind, value):
            raise self._unexpected(value)

    def _unexpected(self, wanted: str) -> SelectorError:
        token = self._next
        found = "the end" if token.kind is Kind.END else repr(token.value)[:40]
        return SelectorError(f"expected {wanted}, got {found}", token.position)

    def _nest(self, parse: Callable[[], _Node]) -> _Node:
        """Parse what is one level deeper."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError(f"more than {MAX_DEPTH} levels of nesting", self._next.position)
        node = parse()
        self._depth -= 1
        return node

    # -- conditions --------------------------------------------------------------------------------------------------

    def _condition(self) -> _Node:
        return self._chain(self._conjunction, "OR", evaluate.disjunction)

    def _conjunction(self) -> _Node:
        return self._chain(self._negation, "AND", evaluate.conjunction)

    def _chain(
        self, parse: Callable[[], _Node], keyword: str, combine: Callable[[Sequence[Evaluator]], Evaluator]
    ) -> _Node:
        first = parse()
        if not self._skip(Kind.KEYWORD, keyword):
            return first
        operands = [_as_condition(first), _as_condition(parse())]
        while self._skip(Kind.KEYWORD, keyword):
            operands.append(_as_condition(parse()))
        return _Node(combine(operands), _Type.CONDITION, first.position)

    def _negation(self) -> _Node:
        position = self._next.position
        if not self._skip(Kind.KEYWORD, "NOT"):
            return self._predicate()
        operand = _as_condition(self._nest(self._negation))
        return _Node(evaluate.negation(operand), _Type.CONDITION, position)

    def _predicate(self) -> _Node:
        left = self._sum()
        symbol = self._skip(Kind.SYMBOL, *COMPARISONS)
        if symbol:
            return _Node(evaluate.comparison(symbol, left[0], self._sum()[0]), _Type.CONDITION, left.position)
        if self._skip(Kind.KEYWORD, "IS"):
            is_negated = self._skip(Kind.KEYWORD, "NOT")
            self._require(Kind.KEYWORD, "NULL")
            found = evaluate.is_null(left.evaluate)
        else:
            is_negated = self._skip(Kind.KEYWORD, "NOT")
            keyword = self._skip(Kind.KEYWORD, "BETWEEN", "IN", "LIKE")
            if not keyword:
                if is_negated:
                    raise self._unexpected("BETWEEN, IN or LIKE")
                return left
            found = {"BETWEEN": self._between, "IN": self._in, "LIKE": self._like}[keyword](left.evaluate)
        return _Node(evaluate.negation(found) if is_negated else found, _Type.CONDITION, left.position)

    def _between(self, operand: Evaluator) -> Evaluator:
        low = self._sum().evaluate
        self._require(Kind.KEYWORD, "AND")
        high = self._sum().evaluate
        return evaluate.conjunction([evaluate.comparison(">=", operand, low), evaluate.comparison("<=", operand, high)])

    def _in(self, operand: Evaluator) -> Evaluator:
        self._require(Kind.SYMBOL, "(")
        literals = [self._literal()]
        while self._skip(Kind.SYMBOL, ","):
            literals.append(self._literal())
        if not self._skip(Kind.SYMBOL, ")"):
            raise self._unexpected(", or )")
        return evaluate.is_in(operand, literals)

    def _literal(self) -> int | float | str:
        sign = self._skip(Kind.SYMBOL, "-", "+")
        if self._next.kind is Kind.TEXT and not sign:
            return self._take().value
        if self._next.kind is not Kind.NUMBER:
            raise self._unexpected("a number" if sign else "a text or number")
        value = self._take().value
        assert not isinstance(value, str)
        return -value if sign == "-" else value

    def _like(self, operand: Evaluator) -> Evaluator:
        position = self._next.position
        pattern = self._text("a pattern in single quotes")
        escape = ""
        if self._skip(Kind.KEYWORD, "ESCAPE"):
            escape_at = self._next.position
            escape = self._text("one character in single quotes")
            if len(escape) != 1:
                raise SelectorError(f"expected one character in single quotes, got {escape!r}", escape_at)
        try:
            return evaluate.is_like(operand, evaluate.like_pattern(pattern, escape))
        except ValueError as error:
            raise SelectorError(f"invalid pattern {pattern[:40]!r}: {error}", position) from None

    def _text(self, wanted: str) -> str:
        if self._next.kind is not Kind.TEXT:
            raise self._unexpected(wanted)
        return str(self._take().value)

    # -- values ------------------------------------------------------------------------------------------------------

    def _sum(self) -> _Node:
        return self._arithmetic(self._product, "+", "-")

    def _product(self) -> _Node:
        return self._arithmetic(self._factor, "*", "/")

    def _arithmetic(self, parse: Callable[[], _Node], *symbols: str) -> _Node:
        first = parse()
        symbol = self._skip(Kind.SYMBOL, *symbols)
        if not symbol:
            return first
        rest: list[tuple[str, Evaluator]] = []
        while symbol:
            rest.append((symbol, _as_number(parse())))
            symbol = self._skip(Kind.SYMBOL, *symbols)
        return _Node(evaluate.arithmetic(_as_number(first), rest), _Type.NUMBER, first.position)

    def _factor(self) -> _Node:
        position = self._next.position
        sign = self._skip(Kind.SYMBOL, "+", "-")
        if sign:
            operand = _as_number(self._nest(self._factor))
            return _Node(evaluate.minus(operand) if sign == "-" else operand, _Type.NUMBER, position)
        if self._skip(Kind.SYMBOL, "("):
            node = self._nest(self._condition)
            if not self._skip(Kind.SYMBOL, ")"):
                raise self._unexpected(")")
            return node
        return self._primary()

    def _primary(self) -> _Node:
        kind, value, position = self._next
        if kind is Kind.NUMBER or kind is Kind.TEXT:
            self._at += 1
            return _Node(evaluate.constant(value), _Type.NUMBER if kind is Kind.NUMBER else _Type.TEXT, position)
        if kind is Kind.NAME or kind is Kind.QUOTED:
            self._at += 1
            name = Name(str(value), kind is Kind.QUOTED)
            index = self.names.setdefault(name, len(self.names))
            return _Node(evaluate.variable(index), _Type.ANY, position)
        keyword = self._skip(Kind.KEYWORD, "TRUE", "FALSE")
        if keyword:
            return _Node(evaluate.constant(keyword == "TRUE"), _Type.CONDITION, position)
        raise self._unexpected("a name or value")


def _as_condition(node: _Node) -> Evaluator:
    if node.type in (_Type.NUMBER, _Type.TEXT):
        raise SelectorError("expected a condition, got a value", node.position)
    return node.evaluate


def _as_number(node: _Node) -> Evaluator:
    if node.type in (_Type.CONDITION, _Type.TEXT):
        raise SelectorError("expected a number", node.position)
    return node.evaluate
