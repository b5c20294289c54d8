"""The filter of a consumer (`x-filter` of basic.consume): which messages it wants.

A text is a selector (core/selector) over headers and properties; a table holds conditions as a binding to a headers
exchange does, `x-match` included. The result for a header is cached: many publishers send few different ones.

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

_CACHE_BYTES = 32 << 10  # of headers whose result is cached
_CACHED_HEADER = 1024  # longer headers are not
_ENTRY_BYTES = 130  # of memory per header, besides its length

_PROPERTIES = frozenset(BasicProperties.__slots__) - {"headers"}


class ConsumerFilter:
    """The filter of one consumer; `tested` counts the messages so far."""

    __slots__ = ("_cached_bytes", "_matches", "cache", "tested")

    def __init__(self, matches: Callable[[bytes], bool]) -> None:
        self._matches = matches
        self.cache: dict[bytes, bool] = {}
        self._cached_bytes = 0
        self.tested = 0

    def accepts(self, header: bytes) -> bool:
        """Return True if the consumer wants messages with this content header."""
        self.tested += 1
        known = self.cache.get(header)
        if known is not None:
            return known
        result: bool = self._matches(header)
        if len(header) <= _CACHED_HEADER:
            self._cached_bytes += len(header) + _ENTRY_BYTES
            if self._cached_bytes > _CACHE_BYTES:
                self.cache.clear()
                self._cached_bytes = len(header) + _ENTRY_BYTES
            self.cache[header] = result
        return result


def make_filter(arguments: Mapping[str, Any]) -> ConsumerFilter | None:
    """Return the filter in the arguments of a consumer, which `find_fault` has passed; None if there is none."""
    asked = arguments.get(ARGUMENT)
    if asked is None:
        return None
    return ConsumerFilter(_match_table(asked) if isinstance(asked, dict) else _match_selector(parse(asked)))


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
