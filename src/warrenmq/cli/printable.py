"""Texts of others on a terminal: what would move its cursor or change its colours is shown as an escape."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text, with everything that does not print written out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shortened(text: str, cells: int) -> str:
    """The text, printable, in at most so many columns."""
    from rich.cells import cell_len, set_cell_size  # `warren serve` escapes its log without loading rich

    text = printable(text)
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"
