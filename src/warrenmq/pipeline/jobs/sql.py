"""Pieces of SQL that several jobs share. The jobs are SQL: a plan from a text costs a fraction of one from calls."""

from __future__ import annotations

# How many seconds the window of a row has.
SECONDS = "((unix_micros(window_end) - unix_micros(window_start)) / 1000000)"


def uid_text(uid: str) -> str:
    """A uid as people see it, and as the page of traces finds it; null where there is none.

    Both alphabets are in the order of their values: Spark's goes on to V, Crockford's leaves out I, L, O and U.
    """
    return f"lpad(translate(conv({uid}, 10, 32), 'IJKLMNOPQRSTUV', 'JKMNPQRSTVWXYZ'), 13, '0')"


def count_of(*kinds: str) -> str:
    """How often these kinds of events happened, in a group of facts."""
    return f"sum(if(kind IN ({listed(kinds)}), count, 0L))"


def octets_of(*kinds: str) -> str:
    return f"sum(if(kind IN ({listed(kinds)}), octets, 0L))"


def listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"'{name}'" for name in names)
