"""The progress bar: shown in a terminal, and only for work that takes a while."""

import io
import sys

import pytest

from warrenmq.cli.progress import SHOWN_AFTER, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_without_a_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar() as report:
        assert report is None


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with progress_bar(lambda: 0.0) as report:
        assert report is not None
        report("log", 1, 10)
        report("log", 10, 10)
    assert terminal.getvalue() == ""


def test_long_work_shows_its_step_and_the_bar_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    now = 0.0
    with progress_bar(lambda: now) as report:
        assert report is not None
        report("log", 1, 1000)
        now = SHOWN_AFTER
        report("queue/a-name-that-is-longer-than-the-line", 500, 1000)
    shown = terminal.getvalue()
    assert "queue/a-name-that-is-lo…" in shown
    assert "0.5/1.0 kB" in shown
    assert shown.endswith("\x1b[2K")  # the line is cleared
