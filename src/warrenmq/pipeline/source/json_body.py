"""JSON message bodies, converted to the schema that the user gave.

The option `mode` decides whether a malformed body becomes null (PERMISSIVE), is dropped (DROPMALFORMED) or raises
(FAILFAST). A missing field is null; a field of another type than the schema's is malformed, as in Spark, and in mode
PERMISSIVE only that field becomes null. Holds the body parsed last. For one thread.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from pyarrow import types

from warrenmq import client
from warrenmq.pipeline.errors import BadPayload

Convert = Callable[[Any], Any]


class _Malformed(ValueError):
    """A value does not have the type of the schema."""


class JsonBody:
    """Parses bodies into dictionaries of the Arrow struct `kind`."""

    def __init__(self, kind: pa.StructType, mode: str, stream: str) -> None:
        self._is_permissive = mode == "PERMISSIVE"
        self._convert = _converter(kind, self._is_permissive)
        self._mode = mode
        self._stream = stream
        self._parsed: Any = None
        self.value: dict[str, Any] | None = None

    def parse(self, offset: int, delivery: client.Delivery) -> bool:
        """Parse a body into `value`; return False if the message is to be dropped."""
        self.value = None
        self._parsed = None
        try:
            self._parsed = json.loads(delivery.body)
            self.value = self._convert(self._parsed)
        except (_Malformed, ValueError, RecursionError) as error:
            if self._mode == "FAILFAST":
                raise BadPayload(
                    f"the message at offset {offset} of {self._stream!r} is not JSON of the schema: {error} "
                    "(mode PERMISSIVE makes it null, DROPMALFORMED drops it)"
                ) from None
            return self._is_permissive
        return True

    def field(self, path: Sequence[str]) -> object:
        """Return a value of the parsed body, before conversion."""
        found: Any = self._parsed
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found


def _converter(kind: pa.DataType, is_permissive: bool) -> Convert:
    """Return a function that converts JSON values to this type, or raises _Malformed."""
    if types.is_struct(kind):
        return _struct_converter(kind, is_permissive)
    if types.is_list(kind):
        return _list_converter(_converter(kind.value_type, is_permissive))
    if types.is_map(kind):
        return _map_converter(_converter(kind.item_type, is_permissive))
    for matches, convert in _SCALARS:
        if matches(kind):
            return convert
    if types.is_integer(kind):
        return _integer_converter(kind.bit_width)
    if types.is_decimal(kind):
        return _decimal_converter(kind.precision, kind.scale)
    raise BadPayload(f"payload=json has no values of the type {kind}")


def _struct_converter(kind: pa.StructType, is_permissive: bool) -> Convert:
    fields = [(each.name, _converter(each.type, is_permissive)) for each in kind]

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _Malformed("it is not an object")
        made: dict[str, Any] = {}
        for name, convert_field in fields:
            found = value.get(name)
            try:
                made[name] = None if found is None else convert_field(found)
            except _Malformed as error:
                if not is_permissive:
                    raise _Malformed(f"{name}: {error}") from None
                made[name] = None
        return made

    return convert


def _list_converter(convert: Convert) -> Convert:
    def convert_list(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _Malformed("it is not an array")
        return [None if each is None else convert(each) for each in value]

    return convert_list


def _map_converter(convert: Convert) -> Convert:
    def convert_map(value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _Malformed("it is not an object")
        return [(name, None if each is None else convert(each)) for name, each in value.items()]

    return convert_map


def _integer_converter(bits: int) -> Convert:
    limit = 1 << bits - 1

    def convert(value: Any) -> int:
        if type(value) is not int or not -limit <= value < limit:
            raise _Malformed(f"{value!r:.40} is not an integer of {bits} bits")
        return value

    return convert


def _decimal_converter(precision: int, scale: int) -> Convert:
    def convert(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise _Malformed(f"{value!r:.40} is not a number")
        try:
            number = round(Decimal(str(value)), scale)
        except InvalidOperation:
            raise _Malformed(f"{value!r:.40} is not a number") from None
        if not number.is_finite() or len(number.as_tuple().digits) > precision:
            raise _Malformed(f"{value!r:.40} has more than {precision} digits")
        return number

    return convert


def _text(value: Any) -> str:
    """Return other values as JSON, as Spark does."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Malformed(f"{value!r:.40} is neither true nor false")
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Malformed(f"{value!r:.40} is not a number")
    return float(value)


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error):
        raise _Malformed("it is not base64") from None


def _time(value: Any) -> datetime:
    """ISO 8601, UTC by default."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _Malformed(f"{value!r:.40} is not an ISO 8601 time") from None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _time_without_zone(value: Any) -> datetime:
    return _time(value).replace(tzinfo=None)


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _Malformed(f"{value!r:.40} is not an ISO 8601 date") from None


_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Convert], ...] = (
    (types.is_string, _text),
    (types.is_boolean, _boolean),
    (types.is_floating, _float),
    (types.is_binary, _bytes),
    (types.is_date, _date),
    (lambda kind: types.is_timestamp(kind) and kind.tz is not None, _time),
    (types.is_timestamp, _time_without_zone),
)
