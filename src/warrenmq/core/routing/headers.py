"""Headers: matches if the headers of the message match the arguments of the binding; the key does not matter.

`x-match`: `all` (the default) or `any` of the arguments must match; arguments whose names start with `x-` count only
with `all-with-x` or `any-with-x`. An argument without a value (void) matches if the header is present. A binding
without conditions matches every message with `all` and none with `any`.

Bindings are indexed by their conditions: one with `any` under each, one with `all` under its rarest condition. Only the
bindings found by the message's own headers are checked.

Values are equal as RabbitMQ sees them (observed on 3.10.8): see `comparable`.
"""

from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import ClassVar

from warrenmq.core.routing.erlang_text import field_type, term
from warrenmq.core.routing.matcher import Traits

# x-match -> whether every condition must hold, and whether arguments named x-* are conditions.
_MODES = {
    "all": (True, False),
    "any": (False, False),
    "all-with-x": (True, True),
    "any-with-x": (False, True),
}
# NaN equals nothing, not even the NaN of the binding that an unbind is to find.
_NOT_A_NUMBER = ("double", "nan")


def validate(arguments: Mapping[str, object]) -> None:
    """Refuse an `x-match` that RabbitMQ refuses: ValueError with its text, sent to the peer as 406.

    Only for a bind; an unbind finds no such binding.
    """
    if "x-match" not in arguments:
        return
    mode = arguments["x-match"]
    if not isinstance(mode, str):
        # A long string that is not UTF-8 arrives as bytes, as a byte array does: both are refused.
        raise ValueError(f"Invalid x-match field type {field_type(mode)} (value {term(mode)}); expected longstr")
    if mode not in _MODES:
        raise ValueError(
            f"Invalid x-match field value {term(mode)}; expected all, any, all-with-x, or any-with-x",
        )


def comparable(value: object) -> Hashable:
    """Return a hashable value that is equal for two field values if RabbitMQ considers them equal.

    Numbers are compared by value: integers of any width, floats and timestamps (in seconds). Strings and byte arrays
    are compared byte by byte, booleans only with booleans, decimals only with decimals of the same scale. Arrays and
    tables need the same types and order; RabbitMQ also distinguishes integer widths inside them, which are not known
    here.
    """
    kind = type(value)
    if kind is str or kind is int or value is None:
        # Nearly every value; checked first, a match of two conditions takes a third of the time (8.1 to 2.7 us).
        return value
    if isinstance(value, float):
        return value if value == value else _NOT_A_NUMBER
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return value.as_tuple()
    if isinstance(value, dict):
        return tuple((name, field_kind(item), comparable(item)) for name, item in value.items())
    if isinstance(value, list):
        return tuple((field_kind(item), comparable(item)) for item in value)
    assert isinstance(value, int), f"not a field value: {value!r}"  # a timestamp too far for datetime
    return value


def field_kind(value: object) -> str:
    """Return the type of a field, without the width of integers."""
    kind = field_type(value)
    return "integer" if kind in ("signedint", "long") else kind


class _Binding:
    """The conditions of one or more equal bindings. A condition of None only requires the header."""

    __slots__ = ("age", "conditions", "count", "destination", "filed_under", "wants_all")

    def __init__(self, conditions: dict[str, Hashable], wants_all: bool, destination: Hashable, age: int) -> None:
        self.conditions = conditions
        self.wants_all = wants_all
        self.destination = destination
        self.age = age
        self.count = 0
        self.filed_under: list[tuple[str, Hashable]] = []

    def accepts(self, headers: Mapping[str, object]) -> bool:
        """Return True if headers that meet one condition match: they need not meet the others, or do."""
        if not self.wants_all:
            return True
        for name, wanted in self.conditions.items():
            if name not in headers:
                return False
            if wanted is not None and comparable(headers[name]) != wanted:
                return False
        return True


class HeadersMatcher:
    """Destinations by header, oldest binding first."""

    __slots__ = ("_bindings", "_by_header", "_next_age", "_unconditional", "visited")

    uses_message: ClassVar[bool] = True
    uses_all_keys: ClassVar[bool] = True

    def __init__(self) -> None:
        self._bindings: dict[Hashable, _Binding] = {}
        # Header name -> value -> bindings, as an insertion-ordered set.
        self._by_header: dict[str, dict[Hashable, dict[_Binding, None]]] = {}
        # Bindings with `all` and no conditions.
        self._unconditional: dict[_Binding, None] = {}
        self._next_age = 0
        # Bindings checked by all matches so far: tests measure the cost of matching by it.
        self.visited = 0

    def bind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Route messages whose headers match the arguments to the destination; ValueError as `validate`."""
        validate(arguments)
        conditions, wants_all = _read_arguments(arguments)
        identity = _identity(conditions, wants_all, destination)
        binding = self._bindings.get(identity)
        if binding is None:
            binding = self._bindings[identity] = _Binding(conditions, wants_all, destination, self._next_age)
            self._next_age += 1
            self._file(binding)
        binding.count += 1

    def unbind(self, key: str, arguments: Mapping[str, object], destination: Hashable) -> None:
        """Undo one earlier bind."""
        identity = _identity(*_read_arguments(arguments), destination)
        binding = self._bindings[identity]
        binding.count -= 1
        if not binding.count:
            del self._bindings[identity]
            self._unfile(binding)

    def match(self, key: str, traits: Traits | None, found: dict[Hashable, None]) -> None:
        """Add the destinations whose conditions the headers meet."""
        fitting = dict(self._unconditional)
        headers = None if traits is None else traits.headers
        if headers:
            for name, value in headers.items():
                by_value = self._by_header.get(name)
                if by_value is not None:
                    self._collect(by_value.get(None), headers, fitting)
                    if value is not None:
                        self._collect(by_value.get(comparable(value)), headers, fitting)
        for binding in sorted(fitting, key=_age):
            found[binding.destination] = None

    def is_empty(self) -> bool:
        """Return True if no binding is left."""
        return not self._bindings

    def _collect(
        self, candidates: dict[_Binding, None] | None, headers: Mapping[str, object], fitting: dict[_Binding, None]
    ) -> None:
        """Add the candidates that match to `fitting`."""
        if candidates is None:
            return
        self.visited += len(candidates)
        for binding in candidates:
            if binding.accepts(headers):
                fitting[binding] = None

    def _file(self, binding: _Binding) -> None:
        """Add a binding to the index."""
        places = list(binding.conditions.items())
        if binding.wants_all:
            if not places:
                self._unconditional[binding] = None
                return
            places = [min(places, key=self._count_filed)]
        for name, wanted in places:
            self._by_header.setdefault(name, {}).setdefault(wanted, {})[binding] = None
        binding.filed_under = places

    def _unfile(self, binding: _Binding) -> None:
        """Remove a binding from the index."""
        self._unconditional.pop(binding, None)
        for name, wanted in binding.filed_under:
            by_value = self._by_header[name]
            del by_value[wanted][binding]
            if not by_value[wanted]:
                del by_value[wanted]
            if not by_value:
                del self._by_header[name]

    def _count_filed(self, condition: tuple[str, Hashable]) -> int:
        """Return the number of bindings filed under the condition."""
        name, wanted = condition
        return len(self._by_header.get(name, {}).get(wanted, ()))


def _read_arguments(arguments: Mapping[str, object]) -> tuple[dict[str, Hashable], bool]:
    """Return the conditions of a binding, and whether all of them must match."""
    wants_all, counts_x = _MODES[str(arguments.get("x-match", "all"))]
    conditions = {
        name: comparable(value)
        for name, value in arguments.items()
        if name != "x-match" and (counts_x or not name.startswith("x-"))
    }
    return conditions, wants_all


def _identity(conditions: dict[str, Hashable], wants_all: bool, destination: Hashable) -> Hashable:
    """Return a key that is equal for bindings with the same conditions and destination."""
    return (wants_all, frozenset(conditions.items()), destination)


def _age(binding: _Binding) -> int:
    return binding.age
