"""Large writes go past the system's memory of files while the disk is quick; what does not is let go."""

from __future__ import annotations

from collections.abc import Sequence

from warrenmq.journal.files import Data, Files
from warrenmq.storage.uncached_writer import (
    CACHED_BYTES,
    INTERPRETER_WAIT,
    LARGE_WRITE,
    SLOW_FOR,
    SLOW_FROM,
    SLOW_IN_A_ROW,
    UncachedWriter,
)

LARGE: list[Data] = [bytes(LARGE_WRITE - 1), b"x"]
SMALL: list[Data] = [bytes(LARGE_WRITE - 1)]
QUICK = 0.9 * (INTERPRETER_WAIT + LARGE_WRITE * SLOW_FROM)
SLOW = 1.1 * (INTERPRETER_WAIT + LARGE_WRITE * SLOW_FROM)


class Noted(Files):
    """Writes nothing but down what was asked for. A write past the cache takes `takes` seconds by `clock`."""

    def __init__(self) -> None:
        self.now = 5.0
        self.takes = 0.0
        self.knows_how = True
        self.done: list[str] = []

    def clock(self) -> float:
        return self.now

    def writev(self, handle: int, pieces: Sequence[Data], offset: int) -> None:
        self.done.append("cached")

    def write_direct(self, handle: int, pieces: Sequence[Data], offset: int) -> bool:
        self.now += self.takes
        if not self.knows_how:
            return super().write_direct(handle, pieces, offset)
        self.done.append("past")
        return True

    def drop_cached(self, handle: int, end: int) -> None:
        self.done.append(f"let go {end}")

    def asked(self) -> list[str]:
        """Since the last time."""
        done, self.done = self.done, []
        return done


def test_only_large_writes_go_past_the_cache() -> None:
    files = Noted()
    writer = UncachedWriter(files, files.clock)
    writer.writev(3, LARGE, 0)
    writer.writev(3, SMALL, 0)
    writer.writev(3, [], 0)
    assert files.asked() == ["past", "cached", "cached"]


def test_a_slow_disk_is_written_to_through_the_cache_for_a_while() -> None:
    files = Noted()
    writer = UncachedWriter(files, files.clock)
    files.takes = QUICK
    for _ in range(3):
        writer.writev(3, LARGE, 0)
    assert files.asked() == ["past"] * 3
    files.takes = SLOW
    for _ in range(SLOW_IN_A_ROW + 2):
        writer.writev(3, LARGE, 0)
    assert files.asked() == [*["past"] * SLOW_IN_A_ROW, "cached", "cached"]
    files.now += SLOW_FOR - 0.001
    writer.writev(3, LARGE, 0)
    assert files.asked() == ["cached"]
    files.now += 0.002
    for _ in range(2):
        writer.writev(3, LARGE, 0)
    assert files.asked() == ["past", "cached"]


def test_a_write_that_is_slow_by_chance_changes_nothing() -> None:
    files = Noted()
    writer = UncachedWriter(files, files.clock)
    for _ in range(3):
        for files.takes in (*[SLOW] * (SLOW_IN_A_ROW - 1), QUICK):
            writer.writev(3, LARGE, 0)
    assert files.asked() == ["past"] * 3 * SLOW_IN_A_ROW


def test_a_write_may_take_long_in_proportion_to_its_size() -> None:
    files = Noted()
    writer = UncachedWriter(files, files.clock)
    files.takes = SLOW
    for _ in range(2 * SLOW_IN_A_ROW):
        writer.writev(3, [bytes(LARGE_WRITE)] * 16, 0)
    assert files.asked() == ["past"] * 2 * SLOW_IN_A_ROW


def test_cached_pages_are_dropped() -> None:
    files = Noted()
    writer = UncachedWriter(files, files.clock)
    for pieces in (SMALL, LARGE):
        writer.writev(3, pieces, CACHED_BYTES)
        writer.writev(3, pieces, CACHED_BYTES + 7)
    assert files.asked() == ["cached", "cached", "let go 7", "past", "past"]
    files.knows_how = False
    writer.writev(3, LARGE, CACHED_BYTES + 8)
    assert files.asked() == ["cached", "let go 8"]


def test_a_disk_that_knows_no_other_way_is_not_judged() -> None:
    files = Noted()
    writer = UncachedWriter(files, files.clock)
    files.takes, files.knows_how = SLOW, False
    for _ in range(SLOW_IN_A_ROW):
        writer.writev(3, LARGE, 0)
    files.takes, files.knows_how = QUICK, True
    writer.writev(3, LARGE, 0)
    assert files.asked() == [*["cached"] * SLOW_IN_A_ROW, "past"]
