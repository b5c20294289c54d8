"""A broker on the real storage code without threads: the test does the committer's and the pager's work, when it likes.

`Life` is one run of the broker, from opening the folder to a stop or a crash. Its clients are plain calls
(tests/support/client.py). What the threads would do is done by `commit_one` and `page_one`, one job at a time; what
they tell the loop comes at once, or when `hear` is called.

SQLite is no part of the simulated disk: `CatalogOnFiles` stands in for it. It promises the same: an epoch is applied as
a whole, in order, and is durable after `sync`.
"""

from __future__ import annotations

import pickle
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tests.properties.storage_model import State
from tests.support.client import Client, make_broker
from tests.support.outbox import GetOk
from warrenmq.core.broker import Broker
from warrenmq.core.queue import Queue
from warrenmq.core.stream import Stream
from warrenmq.journal.files import Files
from warrenmq.storage.catalog import NUMBERED
from warrenmq.storage.definition_records import KINDS, Definition, Operation
from warrenmq.storage.file_storage import TRANSIENT, FileStorage
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.recovery import Recovery

ROOT = "/data"
FANOUT = "everywhere"
# So small that a history of some dozen messages rolls logs, pages out, begins segments and compacts them.
TINY = StorageOptions(
    log_limit=6000,
    log_file_size=2048,
    window=4000,
    page=1500,
    memory_budget=20_000,
    segment_size=2500,
    page_size=700,
    read_size=1500,
    dead_allowance=300,
    relog_below=1200,
)

CATALOG = "catalog.stand-in"
_HEAD = struct.Struct("<II")


class CatalogOnFiles:
    """The definitions, as a log of what was applied. Takes the place of `CatalogFile`."""

    def __init__(self, files: Files, folder: str) -> None:
        self.applied_epoch = 0
        self.released_epoch = 0
        self.next_queue_id = 1
        self._files = files
        self._found: dict[str, dict[tuple[str, ...], Definition]] = {kind: {} for kind in KINDS}
        path = f"{folder}/{CATALOG}"
        self.was_created = not files.exists(path)
        self._handle = files.create(path) if self.was_created else files.open(path)
        self._end = 0
        self._read()
        files.truncate(self._handle, self._end)
        files.sync(self._handle)
        files.sync_dir(folder)

    def apply(self, epoch: int, operations: list[Operation]) -> None:
        if epoch > self.applied_epoch:
            self._append(epoch, operations)

    def release(self, epoch: int) -> None:
        if epoch > self.released_epoch:
            self.released_epoch = epoch
            self._append(self.applied_epoch, [])

    def _append(self, epoch: int, operations: list[Operation]) -> None:
        record = pickle.dumps((epoch, operations, self.released_epoch))
        self._files.write(self._handle, _HEAD.pack(len(record), zlib.crc32(record)) + record, self._end)
        self._end += _HEAD.size + len(record)
        self._bring_in(epoch, operations, self.released_epoch)

    def sync(self) -> None:
        self._files.sync(self._handle)

    def snapshot(self) -> dict[str, list[Definition]]:
        return {kind: self.load(kind) for kind in KINDS}

    def load(self, kind: str) -> list[Definition]:
        return list(self._found[kind].values())

    def read(self, kind: str) -> Iterator[Definition]:
        return iter(self.load(kind))

    def check(self) -> list[str]:
        return []

    def repair(self) -> list[str]:
        return []

    def close(self) -> None:
        self._files.close(self._handle)

    def _read(self) -> None:
        data = self._files.read(self._handle, self._files.size(self._handle), 0)
        while len(data) - self._end > _HEAD.size:
            size, checksum = _HEAD.unpack_from(data, self._end)
            start = self._end + _HEAD.size
            record = data[start : start + size]
            if not size or len(record) < size or zlib.crc32(record) != checksum:
                return
            self._bring_in(*pickle.loads(record))
            self._end = start + size

    def _bring_in(self, epoch: int, operations: list[Any], released_epoch: int) -> None:
        for what, kind, key, *definition in operations:
            if what == "define":
                self._found[kind][key] = definition[0]
                if kind in NUMBERED:
                    self.next_queue_id = max(self.next_queue_id, definition[0]["id"] + 1)
            else:
                self._found[kind].pop(key, None)
        self.applied_epoch = epoch
        self.released_epoch = released_epoch


class Life:
    """One run of the broker on these files. `number` tells lives of one folder apart."""

    def __init__(self, files: Files, number: int = 0, options: StorageOptions = TINY) -> None:
        self.number = number
        self.failure: str | None = None
        self.full: list[bool] = []  # what was said of the disk
        self.on_durable: Callable[[int], None] = lambda epoch: None
        files.remove_tree(f"{ROOT}/{TRANSIENT}")
        catalog: Any = CatalogOnFiles(files, ROOT)
        recovery = Recovery(files, ROOT, catalog)
        recovery.scan_log()
        self.storage = FileStorage(ROOT, options, files, catalog, recovery)
        self.broker = self.make_broker()
        self.storage.attach(self._failed, self.full.append)
        self.storage.log.on_durable = self._durable
        self.storage.committer.post = lambda work, *arguments: self._unheard.append((work, arguments))
        self._unheard: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._client = Client(self.broker)
        self.publisher = self._client.channel()
        self.channel = self._client.channel()  # gets and settles, everything in transactions
        self.channel.core.select_transactions()
        self.publisher.declare_exchange(FANOUT, "fanout", durable=True)

    def make_broker(self) -> Broker:
        return make_broker(self.storage)

    # -- what clients do ---------------------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        return self._client.vhost.queues[name]

    def get(self, name: str) -> GetOk | None:
        """The next message, unacked; a page that it lies in is waited for."""
        queue = self.queue(name)
        while queue.needs_page():
            queue.await_page(lambda: None)
            self._wait_for_something(f"a page of {name}")
        return self.channel.get(queue, no_ack=False)

    def end_turn(self) -> None:
        self.broker.end_turn()

    # -- what threads do ---------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The open one: what is said now lies in it."""
        return self.storage.log.epoch

    @property
    def durable(self) -> int:
        return self.storage.log.durable

    def commit_one(self, is_heard: bool = True) -> bool:
        """The committer's next job; the loop hears of it now or later."""
        did = self.storage.committer.run_one()
        if is_heard:
            self.hear()
        return did

    def apply_one(self) -> bool:
        """The catalog writer's next job."""
        return self.storage.catalog_writer.worker.run_one()

    def hear(self) -> bool:
        """The loop comes to what the committer told it."""
        heard = bool(self._unheard)
        while self._unheard:
            work, arguments = self._unheard.popleft()
            work(*arguments)
        return heard

    def page_one(self) -> bool:
        return self.storage.pager.run_one()

    def settle(self) -> None:
        """Everything is done that waits to be done, and everything said is durable."""
        self.end_turn()
        self.storage.log.flush()
        while self.commit_one() or self.hear() or self.apply_one() or self.page_one():
            pass

    def stop(self) -> None:
        """Stop in order, as a broker does: the next start has nothing to replay."""
        self.end_turn()
        done: list[bool] = []
        self.storage.begin_stop(lambda: done.append(True))
        while not done and self.failure is None:
            self._wait_for_something("the end")
        self.storage.close()

    def _wait_for_something(self, what: str) -> None:
        """Do the threads' work, a job at a time; what never comes must not be waited for."""
        if not self._do_something():
            self.end_turn()
            self.storage.log.flush()
            assert self.commit_one() or self.apply_one() or self.page_one(), f"{what} never comes"

    def _do_something(self) -> bool:
        return self.page_one() or self.commit_one() or self.apply_one() or self.hear()

    def _durable(self) -> None:
        self.broker.log_synced()
        self.on_durable(self.durable)

    def _failed(self, reason: str) -> None:
        self.failure = self.failure or reason
        self.broker.log_failed(reason)

    # -- what there is -----------------------------------------------------------------------------------------------

    def take_everything(self, is_damaged: bool = False) -> State:
        """All that the queues hold, in order, and what is bound. A damaged stream may hold less than it says."""
        vhost = self._client.vhost
        found: dict[str, tuple[bytes, ...]] = {}
        for name, queue in sorted(vhost.queues.items()):
            bodies = self._read_stream(queue) if isinstance(queue, Stream) else self._take_all(queue)
            if not (is_damaged and isinstance(queue, Stream)):
                assert len(bodies) == queue.message_count(), f"{name}: {len(bodies)} of {queue.message_count()}"
            found[name] = tuple(bodies)
        bound = [binding.destination.name for binding in vhost.bindings.of_source(vhost.exchanges[FANOUT])]
        return tuple(found.items()), tuple(sorted(bound))

    def _take_all(self, queue: Queue) -> list[bytes]:
        """Everything, and back again."""
        bodies = []
        while (got := self.get(queue.name)) is not None:
            assert got.redelivered, f"{queue.name}: {got.body!r} may have been delivered before the restart"
            bodies.append(got.body)
        self.channel.core.recover()
        return bodies

    def _read_stream(self, stream: Stream) -> list[bytes]:
        reader = self._client.channel()
        reader.consume(stream, prefetch=1000, arguments={"x-stream-offset": "first"})
        bodies: list[bytes] = []
        while (delivered := reader.deliveries()) or self._do_something():
            bodies += [each.body for each in delivered]
        reader.close()
        return bodies
