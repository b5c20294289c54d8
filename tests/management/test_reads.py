"""Reads that are never answered: the request for them ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from warrenmq.management.api import reads
from warrenmq.management.errors import NotFound, Unavailable


def test_an_answer_may_come_at_once_or_later() -> None:
    async def ask() -> tuple[str, str]:
        def answer_later(receive: Callable[[str], None]) -> None:
            asyncio.get_running_loop().call_soon(receive, "later")

        at_once: str = await reads.answer_to(lambda receive: receive("at once"), lambda: False)
        return at_once, await reads.answer_to(answer_later, lambda: False)

    assert asyncio.run(ask()) == ("at once", "later")


def test_a_read_of_a_deleted_queue_is_not_found() -> None:
    waiting: list[Callable[[object], None]] = []
    with pytest.raises(NotFound):
        asyncio.run(reads.answer_to(waiting.append, lambda: True))
    waiting[0](None)  # too late: nothing happens


def test_a_read_that_takes_too_long_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "TIME_LIMIT", 0.25)
    with pytest.raises(Unavailable, match=r"the messages on disk could not be read within 0\.25 seconds"):
        asyncio.run(reads.answer_to(lambda receive: None, lambda: False))
