"""Makes text of clients safe for a terminal: control characters are shown as escapes."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with non-printable characters escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shortened(text: str, cells: int) -> str:
    """Return the text, printable, shortened to this many columns."""
    from rich.cells import cell_len, set_cell_size  # lazy: `warren serve` does not need rich

    text = printable(text)
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"
