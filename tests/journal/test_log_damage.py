"""Every way to shorten a log and every bit that can flip in it: what is read was written, what is missing is reported.

And the check is checked: without the checksum it fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from tests.journal.logs import History, a_log
from warrenmq.journal import log_file
from warrenmq.journal.errors import JournalError
from warrenmq.journal.log_file import log_name
from warrenmq.journal.log_scan import cut_torn_tail


def two_files() -> History:
    """Three epochs in one file, two in the next."""
    return a_log([b"one", b"", b"three" * 20, b"four", b"five" * 8], file_size=300)


def used_again() -> History:
    """The last file holds the rest of an older life behind its two epochs."""
    history = History()
    writer = history.writer(file_size=300)
    for number in range(11):
        history.append(writer, bytes([number]) * (40 + number % 3))
        writer.sync()
        writer.remove_up_to(number - 3)
    first = writer.files_in_use[0].first
    history.written = {sequence: epoch for sequence, epoch in history.written.items() if sequence >= first}
    last = writer.files_in_use[-1]
    assert len(history.file(log_name(last.first)).rstrip(b"\0")) > last.size, "nothing of an older life"
    return history


MAKERS = [two_files, used_again]


def names_of(history: History) -> list[str]:
    return [name for name in history.names() if name.endswith(".log")]


def flips(history: History) -> Iterator[str]:
    """Flip every bit of every file in turn."""
    for name in names_of(history):
        file = history.file(name)
        for offset in range(len(file)):
            for bit in range(8):
                file[offset] ^= 1 << bit
                yield f"bit {bit} of byte {offset} of {name}"
                file[offset] ^= 1 << bit


def check_every(history: History, change: Callable[[History], Iterator[str]]) -> list[str]:
    """The changes after which a scan says something untrue."""
    wrong = []
    for what in change(history):
        try:
            history.check()
        except (AssertionError, JournalError) as error:
            wrong.append(f"{what}: {error}")
    return wrong


def test_the_logs_are_whole_to_begin_with() -> None:
    for make in MAKERS:
        history = make()
        scan, found = history.scan()
        assert found == history.written
        assert (scan.torn_tail, scan.damage) == (None, [])
        assert len(names_of(history)) > 1


@pytest.mark.parametrize("make", MAKERS)
def test_a_flipped_bit_is_never_believed(make: Callable[[], History]) -> None:
    assert check_every(make(), flips) == []


@pytest.mark.parametrize("make", MAKERS)
def test_a_flipped_bit_costs_one_epoch_at_most(make: Callable[[], History]) -> None:
    history = make()
    for what in flips(history):
        _, found = history.scan()
        assert len(history.written) - len(found) <= 1, what


@pytest.mark.parametrize("make", MAKERS)
def test_a_shorter_last_file_is_a_shorter_history(make: Callable[[], History]) -> None:
    history = make()
    file = history.file(names_of(history)[-1])
    ends = []
    while file:
        file.pop()
        scan, found = history.scan()
        assert list(found) == list(history.written)[: len(found)]
        assert scan.damage == []
        ends.append(scan.torn_tail is None)
        if scan.torn_tail is not None:
            before = bytes(file)
            cut_torn_tail(history.files, scan)
            assert history.scan()[1] == found
            assert history.scan()[0].torn_tail is None
            file[:] = before
    assert ends.count(False) > 40


@pytest.mark.parametrize("make", MAKERS)
def test_a_shorter_earlier_file_is_damage(make: Callable[[], History]) -> None:
    history = make()
    for name in names_of(history)[:-1]:
        file = history.file(name)
        whole = bytes(file)
        while file:
            file.pop()
            scan = history.check()
            assert scan.torn_tail is None
        file[:] = whole


@pytest.mark.parametrize("make", MAKERS)
def test_rubbish_of_any_kind_is_never_believed(make: Callable[[], History]) -> None:
    choice = random.Random(17)
    for _ in range(400):
        history = make()
        names = names_of(history)
        for _ in range(choice.randint(1, 4)):
            file = history.file(choice.choice(names))
            start = choice.randrange(len(file))
            end = min(len(file), start + choice.choice((1, 8, 32, 100)))
            what = choice.random()
            if what < 0.3:
                file[start:end] = bytes(end - start)
            elif what < 0.6:
                file[start:end] = choice.randbytes(end - start)
            elif what < 0.8:
                other = history.file(choice.choice(names))
                file[start:end] = other[start:end]
            else:
                del file[start:end]
        history.scan()  # checks what it reads


def test_files_that_change_places_are_never_believed() -> None:
    history = used_again()
    first, *_, last = names_of(history)
    history.file(first)[:], history.file(last)[:] = bytes(history.file(last)), bytes(history.file(first))
    scan, found = history.scan()
    assert scan.damage
    assert set(found) < set(history.written)


def test_without_the_checksum_flips_would_be_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "crc32c", lambda data, value=0: 0)
    assert any("never written" in wrong for wrong in check_every(two_files(), flips))
