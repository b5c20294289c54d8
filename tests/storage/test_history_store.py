"""The history of a durable exchange on disk: in the log, in segments, read back at a start, gone with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.driver import Kept
from warrenmq.core.errors import AccessRefused

LENGTH = 100


class Slow(Kept):
    """A folder whose next start leaves to the test when pages are read."""

    is_slow = False

    def settle(self) -> None:
        if not self.is_slow:
            super().settle()

    def open_slowly(self) -> None:
        self.is_slow = True
        self.open()
        self.is_slow = False


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Slow]:
    kept = Slow(tmp_path / "data")
    declare(kept)
    yield kept
    kept.crash()


def declare(kept: Kept) -> None:
    arguments = {"x-recent-history-length": LENGTH}
    kept.channel.vhost.declare_exchange("h", "x-recent-history", True, False, False, arguments)
    kept.settle()


def bind(kept: Kept, name: str) -> None:
    kept.channel.bind("h", kept.channel.declare(name))


def folders(kept: Kept) -> list[str]:
    return sorted(path.name for path in (kept.folder / "queues").iterdir())


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_brings_the_last_messages_back_in_order(kept: Slow, clean: bool) -> None:
    kept.publish(range(250), exchange="h")
    kept.settle()
    kept.restart(clean)
    bind(kept, "q")
    assert kept.drain() == list(range(150, 250))
    kept.publish(range(250, 260), exchange="h")
    kept.settle()
    kept.restart(clean)
    bind(kept, "r")
    assert kept.drain("r") == list(range(160, 260))


def test_a_history_partly_in_segments_and_partly_in_the_log_is_whole(kept: Slow) -> None:
    kept.publish(range(50), exchange="h")
    kept.checkpoint()
    kept.publish(range(50, 120), exchange="h")
    kept.publish(range(1000, 1005), exchange="h", transient=True)
    kept.settle()
    kept.restart(clean=False)
    bind(kept, "q")
    assert kept.drain() == list(range(25, 120))


def test_a_queue_that_is_bound_before_the_pages_are_read_gets_them_when_they_are(kept: Slow) -> None:
    kept.publish(range(80), exchange="h")
    kept.stop()
    kept.open_slowly()
    for name in ("q", "unbound", "deleted"):
        bind(kept, name)
    kept.channel.unbind("h", kept.queue("unbound"))
    kept.channel.delete(kept.queue("deleted"))
    assert kept.queue().message_count() == 0
    kept.settle()
    assert kept.drain() == list(range(80))
    assert kept.queue("unbound").message_count() == 0


def test_what_is_published_before_the_pages_are_read_follows_them_in_the_history(kept: Slow) -> None:
    kept.publish(range(80), exchange="h")
    kept.stop()
    kept.open_slowly()
    kept.publish(range(80, 130), exchange="h")
    kept.settle()
    bind(kept, "q")
    assert kept.drain() == list(range(30, 130))


def test_an_exchange_that_is_deleted_before_the_pages_are_read_leaves_nothing(kept: Slow) -> None:
    kept.publish(range(80), exchange="h")
    kept.stop()
    kept.open_slowly()
    bind(kept, "q")
    kept.channel.vhost.delete_exchange("h", False)
    kept.settle()
    assert kept.queue().message_count() == 0
    assert kept.broker.stats.held_bytes == 0
    kept.checkpoint()
    assert folders(kept) == []
    declare(kept)
    bind(kept, "r")
    kept.restart()
    assert kept.channel.vhost.exchanges["h"].history.held_bytes == 0


def test_old_messages_leave_the_disk(kept: Slow) -> None:
    for start in range(0, 4000, 200):
        kept.publish(range(start, start + 200), exchange="h")
        kept.checkpoint()
    size = sum(path.stat().st_size for path in (kept.folder / "queues").rglob("*") if path.is_file())
    assert size < 100 * LENGTH * 10
    kept.restart()
    bind(kept, "q")
    assert kept.drain() == list(range(3900, 4000))


def test_a_confirm_waits_until_the_history_is_safe(kept: Slow) -> None:
    kept.channel.core.select_confirms()
    kept.publish([1], exchange="h")
    kept.turn()
    assert kept.channel.confirms() == []
    kept.settle()
    assert kept.channel.confirms() == [(1, False)]


def test_no_queue_is_seen_and_none_can_take_its_name(kept: Slow) -> None:
    kept.publish([1], exchange="h")
    kept.restart()
    assert kept.channel.vhost.queues == {}
    assert kept.broker.recovery_warnings == []
    with pytest.raises(AccessRefused, match="reserved prefix"):
        kept.channel.declare("warren.history.h", durable=True)


def test_an_unreadable_page_costs_its_own_messages_alone(kept: Slow) -> None:
    kept.publish(range(80), exchange="h")
    kept.stop()
    (segment,) = (kept.folder / "queues").rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    kept.open()
    bind(kept, "q")
    found = kept.drain()
    assert 40 <= len(found) < 80
    assert found == sorted(set(found))
    kept.publish([100], exchange="h")
    bind(kept, "r")
    assert kept.drain("r") == [*found, 100]
