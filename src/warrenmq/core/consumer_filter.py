"""The filter of a consumer (`x-filter` of basic.consume): which messages it wants.

A text is a selector (core/selector) over headers and properties; a table holds conditions as a binding to a headers
exchange does, `x-match` included. The result is cached by the properties that it depends on: publishers send few
different values of these, even if each message has its own id.

Owned by the loop thread. Compiled when the package is built (consumer_filter.pxd).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from warrenmq.core.routing import headers as headers_exchange
from warrenmq.core.routing.erlang_text import field_type
from warrenmq.core.routing.matcher import Traits
from warrenmq.core.selector import Selector, SelectorError, parse
from warrenmq.core.selector.parser import Name
from warrenmq.protocol import properties
from warrenmq.protocol.properties import BasicProperties

ARGUMENT = "x-filter"

_CACHE_BYTES = 32 << 10  # of keys
_LONGEST_KEY = 1024  # the result for longer ones is not cached
_ENTRY_BYTES = 130  # of memory per key, besides its length

_PROPERTIES = frozenset(BasicProperties.__slots__) - {"headers"}


class ConsumerFilter:
    """The filter of one consumer; `tested` counts the messages so far.

    `matches` depends on the properties in `used` only (flags of protocol/properties.py).
    """

    __slots__ = ("_cached_bytes", "_last", "_last_result", "_matches", "_used", "cache", "tested")

    def __init__(self, matches: Callable[[bytes], bool], used: int) -> None:
        self._matches = matches
        self._used = used
        self._last = b""  # messages of one publisher often share one object
        self._last_result = False
        self.cache: dict[bytes, bool] = {}
        self._cached_bytes = 0
        self.tested = 0

    def accepts(self, header: bytes) -> bool:
        """Return True if the consumer wants messages with this content header."""
        self.tested += 1
        if header is self._last:
            return self._last_result
        key = properties.subset(header, self._used)
        known = self.cache.get(key)
        result: bool = self._matches(header) if known is None else known
        if known is None and len(key) <= _LONGEST_KEY:
            self._cached_bytes += len(key) + _ENTRY_BYTES
            if self._cached_bytes > _CACHE_BYTES:
                self.cache.clear()
                self._cached_bytes = len(key) + _ENTRY_BYTES
            self.cache[key] = result
        self._last = header
        self._last_result = result
        return result


def make_filter(arguments: Mapping[str, Any]) -> ConsumerFilter | None:
    """Return the filter in the arguments of a consumer, which `find_fault` has passed; None if there is none."""
    asked = arguments.get(ARGUMENT)
    if asked is None:
        return None
    if isinstance(asked, dict):
        return ConsumerFilter(_match_table(asked), properties.HEADERS)
    selector = parse(asked)
    used = properties.HEADERS  # a name that is no property, or one that is not set, is that of a header
    for name in selector.names:
        if name.text in _PROPERTIES and not name.is_quoted:
            used |= properties.flag_of(name.text)
    return ConsumerFilter(_match_selector(selector), used)


def find_fault(value: Any) -> str:
    """Return what is wrong with the value of `x-filter`; nothing if it is valid."""
    try:
        if isinstance(value, dict):
            headers_exchange.validate(value)
        elif isinstance(value, str):
            parse(value)
        else:
            return f'"expected a table or a text, got {field_type(value)}"'
    except SelectorError as error:
        return f'"{error}"'
    except ValueError as error:
        return str(error)
    return ""


def _match_table(conditions: Mapping[str, Any]) -> Callable[[bytes], bool]:
    matcher = headers_exchange.HeadersMatcher()
    matcher.bind("", conditions, None)

    def matches(header: bytes) -> bool:
        found: dict[Any, None] = {}
        matcher.match("", Traits(header, properties.headers(header)), found)
        return bool(found)

    return matches


def _match_selector(selector: Selector) -> Callable[[bytes], bool]:
    names: Sequence[Name] = selector.names
    uses_properties = any(name.text in _PROPERTIES and not name.is_quoted for name in names)

    def matches(header: bytes) -> bool:
        if uses_properties:
            found = properties.decode(header, 12)
            headers = found.headers or {}
            values = [_value_of(name, found, headers) for name in names]
        else:
            headers = properties.headers(header) or {}
            values = [normalize(headers.get(name.text)) for name in names]
        return selector.matches(values)

    return matches


def _value_of(name: Name, found: BasicProperties, headers: Mapping[str, Any]) -> Any:
    """Return the property of this name if it is set, else the header."""
    if name.text in _PROPERTIES and not name.is_quoted:
        value = getattr(found, name.text)
        if value is not None:
            return normalize(value)
    return normalize(headers.get(name.text))


def normalize(value: Any) -> Any:
    """Return a field value as selectors see it: text, integer, float, boolean, None, or something else.

    Timestamps are seconds since 1970, as in the AMQP field. Arrays, tables and bytes that are not UTF-8 are not null,
    and equal nothing.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if isinstance(value, (float, Decimal)):
        number = float(value)
        return None if number != number else number
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return _OPAQUE
    return _OPAQUE


class _Opaque:
    """A value that no literal equals: each comparison with it is false, also `=` of two of them."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False

    def _never(self, other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _never
    __hash__ = None  # type: ignore[assignment]


_OPAQUE = _Opaque()
