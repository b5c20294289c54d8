"""The log stays short, whatever it is that somebody leaves in it."""

from __future__ import annotations

from pathlib import Path

from tests.storage.driver import KIB, Kept

LIMIT = 64 * KIB


def small(tmp_path: Path, **options: object) -> Kept:
    return Kept(tmp_path, **{"log_limit": LIMIT, "log_file_size": LIMIT // 8, "relog_below": 2 * KIB, **options})


def flow(kept: Kept, count: int, name: str = "busy") -> None:
    """Messages that are acked as soon as they come."""
    for first in range(0, count, 20):
        kept.publish(range(first, first + 20), name)
        kept.ack(kept.take(20, name))
        kept.settle()
        assert kept.storage.committer.size < 2 * LIMIT


def test_a_waiting_message_is_relogged_without_a_file(tmp_path: Path) -> None:
    kept = small(tmp_path)
    kept.declare("idle")
    kept.declare("busy")
    kept.publish([7], "idle")
    flow(kept, 4000)
    assert kept.storage.checkpoint.count > 3
    assert kept.names("idle") == []
    kept.restart(clean=False)
    assert kept.drain("idle") == [7]
    kept.settle()
    kept.restart(clean=False)
    assert kept.drain("idle") == []


def test_messages_that_are_never_acked_do_not_hold_the_log(tmp_path: Path) -> None:
    kept = small(tmp_path, relog_below=0)
    kept.declare("held")
    kept.declare("busy")
    for number in range(40):
        kept.publish([number], "held")
        kept.take(1, "held")
        flow(kept, 100)
    assert kept.storage.checkpoint.count > 3
    kept.restart(clean=False)
    assert kept.drain("held") == list(range(40))


def test_a_queue_that_carries_and_then_grows_is_flushed(tmp_path: Path) -> None:
    kept = small(tmp_path)
    kept.declare("grows")
    kept.declare("busy")
    for number in range(120):
        kept.publish([number], "grows")
        flow(kept, 60)
    assert kept.segment_count("grows") > 0
    kept.restart(clean=False)
    assert kept.drain("grows") == list(range(120))


def test_a_relogged_fanout_returns_in_every_queue(tmp_path: Path) -> None:
    kept = small(tmp_path)
    kept.declare("busy")
    kept.channel.declare_exchange("all", "fanout", durable=True)
    for name in "abc":
        kept.channel.bind("all", kept.declare(name))
    kept.publish(range(5), "", exchange="all")
    kept.ack(kept.take(2, "b"))
    flow(kept, 3000)
    kept.ack(kept.take(1, "c"))
    flow(kept, 3000)
    assert [kept.names(name) for name in "abc"] == [[], [], []]
    for _ in range(2):
        kept.restart(clean=False)
    assert [kept.drain(name) for name in "abc"] == [[0, 1, 2, 3, 4], [2, 3, 4], [1, 2, 3, 4]]


def test_acks_of_flushed_messages_are_not_forgotten_with_the_log(tmp_path: Path) -> None:
    kept = small(tmp_path)
    kept.declare()
    kept.declare("busy")
    kept.publish(range(300))
    kept.settle()
    kept.checkpoint()
    held = kept.take(300)
    kept.ack(held[::3])
    flow(kept, 4000)
    kept.restart(clean=False)
    assert kept.drain() == [number for number in range(300) if number % 3]


def test_a_stop_waits_for_the_one_that_runs(tmp_path: Path) -> None:
    kept = small(tmp_path)
    kept.declare()
    kept.publish(range(300))
    kept.settle()
    kept.ack(kept.take(50))
    kept.turn()
    kept.storage.checkpoint.begin(kept.storage.log.durable, may_relog=True)
    kept.restart()
    assert kept.storage.replayed_epochs <= 1
    assert kept.drain() == list(range(50, 300))


def test_many_queues_are_flushed_in_slices(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    names = [f"q{number}" for number in range(230)]
    for name in names:
        kept.channel.declare(name, durable=True)
        kept.publish([1, 2], name)
    kept.checkpoint()
    for name in names:
        kept.ack(kept.take(1, name))
    kept.checkpoint()
    assert len(kept.storage.context.marked_stores) == 0
    kept.restart()
    assert all(kept.drain(name) == [2] for name in names)
