"""Files of every format version: what is written today equals them, and they can be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journal.fixtures import (
    ADDRESS,
    EPOCHS,
    EPOCHS_V1,
    EPOCHS_V2,
    EPOCHS_V3,
    EPOCHS_V5,
    EXPIRES,
    FILES,
    FOLDER,
    FOLDER_V1,
    FOLDER_V2,
    FOLDER_V3,
    FOLDER_V4,
    FOLDER_V5,
    ID,
    LATER_ID,
    PERSISTENT_HEADER,
    SALT,
    TIME_MS,
    TRACE_OF_IT,
    TRANSIENT_HEADER,
    path_of,
    u32,
    u64,
)
from warrenmq.journal.files import Files
from warrenmq.journal.ids_file import decode_ids, ids_name, read_ids
from warrenmq.journal.log_file import log_name
from warrenmq.journal.log_scan import read_log
from warrenmq.journal.record import PERSISTENT, TRACED, decode_at
from warrenmq.journal.segment_file import (
    UNKNOWN,
    marks_name,
    page_records,
    read_marks,
    read_page,
    segment_name,
    walk_pages,
)
from warrenmq.protocol.values import decode_table

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs" / "formats"


@pytest.mark.parametrize("name", FILES)
def test_todays_files_equal_the_fixtures(name: str) -> None:
    assert FILES[name]() == path_of(name).read_bytes()


@pytest.mark.parametrize(
    ("folder", "written"),
    [
        (FOLDER, EPOCHS),
        (FOLDER_V5, EPOCHS_V5),
        (FOLDER_V4, EPOCHS_V5),
        (FOLDER_V3, EPOCHS_V3),
        (FOLDER_V2, EPOCHS_V2),
        (FOLDER_V1, EPOCHS_V1),
    ],
    ids=["v6", "v5", "v4", "v3", "v2", "v1"],
)
def test_the_log_is_read(folder: Path, written: list[bytes]) -> None:
    scan = read_log(Files(), str(folder))
    epochs = [(sequence, time_ms, bytes(payload)) for sequence, time_ms, payload, _ in scan]
    assert epochs == [(41 + number, TIME_MS + number, payload) for number, payload in enumerate(written)]
    assert (scan.torn_tail, scan.damage) == (None, [])


def test_the_records_of_the_log_are_those_of_the_broker() -> None:
    append, definition = EPOCHS[0], EPOCHS[2]
    record = decode_at(append, 5)
    assert record[:5] == (1, PERSISTENT | TRACED, ADDRESS, PERSISTENT_HEADER, b"hi")
    assert record.fields == TRACE_OF_IT
    table, end = decode_table(definition, 5, len(definition))
    assert table == {"kind": "vhost", "key": ["v"], "definition": {"name": "v"}}
    assert decode_table(definition, end + 5, len(definition)) == ({"kind": "vhost", "key": ["v"]}, len(definition))


@pytest.mark.parametrize(
    ("folder", "fields", "body_bytes"),
    [
        (FOLDER, TRACE_OF_IT + u64(EXPIRES) + u32(2), [2, 2]),
        (FOLDER_V5, TRACE_OF_IT + u64(EXPIRES) + u32(2), [2, 2]),
        (FOLDER_V4, TRACE_OF_IT + u64(EXPIRES) + u32(2), [2, 2]),
        (FOLDER_V3, TRACE_OF_IT, [UNKNOWN, UNKNOWN]),
        (FOLDER_V2, TRACE_OF_IT, [UNKNOWN, UNKNOWN]),
        (FOLDER_V1, b"", [UNKNOWN, UNKNOWN]),
    ],
    ids=["v6", "v5", "v4", "v3", "v2", "v1"],
)
def test_the_segment_is_read(folder: Path, fields: bytes, body_bytes: list[int]) -> None:
    files = Files()
    path = str(folder / segment_name(5000, 0))
    handle = files.open_read(path)
    walk = walk_pages(files, handle, path)
    assert walk.reason is None
    assert walk.is_old is (folder != FOLDER)
    assert walk.lacks_body_bytes is (folder not in (FOLDER, FOLDER_V5, FOLDER_V4))
    expiry = EXPIRES if folder == FOLDER else 0
    assert [(page.earliest, page.latest) for page in walk.pages] == [(0, 0), (expiry, expiry)]
    assert [page.body_bytes for page in walk.pages] == body_bytes
    assert [(page.count, page.transient, page.time_first, page.time_last) for page in walk.pages] == [
        (2, 1, TIME_MS, TIME_MS + 1),
        (1, 0, TIME_MS + 9, TIME_MS + 9),
    ]
    found = [record for page in walk.pages for record in page_records(*read_page(files, handle, page.offset))]
    files.close(handle)
    assert [record.fields for record in found] == [b"", b"", fields]
    assert [(record.position, record.flags & PERSISTENT, *record[2:5]) for record in found] == [
        (5000, PERSISTENT, ADDRESS, PERSISTENT_HEADER, b"hi"),
        (5001, 0, ADDRESS, TRANSIENT_HEADER, b"you"),
        (5003, PERSISTENT, ADDRESS, PERSISTENT_HEADER, b"hi"),
    ]


def test_the_ids_are_read() -> None:
    found = read_ids(Files(), str(FOLDER / ids_name(7, 45)))
    assert found.fault is None
    assert list(decode_ids(found.rows)) == [(ID, EXPIRES), (LATER_ID, 0)]


@pytest.mark.parametrize(
    "folder", [FOLDER, FOLDER_V5, FOLDER_V4, FOLDER_V3, FOLDER_V2, FOLDER_V1], ids=["v6", "v5", "v4", "v3", "v2", "v1"]
)
def test_the_deletion_marks_are_read(folder: Path) -> None:
    marks = read_marks(Files(), str(folder / marks_name(5000, 0)))
    assert (list(marks.numbers), marks.reason) == ([1, 0, 3], None)
    assert marks.deleted_bytes == (4 if folder in (FOLDER, FOLDER_V5, FOLDER_V4) else UNKNOWN)


@pytest.mark.parametrize(
    ("page", "number", "name"),
    [
        ("log.md", 0, log_name(41)),
        ("segment.md", 0, segment_name(5000, 0)),
        ("segment.md", 1, marks_name(5000, 0)),
        ("ids.md", 0, ids_name(7, 45)),
    ],
)
def test_the_documents_draw_these_files(page: str, number: int, name: str) -> None:
    drawing = re.findall(r"```\n(.*?)```", (DOCUMENTS / page).read_text(), re.DOTALL)[number]
    data = b""
    for line in filter(None, drawing.splitlines()):
        match = re.fullmatch(r" *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  .*)?", line)
        assert match, line
        assert int(match[1]) == len(data), line
        data += bytes.fromhex(match[2])
    assert data == path_of(name).read_bytes()


def test_the_salt_of_the_fixture_is_where_it_is_drawn() -> None:
    assert path_of(log_name(41)).read_bytes()[12:16] == SALT.to_bytes(4, "little")
