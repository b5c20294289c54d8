"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from warrenmq.cli.printable import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

# The current step, the bytes done, and the bytes in total.
Report = Callable[[str, int, int], None]

# Show no bar, and do not import rich, for work shorter than this (seconds).
SHOWN_AFTER = 0.5
MAX_TEXT = 24


@contextmanager
def progress_bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Report | None]:
    """Yield a function that updates the bar, callable from one thread; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(clock)
    try:
        yield bar.report
    finally:
        bar.remove()


class _Bar:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._shown: tuple[Progress, TaskID] | None = None

    def report(self, step: str, done: int, total: int) -> None:
        if self._shown is None:
            if self._clock() - self._began < SHOWN_AFTER:
                return
            self._shown = _show_bar()
        progress, task = self._shown
        progress.update(task, description=_shortened(step), completed=done, total=total)

    def remove(self) -> None:
        if self._shown is not None:
            self._shown[0].stop()


def _show_bar() -> tuple[Progress, TaskID]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress, progress.add_task("", total=None)


def _shortened(text: str) -> str:
    text = printable(text)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
