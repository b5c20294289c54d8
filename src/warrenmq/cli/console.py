"""What commands share that talk to people: where they print, and whose password they use."""

from __future__ import annotations

import getpass
import sys

from rich.console import Console

WIDTH = 80


class NoPassword(Exception):
    """There is no password and nobody to ask for it; the text says how to give it."""


def output_console() -> Console:
    """The terminal as it is; a file or a pipe as wide as a terminal is at least."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def credentials(user: str) -> tuple[str, str]:
    """NAME:PASSWORD; a password that is not given is asked for, where somebody can answer."""
    name, colon, password = user.partition(":")
    if colon:
        return name, password
    if not sys.stdin.isatty():
        raise NoPassword(f"no password for user '{name}': give --user {name}:PASSWORD")
    return name, getpass.getpass(f"Password of {name}: ")
