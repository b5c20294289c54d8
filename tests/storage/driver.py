"""A broker on a data folder of its own, without threads: the test does their work, when it likes.

Syncs are left out, unless the test brings files of its own: a folder here outlives brokers, but no power loss.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support.client import PERSISTENT, Client, make_broker
from warrenmq.core.message import QueuedMessage
from warrenmq.core.queue import Queue
from warrenmq.journal.files import Files
from warrenmq.storage.data_dir import DataDir
from warrenmq.storage.file_storage import FileStorage
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.queue_store import QueueStore

KIB = 1024
# A few dozen messages of 100 bytes are paged out, in several pages and segments; the log is never trimmed.
SMALL: dict[str, Any] = {
    "log_limit": 1 << 30,
    "log_file_size": 1 << 20,
    "window": 16 * KIB,
    "page": 2 * KIB,
    "memory_budget": 1 << 30,
    "segment_size": 16 * KIB,
    "page_size": 2 * KIB,
    "read_size": 4 * KIB,
    "dead_allowance": 2 * KIB,
    "relog_below": 0,
}


class QuickFiles(Files):
    """The real ones, but a sync costs nothing."""

    def sync(self, handle: int) -> None:
        pass

    def sync_dir(self, path: str) -> None:
        pass


class Kept:
    """One data folder; `storage` and `broker` are those of its present life."""

    storage: FileStorage
    broker: Any
    channel: Any

    def __init__(self, folder: Path, files: Files | None = None, now_ms: int = 0, **options: Any) -> None:
        self.folder = folder
        self.now_ms = now_ms
        self.files = files or QuickFiles()
        self.options = StorageOptions(**{**SMALL, **options})
        self.failures: list[str] = []
        self.full: list[bool] = []
        self.open()

    # -- lives -------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self.open_storage()
        self.storage.attach(self._failed, self.full.append)
        self.channel = Client(self.broker).channel()
        self.settle()

    def open_storage(self) -> None:
        self._data_dir = DataDir(self.folder)
        self._data_dir.lock()
        self.storage = FileStorage.open(self._data_dir, self.options, files=self.files)
        self.broker = make_broker(self.storage, self.now_ms)

    def _failed(self, reason: str) -> None:
        self.failures.append(reason)
        self.broker.log_failed(reason)

    def crash(self) -> None:
        """Only what the operating system was given is left."""
        self.storage.close()
        self._data_dir.unlock()

    def stop(self) -> None:
        """In good order."""
        done: list[bool] = []
        self.broker.end_turn()
        self.storage.begin_stop(lambda: done.append(True))
        self.storage.run_all()
        assert done == [True]
        self.crash()

    def write_log(self, pages: int = 0) -> None:
        """End the turn and make it durable; of what is to be written to segments, take this many steps."""
        self.turn()
        self.storage.log.flush()
        while self.storage.committer.run_one():
            pass
        for _ in range(pages):
            self.storage.pager.run_one()

    def restart(self, clean: bool = True) -> None:
        if clean:
            self.stop()
        else:
            self.crash()
        self.open()

    # -- turns -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """A turn ends; what it said is on its way, and nothing has come of it yet."""
        self.broker.end_turn()

    def run(self) -> None:
        """A turn ends, and the threads do what there is to do."""
        self.broker.end_turn()
        self.storage.run_all()

    def settle(self) -> None:
        """The same, and everything said is durable."""
        self.broker.end_turn()
        self.storage.log.flush()
        self.storage.run_all()

    def advance(self, milliseconds: int = 0) -> None:
        """Time passes, and all that follows from it is done, now and by threads."""
        self.now_ms += milliseconds
        self.broker.turn.now_ms = self.now_ms
        for _ in range(1000):
            before = self._progress()
            self.settle()
            due_ms = self.broker.timers.next_due_ms()
            if due_ms is not None and due_ms <= self.now_ms:
                self.broker.timers.advance(self.now_ms)
            elif self._progress() == before:  # the results of threads have led to nothing more
                return
        raise AssertionError("there is always another timer that is due")

    def _progress(self) -> tuple[int, list[int]]:
        """Changes with everything that happens to messages; the log has nothing of transient ones."""
        return self.storage.log.work, [queue.message_count() for queue in self.broker.vhosts["/"].queues.made()]

    def checkpoint(self, carry: bool = False) -> None:
        """Let the log forget everything up to now."""
        self.settle()
        self.storage.checkpoint.begin(self.storage.log.last, may_relog=carry)
        self.storage.run_all()

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare(self, name: str = "q", *, durable: bool = True, **arguments: Any) -> Queue:
        queue: Queue = self.channel.declare(name, durable=durable, arguments=arguments)
        self.settle()
        return queue

    def queue(self, name: str = "q") -> Queue:
        queue: Queue = self.broker.vhosts["/"].queues[name]
        return queue

    def store(self, name: str = "q") -> QueueStore:
        store = self.queue(name).backlog.parts()[-1].store  # of priorities, the lowest
        assert isinstance(store, QueueStore)
        return store

    def publish(self, numbers: Iterable[int], key: str = "q", *, exchange: str = "", transient: bool = False) -> None:
        for number in numbers:
            self.channel.publish(body_of(number), key, exchange, delivery_mode=1 if transient else PERSISTENT)

    def get(self, name: str = "q") -> QueuedMessage | None:
        """The first message, unacked; a page that it lies in is waited for."""
        queue = self.queue(name)
        for _ in range(1000):
            if not queue.needs_page():
                break
            queue.await_page(lambda: None)
            self.settle()
        else:
            raise AssertionError(f"a page of {name} never comes")
        entry = queue.get()
        if entry is not None:
            entry.attempts += 1
            entry.queue = queue
            queue.count_unacked()
        return entry

    def take(self, count: int, name: str = "q") -> list[QueuedMessage]:
        """Take N messages, unacked."""
        taken = [self.get(name) for _ in range(count)]
        assert None not in taken, f"{name} has only {len(taken) - taken.count(None)} messages"
        return [entry for entry in taken if entry is not None]

    def take_all(self, name: str = "q") -> list[QueuedMessage]:
        taken = []
        while (entry := self.get(name)) is not None:
            taken.append(entry)
        return taken

    def ack(self, entries: Iterable[QueuedMessage]) -> None:
        for entry in entries:
            queue = entry.queue
            assert isinstance(queue, Queue)
            queue.settle(entry)

    def drain(self, name: str = "q") -> list[int]:
        """The numbers of all that wait, which are acked."""
        taken = self.take_all(name)
        self.ack(taken)
        return numbers_of(taken)

    # -- files -------------------------------------------------------------------------------------------------------

    def names(self, name: str = "q") -> list[str]:
        """The files in a queue's folder."""
        folder = Path(self.store(name).folder)
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def segment_count(self, name: str = "q") -> int:
        return sum(file.endswith(".seg") for file in self.names(name))


def body_of(number: int) -> bytes:
    return b"%08d" % number + b"." * (40 + number % 7 * 20)


def number_of(entry: QueuedMessage) -> int:
    assert entry.message.body == body_of(int(entry.message.body[:8]))
    return int(entry.message.body[:8])


def numbers_of(entries: Iterable[QueuedMessage]) -> list[int]:
    return [number_of(entry) for entry in entries]
