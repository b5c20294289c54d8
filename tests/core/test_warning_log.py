"""Warnings for the operator are logged, but rate-limited by kind."""

from __future__ import annotations

from warrenmq.core.turn import Turn
from warrenmq.core.warning_log import MAX_PER_PERIOD, PERIOD_MS, WarningLog


def make_log() -> tuple[WarningLog, Turn, list[str]]:
    turn = Turn(1_000_000)
    log = WarningLog(turn)
    lines: list[str] = []
    log.on_warning = lines.append
    return log, turn, lines


def test_a_client_cannot_flood_the_log() -> None:
    log, turn, lines = make_log()
    for number in range(1000):
        log.warn("unbind", f"unbind {number}")
    assert lines == [f"unbind {number}" for number in range(MAX_PER_PERIOD)]
    turn.now_ms += PERIOD_MS
    log.warn("unbind", "another")
    assert lines[MAX_PER_PERIOD:] == [f"another ({1000 - MAX_PER_PERIOD} similar warnings suppressed)"]


def test_each_kind_has_its_own_limit() -> None:
    log, _, lines = make_log()
    for number in range(100):
        log.warn("unbind", f"unbind {number}")
    log.warn("wildcard", "a*")
    assert lines[-1] == "a*"


def test_without_a_listener_warnings_are_dropped() -> None:
    WarningLog(Turn(0)).warn("unbind", "x")
