"""Messages that are on disk only, against a dict: forgotten, fetched, looked at and read in any order, over restarts.

One queue's backlog on the real storage, so small that pages, segments, checkpoints and compactions come and go within
some dozen messages. The threads' work is done in pieces between the steps.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.storage.driver import Kept, body_of
from tests.support.crash import effort
from warrenmq.core.backlog import Backlog
from warrenmq.core.message import QueuedMessage, address_of, enqueue_as, make_message
from warrenmq.protocol.properties import BasicProperties, content_header
from warrenmq.storage.check import check_folder
from warrenmq.storage.page_index import UNKNOWN
from warrenmq.storage.queue_store import QueueStore

SIZES: list[dict[str, Any]] = [
    {"window": 6000, "page": 1500, "log_limit": 40_000, "log_file_size": 10_000, "relog_below": 3000},
    {"window": 3000, "page": 1000, "log_limit": 12_000, "log_file_size": 3000, "relog_below": 0},
    {"window": 3000, "page": 600, "log_limit": 1 << 30, "page_size": 2000, "read_size": 700},
]
TINY = {"segment_size": 5000, "page_size": 900, "read_size": 1500, "dead_allowance": 200}


@dataclass(frozen=True)
class Sent:
    """A message of the model; its number is its position."""

    expires_ms: int
    is_persistent: bool


class PagedMessages(RuleBasedStateMachine):
    @initialize(sizes=st.sampled_from(SIZES), durable=st.sampled_from([True, True, False]))
    def begin(self, sizes: dict[str, Any], durable: bool) -> None:
        self.folder = tempfile.mkdtemp(prefix="warren-paged-")
        self.kept = Kept(Path(self.folder) / "data", **{**TINY, **sizes})
        self.is_durable = durable
        self.kept.declare(durable=durable)
        self.waiting: dict[int, Sent] = {}
        self.unacked: dict[int, QueuedMessage] = {}
        self.sent: dict[int, Sent] = {}
        self.delivered: set[int] = set()
        self.pending = 0  # reads that were not answered yet
        self.loaded: set[int] = set()  # positions that were in memory at some time while reads were pending
        self.append(150, 2, 0)
        self.kept.settle()

    @property
    def backlog(self) -> Backlog:
        backlog: Backlog = self.kept.queue().backlog
        return backlog

    @property
    def store(self) -> QueueStore:
        return self.kept.store()

    def on_disk(self) -> list[int]:
        """Positions of all that waits on disk only."""
        in_memory = {entry.position for entry in self.backlog}
        return sorted(position for position in self.waiting if position not in in_memory)

    # -- steps -------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(20, 120), expiry=st.sampled_from([0, 0, 1, 2]), transient=st.sampled_from([0, 0, 0, 3]))
    def append(self, count: int, expiry: int, transient: int) -> None:
        for at in range(count):
            position = self.backlog.next_position
            self.backlog.next_position += 1
            expires_ms = 0 if expiry == 0 or (expiry == 2 and at % 5 == 0) else 1_000_000 + position * 7 % 1000
            sent = Sent(expires_ms, not (transient and at % transient == 0))
            body = body_of(position)
            header = content_header(len(body), BasicProperties(delivery_mode=2 if sent.is_persistent else 1))
            entry = enqueue_as(make_message(address_of("", "q"), header, body), position)
            entry.expires_ms = expires_ms
            self.backlog.persist(entry)
            self.backlog.append(entry)
            self.waiting[position] = self.sent[position] = sent

    def take_one(self) -> QueuedMessage | None:
        for _ in range(200):
            if not self.backlog.needs_page():
                break
            self.backlog.await_page(lambda: None)
            self.kept.settle()
        else:
            raise AssertionError("a page never comes")
        entry = self.backlog.take()
        assert (entry is None) is (not self.waiting)
        if entry is not None:
            assert entry.position == min(self.waiting)
            self.require_right(entry)
            del self.waiting[entry.position]
            self.delivered.add(entry.position)
        return entry

    def require_right(self, entry: QueuedMessage) -> None:
        sent = self.sent[entry.position]
        assert entry.message.body == body_of(entry.position)
        assert entry.expires_ms == sent.expires_ms
        assert (entry.epoch > 0) is (sent.is_persistent and self.is_durable) or entry.epoch == 0

    @rule(count=st.integers(1, 30), settled=st.integers(0, 3))
    def take(self, count: int, settled: int) -> None:
        for at in range(count):
            entry = self.take_one()
            if entry is None:
                return
            if settled and at % settled == 0:
                self.backlog.settle(entry)
            else:
                self.unacked[entry.position] = entry

    @precondition(lambda self: self.unacked)
    @rule(of=st.integers(1, 4))
    def settle(self, of: int) -> None:
        for position in list(self.unacked)[::of]:
            self.backlog.settle(self.unacked.pop(position))

    @precondition(lambda self: self.unacked)
    @rule(is_all=st.booleans())
    def give_back(self, is_all: bool) -> None:
        positions = list(self.unacked)[:: 1 if is_all else 2]
        self.backlog.requeue([self.unacked.pop(position) for position in positions])
        for position in positions:
            self.waiting[position] = self.sent[position]
        if not self.unacked:
            self.backlog.page_out_requeued()

    @rule()
    def read_ahead(self) -> None:
        if self.backlog.paged and not self.store.is_reading:
            self.store.page_in()

    @rule(limit=st.integers(1, 60))
    def forget_first_pages(self, limit: int) -> None:
        paged, at, left = self.on_disk(), 0, limit

        def is_due(count: int, size: int, latest: int) -> bool:
            nonlocal at, left
            chosen = paged[at : at + count]
            assert len(chosen) == count
            assert sum(len(body_of(position)) for position in chosen) == size
            if latest:
                assert all(0 < self.sent[position].expires_ms <= latest for position in chosen)
            if left <= 0:
                return False
            left -= count
            at += count
            return True

        count, size = self.store.forget_first_pages(is_due)
        assert (count, size) == (at, sum(len(body_of(position)) for position in paged[:at]))
        self.gone(paged[:at])

    @rule(every=st.integers(2, 40), skip=st.integers(0, 30))
    def forget_paged(self, every: int, skip: int) -> None:
        for position in self.on_disk()[skip::every]:
            size = len(body_of(position))
            assert self.store.forget_paged(position, size)
            assert not self.store.forget_paged(position, size)
            self.gone([position])

    @rule()
    def forget_what_is_not_there(self) -> None:
        for entry in list(self.backlog)[::5]:
            assert not self.store.forget_paged(entry.position, entry.message.size)
        for position in list(self.unacked)[::5]:
            assert not self.store.forget_paged(position, 1)
        assert not self.store.forget_paged(self.backlog.next_position + 5, 1)

    def note_loaded(self) -> None:
        if self.pending == 0:
            self.loaded.clear()
        self.loaded.update([entry.position for entry in self.backlog], self.unacked)

    def gone(self, positions: list[int]) -> None:
        """The caller of the store counts."""
        for position in positions:
            del self.waiting[position]
        if positions:
            self.backlog.add_page([], len(positions), sum(len(body_of(position)) for position in positions))

    @rule(every=st.integers(1, 9), is_dead=st.booleans())
    def fetch(self, every: int, is_dead: bool) -> None:
        wanted = (list(range(self.backlog.next_position)) if is_dead else self.on_disk())[::every]
        self.pending += 1
        self.note_loaded()
        self.store.fetch(wanted, lambda entries: self.fetched(wanted, entries))

    def fetched(self, wanted: list[int], entries: list[QueuedMessage]) -> None:
        self.pending -= 1
        on_disk = set(self.on_disk())
        fetched = [entry.position for entry in entries]  # some may be deleted or paged in since their page was read
        assert fetched == sorted(set(fetched) & set(wanted))
        # What was paged in meanwhile, or from the beginning, may be left out even if it was paged out again.
        assert set(fetched) >= (set(wanted) & on_disk) - self.loaded
        for entry in entries:
            if entry.position in on_disk:
                self.require_right(entry)

    @rule(first=st.integers(0, 400))
    def read_page(self, first: int) -> None:
        self.pending += 1
        self.note_loaded()
        self.store.read_page(first, lambda entries, last, lost: self.page_read(first, entries, last, lost))

    def page_read(self, first: int, entries: list[QueuedMessage], last: int, lost: int) -> None:
        self.pending -= 1
        assert lost == 0
        on_disk = set(self.on_disk())
        found = [entry.position for entry in entries]
        assert found == sorted(set(found))
        assert all(first <= position <= last for position in found)
        expected = {position for position in on_disk if position >= first and (last < 0 or position <= last)}
        assert set(found) >= expected - self.loaded
        for entry in entries:
            if entry.position in on_disk:
                self.require_right(entry)

    @rule(skip=st.integers(0, 60))
    def read_expiries(self, skip: int) -> None:
        paged = self.on_disk()[skip:]
        if paged:
            self.pending += 1
            self.store.read_expiries(paged[0], lambda found: self.expiries_read(paged[0], found))

    def expiries_read(self, first: int, found: list[tuple[int, int, int]]) -> None:
        self.pending -= 1
        paged = set(self.on_disk())
        positions = [position for position, _, _ in found]
        assert positions == sorted(set(positions))
        for position, expires_ms, size in found:
            assert position in paged
            assert (expires_ms, size) == (self.sent[position].expires_ms, len(body_of(position)))
        if first in paged and self.sent[first].expires_ms:
            assert first in positions

    @precondition(lambda self: len(self.sent) % 7 == 0)  # now and then
    @rule()
    def purge(self) -> None:
        self.backlog.drop_all()
        self.waiting.clear()

    @rule(turns=st.integers(0, 12))
    def work(self, turns: int) -> None:
        storage = self.kept.storage
        for turn in range(turns):
            (self.kept.turn, storage.committer.run_one, storage.pager.run_one)[turn % 3]()

    @rule()
    def settle_all(self) -> None:
        self.kept.settle()
        assert self.pending == 0, "a read was never answered"

    @rule()
    def checkpoint(self) -> None:
        self.kept.checkpoint()

    @precondition(lambda self: self.is_durable)
    @rule(clean=st.booleans(), pages=st.integers(0, 10))
    def restart(self, clean: bool, pages: int) -> None:
        if not clean:
            self.kept.write_log(pages)
        if clean:
            self.kept.stop()
        else:
            self.kept.crash()
        self.pending = 0
        survivors = [*self.waiting, *self.unacked]
        self.waiting = {
            position: self.sent[position] for position in sorted(survivors) if self.sent[position].is_persistent
        }
        self.unacked.clear()
        report = check_folder(str(self.kept.folder))
        assert (report.damage, report.messages) == ([], len(self.waiting))
        self.kept.open()
        assert self.kept.storage.report == []
        paged = [self.sent[position].expires_ms for position in self.on_disk()]
        pages_of = self.store.segments.all
        known = [s.pages.earliest(page) for s in pages_of for page in range(len(s.pages)) if s.pages.earliest(page)]
        assert not any(paged) or min(known) <= min(time for time in paged if time)

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "kept"):
            return
        self.note_loaded()
        backlog = self.backlog
        assert backlog.waiting == len(self.waiting)
        assert backlog.body_bytes == sum(len(body_of(position)) for position in self.waiting)
        assert backlog.paged == len(self.on_disk())
        assert self.kept.failures == []
        segments = self.store.segments.all
        assert sum(segment.unread for segment in segments) == backlog.paged
        for segment in segments:
            pages = segment.pages
            assert sum(map(pages.unread, range(len(pages)))) == segment.unread
            sizes = list(map(pages.unread_bytes, range(len(pages))))
            if UNKNOWN not in sizes:
                assert sum(sizes) == segment.unread_bytes
            assert segment.alive >= segment.unread
            assert segment.alive_bytes >= segment.unread_bytes

    def teardown(self) -> None:
        if not hasattr(self, "kept"):
            return
        try:
            self.settle_all()
            while (entry := self.take_one()) is not None:
                self.backlog.settle(entry)
            for entry in self.unacked.values():
                self.backlog.settle(entry)
            self.kept.checkpoint()
            assert self.kept.names() == []
        finally:
            self.kept.crash()
            shutil.rmtree(self.folder)


PagedMessages.TestCase.settings = settings(
    max_examples=effort(60), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPagedMessages = PagedMessages.TestCase
