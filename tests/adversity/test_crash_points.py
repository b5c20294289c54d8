"""Crash points do nothing unless armed, and crash at the pass they were armed for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warrenmq.storage import crash_points


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    crash_points.disarm()


def test_nothing_happens_unless_armed() -> None:
    crash_points.arm_from("")
    for name in crash_points.POINTS:
        crash_points.reach(name)


def test_crashes_at_the_count_and_at_no_other_point() -> None:
    crashes: list[str] = []
    crash_points.arm("log.after_write", 2, lambda: crashes.append("now"))
    crash_points.reach("log.after_write")
    crash_points.reach("log.after_sync")
    assert crashes == []
    crash_points.reach("log.after_write")
    assert crashes == ["now"]


@pytest.mark.parametrize("text", ["log.after_lunch", "log.after_write:0", "log.after_write:soon"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"point|literal"):
        crash_points.arm_from(text)
