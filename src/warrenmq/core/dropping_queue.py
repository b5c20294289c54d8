"""Messages that leave a queue without being acked: expired, above a limit, rejected, purged.

They are dead-lettered, or reported to their producers (report.py), or simply dropped; each has its event.

Owned by the loop thread. Compiled when the package is built (dropping_queue.pxd).
"""

from typing import TYPE_CHECKING

from warrenmq.core import report
from warrenmq.core.backlog import Backlog
from warrenmq.core.dead_letter import DeadLetters
from warrenmq.core.delivery_limit import DeliveryLimit
from warrenmq.core.expiry import MAX_PER_TURN
from warrenmq.core.length_limit import ExcessPages, LengthLimit
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.publish_rules import wants_report
from warrenmq.core.queue import Queue
from warrenmq.core.timers import RESOLUTION_MS
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.retry import Retry
    from warrenmq.core.vhost import VHost

# As C integers.
_DROPPED = schema.DROPPED
_EXPIRED = schema.R_EXPIRED
_MAXLEN = schema.R_MAXLEN
_DELIVERY_LIMIT = schema.R_DELIVERY_LIMIT


class DroppingQueue(Queue):
    """A queue with a backlog, and the rules by which messages are dropped from it; ClassicQueue sets them.

    `has_reports`: producers may want reports of some messages. It stays true, also after a restart.
    """

    __slots__ = (
        "_host",
        "_is_dropping_excess",
        "backlog",
        "dead_letters",
        "delivery_limit",
        "has_reports",
        "limit",
        "retry",
    )

    _host: "VHost | None"
    _is_dropping_excess: bool  # a timer continues it
    backlog: Backlog
    dead_letters: DeadLetters | None
    delivery_limit: DeliveryLimit | None
    has_reports: bool
    limit: LengthLimit | None
    retry: "Retry | None"

    def discard(self, entry: QueuedMessage) -> None:
        if self.deduplication is not None:
            self.deduplication.message_removed(entry.message.header, entry.position)
        self.backlog.settle(entry)

    def drop(self, entry: QueuedMessage, reason: int, actor: object = None) -> None:
        """Remove a message that was taken from the backlog, and dead-letter it."""
        if self.dead_letters is not None and self.dead_letters.is_at_least_once:
            self._emit_dropped(entry, reason, actor)
            self.dead_letters.publish_or_hold(entry, reason, False)
        else:
            self.finish_drop(entry, reason, actor)
            self.backlog.settle(entry)

    def finish_drop(self, entry: QueuedMessage, reason: int, actor: object = None) -> None:
        """Dead-letter a message that the store has removed, emit its event and forget its id."""
        self._emit_dropped(entry, reason, actor)
        if self.deduplication is not None:
            self.deduplication.message_removed(entry.message.header, entry.position)
        letters = self._letters_for(reason)
        if letters is not None:
            letters.publish(entry.message, reason, entry.attempts)
        elif self.has_reports:
            self.report_dropped(entry.message, reason, entry.attempts)

    def _letters_for(self, reason: int) -> DeadLetters | None:
        """Return what dead-letters messages dropped for this reason."""
        if self.dead_letters is None and self.retry is not None and reason == _DELIVERY_LIMIT:
            return self.retry.dead_letters()
        return self.dead_letters

    def start_reports(self) -> None:
        """From now on messages are read before they are removed, also after a restart."""
        self.has_reports = True
        if self.is_durable:
            self._host.reports.expect_from(self.name)  # type: ignore[union-attr]

    def report_dropped(self, message: Message, reason: int, attempts: int) -> None:
        """Report a message that is gone, if its producer wants it."""
        outcome = report.EXPIRED if reason == _EXPIRED else report.DROPPED
        self.report_outcome(message, outcome, schema.reason_name(reason), attempts)

    def report_outcome(self, message: Message, outcome: str, reason: str | None, attempts: int) -> None:
        """Report the outcome of a message, if its producer wants it."""
        if wants_report(message.header):
            self._host.reports.add(message, outcome, reason, self.name, attempts)  # type: ignore[union-attr]

    def _emit_dropped(self, entry: QueuedMessage, reason: int, actor: object) -> None:
        self.stats.dropped[reason] += 1
        if entry.message.uid == 0:
            return
        if reason == _EXPIRED:
            self.events.queue_event(schema.EXPIRED, entry, self, actor, reason)
        if self._letters_for(reason) is not None:
            self.events.queue_event(schema.DEAD_LETTERED, entry, self, actor, reason)
        elif reason != _EXPIRED:
            self.events.queue_event(_DROPPED, entry, self, actor, reason)

    def retry_drop(self, entry: QueuedMessage, reason: int) -> None:
        """Dead-letter a message again that no queue has taken so far."""
        if self.dead_letters is not None:
            self.dead_letters.publish_or_hold(entry, reason, True)
            return
        if entry.message.uid != 0:
            self.events.queue_event(_DROPPED, entry, self, None, reason)
        if self.has_reports:
            self.report_dropped(entry.message, reason, entry.attempts)
        self.discard(entry)

    def needs_bodies(self) -> bool:
        """Return True if a message that is only on disk must be read before it is removed."""
        return self.dead_letters is not None or self.deduplication is not None or self.has_reports

    def dropped_on_disk(self, count: int, reason: int) -> None:
        """Count messages that were removed from disk without being read, and emit one event for all of them."""
        self.stats.dropped[reason] += count
        if count and self.events.is_watching:
            kind = schema.EXPIRED if reason == _EXPIRED else _DROPPED
            self.events.resource_event(kind, self.vhost, {"queue": self.name, "reason": reason, "depth": count})

    def drop_excess(self) -> None:
        """Drop the first messages until the queue is within its limit: some in this turn, the rest later."""
        limit = self.limit
        left = MAX_PER_TURN
        while limit is not None and limit.is_exceeded(self.backlog):
            entry = self.backlog.take()
            if entry is None:
                if not self.needs_bodies():
                    count, _ = self.backlog.forget_first_pages(ExcessPages(limit, self.backlog).is_next)
                    self.dropped_on_disk(count, _MAXLEN)
                    if not self.backlog.needs_page():
                        continue  # with those in memory
                self.backlog.read_ahead()  # `_page_arrived` continues
                return
            self.drop(entry, _MAXLEN)
            left -= 1
            if left == 0:
                self.drop_excess_later()
                return

    def drop_excess_later(self) -> None:
        if not self._is_dropping_excess and self._host is not None:
            self._is_dropping_excess = True
            self._host.broker.timers.schedule(self.turn.now_ms - RESOLUTION_MS, self._continue_drop_excess)

    def _continue_drop_excess(self) -> None:
        self._is_dropping_excess = False
        if not self.is_deleted:
            self.drop_excess()

    def drop_over_limit(self, limit: DeliveryLimit, entries: list[QueuedMessage], actor: object) -> list[QueuedMessage]:
        """Drop messages above the delivery limit; return the others.

        `actor` held them; None if an event has already reported that they are settled.
        """
        entries, over = limit.divide(entries)
        for entry in over:
            self.rejected += 1
            if actor is None:
                self.release(entry)
            self.drop(entry, schema.R_DELIVERY_LIMIT, actor)
            if actor is not None:
                self.release(entry)
        return entries

    def purge(self, reason: int = schema.R_PURGED) -> int:
        retrying = 0 if self.retry is None else self.retry.purge()
        dropped = self.backlog.waiting
        traced: list[QueuedMessage] = []
        for entry in self.backlog:
            if entry.message.uid != 0:
                traced.append(entry)
            if self.deduplication is not None:
                self.deduplication.message_removed(entry.message.header, entry.position)
        paged = self.backlog.paged
        store = self.backlog.store
        if self.deduplication is not None and store is not None and paged != 0:
            # Unacked messages stay; their positions are before those of all messages only on disk.
            self.deduplication.removed_after(store.last_read if self.unacked_count else -1)
        self.backlog.drop_all()
        for entry in traced:  # after the queue has its final depth
            self.events.queue_event(_DROPPED, entry, self, None, reason)
        if paged != 0 and self.events.is_watching:
            # Reading messages for their events would be too slow: one event for all of them.
            self.events.resource_event(_DROPPED, self.vhost, {"queue": self.name, "reason": reason, "depth": paged})
        if retrying and self.events.is_watching:
            self.events.resource_event(_DROPPED, self.vhost, {"queue": self.name, "reason": reason, "depth": retrying})
        return dropped + retrying
