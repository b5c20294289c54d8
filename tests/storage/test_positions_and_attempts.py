"""What outlives its messages: positions are never used twice, and the number of deliveries is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.driver import Kept
from warrenmq.core.message import ended_attempts

LIMITS = {"window": 6000, "page": 1500, "log_limit": 40_000, "log_file_size": 10_000}


def kill(kept: Kept) -> None:
    kept.settle()
    kept.restart(clean=False)


def stop(kept: Kept) -> None:
    kept.restart()


def trim_and_kill(kept: Kept) -> None:
    kept.checkpoint()
    kill(kept)


def trim_twice_and_stop(kept: Kept) -> None:
    kept.checkpoint(carry=True)
    kept.checkpoint()
    stop(kept)
    stop(kept)


ENDS = pytest.mark.parametrize("end", [kill, stop, trim_and_kill, trim_twice_and_stop])


@ENDS
@pytest.mark.parametrize("count", [1, 300])
def test_no_position_is_used_twice_also_after_the_queue_was_emptied(
    tmp_path: Path, end: Callable[[Kept], None], count: int
) -> None:
    kept = Kept(tmp_path, **LIMITS)
    kept.declare()
    kept.publish(range(count))
    taken = kept.take_all()
    used = [entry.position for entry in taken]
    kept.ack(taken)
    for number in range(3):
        end(kept)
        assert kept.storage.report == []
        kept.publish([number])
        (entry,) = kept.take_all()
        assert entry.position > max(used)
        used.append(entry.position)
        kept.ack([entry])


def test_a_queue_that_is_declared_again_is_another_one(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.publish([0])
    kept.channel.delete(kept.declare())
    stop(kept)
    kept.declare()
    kept.publish([1])
    assert kept.drain() == [1]


@ENDS
@pytest.mark.parametrize("count", [3, 300])
def test_deliveries_of_messages_that_came_back_are_counted_across_restarts(
    tmp_path: Path, end: Callable[[Kept], None], count: int
) -> None:
    kept = Kept(tmp_path, **LIMITS)
    kept.declare(**{"x-queue-type": "quorum"})
    kept.publish(range(count))
    kept.queue().requeue(kept.take(2))
    kept.queue().requeue(kept.take(1))
    end(kept)
    kept.queue().requeue(kept.take(1))
    end(kept)
    assert [ended_attempts(entry) for entry in kept.take(3)] == [3, 1, 0]
    kept.ack(kept.take_all())
    end(kept)
    first, *rest = kept.take_all()
    assert (ended_attempts(first), [ended_attempts(entry) for entry in rest]) == (3, [1, 0])
    kept.ack([first, *rest])
    kept.checkpoint()
    assert kept.storage.context.unflushed == {}, "nothing of them is left to be logged again"


def test_a_classic_queue_does_not_log_deliveries(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.declare()
    kept.publish([0])
    kept.settle()
    work = kept.storage.log.work
    kept.queue().requeue(kept.take(1))
    assert kept.storage.log.work == work
