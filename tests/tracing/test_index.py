"""The index of the event log: what is in it is found, from memory and from files, and damage is noticed."""

from __future__ import annotations

import contextlib
import os
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events import samples
from tests.tracing.stories import BEGIN, bytes_of, simple_life
from warrenmq.events import schema
from warrenmq.events.batch import RowFilter
from warrenmq.events.codec import decode, encode
from warrenmq.events.columns import ColumnWriter
from warrenmq.events.ids import MESSAGE_ID_KEY, key_hash, uid_key
from warrenmq.events.schema import Event
from warrenmq.tracing import index as index_module
from warrenmq.tracing.index import (
    FILE_NAME,
    BadIndex,
    Index,
    IndexEntry,
    entry_of,
    entry_of_stored,
    entry_of_written,
    kinds_mask,
)
from warrenmq.tracing.keys import keys_of, sort_keys


def entry(
    offset: int, *keys: int, time: int | None = None, kinds: int = 2, names: frozenset[str] = frozenset()
) -> IndexEntry:
    at = 1_000 * offset if time is None else time
    return IndexEntry(offset, at, at + 999, kinds, 7 * offset, 1000, names, array("Q", sorted(keys)))


def filled(folder: Path | None, *entries: IndexEntry, run_batches: int = 3) -> Index:
    index = Index(None if folder is None else str(folder), run_batches=run_batches)
    index.load()
    for each in entries:
        index.add(each, index.next_offset)
    return index


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))))
def test_keys_are_sorted_with_their_numbers_and_equal_ones_stay_in_order(pairs: list[tuple[int, int]]) -> None:
    hashes = bytearray(array("Q", [pair[0] for pair in pairs]).tobytes())
    numbers = bytearray(array("I", [pair[1] for pair in pairs]).tobytes())
    sort_keys(hashes, numbers)
    found = list(zip(array("Q", bytes(hashes)), array("I", bytes(numbers)), strict=True))
    assert found == sorted(pairs, key=lambda pair: pair[0])


def test_keys_of_equals_key_hashes_of_the_batch() -> None:
    for lives in (0, 1, 50):
        events = [
            event for at in range(lives) for event in simple_life(100 * at, message_id=f"m{at % 7}", correlation_id="c")
        ]
        batch = decode(bytes_of(events))
        assert keys_of(batch) == batch.key_hashes()
        moments = {uid_key(event.uid) for event in events}
        assert len(keys_of(batch)) == (lives and len(moments) + min(lives, 7) + 1)


def test_a_hash_without_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="number"):
        sort_keys(bytearray(16), bytearray(4))


KEYS = st.sets(st.sampled_from([0, 1, 2, 3, 5, 2**63, 2**64 - 1]))


@settings(deadline=None, max_examples=50)
@given(st.lists(KEYS, max_size=12), st.booleans())
def test_every_key_leads_to_all_its_batches_and_no_other(tmp_path_factory, batches, has_disk) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("index") if has_disk else None
    index = filled(folder, *[entry(offset, *keys) for offset, keys in enumerate(batches)])
    for key in (0, 1, 2, 3, 4, 5, 2**63, 2**64 - 1):
        assert index.find([key]) == [offset for offset, keys in enumerate(batches) if key in keys]
    assert index.find([1, 2]) == [offset for offset, keys in enumerate(batches) if keys & {1, 2}]


def test_keys_that_fill_many_pages_are_found_at_their_edges(tmp_path: Path) -> None:
    batches = [entry(offset, *range(offset, 9_000, 3), 12_345_678) for offset in range(3)]
    index = filled(tmp_path, *batches)
    assert index.figures()["runs"] == 1
    for key in (0, 1, 1_023, 1_024, 1_025, 2_047, 2_048, 8_999):
        assert index.find([key]) == [key % 3]
    assert index.find([12_345_678]) == [0, 1, 2]
    assert index.find([9_000]) == []


def test_a_key_in_more_batches_than_a_page_has_room_for_is_found_in_all(tmp_path: Path) -> None:
    index = filled(tmp_path, *[entry(offset, 5, 10 + offset) for offset in range(3_000)], run_batches=3_000)
    assert index.figures()["runs"] == 1
    assert index.find([5]) == list(range(3_000))


def test_a_real_batch_is_found_by_its_ids_and_names() -> None:
    events = simple_life(0, "work", "order-1") + simple_life(500, "other")
    index = filled(None, entry_of_stored(0, bytes_of(simple_life(9_000))), entry_of_stored(1, bytes_of(events)))
    assert index.find([uid_key(events[0].uid)]) == [1]
    assert index.find([key_hash(MESSAGE_ID_KEY, b"order-1")]) == [1]
    assert index.candidates(RowFilter(queue="other"), 2) == ([1], 0)
    assert index.candidates(RowFilter(queue="work", exchange="orders"), 2) == ([1, 0], 0)
    assert index.candidates(RowFilter(queue="orders"), 2) == ([], 0)
    assert index.candidates(RowFilter(time_from=BEGIN + 8_000), 2) == ([0], 0)
    assert index.candidates(RowFilter(time_to=BEGIN), 2) == ([], 0)
    assert index.candidates(RowFilter(kinds=frozenset({schema.ACKED})), 2) == ([1, 0], 0)
    assert index.candidates(RowFilter(kinds=frozenset({schema.DROPPED})), 2) == ([], 0)


def test_a_batch_that_cannot_be_read_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    index = filled(None, entry_of_stored(0, b"nonsense"), entry_of_stored(1, bytes_of(simple_life(0))))
    assert index.next_offset == 2
    assert "cannot be read" in caplog.text


def test_a_run_is_written_when_the_batches_have_many_bytes(tmp_path: Path) -> None:
    index = Index(str(tmp_path), run_bytes=2_500)
    index.load()
    for offset in range(4):
        index.add(entry(offset, offset), index.next_offset)
    assert index.figures() == {"runs": 1, "keys": 4, "open_batches": 1}


def all_candidates(index: Index, wanted: RowFilter, below: int) -> list[int]:
    found: list[int] = []
    while below:
        some, below = index.candidates(wanted, below)
        found += some
    return found


@pytest.mark.parametrize("has_disk", [False, True])
def test_batches_by_time_kind_and_name_come_last_first(tmp_path: Path, has_disk: bool) -> None:
    names = [frozenset({"qa"}), frozenset({"qb", "ex"}), frozenset({"qa", "ex"})]
    entries = [entry(offset, offset, kinds=kinds_mask([offset % 5]), names=names[offset % 3]) for offset in range(20)]
    index = filled(tmp_path if has_disk else None, *entries)
    assert all_candidates(index, RowFilter(), 20) == list(range(19, -1, -1))
    assert all_candidates(index, RowFilter(), 8) == list(range(7, -1, -1))
    assert all_candidates(index, RowFilter(time_from=3_500, time_to=7_000), 20) == [6, 5, 4, 3]
    assert all_candidates(index, RowFilter(kinds=frozenset({2})), 20) == [17, 12, 7, 2]
    assert all_candidates(index, RowFilter(queue="a", exchange="x"), 20) == [17, 14, 11, 8, 5, 2]
    assert all_candidates(index, RowFilter(queue="nobody"), 20) == []


def test_a_kind_of_a_far_later_broker_is_not_missed() -> None:
    index = filled(None, entry(0, kinds=kinds_mask([100])))
    assert all_candidates(index, RowFilter(kinds=frozenset({100})), 1) == [0]


def test_an_index_is_loaded_again(tmp_path: Path) -> None:
    names = [frozenset({"qa", "q\udcff"}), frozenset({"ex"})]
    entries = [entry(offset, offset, kinds=1 << 63, names=names[offset % 2]) for offset in range(8)]
    first = filled(tmp_path, *entries)
    expected = all_candidates(first, RowFilter(queue="\udcff", kinds=frozenset({63})), 8)
    first.close()
    second = filled(tmp_path)
    assert second.next_offset == 8
    assert second.newest() == (7, 49)
    assert [second.find([key]) for key in range(8)] == [[key] for key in range(8)]
    assert all_candidates(second, RowFilter(queue="\udcff", kinds=frozenset({63})), 8) == expected == [6, 4, 2, 0]
    assert second._open == entries[6:]


def test_a_run_that_is_not_full_goes_on_after_a_start(tmp_path: Path) -> None:
    for offset in range(3):  # each start adds one batch
        index = filled(tmp_path, entry(offset, offset, 99))
        index.close()
    index = filled(tmp_path)
    assert index.figures() == {"runs": 1, "keys": 6, "open_batches": 0}
    assert index.find([99]) == [0, 1, 2]


def test_what_was_not_written_is_missing_after_a_crash(tmp_path: Path) -> None:
    filled(tmp_path, *[entry(offset, offset) for offset in range(5)])
    assert filled(tmp_path).next_offset == 3


def test_files_of_earlier_versions_are_removed(tmp_path: Path) -> None:
    for name in ("00000000000000000000.idx", "00000000000000000000.idx.new"):
        (tmp_path / name).write_bytes(b"WARRENIX")
    assert filled(tmp_path).next_offset == 0
    assert names_in(tmp_path) == [FILE_NAME]


def test_a_symbolic_link_in_place_of_the_file_is_removed_and_its_target_untouched(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / FILE_NAME).symlink_to(target)
    filled(folder, *(entry(offset, offset) for offset in range(4))).close()
    assert target.read_text() == "precious"
    assert not (folder / FILE_NAME).is_symlink()
    assert filled(folder).find([2]) == [2]


def test_a_disk_that_is_full_for_a_while_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "RETRY_BATCHES", 4)
    index = filled(tmp_path)
    (pages,) = index._database.execute("PRAGMA page_count").fetchone()
    index._database.execute(f"PRAGMA max_page_count = {pages}")
    for offset in range(6):
        index.add(entry(offset, *range(100 * offset, 100 * offset + 4000)), index.next_offset)
    assert index.figures() == {"runs": 0, "keys": 24_000, "open_batches": 6}
    assert [index.find([100 * each])[-1] for each in range(6)] == list(range(6))
    index._database.execute("PRAGMA max_page_count = 100000")
    index.add(entry(6, 6), index.next_offset)
    assert index.figures()["runs"] == 1
    assert [index.find([100 * each])[-1] for each in range(6)] == list(range(6))
    assert filled(tmp_path).next_offset == 7


def test_a_disk_that_is_full_at_the_stop_is_reported(tmp_path: Path) -> None:
    index = filled(tmp_path, entry(0, *range(50_000)))
    (pages,) = index._database.execute("PRAGMA page_count").fetchone()
    index._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match="full"):
        index.close()
    assert filled(tmp_path).next_offset == 0


def test_every_damaged_byte_of_the_keys_is_noticed(tmp_path: Path) -> None:
    index = filled(tmp_path, *[entry(offset, offset, names=frozenset({"qa"})) for offset in range(3)])
    (row,) = index._database.execute("SELECT rowid, data FROM pages")
    for at in range(len(row[1])):
        damaged = row[1][:at] + bytes([row[1][at] ^ 0x10]) + row[1][at + 1 :]
        again = filled(tmp_path)
        with again._database as database:
            database.execute("UPDATE pages SET data = ?", (damaged,))
        with pytest.raises(BadIndex):
            again.find([1])
        for offset in range(3):
            again.add(entry(offset, offset), again.next_offset)


def test_no_damaged_byte_of_the_file_stops_a_start(tmp_path: Path) -> None:
    index = filled(tmp_path, *[entry(offset, offset, names=frozenset({"qa"})) for offset in range(4)])
    index.close()
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for at in [*range(100), *range(100, len(whole), 401)]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        damaged = filled(tmp_path)
        with contextlib.suppress(BadIndex):
            damaged.newest()
            damaged.find([2])
            all_candidates(damaged, RowFilter(queue="a"), 4)
        for offset in range(damaged.next_offset, 12):
            damaged.add(entry(offset, offset), damaged.next_offset)
    for size in (1, 99, 100, 5_000, len(whole) - 1):
        path.write_bytes(whole[:size])
        filled(tmp_path)


def test_an_index_of_another_version_is_built_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = filled(tmp_path, *[entry(offset, offset) for offset in range(3)])
    index._database.execute("PRAGMA user_version = 99")
    assert filled(tmp_path).next_offset == 0
    assert "version 99" in caplog.text


def test_a_page_that_rots_while_the_broker_runs_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    index = filled(tmp_path, *[entry(offset, offset) for offset in range(10)])
    with index._database as database:
        database.execute("UPDATE pages SET checksum = checksum + 1 WHERE run = 3")
    with pytest.raises(BadIndex):
        index.find([4])
    assert index.next_offset == 0
    assert index.add(entry(9, 9), after=9) == 0  # a caller that does not know yet adds nothing
    for offset in range(10):
        index.add(entry(offset, offset), after=index.next_offset)
    assert index.find([4]) == [4]


def test_what_retention_removed_is_forgotten(tmp_path: Path) -> None:
    index = filled(tmp_path, *[entry(offset, 5) for offset in range(8)])
    assert index.forget_before(5) == 8
    assert index.find([5]) == [3, 4, 5, 6, 7]
    index.add(entry(8, 5), 8)
    for table, column in (("runs", "first"), ("batches", "offset"), ("pages", "run")):
        assert index._database.execute(f"SELECT min({column}) FROM {table}").fetchone() == (3,)
    assert index.forget_before(100) == 100
    assert index.find([5]) == []
    assert all_candidates(index, RowFilter(), 100) == []


def test_without_a_disk_what_retention_removed_is_forgotten_too() -> None:
    index = filled(None, *[entry(offset, 5) for offset in range(8)])
    index.forget_before(6)
    assert index.find([5]) == [6, 7]
    assert index.figures()["keys"] == 2


def test_clear_removes_everything(tmp_path: Path) -> None:
    index = filled(tmp_path, *[entry(offset, 5) for offset in range(8)])
    index.clear()
    assert (index.next_offset, index.find([5]), index.newest()) == (0, [], None)
    assert filled(tmp_path).next_offset == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(samples.events(), max_size=40))
def test_the_entry_of_written_rows_equals_that_of_the_batch(written: list[Event]) -> None:
    writer = ColumnWriter()
    nameless = {"message_id": None, "correlation_id": None, "trace_id": None, "span_id": None, "source_uid": None}
    for events in (written, [replace(event, **nameless) for event in written[::2]]):  # type: ignore[arg-type]
        rows = samples.rows_of(events)
        data = encode(rows, writer)
        assert entry_of_written(rows, writer, data) == entry_of(data)
