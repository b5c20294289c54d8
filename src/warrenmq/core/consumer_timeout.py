"""Consumer timeout: a channel that leaves a delivery unacked for too long is closed with 406.

The timeout is the consumer's, or the queue's, or the broker's (`Limits.consumer_timeout`); 0 is none. Deliveries of
basic.get and of streams count, and so do those whose settlement is held by a transaction. Unacked deliveries of the
channel are requeued; other channels of the connection are not affected.

A channel with deliveries that can time out has a watch. It records the time of the first delivery in each half second,
and one timer checks the oldest delivery when it could be due. A channel is never closed early, and at most half a
second late.

Owned by the loop thread.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING

from warrenmq.core.errors import PreconditionFailed
from warrenmq.core.ledger import NEVER_MS
from warrenmq.core.limits import Limits
from warrenmq.core.message import QueuedMessage
from warrenmq.core.timers import Timer

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker
    from warrenmq.core.channel import Channel
    from warrenmq.core.consumer import Consumer
    from warrenmq.core.queue import Queue

ARGUMENT = "x-consumer-timeout"  # of a queue, or of a consumer
PRECISION_MS = 500  # of recorded delivery times
_MIN_NOTES = 64

_tag_of = itemgetter(0)


def watch(channel: Channel, queue: Queue, consumer: Consumer | None = None) -> None:
    """Watch a channel that takes messages from this queue, if they can time out."""
    timeout_ms = timeout_of(queue, consumer, channel.broker.limits)
    if timeout_ms:
        ledger = channel.ledger
        if ledger.watch is None:
            ledger.watch = UnackedWatch(channel)
        ledger.watch.expect(timeout_ms)


def unwatch(channel: Channel) -> None:
    """Stop watching a channel that is closed."""
    if channel.ledger.watch is not None:
        channel.ledger.watch.stop()
        channel.ledger.watch = None


def apply_timeout(broker: Broker, queue: Queue) -> None:
    """Apply a changed timeout of a queue: watch all channels that hold its messages. Their time starts now."""
    held = 0
    for consumer in queue.consumers:
        held += consumer.unacked
        watch(consumer.channel, queue, consumer)
    if queue.unacked_count > held:  # by basic.get, or by cancelled consumers
        for connection in broker.connections:
            for channel in connection.channels.values():
                watch(channel, queue)


def timeout_of(queue: Queue, consumer: Consumer | None, limits: Limits) -> int:
    """Return the milliseconds after which deliveries to this consumer (None: basic.get) time out; 0: never."""
    own: int | None = consumer.arguments.get(ARGUMENT) if consumer is not None else None
    if own is None:
        own = queue.options.consumer_timeout_ms
    return limits.consumer_timeout if own is None else own


class UnackedWatch:
    """The delivery times of one channel, and the timer for the next timeout."""

    __slots__ = ("_channel", "_compact_at", "_ledger", "_notes", "_timeouts", "_timer", "_turn")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ledger = channel.ledger
        self._turn = channel.turn
        self._timeouts: set[int] = set()  # those of deliveries that may be unacked
        # (tag, time): deliveries from this tag up to the next note were sent within PRECISION_MS after that time.
        self._notes: list[tuple[int, int]] = [(0, self._turn.now_ms)]
        self._compact_at = _MIN_NOTES
        self._timer: Timer | None = None
        self._ledger.note_from_ms = 0

    def expect(self, timeout_ms: int) -> None:
        """Expect deliveries with this timeout."""
        if timeout_ms not in self._timeouts:
            self._timeouts.add(timeout_ms)
            self._check_at(self._turn.now_ms + PRECISION_MS + timeout_ms)

    def note(self, tag: int) -> None:
        """Record that the delivery with this tag is sent now."""
        now_ms = self._turn.now_ms
        self._notes.append((tag, now_ms))
        if len(self._notes) > self._compact_at:
            self._compact()
        self._ledger.note_from_ms = now_ms + PRECISION_MS
        self._check_at(now_ms + PRECISION_MS + min(self._timeouts))

    def stop(self) -> None:
        self._ledger.note_from_ms = NEVER_MS
        if self._timer is not None:
            self._channel.broker.timers.cancel(self._timer)
            self._timer = None

    def _check_at(self, due_ms: int) -> None:
        """Check at this time at the latest."""
        if self._timer is not None:
            if self._timer.due_ms <= due_ms:
                return
            self._channel.broker.timers.cancel(self._timer)
        self._timer = self._channel.broker.timers.schedule(due_ms, self._check)

    def _check(self) -> None:
        """Close the channel if a delivery is due; otherwise check again when the next one is."""
        self._timer = None
        self._ledger.note_from_ms = 0  # the next delivery sets the timer, if nothing here does
        found = self._find_next()
        if found is None:
            return
        due_ms, tag, entry = found
        if due_ms > self._turn.now_ms:
            self._check_at(due_ms)
        else:
            self._close_channel(tag, entry)

    def _find_next(self) -> tuple[int, int, QueuedMessage] | None:
        """Return the due time, tag and message of the delivery that times out next; None if there is none."""
        first: tuple[int, int, QueuedMessage] | None = None
        seen: set[int] = set()
        for tag, entry in self._outstanding():
            timeout_ms = self._timeout_of(entry)
            if timeout_ms and timeout_ms not in seen:  # the oldest of those with the same timeout
                due_ms = self._notes[self._note_of(tag)][1] + PRECISION_MS + timeout_ms
                if first is None or due_ms < first[0]:
                    first = due_ms, tag, entry
                seen.add(timeout_ms)
                if seen >= self._timeouts:
                    break
        return first

    def _outstanding(self) -> Iterable[tuple[int, QueuedMessage]]:
        """Return the unacked deliveries, oldest first, including those that a transaction holds."""
        unacked = self._ledger.unacked.items()
        transaction = self._channel.transaction
        if transaction is None or not transaction.settlements:
            return unacked
        return sorted([*transaction.held_deliveries(), *unacked], key=_tag_of)

    def _timeout_of(self, entry: QueuedMessage) -> int:
        return timeout_of(entry.queue, entry.consumer, self._channel.broker.limits)  # type: ignore[arg-type]

    def _note_of(self, tag: int) -> int:
        return max(0, bisect_right(self._notes, tag, key=_tag_of) - 1)

    def _compact(self) -> None:
        """Keep only the notes of unacked deliveries."""
        used = {self._note_of(tag) for tag, _ in self._outstanding()}
        used.add(len(self._notes) - 1)
        self._notes = [self._notes[index] for index in sorted(used)]
        self._compact_at = 2 * len(self._notes) + _MIN_NOTES

    def _close_channel(self, tag: int, entry: QueuedMessage) -> None:
        channel = self._channel
        queue: Queue = entry.queue  # type: ignore[assignment]
        who = "basic.get" if entry.consumer is None else f"consumer '{entry.consumer.tag}'"  # type: ignore[attr-defined]
        channel.stats.consumer_timeouts += 1
        channel.has_timed_out = True
        channel.outbox.close_channel(
            channel.number,
            PreconditionFailed(
                f"delivery acknowledgement on channel {channel.number} timed out. "
                f"Timeout value used: {self._timeout_of(entry)} ms. "
                "This timeout value can be configured, see consumers doc guide to learn more"
            ),
            f"delivery {tag} of queue '{queue.name}' in vhost '{queue.vhost}' to {who} was not acked in time",
        )
