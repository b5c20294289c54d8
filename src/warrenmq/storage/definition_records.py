"""Definitions as records of the commit log and as rows of the catalog.

Definitions are restored exactly, including names that are not UTF-8 and arguments of any type and depth that AMQP can
carry: a client must not be able to declare what cannot be stored. docs/formats/catalog.md draws both forms.

Pure functions and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from zlib import crc32

from warrenmq.protocol.errors import LocalMisuse, MalformedValue
from warrenmq.protocol.values import LongString, decode_table, decode_value, encode_table, encode_value

Key = tuple[str, ...]
Definition = dict[str, Any]
Define = tuple[Literal["define"], str, Key, Definition]
Undefine = tuple[Literal["undefine"], str, Key]
Operation = Define | Undefine


class CatalogError(Exception):
    """The catalog cannot be used as intended; the text says why in one line."""


class CatalogDamaged(CatalogError):
    """The data on disk is not what was written."""


# -- records of the log ----------------------------------------------------------------------------------------------


def encode_operation(kind: str, key: Key, definition: Definition | None) -> bytes:
    """Encode a definition, or its removal if there is none, as a record."""
    table = table_of(kind)
    table.require_key(key)
    record: dict[str, Any] = {"kind": kind, "key": [_pack(part) for part in key]}
    if definition is not None:
        table.require_fields(definition)
        record["definition"] = {name: _pack(value) for name, value in definition.items()}
    return encode_table(record)


def decode_operation(record: bytes) -> Operation:
    """Decode a record of `encode_operation`."""
    try:
        fields, end = decode_table(record, 0, len(record))
        kind, key = str(fields["kind"]), tuple(_unpack(part) for part in fields["key"])
        definition = fields.get("definition")
        if definition is not None:
            definition = {name: _unpack(value) for name, value in definition.items()}
    except (MalformedValue, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CatalogDamaged(f"a definition in the log cannot be read: {type(error).__name__}: {error}") from None
    if end != len(record):
        raise CatalogDamaged(f"a definition in the log is followed by {len(record) - end} extra bytes")
    table = table_of(kind)
    table.require_key(key)
    if definition is None:
        return ("undefine", kind, key)
    table.require_fields(definition)
    return ("define", kind, key, definition)


def _pack(value: Any) -> Any:
    """Encode arguments as separate bytes, so that they may be nested as deep as in AMQP."""
    if isinstance(value, str):
        return _text_or(LongString, value)
    return encode_arguments(value) if isinstance(value, dict) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, LongString):
        return value.decode("utf-8", "surrogatepass")
    return decode_arguments(value) if isinstance(value, bytes) else value


# -- names and arguments ---------------------------------------------------------------------------------------------


def _text_or(bytes_type: type[bytes], text: str) -> str | bytes:
    """Return the text, or its bytes if it has lone surrogates; different texts have different results.

    Not with "surrogateescape": two escaped bytes could together be the UTF-8 of another name.
    """
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return bytes_type(text.encode("utf-8", "surrogatepass"))


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """Encode the table as in AMQP or, if AMQP could not carry it, as an array."""
    try:
        return encode_table(arguments)
    except LocalMisuse:
        # Bytes that are not UTF-8 grow when they are decoded as the key of a table (ValueReader.read_label), so the key
        # may have become too long for a short string.
        return encode_value(_encode_as_array(arguments))


def decode_arguments(data: bytes) -> dict[str, Any]:
    """Decode the result of `encode_arguments`."""
    # A table begins with its length, and the type byte of an array would mean more than a gigabyte there.
    arguments: Any
    if data[:1] == b"A":
        array, end = decode_value(data, 0, len(data))
        arguments = _decode_from_array(array)
    else:
        arguments, end = decode_table(data, 0, len(data))
    if end != len(data) or not isinstance(arguments, dict):
        raise MalformedValue("the bytes are not encoded arguments")
    return arguments


def _encode_as_array(value: Any) -> Any:
    """Convert tables and arrays to arrays that begin with F or A, and texts that are not UTF-8 to arrays that begin
    with S."""
    if isinstance(value, Mapping):
        return ["F", *(_encode_as_array(part) for item in value.items() for part in item)]
    if isinstance(value, list | tuple):
        return ["A", *map(_encode_as_array, value)]
    if isinstance(value, str):
        text = _text_or(bytes, value)
        return ["S", text] if isinstance(text, bytes) else text
    return value


def _decode_from_array(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind == "S":
        return parts[0].decode("utf-8", "surrogatepass")
    values = [_decode_from_array(part) for part in parts]
    return dict(zip(values[::2], values[1::2], strict=True)) if kind == "F" else values


# -- rows of the catalog ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """The table of one kind: the columns of its key, and the other fields with their types.

    Only parts of the key may be texts that are not UTF-8.
    """

    kind: str
    name: str
    key: tuple[str, ...]
    fields: dict[str, type]
    has_durable: bool = True  # its definitions have `durable`, always true, so there is no column

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.key, *self.fields)

    def require_key(self, key: Key) -> None:
        if len(key) != len(self.key) or not all(isinstance(part, str) for part in key):
            raise CatalogError(f"{key!r} is not a key of a {self.kind}")

    def require_fields(self, definition: Definition) -> None:
        """Raise CatalogError unless every field has a column: others would be lost silently."""
        expected = {*self.columns, *(["durable"] if self.has_durable else [])} - {"arguments_key"}
        if definition.keys() != expected:
            raise CatalogError(f"the definition of a {self.kind} has {sorted(definition)}, not {sorted(expected)}")
        for name, type_ in self.fields.items():
            if not isinstance(definition[name], type_):
                raise CatalogError(f"{name} of a {self.kind} cannot be {definition[name]!r}")

    def key_values(self, key: Key) -> list[Any]:
        return [part if part.isascii() else _text_or(bytes, part) for part in key]

    def row(self, key: Key, definition: Definition) -> list[Any]:
        """Return the values of all columns and their checksum."""
        values = self.key_values(key)
        for name, type_ in self.fields.items():
            value = definition[name]
            if type_ is dict:
                value = encode_arguments(value)
            values.append(int(value) if type_ is bool else value)
        values.append(checksum_of(values))
        return values

    def read(self, row: Sequence[Any]) -> tuple[Key, Definition]:
        """Decode a row; raise CatalogDamaged if its checksum does not match."""
        *values, checksum = row
        key = self.read_key(values)
        if checksum_of(values) != checksum:
            raise CatalogDamaged(f"the row of {self.describe(key)} fails its checksum")
        definition: Definition = dict(zip(self.key, key, strict=True))
        definition.pop("arguments_key", None)
        if self.has_durable:
            definition["durable"] = True
        for (name, type_), value in zip(self.fields.items(), values[len(key) :], strict=True):
            definition[name] = decode_arguments(value) if type_ is dict else type_(value)
        return key, definition

    def read_key(self, values: Sequence[Any]) -> Key:
        key = tuple(values[: len(self.key)])
        return key if _all_str(key) else tuple(map(_read_text, key))

    def describe(self, key: Key) -> str:
        """Describe the definition for a line of a report."""
        if self.kind == "vhost":
            return f"vhost {_quote(key[0])}"
        if self.kind == "trace_rule":
            return f"trace rule {_quote(key[0])}"
        if self.kind == "file":
            return f"the record of file {_quote('/'.join(key))}"
        if self.kind == "binding":
            vhost, source, _, destination, routing_key, _ = map(_quote, key)
            return f"binding from exchange {source} to {key[2]} {destination} by {routing_key} in vhost {vhost}"
        if self.kind == "level":
            return f"queue {_quote(key[1])} in vhost {_quote(key[0])}, priority {key[2]}"
        return f"{self.kind.replace('_', ' ')} {_quote(key[1])} in vhost {_quote(key[0])}"


def _all_str(values: tuple[Any, ...]) -> bool:
    return set(map(type, values)) == {str}  # three times as fast as a check one by one


def _read_text(value: Any) -> str:
    """Return a name; for a damaged row, something printable."""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return value.decode("utf-8", "backslashreplace")
    return str(value)


def _quote(text: str) -> str:
    return "'" + text.encode("utf-8", "backslashreplace").decode() + "'"


def checksum_of(values: Sequence[Any]) -> int:
    """CRC-32 of the values of a row, encoded as an AMQP array: SQLite does not detect changed bits."""
    return crc32(encode_value(list(values)))


TABLES: dict[str, Table] = {
    table.kind: table
    for table in (
        Table("vhost", "vhosts", ("name",), {}, has_durable=False),
        Table(
            "exchange",
            "exchanges",
            ("vhost", "name"),
            {"type": str, "auto_delete": bool, "internal": bool, "arguments": dict},
        ),
        Table("queue", "queues", ("vhost", "name"), {"id": int, "auto_delete": bool, "arguments": dict}),
        Table("level", "levels", ("vhost", "queue", "level"), {"id": int}, has_durable=False),
        Table(
            "binding",
            "bindings",
            ("vhost", "source", "destination_type", "destination", "routing_key", "arguments_key"),
            {"arguments": dict},
            has_durable=False,
        ),
        Table("trace_rule", "trace_rules", ("name",), {"arguments": dict}, has_durable=False),
        Table("policy", "policies", ("vhost", "name"), {"arguments": dict}, has_durable=False),
        Table("operator_policy", "operator_policies", ("vhost", "name"), {"arguments": dict}, has_durable=False),
        Table(
            "file",
            "files",
            ("folder", "name"),
            {
                "generation": int,
                "last": int,
                "size": int,
                "count": int,
                "transient": int,
                "alive": int,
                "marks": int,
                "epoch": int,
                "synced_last": int,
                "synced_count": int,
            },
            has_durable=False,
        ),
    )
}
KINDS = tuple(TABLES)


def table_of(kind: str) -> Table:
    table = TABLES.get(kind)
    if table is None:
        raise CatalogError(f"the catalog has no definitions of kind {kind!r}")
    return table
