"""The fixtures of every version: they can be read, and the bytes of the current one have not changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.events.row_format import events_of
from tests.events.samples import (
    BEGIN,
    FILES,
    FIRST_VERSION,
    FIRST_VERSION_EVENTS,
    FIXTURE_EVENTS,
    FOLDER,
    SECOND_VERSION,
    SECOND_VERSION_EVENTS,
    rows_from,
    rows_of,
)
from warrenmq.events import schema
from warrenmq.events.batch import RowFilter
from warrenmq.events.codec import decode, encode
from warrenmq.events.schema import Event

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "formats" / "events.md"


@pytest.mark.parametrize("name", FILES)
def test_written_bytes_equal_the_fixture(name: str) -> None:
    assert FILES[name]() == (FOLDER / name).read_bytes()


VERSIONS = pytest.mark.parametrize(
    ("folder", "expected"),
    [(FIRST_VERSION, FIRST_VERSION_EVENTS), (SECOND_VERSION, SECOND_VERSION_EVENTS), (FOLDER, FIXTURE_EVENTS)],
    ids=["v1", "v2", "v3"],
)


@VERSIONS
def test_fixture_batch_is_decoded(folder: Path, expected: list[Event]) -> None:
    assert decode((folder / "batch.arrow").read_bytes()).events() == expected


@VERSIONS
def test_fixture_rows_are_read(folder: Path, expected: list[Event]) -> None:
    assert events_of(rows_from((folder / "rows.raw").read_bytes())) == expected


def test_every_event_of_the_message_has_its_priority() -> None:
    assert [event.priority for event in FIXTURE_EVENTS] == [7 if event.uid else None for event in FIXTURE_EVENTS]


def test_a_retry_says_when_it_is_due_and_a_note_what_it_says() -> None:
    retried, noted = FIXTURE_EVENTS[6:]
    assert (retried.due_time, retried.retry_max, retried.note) == (retried.time + 1_000_000, 16, None)
    assert (noted.due_time, noted.retry_max, noted.note) == (None, None, "charged the card")


@pytest.mark.parametrize("folder", [FIRST_VERSION, SECOND_VERSION], ids=["v1", "v2"])
def test_a_batch_of_an_earlier_version_is_searched(folder: Path) -> None:
    batch = decode((folder / "batch.arrow").read_bytes())
    assert batch.select(RowFilter(message_id="order-17", queue="q")) == [2, 3, 5]
    assert batch.key_hashes() == decode(encode(rows_of(SECOND_VERSION_EVENTS))).key_hashes()
    assert (batch.time_range(), batch.used_names("queue"), batch.used_kinds()) == (
        (BEGIN, BEGIN + 70_000),
        ["q"],
        sorted({event.kind for event in SECOND_VERSION_EVENTS}),
    )


def test_rows_of_an_earlier_version_are_written_as_the_current_one() -> None:
    rows = rows_from((SECOND_VERSION / "rows.raw").read_bytes())
    assert rows.to_bytes()[0] == schema.VERSION == 3
    assert decode(encode(rows)).events() == SECOND_VERSION_EVENTS


def test_the_document_shows_the_fixture_rows() -> None:
    drawing = re.findall(r"```\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]
    data = b""
    for line in filter(None, drawing.splitlines()):
        match = re.fullmatch(r" *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?", line)
        assert match, line
        assert int(match[1]) == len(data), line
        data += bytes.fromhex(match[2])
    assert data == (FOLDER / "rows.raw").read_bytes()


def test_the_document_lists_all_columns_kinds_and_reasons() -> None:
    text = DOCUMENT.read_text()
    assert re.findall(r"^\| (\d+) `(\w+)`", text, re.MULTILINE) == [
        (str(number), column.name) for number, column in enumerate(schema.COLUMNS)
    ]
    for title, names in (("Kinds", schema.KIND_NAMES), ("Reasons", schema.REASON_NAMES)):
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        assert {int(code): name for code, name in re.findall(r"(\d+) `(\w+)`", section)} == names


def test_codes_have_no_gaps_and_unique_names() -> None:
    for codes, names in ((schema.KIND_CODES, schema.KIND_NAMES), (schema.REASON_CODES, schema.REASON_NAMES)):
        assert [*names] == [*range(1, len(names) + 1)]
        assert {names[code]: code for code in names} == codes
    assert (schema.kind_name(1), schema.kind_name(99)) == ("published", "kind-99")
    assert (schema.reason_name(1), schema.reason_name(99)) == ("rejected", "reason-99")


def test_columns_are_the_fields_of_an_event_in_order() -> None:
    assert [column.name for column in schema.COLUMNS] == [*schema.Event.__dataclass_fields__]
    assert schema.COLUMNS_OF_VERSION[schema.VERSION] == len(schema.COLUMNS)
