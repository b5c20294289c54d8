"""Expiry, length limits and priorities of queues that are mostly on disk, or were there when the broker started.

Each test is a case that the models of tests/properties have found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.driver import Kept, body_of, numbers_of

TICK = 16  # of the timers
PAGED: dict[str, Any] = {"window": 3000, "page": 1000, "segment_size": 4000, "page_size": 700, "read_size": 1200}
GRAVE = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave"}


def opened(folder: Path, **arguments: Any) -> Kept:
    kept = Kept(folder, now_ms=1000 * TICK, **PAGED)
    kept.declare("grave")
    kept.declare(**arguments)
    return kept


def publish(kept: Kept, numbers: range, **properties: Any) -> None:
    for number in numbers:
        kept.channel.publish(body_of(number), "q", delivery_mode=2, **properties)
    kept.advance()


def left(kept: Kept) -> int:
    return kept.queue().message_count()


def test_a_priority_that_comes_later_is_read_back_from_disk(tmp_path: Path) -> None:
    kept = opened(tmp_path, **{"x-max-priority": 3})
    publish(kept, range(25), priority=1)
    assert kept.queue().backlog.paged > 0
    assert kept.drain() == list(range(25))


def test_a_start_shortens_a_queue_whose_unacked_messages_wait_again(tmp_path: Path) -> None:
    kept = opened(tmp_path, **{"x-max-length": 3})
    publish(kept, range(3))
    kept.take(3)
    publish(kept, range(3, 6))
    kept.restart()
    kept.advance()
    assert kept.drain() == [3, 4, 5]


@pytest.mark.parametrize("arguments", [{}, GRAVE], ids=["dropped", "dead-lettered"])
@pytest.mark.parametrize("passed", [TICK, 2 * TICK], ids=["exactly", "over"])
def test_what_expires_while_the_broker_is_down_is_gone_after_the_start(
    tmp_path: Path, arguments: dict[str, str], passed: int
) -> None:
    kept = opened(tmp_path, **{"x-message-ttl": TICK}, **arguments)
    publish(kept, range(25))
    kept.now_ms += passed
    kept.restart()
    kept.advance()
    assert left(kept) == 0
    assert kept.queue("grave").message_count() == (25 if arguments else 0)


def test_what_was_read_back_after_a_start_expires(tmp_path: Path) -> None:
    kept = opened(tmp_path, **GRAVE)
    publish(kept, range(25), expiration=str(4 * TICK))
    kept.restart()
    held = kept.take(8)
    kept.advance(4 * TICK)
    assert left(kept) == 0
    kept.queue().requeue(held)
    kept.advance()
    assert sorted(numbers_of(kept.take_all("grave"))) == list(range(25))


def test_what_waits_in_memory_after_expired_pages_expires(tmp_path: Path) -> None:
    kept = opened(tmp_path, **{"x-message-ttl": 6 * TICK})
    publish(kept, range(25), expiration=str(5 * TICK))
    publish(kept, range(25, 51))
    kept.advance(6 * TICK)
    assert left(kept) == 0


def test_messages_in_memory_are_dropped_after_the_pages(tmp_path: Path) -> None:
    kept = opened(tmp_path)
    publish(kept, range(51))
    queue: Any = kept.queue()
    assert queue.backlog.paged > 0
    publish(kept, range(51, 53))
    limited = kept.declare("limited", **{"x-max-length": 1})
    queue.apply(limited.options)
    kept.advance()
    assert kept.drain() == [52]


def test_a_new_message_expires_in_time_although_an_older_timer_is_later(tmp_path: Path) -> None:
    kept = opened(tmp_path, **{"x-message-ttl": 5 * TICK}, **GRAVE)
    publish(kept, range(1))
    kept.restart()
    kept.queue().purge()
    publish(kept, range(1, 26), expiration=str(TICK))
    kept.advance(TICK)
    assert left(kept) == 0
