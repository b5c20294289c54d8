"""Definitions as records and rows: whatever the core and the wire can say comes back equal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.strategies import tables, wire_tables
from warrenmq.protocol.errors import MalformedValue
from warrenmq.protocol.values import MAX_DEPTH, decode_table, encode_table
from warrenmq.storage.definition_records import (
    TABLES,
    CatalogDamaged,
    CatalogError,
    decode_arguments,
    decode_operation,
    encode_arguments,
    encode_operation,
)

names = st.text(st.characters(), max_size=20)  # lone surrogates too


def queue_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"vhost": name, "name": name, "durable": True, "auto_delete": False, "arguments": arguments, "id": 2**32 - 1}


@given(names, names, tables)
def test_a_definition_comes_back_from_its_record(vhost: str, name: str, arguments: dict[str, Any]) -> None:
    definition = queue_of(name, arguments)
    operation = decode_operation(encode_operation("queue", (vhost, name), definition))
    assert operation == ("define", "queue", (vhost, name), definition)


@given(names, names, tables)
def test_a_definition_comes_back_from_its_row(vhost: str, name: str, arguments: dict[str, Any]) -> None:
    definition = {**queue_of(name, arguments), "vhost": vhost}
    table = TABLES["queue"]
    assert table.read(table.row((vhost, name), definition)) == ((vhost, name), definition)


@given(st.lists(names, min_size=6, max_size=6).map(tuple))
def test_the_end_of_a_definition_comes_back_from_its_record(key: tuple[str, ...]) -> None:
    assert decode_operation(encode_operation("binding", key, None)) == ("undefine", "binding", key)


@given(st.lists(names, min_size=2, max_size=2, unique=True))
def test_different_names_are_different_in_a_row(pair: list[str]) -> None:
    first, second = (TABLES["vhost"].key_values((name,)) for name in pair)
    assert first != second


@given(tables)
def test_arguments_are_kept_as_they_are_on_the_wire(arguments: dict[str, Any]) -> None:
    assert encode_arguments(arguments) == encode_table(arguments)
    assert decode_arguments(encode_arguments(arguments)) == arguments


@given(wire_tables)
def test_any_arguments_can_be_stored(data: bytes) -> None:
    arguments, _ = decode_table(data, 0, len(data))
    # Compared as text: a number that is none (NaN) is not equal to itself.
    assert repr(decode_arguments(encode_arguments(arguments))) == repr(arguments)


def test_keys_that_grew_when_decoded_can_be_stored() -> None:
    entry = b"\xff" + b"\xfe" * 255 + b"V"
    inner = len(entry).to_bytes(4, "big") + entry
    outer = b"\x01aF" + inner + b"\x01bA" + (1 + len(inner)).to_bytes(4, "big") + b"F" + inner
    data = len(outer).to_bytes(4, "big") + outer
    arguments, _ = decode_table(data, 0, len(data))
    assert len(next(iter(arguments["a"]))) == 4 * 255
    assert decode_arguments(encode_arguments(arguments)) == arguments
    definition = queue_of("q", arguments)
    assert decode_operation(encode_operation("queue", ("/", "q"), definition))[3:] == (definition,)


@given(st.recursive(names | st.integers(0, 9), lambda inner: st.lists(inner) | st.dictionaries(names, inner)))
def test_non_utf8_texts_can_be_stored_in_arguments(value: Any) -> None:
    assert decode_arguments(encode_arguments({"\ud800": value})) == {"\ud800": value}


def test_arguments_may_be_nested_as_deep_as_on_the_wire() -> None:
    arguments: dict[str, Any] = {}
    for _ in range(MAX_DEPTH - 1):
        arguments = {"in": arguments}
    data = encode_table(arguments)
    assert decode_table(data, 0, len(data))[0] == arguments
    definition = queue_of("q", arguments)
    assert decode_operation(encode_operation("queue", ("/", "q"), definition))[3:] == (definition,)


@pytest.mark.parametrize(
    ("kind", "key", "definition", "words"),
    [
        ("parameter", ("p",), {}, "has no definitions of kind 'parameter'"),
        ("vhost", ("/", "q"), {"name": "/"}, "is not a key of a vhost"),
        ("vhost", ("/",), {"name": "/", "tags": "new"}, r"of a vhost has \['name', 'tags'\], not \['name'\]"),
        ("queue", ("/", "q"), {"name": "q"}, "the definition of a queue has"),
        ("queue", ("/", "q"), {**queue_of("q", {}), "id": "1"}, "id of a queue cannot be '1'"),
    ],
)
def test_fields_without_a_column_are_refused_before_they_are_logged(
    kind: str, key: tuple[str, ...], definition: dict[str, Any], words: str
) -> None:
    with pytest.raises(CatalogError, match=words):
        encode_operation(kind, key, definition)


@given(st.binary() | wire_tables)
def test_random_bytes_are_not_a_record(data: bytes) -> None:
    with pytest.raises(CatalogDamaged):
        decode_operation(data)


def test_a_definition_record_with_extra_bytes_is_refused() -> None:
    with pytest.raises(CatalogDamaged, match="followed by 1 extra bytes"):
        decode_operation(encode_operation("vhost", ("/",), None) + b"x")


@given(st.binary())
def test_random_bytes_are_not_arguments(data: bytes) -> None:
    try:
        arguments = decode_arguments(data)
    except MalformedValue:
        return
    assert repr(decode_arguments(encode_arguments(arguments))) == repr(arguments)
