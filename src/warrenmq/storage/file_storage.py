"""Storage in files: the log, segments and catalog of one data folder, put together.

`open` recovers what the folder holds; `start` starts the threads; `stop` flushes everything, so that the next start
replays nothing.

Owned by the loop thread, except for `open`, which runs before there is a loop.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from warrenmq.core import reserved
from warrenmq.core.broker import DEFAULT_VHOST
from warrenmq.core.durability import FSYNC, Durability
from warrenmq.core.options import STREAM, QueueOptions, queue_options
from warrenmq.core.policies import find_policies, restore_policy_lists
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN, MessageStore, SeenStore, Storage, StreamStore
from warrenmq.core.stats import Stats
from warrenmq.core.timers import Timers
from warrenmq.core.turn import Turn
from warrenmq.events import schema
from warrenmq.journal.files import Files, SystemFiles
from warrenmq.journal.log_writer import LogWriter
from warrenmq.storage.catalog import CatalogFile, LoggedCatalog
from warrenmq.storage.catalog_rescue import open_catalog
from warrenmq.storage.catalog_writer import CatalogWriter
from warrenmq.storage.checkpoint import POSITIONS_PER_SLICE, Checkpoint, Participant, log_positions
from warrenmq.storage.commit_log import LocalLog
from warrenmq.storage.committer import CommitProgress
from warrenmq.storage.compaction import Compaction
from warrenmq.storage.damaged import DAMAGED
from warrenmq.storage.data_dir import DataDir
from warrenmq.storage.definition_records import KINDS, TABLES
from warrenmq.storage.local_committer import LAZY_SYNC_INTERVAL, LocalCommitter
from warrenmq.storage.manifest import (
    FILE,
    AnySegment,
    Manifest,
    folder_of,
    is_as_recorded,
    segment_key,
)
from warrenmq.storage.options import StorageOptions
from warrenmq.storage.pager import Pager
from warrenmq.storage.queue_store import QueueStore
from warrenmq.storage.recovery import LOG, QUEUES, Recovery
from warrenmq.storage.seen_store import FileSeenStore, owner_of_exchange, restore_seen
from warrenmq.storage.store_context import StoreContext
from warrenmq.storage.stream_context import StreamContext
from warrenmq.storage.stream_offsets import FileOffsets
from warrenmq.storage.stream_recovery import find_stream_segments
from warrenmq.storage.stream_store import FileStreamStore
from warrenmq.storage.worker import DiskWorker

log = logging.getLogger("warrenmq.storage")

TRANSIENT = "transient"
CATALOG = "catalog.sqlite"

# A stop writes a file for each queue that only the log has. With more queues than this, small ones stay in the log:
# syncing ten thousand files takes ten seconds, reading them back from the log a tenth of one.
FILES_AT_STOP = 1000


@contextmanager
def without_collections() -> Iterator[None]:
    """Turn the garbage collector off.

    Nothing becomes garbage at a start: with 100,000 queues, collections would take longer than everything else.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


class FileStorage(Storage):
    """The storage of one node.

    `report` is what the start found wrong, a line each; `has_damage` means that it is more than a crash can cause.
    """

    __slots__ = (
        "_call_soon",
        "_callbacks",
        "_dead_files",
        "_events",
        "_idle",
        "_is_started",
        "_recorded_log_file",
        "_recovered",
        "_seen",
        "_transient_count",
        "catalog",
        "catalog_writer",
        "checkpoint",
        "committer",
        "compaction",
        "context",
        "files",
        "has_damage",
        "log",
        "lost_messages",
        "manifest",
        "options",
        "pager",
        "replayed_epochs",
        "report",
        "root",
        "streams",
    )

    catalog: LoggedCatalog
    log: LocalLog

    def __init__(
        self,
        root: str,
        options: StorageOptions,
        files: Files,
        catalog: CatalogFile,
        recovery: Recovery,
    ) -> None:
        self.root = root
        self.options = options
        self.files = files
        self.report = recovery.report
        self.lost_messages = 0
        self._dead_files: list[tuple[str, list[str]]] = []  # to remove when the manifest has forgotten them
        self._recorded_log_file = 0
        self.replayed_epochs = recovery.epochs
        self._is_started = False
        self._events = recovery.events()
        self._transient_count = 0
        self._callbacks: deque[Callable[[], None]] = deque()  # without a loop
        self._call_soon: Callable[..., object] = self._callbacks.append
        files.make_dirs(os.path.join(root, QUEUES))
        files.sync_dir(root)  # even if everything existed: its creator may have been killed before the sync
        writer = LogWriter(
            files, os.path.join(root, LOG), recovery.next_epoch, options.log_file_size, recovery.log_files
        )
        durability = options.durability
        self.committer = LocalCommitter(writer, _sync_interval_of(durability))
        reply_level = SYNCED if durability.mode == FSYNC else WRITTEN
        self.log = LocalLog(self.committer, recovery.next_epoch, reply_level)
        self.catalog_writer = CatalogWriter(catalog, self.log)
        self.pager = Pager(files, self.log)
        self.manifest = Manifest(self.log, self.catalog_writer, catalog.released_epoch)
        self.context = StoreContext(self.log, self.pager, self.manifest, options, root)
        self.streams = StreamContext(self.context)
        self.checkpoint = Checkpoint(
            self.context, self.committer, self.catalog_writer, options, lambda work: self._call_soon(work)
        )
        self.compaction = Compaction(self.pager, self.checkpoint)
        self.context.on_compactable = self.compaction.request
        self.checkpoint.on_end = self.compaction.start_next
        self.committer.on_progress = self._progressed
        ids, snapshot = self._load(catalog, recovery)
        self._idle = {vhost: list(names) for vhost, names in ids.items()}
        self._recovered = self._restore(snapshot, recovery)
        self._seen = restore_seen(self.context, recovery, snapshot, reply_level)
        next_queue_id = max(catalog.next_queue_id, recovery.next_queue_id())
        self.catalog = LoggedCatalog(self.log, self.catalog_writer, snapshot, next_queue_id, ids)
        self.context.describe_queue = self.catalog.describe_queue
        self.lost_messages = recovery.lost_messages
        self.has_damage = recovery.has_damage

    @classmethod
    def open(
        cls,
        data_dir: DataDir,
        options: StorageOptions,
        progress: Callable[[str, int, int], None] | None = None,
        files: Files | None = None,
    ) -> FileStorage:
        """Recover what the folder holds. Blocks; raises DataDirError, CatalogError or JournalError."""
        files = files or SystemFiles()
        root = str(data_dir.path)
        was_versionless = data_dir.require_version()
        files.remove_tree(os.path.join(root, TRANSIENT))
        catalog, losses = open_catalog(os.path.join(root, CATALOG), os.path.join(root, DAMAGED))
        has_data = any(files.list(os.path.join(root, name)) for name in (QUEUES, LOG))
        recovery = Recovery(files, root, catalog, progress)
        if was_versionless and has_data:
            recovery.report.append(f"{os.path.join(root, 'version')} was missing or empty and has been rewritten")
        try:
            with without_collections():
                recovery.scan_log()
                if catalog.was_created and has_data and recovery.first_epoch != 1:
                    losses.append("the catalog was missing: only definitions still in the log were restored")
                recovery.report += losses
                recovery.has_damage = recovery.has_damage or bool(losses)
                if recovery.has_damage:
                    recovery.report += catalog.repair()
                return cls(root, options, files, catalog, recovery)
        except BaseException:
            catalog.close()
            raise

    def _load(
        self, catalog: CatalogFile, recovery: Recovery
    ) -> tuple[dict[str, dict[str, int]], dict[str, list[dict[str, Any]]]]:
        """Return the numbers of idle queues by virtual host and name, and all other definitions by kind."""
        ids: dict[str, dict[str, int]] = {}
        snapshot: dict[str, list[dict[str, Any]]] = {
            kind: [] if kind == "queue" else catalog.load(kind)
            for kind in KINDS
            if kind != FILE  # recovery has loaded them
        }
        with_levels = {(definition["vhost"], definition["queue"]) for definition in snapshot["level"]}
        for definition in catalog.read("queue"):
            number, vhost, name = definition["id"], definition["vhost"], definition["name"]
            is_plain = not (definition["arguments"] or definition["auto_delete"] or name.startswith(reserved.PREFIX))
            if is_plain and recovery.is_idle(number) and (vhost, name) not in with_levels:
                ids.setdefault(vhost, {})[name] = number
                if position := recovery.next_position(number):
                    self.context.idle_positions[number] = position
            else:
                snapshot["queue"].append(definition)
        return ids, snapshot

    def _restore(
        self, definitions: Mapping[str, list[dict[str, Any]]], recovery: Recovery
    ) -> dict[tuple[str, str, int], QueueStore | FileStreamStore]:
        """Return the stores of all durable queues and streams, by virtual host, name and level."""
        stores: dict[int, QueueStore] = {}
        streams: dict[int, FileStreamStore] = {}
        found: dict[tuple[str, str, int], QueueStore | FileStreamStore] = {}
        named: dict[int, tuple[str, int]] = {}  # description, and last position in segments; if messages may be lost
        classic: dict[tuple[str, str], QueueOptions] = {}
        policies = restore_policy_lists(definitions)
        for definition in definitions["queue"]:
            number = definition["id"]
            queue = definition["vhost"], definition["name"]
            words = TABLES["queue"].describe(queue)
            is_event_log = _is_event_log(*queue)
            recovery.sync_segments(number, self._folder_of(number), bypasses_log=is_event_log)
            options = queue_options(True, definition["arguments"])
            if options.type == STREAM:
                if books := policies.get(definition["vhost"]):  # their limits apply from the start
                    in_force = find_policies(*books, STREAM, definition["name"])
                    options = in_force.queue_options(True, definition["arguments"])
                stream = self._make_stream(number, options, recovery.offsets_of(number))
                stream.is_expendable = is_event_log
                on_disk = find_stream_segments(recovery, number, stream.folder, words, bypasses_log=is_event_log)
                self._record_found(number, on_disk.segments, recovery, True)
                if recovery.has_lost_epochs:
                    named[number] = words, on_disk.last
                removed_below = recovery.removed_below(number)
                stream.restore_segments(on_disk.segments, on_disk.last, lambda: recovery.time_ms, removed_below)
                streams[number] = stream
                found[*queue, 0] = stream
                continue
            classic[queue] = options
            stores[number] = found[*queue, 0] = store = self._restore_store(number, options, words, recovery)
            if recovery.has_lost_epochs:
                named[number] = words, store.last_position
        for definition in definitions["level"]:
            number, queue, level = definition["id"], (definition["vhost"], definition["queue"]), definition["level"]
            if queue in classic:
                words = TABLES["level"].describe((*queue, level))
                recovery.sync_segments(number, self._folder_of(number))
                store = self._restore_store(number, classic[queue], words, recovery)
                stores[number] = found[*queue, int(level)] = store
                if recovery.has_lost_epochs:
                    named[number] = words, store.last_position
        recovery.restore_messages({**stores, **streams}, self.pager.run_all)
        for store in stores.values():
            store.end_recovery()
        for number, stream in streams.items():
            stream.end_recovery(recovery.next_position(number))
        self.pager.run_all()
        recovery.count_lost_in_log(named)
        recovery.remove_unknown_folders({*stores, *streams})
        known = {folder_of(number) for number in (*stores, *streams)}
        for folder, records in recovery.recorded.folders.items():
            if folder.startswith(QUEUES) and folder not in known:
                for name in records:
                    self.manifest.forget(folder, name)
        return found

    def _restore_store(self, number: int, options: QueueOptions, words: str, recovery: Recovery) -> QueueStore:
        """Return a store with its segments; messages in the log are restored later."""
        store = self._make_store(number, options)
        segments, dead, has_damage = recovery.find_segments(number, store.folder, words)
        self._record_found(number, [*segments, *dead], recovery, has_damage)
        for segment in dead:
            self.manifest.forget_segment(number, segment)
            self._dead_files.append((store.folder, [segment.name, segment.marks_name]))
        recorded = recovery.recorded.segments(folder_of(number)).values()
        lasts = [segment.last for segment in segments] + [record.last for record in recorded]
        after_segments = max(lasts, default=-1) + 1
        next_position = max(recovery.next_position(number), after_segments)
        store.restore_segments(segments, next_position, recovery.attempts_of(number))
        return store

    def _record_found(self, number: int, found: Sequence[AnySegment], recovery: Recovery, has_damage: bool) -> None:
        """Update the manifest to what was found: at the next checkpoint, or at once if a loss was reported."""
        records = recovery.recorded.segments(folder_of(number))
        for segment in found:
            record = records.pop(segment.first, None)
            if not is_as_recorded(record, segment):
                if has_damage:
                    self.manifest.record_segment(number, segment, is_synced=True)
                else:
                    self.manifest.unrecorded[segment] = number
        for first in records:
            self.manifest.forget(folder_of(number), segment_key(first))

    def _make_store(self, number: int, options: QueueOptions) -> QueueStore:
        return QueueStore(self.context, number, self._durability_level_of(options))

    def _make_stream(self, number: int, options: QueueOptions, kept: dict[str, int]) -> FileStreamStore:
        offsets = FileOffsets(self.context, number, kept)
        folder, durability_level = self._folder_of(number), self._durability_level_of(options)
        return FileStreamStore(self.streams, folder, number, durability_level, options, offsets)

    def _folder_of(self, number: int) -> str:
        return os.path.join(self.root, QUEUES, str(number))

    def _durability_level_of(self, options: QueueOptions) -> int:
        """Return what the confirm of a message in this queue waits for."""
        durability = options.durability or self.options.durability
        self.committer.sync_within(_sync_interval_of(durability))
        return SYNCED if durability.mode == FSYNC else WRITTEN

    # -- the port ----------------------------------------------------------------------------------------------------

    def begin(self, turn: Turn, timers: Timers) -> None:
        super().begin(turn, timers)
        self.streams.timers = timers
        self.manifest.begin()
        for folder, names in self._dead_files:
            self.pager.remove(folder, names)
        self._dead_files.clear()

    def message_store(self, vhost: str, queue: str, options: QueueOptions, level: int = 0) -> MessageStore | None:
        if not options.is_durable:
            self._transient_count += 1
            folder = os.path.join(self.root, TRANSIENT, str(self._transient_count))
            return QueueStore(self.context, 0, NOTHING, folder)
        recovered = self._recovered.pop((vhost, queue, level), None)
        if isinstance(recovered, QueueStore):
            return recovered
        catalog = self.catalog
        number = catalog.level_id(vhost, queue, level) if level else catalog.queue_id(vhost, queue)
        store = self._make_store(number, options)
        if position := self.context.idle_positions.pop(number, 0):
            store.restore_segments([], position, {})
            store.end_recovery()
        return store

    def idle_queues(self) -> Mapping[str, list[str]]:
        idle, self._idle = self._idle, {}
        return idle

    def stored_levels(self, vhost: str, queue: str) -> list[int]:
        return self.catalog.stored_levels(vhost, queue)

    def stream_store(self, vhost: str, queue: str, options: QueueOptions) -> StreamStore:
        recovered = self._recovered.pop((vhost, queue, 0), None)
        if isinstance(recovered, FileStreamStore):
            return recovered
        stream = self._make_stream(self.catalog.queue_id(vhost, queue), options, {})
        stream.is_expendable = _is_event_log(vhost, queue)
        return stream

    def seen_store(self, kind: str, vhost: str, name: str, durability_level: int | None = None) -> SeenStore:
        store = self._seen.pop((kind, vhost, name), None)
        if store is None:
            owner = self.catalog.queue_id(vhost, name) if kind == "queue" else owner_of_exchange(vhost, name)
            store = FileSeenStore(self.context, owner, self.log.reply_level)
        if durability_level is not None:
            store.durability_level = durability_level
        return store

    def recovered_events(self) -> tuple[int, list[tuple[int, int, bytes]]]:
        events, self._events = self._events, (0, [])
        return events

    def count_memory_in(self, stats: Stats) -> None:
        self.pager.stats = stats

    def pending_bytes(self) -> int:
        return self.pager.pending_bytes

    def figures(self) -> dict[str, int]:
        """Return the metrics of the storage."""
        return {
            "log_bytes": self.committer.size,
            "log_epochs": self.log.durable,
            "log_syncs": self.log.syncs,
            "log_checkpoints": self.checkpoint.count,
            "compactions": self.compaction.count,
            "page_out_pending_bytes": self.pager.pending_bytes,
            "damaged_pages": self.context.damaged_pages,
            "lost_messages": self.lost_messages + self.context.lost_messages,
        }

    # -- life --------------------------------------------------------------------------------------------------------

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[str], None],
        on_full: Callable[[bool], None],
    ) -> None:
        """Start the threads. All callbacks come on the loop."""
        self._call_soon = loop.call_soon
        self.attach(on_failed, on_full)
        post = loop.call_soon_threadsafe
        self.committer.start(loop)
        self.catalog_writer.worker.start(post)
        self.pager.start(post)
        self._is_started = True
        self.log.on_deferred = lambda: loop.call_later(LAZY_SYNC_INTERVAL, self.log.submit_deferred)

    def attach(
        self,
        on_failed: Callable[[str], None],
        on_full: Callable[[bool], None],
    ) -> None:
        """Connect the callbacks without starting threads: tests call `run_all` instead."""
        full: set[object] = set()
        for writer in self._writers:
            writer.on_failed = on_failed
            writer.on_full = partial(_report_full, full, writer, on_full)
        self.checkpoint.is_ready = True
        self.compaction.start()

    @property
    def _writers(self) -> tuple[LocalCommitter, DiskWorker, DiskWorker]:
        return self.committer, self.catalog_writer.worker, self.pager.writer

    def run_all(self) -> None:
        """Run all pending jobs, without threads."""
        while (
            self.committer.run_one()
            or self.catalog_writer.worker.run_one()
            or self.pager.run_one()
            or self._run_callback()
        ):
            pass

    def _run_callback(self) -> bool:
        if not self._callbacks:
            return False
        self._callbacks.popleft()()
        return True

    def _progressed(self, progress: CommitProgress) -> None:
        self.log.on_progress(progress)
        self.catalog_writer.release()
        if self.log.durable >= self.committer.newest_file > self._recorded_log_file:
            # From now on a start that misses this log file reports it.
            self._recorded_log_file = self.committer.newest_file
            self.catalog_writer.note(self._recorded_log_file)
            self._log_some_positions(list(self.context.unflushed))
        self.streams.on_progress()
        self.pager.release()
        self.checkpoint.start_if_due()
        self.compaction.start_next()

    def _log_some_positions(self, stores: list[Participant]) -> None:
        """Log the next position of each queue when a log file is full: it limits the count if that file is lost."""
        for store in stores[:POSITIONS_PER_SLICE]:
            if isinstance(store, QueueStore):
                store.log_position()
            elif isinstance(store, FileStreamStore) and not store.is_deleted:
                self.log.buffer.put_position(store.number, store.next_position)
                self.log.note_relogged()
        if len(stores) > POSITIONS_PER_SLICE:
            self._call_soon(lambda: self._log_some_positions(stores[POSITIONS_PER_SLICE:]))

    async def stop(self) -> None:
        """Flush everything and stop the threads; the next start has nothing to replay."""
        if not self._is_started:
            self.close()
            return
        self._is_started = False
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for writer in self._writers:
            writer.on_failed = partial(_fail_stop, finished)
        if not any(writer.has_failed for writer in self._writers):
            self.begin_stop(lambda: _finish(finished))
            try:
                await finished
            except OSError as error:
                log.error("could not flush everything: %s; the next start replays the log", error)
        self.committer.detach_loop()
        await asyncio.to_thread(self.close)

    def begin_stop(self, done: Callable[[], None]) -> None:
        """Flush everything that only the log has; after `done` the log is not needed."""
        self.committer.stop_waiting()
        self.catalog_writer.worker.stop_waiting()
        self.pager.stop_waiting()
        self.compaction.stop(lambda: self._flush_all(done))

    def _flush_all(self, done: Callable[[], None]) -> None:
        if self.checkpoint.is_running:
            self.checkpoint.when_done(lambda: self._flush_all(done))
            return
        self.log.flush()
        last = self.log.last
        has_many = len(self.context.unflushed) > FILES_AT_STOP
        self.checkpoint.begin(last, may_relog=has_many, done=lambda: self._clear_log(last, done), is_last=not has_many)

    def _clear_log(self, flushed: int, done: Callable[[], None]) -> None:
        if self.log.last > flushed and not self.checkpoint.relogged_bytes:
            self._flush_all(done)  # more was logged meanwhile
            return
        for store in self.context.stores:
            store.log_position()
        log_positions(self.context, self.context.idle_positions.items())
        if self.checkpoint.relogged_bytes:
            self.log.flush()
            done()
        else:
            # The checkpoint made the catalog durable up to here; the last epoch has positions and offsets only.
            batch = self.log.close_last()
            epoch = self.log.last if batch is None else batch.epoch
            self.committer.clear(batch, lambda: self.catalog_writer.release_log(epoch, done))

    def close(self) -> None:
        """Stop the threads and close the files without a flush. Blocks."""
        self.committer.stop()
        self.pager.stop()
        self.catalog_writer.stop()


def _sync_interval_of(durability: Durability) -> float | None:
    """Return the interval after which epochs without a sync request are synced."""
    if durability.mode == FSYNC:
        return LAZY_SYNC_INTERVAL
    return None if durability.interval_ms is None else durability.interval_ms / 1000


def _is_event_log(vhost: str, queue: str) -> bool:
    """Return True for the stream whose loss must not stop messages."""
    return vhost == DEFAULT_VHOST and queue == schema.STREAM_NAME


def _finish(finished: asyncio.Future[None]) -> None:
    if not finished.done():
        finished.set_result(None)


def _fail_stop(finished: asyncio.Future[None], reason: str) -> None:
    if not finished.done():
        finished.set_exception(OSError(reason))


def _report_full(full: set[object], who: object, tell: Callable[[bool], None], is_full: bool) -> None:
    """Report the disk as full while any writer does."""
    was_full = bool(full)
    if is_full:
        full.add(who)
    else:
        full.discard(who)
    if bool(full) is not was_full:
        tell(bool(full))
