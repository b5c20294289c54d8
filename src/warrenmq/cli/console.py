"""Shared by commands: the console for their output, and credentials."""

from __future__ import annotations

import getpass
import sys

from rich.console import Console

WIDTH = 80


class NoPassword(Exception):
    """No password was given, and there is no terminal to ask for it."""


def output_console() -> Console:
    """Return a console with the width of the terminal, or 80 columns for a file or pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def credentials(user: str) -> tuple[str, str]:
    """Parse NAME:PASSWORD; prompt for a missing password on a terminal."""
    name, colon, password = user.partition(":")
    if colon:
        return name, password
    if not sys.stdin.isatty():
        raise NoPassword(f"no password for user '{name}': use --user {name}:PASSWORD")
    return name, getpass.getpass(f"Password for {name}: ")
