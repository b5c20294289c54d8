"""Remarks about what has no effect: told, but never so often that they fill a log."""

from __future__ import annotations

from warrenmq.core.remarks import MOST, PERIOD_MS, Remarks
from warrenmq.core.turn import Turn


def remarks() -> tuple[Remarks, Turn, list[str]]:
    turn = Turn(1_000_000)
    made = Remarks(turn)
    told: list[str] = []
    made.on_remark = told.append
    return made, turn, told


def test_a_client_cannot_fill_the_log() -> None:
    made, turn, told = remarks()
    for number in range(1000):
        made.tell("unbind", f"unbind {number}")
    assert told == [f"unbind {number}" for number in range(MOST)]
    turn.now_ms += PERIOD_MS
    made.tell("unbind", "another")
    assert told[MOST:] == [f"another ({1000 - MOST} more like this were not logged)"]


def test_kinds_do_not_hide_each_other() -> None:
    made, _, told = remarks()
    for number in range(100):
        made.tell("unbind", f"unbind {number}")
    made.tell("wildcard", "a*")
    assert told[-1] == "a*"


def test_without_anybody_who_listens_nothing_happens() -> None:
    Remarks(Turn(0)).tell("unbind", "x")
