"""kill -9 at random moments and at the worst ones: nothing confirmed is lost, nothing settled comes back.

A real broker process with publishers on confirms, consumers acking and transactions (`traffic.py` keeps the books). It
is killed, started again on its folder, and killed again; then the queues must hold what the books say.

WARREN_TEST_EFFORT=20 kills twenty times as often. A failure prints the seed of its traffic.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adversity.traffic import Books, declare_everything, start_workers, take_everything
from tests.support.crash import effort
from tests.support.process import BrokerProcess

# Small files, so that logs roll, checkpoints come and segments are compacted within seconds.
SMALL = {
    "WARREN_LOG_LIMIT": "1MiB",
    "WARREN_TEST_LIMITS": "log_file_size=262144,window=65536,page=16384,memory_budget=1000000,segment_size=65536,"
    "page_size=8192,read_size=16384,dead_allowance=8192,relog_below=4096",
}
PATIENCE = 60.0


def live_until(
    broker: BrokerProcess, books: Books, seed: int, end: Callable[[], None], size: int = 100, thins: bool = False
) -> None:
    """Traffic until `end` returns, which leaves the broker dead."""
    workers = start_workers(broker.address, books, seed, size, thins)
    try:
        end()
    finally:
        for worker in workers:
            worker.finish()


def wait_for_confirms(books: Books, count: int, broker: BrokerProcess) -> None:
    """Wait until N more are confirmed, or the broker is dead."""
    pause, wanted = threading.Event(), books.confirmed_count() + count
    for _ in range(int(PATIENCE / 0.002)):
        if books.confirmed_count() >= wanted or broker.is_dead:
            return
        pause.wait(0.002)
    raise AssertionError(f"only {books.confirmed_count()} of {wanted} publishes were confirmed\n{broker.log()}")


def check_after_restart(folder: Path, books: Books, *, twice: bool = False) -> None:
    with BrokerProcess(folder, SMALL).ready() as broker:
        with broker.connect() as connection:
            found = take_everything(connection)
        books.check(found)
        assert broker.stop() == 0, broker.log()
    assert "Traceback" not in broker.log(), broker.log()
    if twice:
        with BrokerProcess(folder, SMALL).ready() as broker, broker.connect() as connection:
            assert not any(take_everything(connection).values()), "taken messages are back after a clean stop"


@pytest.mark.parametrize("seed", range(effort(2)))
def test_killed_at_random_moments(seed: int, tmp_path: Path) -> None:
    books, folder = Books(), tmp_path / "data"
    for life in range(2):
        with BrokerProcess(folder, SMALL).ready() as broker:
            if life == 0:
                with broker.connect() as connection:
                    declare_everything(connection)

            def end(broker: BrokerProcess = broker, count: int = 1 + (seed * 7919 + life * 104729) % 1500) -> None:
                wait_for_confirms(books, count, broker)
                broker.kill()

            live_until(broker, books, 1000 * seed + 10 * life, end)
    check_after_restart(folder, books, twice=True)


# How often each is reached before it kills. The first epochs of a broker are the definitions of these tests.
POINTS = [
    "log.after_write:12",
    "log.after_write:60",
    "log.after_sync:60",
    "log.mid_roll:2",
    "segment.after_write:5",
    "segment.before_remove:2",
    "checkpoint.after_sync:1",
    "checkpoint.before_trim:2",
    "compaction.mid:1",
    "compaction.before_rename:1",
    "compaction.after_rename:1",
    "compaction.mid_removal:1",
    "compaction.mid_removal:3",
    "transaction.mid:5",
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(point: str, tmp_path: Path) -> None:
    books, folder = Books(), tmp_path / "data"
    with BrokerProcess(folder, SMALL | {"WARREN_TEST_CRASH_AT": point}).ready() as broker:
        with broker.connect() as connection:
            declare_everything(connection)
        thins = point.startswith("compaction")
        live_until(broker, books, len(point), lambda: expect_death(broker), size=100 if thins else 1000, thins=thins)
    check_after_restart(folder, books)


def test_killed_while_it_stops(tmp_path: Path) -> None:
    books, folder = Books(), tmp_path / "data"
    with BrokerProcess(folder, SMALL | {"WARREN_TEST_CRASH_AT": "stop.mid"}).ready() as broker:
        with broker.connect() as connection:
            declare_everything(connection)

        def end() -> None:
            wait_for_confirms(books, 500, broker)
            broker.process.send_signal(signal.SIGTERM)
            expect_death(broker)

        live_until(broker, books, 1, end)
    check_after_restart(folder, books)


def test_killed_while_the_catalog_is_made(tmp_path: Path) -> None:
    """A migration is one step or none: the next start does it again."""
    folder = tmp_path / "data"
    with BrokerProcess(folder, {"WARREN_TEST_CRASH_AT": "migration.mid"}) as broker:
        expect_death(broker)
    books = Books()
    with BrokerProcess(folder, SMALL).ready() as broker:
        with broker.connect() as connection:
            declare_everything(connection)

        def end() -> None:
            wait_for_confirms(books, 100, broker)
            broker.kill()

        live_until(broker, books, 1, end)
    check_after_restart(folder, books)


def test_killed_while_it_recovers(tmp_path: Path) -> None:
    """Starts that are killed at any moment change nothing for the start that comes through."""
    books, folder = Books(), tmp_path / "data"
    with BrokerProcess(folder, SMALL).ready() as broker:
        with broker.connect() as connection:
            declare_everything(connection)

        def end() -> None:
            wait_for_confirms(books, 2000, broker)
            broker.kill()

        live_until(broker, books, 5, end, size=1000)
    pause = threading.Event()
    for wait_ms in range(300, 300 + 60 * effort(4), 60):
        with BrokerProcess(folder, SMALL) as broker:
            pause.wait(wait_ms / 1000)
            broker.kill()
    check_after_restart(folder, books)


def expect_death(broker: BrokerProcess) -> None:
    """The armed point is reached: the broker kills itself."""
    code = broker.wait()
    assert code == -signal.SIGKILL, f"exit code {code}\n{broker.log()}"
