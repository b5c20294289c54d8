"""Columns are declared by the fields of Event; the constants that compiled modules use for them agree."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from warrenmq.events import fields, records, schema

NAMES = [column.name for column in schema.COLUMNS]


def test_columns_are_the_fields_of_event() -> None:
    assert list(schema.Event.__dataclass_fields__) == NAMES
    assert schema.Column("time", "timestamp(us, UTC)", False) in schema.COLUMNS
    assert schema.Column("queue", "dictionary(int16, utf8)", True) in schema.COLUMNS


def test_column_numbers_are_named_as_the_columns() -> None:
    assert [getattr(fields, name.upper()) for name in NAMES] == list(range(len(NAMES)))


def test_column_constants_of_compiled_modules_are_those_of_python() -> None:
    declarations = Path(fields.__file__).with_suffix(".pxd").read_text()
    constants = re.search(r"cdef enum:\n((?:    [\w, ]+\n)+)", declarations)
    assert constants is not None
    assert re.findall(r"\w+", constants[1]) == [*map(str.upper, NAMES), "NUMBER_OF_COLUMNS"]


@pytest.mark.parametrize("module", [records, schema])
def test_numbers_of_compiled_modules_are_those_of_python(module: ModuleType) -> None:
    declarations = Path(str(module.__file__)).with_suffix(".pxd").read_text()
    constants = re.findall(r"^    (\w+) = (\w+)$", declarations, re.MULTILINE)
    assert constants
    assert {name: int(text, 0) for name, text in constants} == {name: getattr(module, name) for name, _ in constants}


def test_all_numbers_of_the_row_format_are_constants_of_compiled_modules() -> None:
    names = {name for name, value in vars(records).items() if isinstance(value, int)}
    assert names == set(re.findall(r"(\w+) = ", Path(records.__file__).with_suffix(".pxd").read_text()))
