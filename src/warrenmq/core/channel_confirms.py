"""The publisher confirms of a channel.

A publish is confirmed at the end of the turn, or when its epoch is durable if it has to be; confirms stay in order.

Owned by the loop thread. Compiled when the package is built (channel_confirms.pxd).
"""

from collections import deque
from typing import TYPE_CHECKING

from warrenmq.core.message import Message
from warrenmq.core.ports import NOTHING, SYNCED, WRITTEN, CommitLog, EventSink, Outbox
from warrenmq.core.publishing import pop_runs
from warrenmq.core.stats import Stats
from warrenmq.core.turn import Turn
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.broker import Broker

_CONFIRMED = schema.CONFIRMED  # as a C integer


class ConfirmingChannel:
    """What a channel knows of its publishes until they are confirmed.

    `published_tag` is that of the last publish in confirm mode; all up to `confirmed_tag` are acked or nacked.
    """

    __slots__ = (
        "awaiting_epoch",
        "broker",
        "confirmed_tag",
        "events",
        "is_confirming",
        "is_in_turn",
        "is_open",
        "log",
        "nacked",
        "number",
        "outbox",
        "published_tag",
        "rejected",
        "stats",
        "traced",
        "traced_tags",
        "turn",
        "turn_level",
    )

    def __init__(self, broker: "Broker", outbox: Outbox, number: int) -> None:
        self.broker: Broker = broker
        self.outbox: Outbox = outbox
        self.number = number
        self.stats: Stats = broker.stats
        self.turn: Turn = broker.turn
        self.events: EventSink = broker.events
        self.log: CommitLog = broker.storage.log
        self.is_open = True
        self.nacked = 0  # rejected publishes
        self.is_confirming = False
        self.published_tag = 0
        self.confirmed_tag = 0
        self.awaiting_epoch: deque[tuple[int, int, int]] | None = None  # (epoch, durability level, last tag)
        self.rejected: list[int] | None = None  # tags of publishes that a queue rejected, to be nacked
        self.is_in_turn = False
        self.turn_level = NOTHING  # the durability level that the publishes of this turn wait for
        self.traced: list[Message] | None = None  # traced publishes that wait for their confirms, and their tags
        self.traced_tags: list[int] | None = None

    def start_confirms(self) -> None:
        """Confirm the publishes from now on."""
        if not self.is_confirming:
            self.is_confirming = True
            self.turn_level = NOTHING

    def end_turn(self, epoch: int) -> None:
        """Confirm the publishes of the turn now, or when their epoch is written or durable."""
        self.is_in_turn = False
        level = self.turn_level
        self.turn_level = NOTHING
        if level == NOTHING or epoch == 0 or (level == WRITTEN and epoch <= self.log.written):
            if self.awaiting_epoch is None:
                self._confirm_up_to(self.published_tag)
                return
            # Wait only for earlier confirms: they stay in order.
            epoch = level = 0
        self._await_epoch(epoch, level)

    def _await_epoch(self, epoch: int, level: int) -> None:
        waiting = self.awaiting_epoch
        if waiting is None:
            waiting = self.awaiting_epoch = deque()
            self.broker.awaiting_epoch[self] = None  # type: ignore[index]  # a Channel
        if waiting and epoch <= waiting[-1][0] and level <= waiting[-1][1]:
            waiting[-1] = (waiting[-1][0], waiting[-1][1], self.published_tag)
        else:
            waiting.append((epoch, level, self.published_tag))
        if level == WRITTEN:
            self.broker.awaits_written = True

    def confirm_epochs(self, written: int, durable: int) -> bool:
        """Confirm publishes in epochs up to these. Return True if none is left."""
        waiting = self.awaiting_epoch
        if waiting is None:
            return True
        up_to = 0
        while waiting:
            epoch, level, tag = waiting[0]
            if epoch > (durable if level == SYNCED else written):
                break
            up_to = tag
            waiting.popleft()
        if up_to and self.is_open:
            self._confirm_up_to(up_to)
        if waiting:
            return False
        self.awaiting_epoch = None
        return True

    def _confirm_up_to(self, tag: int) -> None:
        """Ack every publish up to this one, and nack those that a queue rejected."""
        first = self.confirmed_tag + 1
        if tag < first:
            return
        self.confirmed_tag = tag
        if self.rejected:
            # `multiple` covers everything unconfirmed, so publishes before a nack are acked first.
            for begin, end in pop_runs(self.rejected, tag):
                if begin > first:
                    self._confirm(first, begin - 1)
                if self.traced is not None:
                    self._end_traced(end, False)
                self.nacked += end - begin + 1
                self.outbox.nack(self.number, end, end > begin)
                first = end + 1
        if tag >= first:
            self._confirm(first, tag)

    def _confirm(self, first: int, last: int) -> None:
        self.stats.confirmed += last - first + 1
        if self.traced is not None:
            self._end_traced(last, True)
        self.outbox.confirm(self.number, last, last > first)

    def _end_traced(self, tag: int, is_confirmed: bool) -> None:
        """Drop the traced publishes up to this one; a rejection is an event of the queue, not of the channel."""
        traced, tags = self.traced, self.traced_tags
        assert traced is not None and tags is not None  # noqa: PT018
        count = 0
        for number in tags:
            if number > tag:
                break
            message = traced[count]
            if is_confirmed:
                self.events.message_event(_CONFIRMED, message, self, 0)  # type: ignore[arg-type]  # a Channel
            count += 1
        del traced[:count], tags[:count]

    def await_confirm(self, message: Message) -> None:
        """Confirm this publish after the turn, or when it is durable."""
        self.add_unconfirmed()
        if message.uid != 0:
            if self.traced is None or self.traced_tags is None:
                self.traced = []
                self.traced_tags = []
            self.traced.append(message)
            self.traced_tags.append(self.published_tag)

    def add_unconfirmed(self) -> None:
        """Assign the next confirm tag to a publish."""
        self.published_tag += 1
        if not self.is_in_turn:
            self.is_in_turn = True
            self.turn.confirming.append(self)  # type: ignore[arg-type]  # a Channel
