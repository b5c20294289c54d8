"""A progress bar on standard error, where a terminal is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What is being done, how many bytes of it are, and how many there are.
Tell = Callable[[str, int, int], None]

LONGEST_TEXT = 24


@contextmanager
def progress_bar() -> Iterator[Tell | None]:
    """Gives what moves the bar, from any thread; None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    # rich takes a while to load: a broker without a terminal must not wait for it.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=_shortened(what), completed=done, total=total)

        yield tell


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
