"""The operations of selectors. None is unknown: the value of a header that is not there, and what follows from it.

Each function returns an evaluator: called with the values of the selector's names, it returns a value. Numbers are
64-bit integers and doubles; an integer that gets too large becomes a double, and a result that is no number is unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from warrenmq.core.patterns import MAX_TEXT_BYTES, Pattern

Evaluator = Callable[[Sequence[Any]], Any]

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^`{|}~")


def constant(value: Any) -> Evaluator:
    return lambda values: value


def variable(index: int) -> Evaluator:
    return operator.itemgetter(index)


# -- logic: true, false, unknown -------------------------------------------------------------------------------------


def negation(operand: Evaluator) -> Evaluator:
    def evaluate(values: Sequence[Any]) -> bool | None:
        value = operand(values)
        return not value if value is True or value is False else None

    return evaluate


def conjunction(operands: Sequence[Evaluator]) -> Evaluator:
    """AND: false if one is false, else unknown if one is unknown."""

    def evaluate(values: Sequence[Any]) -> bool | None:
        result: bool | None = True
        for operand in operands:
            value = operand(values)
            if value is False:
                return False
            if value is not True:
                result = None
        return result

    return evaluate


def disjunction(operands: Sequence[Evaluator]) -> Evaluator:
    """OR: true if one is true, else unknown if one is unknown."""

    def evaluate(values: Sequence[Any]) -> bool | None:
        result: bool | None = False
        for operand in operands:
            value = operand(values)
            if value is True:
                return True
            if value is not False:
                result = None
        return result

    return evaluate


# -- predicates ------------------------------------------------------------------------------------------------------


def comparison(symbol: str, left: Evaluator, right: Evaluator) -> Evaluator:
    """Values of different types are neither equal nor unequal nor in any order: false, as in JMS."""
    compare = COMPARISONS[symbol]

    def evaluate(values: Sequence[Any]) -> bool | None:
        a = left(values)
        b = right(values)
        if a is None or b is None:
            return None
        return compare(a, b) if type(a) is type(b) or _are_numbers(a, b) else False

    return evaluate


def is_null(operand: Evaluator) -> Evaluator:
    return lambda values: operand(values) is None


def is_in(operand: Evaluator, literals: Sequence[Any]) -> Evaluator:
    """Literals are of one type each; 1 equals 1.0, and no boolean."""
    numbers = frozenset(each for each in literals if not isinstance(each, str))
    texts = frozenset(each for each in literals if isinstance(each, str))

    def evaluate(values: Sequence[Any]) -> bool | None:
        value = operand(values)
        if value is None:
            return None
        if type(value) is str:
            return value in texts
        return (type(value) is int or type(value) is float) and value in numbers

    return evaluate


def is_like(operand: Evaluator, pattern: Pattern) -> Evaluator:
    """Unknown for texts that are too long to be matched in time."""

    def evaluate(values: Sequence[Any]) -> bool | None:
        value = operand(values)
        if value is None:
            return None
        if type(value) is not str:
            return False
        if len(value.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            return None
        return pattern.matches(value)

    return evaluate


def like_pattern(text: str, escape: str) -> Pattern:
    """Compile a LIKE pattern: `%` any characters, `_` any one. ValueError: it is too large, or the escape is wrong."""
    parts = ["^"]
    is_escaped = False
    for char in text:
        if is_escaped:
            if char not in ("%", "_", escape):
                raise ValueError(f"{escape!r} may stand before %, _ and itself only")
            parts.append(_quote(char))
            is_escaped = False
        elif char == escape:
            is_escaped = True
        elif char == "%":
            parts.append("(?s:.*)")
        elif char == "_":
            parts.append("(?s:.)")
        else:
            parts.append(_quote(char))
    if is_escaped:
        raise ValueError(f"nothing follows {escape!r}")
    return Pattern("".join(parts) + "$")


def _quote(char: str) -> str:
    return "\\" + char if char in _PUNCTUATION else char


# -- arithmetic ------------------------------------------------------------------------------------------------------


def arithmetic(first: Evaluator, rest: Sequence[tuple[str, Evaluator]]) -> Evaluator:
    """A chain of + and -, or of * and /, from left to right."""
    steps = [(_OPERATIONS[symbol], operand) for symbol, operand in rest]

    def evaluate(values: Sequence[Any]) -> int | float | None:
        result = first(values)
        for operation, operand in steps:
            value = operand(values)
            if not _are_numbers(result, value):
                return None
            result = operation(result, value)
        return result  # type: ignore[no-any-return]

    return evaluate


def minus(operand: Evaluator) -> Evaluator:
    def evaluate(values: Sequence[Any]) -> int | float | None:
        value = operand(values)
        return _subtract(0, value) if _are_numbers(0, value) else None

    return evaluate


def _are_numbers(a: Any, b: Any) -> bool:
    """Return True if both are numbers; booleans are not."""
    return (type(a) is int or type(a) is float) and (type(b) is int or type(b) is float)


def _add(a: Any, b: Any) -> int | float | None:
    return _fit(a + b, lambda: float(a) + float(b))


def _subtract(a: Any, b: Any) -> int | float | None:
    return _fit(a - b, lambda: float(a) - float(b))


def _multiply(a: Any, b: Any) -> int | float | None:
    return _fit(a * b, lambda: float(a) * float(b))


def _divide(a: Any, b: Any) -> int | float | None:
    """Integers are divided without a remainder, towards zero; a division by zero is unknown."""
    if b == 0:
        return None
    if type(a) is int and type(b) is int:
        quotient = abs(a) // abs(b)
        return _fit(quotient if (a < 0) == (b < 0) else -quotient, lambda: float(a) / float(b))
    return _fit(a / b, float)


def _fit(result: int | float, as_double: Callable[[], float]) -> int | float | None:
    if type(result) is int:
        return result if _SMALLEST <= result <= _LARGEST else as_double()
    return None if isnan(result) else result


_OPERATIONS: dict[str, Callable[[Any, Any], int | float | None]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
}
