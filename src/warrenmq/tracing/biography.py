"""The biography of a message: its events in order, and how long it waited and was processed in each queue.

A stay of a message in a queue is a leg. Its spans are the times in which it waited, was with a consumer, or was
delayed (scheduled, or waiting for a retry); all figures that people see are derived from them. A message that was
published again, or made from another, has legs of its own.

Two things are inferred, as the log does not have them. A broker that is killed does not report which consumers lost
their messages: a consumer that had one at the next delivery, or when the broker started, has lost it. And after a start
the broker counts deliveries from 1 again; here the count continues.

Pure. Events come in the order of the event log, the order in which they happened even if the clock was set back; an
event that the log has twice (after a crash between two writes) counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from warrenmq.events import schema
from warrenmq.events.schema import Event, kind_name

WAITING = "waiting"
PROCESSING = "processing"
# It is not delivered before its due time.
DELAYED = "delayed"
# A consumer had it when the broker ended; for how long is unknown.
LOST = "lost"

# Ends a processing span; some are followed by an event that tells what became of the message.
SETTLED = frozenset({schema.ACKED, schema.NACKED, schema.REJECTED})
# The message waits again.
RETURNED_TO_QUEUE = frozenset({schema.REQUEUED, schema.RETRIED})
# It has left the queue. `unroutable` with a queue: its dead letter reached no other queue.
_LEFT_QUEUE = frozenset({schema.EXPIRED, schema.DROPPED, schema.DEAD_LETTERED, schema.UNROUTABLE})
_IN_QUEUE = SETTLED | RETURNED_TO_QUEUE | _LEFT_QUEUE | {schema.ENQUEUED, schema.DELIVERED, schema.SCHEDULED}
# It was refused and never waited in that queue.
_NEVER_JOINED = frozenset({schema.R_REFUSED, schema.R_DUPLICATE, schema.R_CYCLE})
# One event for all messages on disk, which are gone. With other reasons some are gone, and it is unknown which.
_ALL_GONE = frozenset({schema.R_PURGED, schema.R_QUEUE_DELETED})
# It reached no queue, and never will.
_NEVER_QUEUED = frozenset({schema.UNROUTABLE, schema.RETURNED, schema.TX_ROLLED_BACK, schema.DROPPED})


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which the message waited, was delayed or was with a consumer; `end` is None while it lasts.

    Of a delay: `due` is when it ends, and `retry_max` how many retries the message has.
    """

    kind: str
    begin: int
    end: int | None = None
    attempt: int | None = None
    consumer: str | None = None
    outcome: str | None = None  # the name of the kind that ended it
    due: int | None = None
    retry_max: int | None = None

    @property
    def length(self) -> int:
        """In microseconds; 0 while it lasts, and if the clock was set back."""
        return 0 if self.end is None else max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Leg:
    """One stay in one queue. `outcome` is the kind of its last event; waiting, processing or delayed while it lasts."""

    vhost: str
    queue: str
    uid: int
    outcome: str
    is_over: bool
    deliveries: int
    consumers: Sequence[str]  # distinct
    spans: Sequence[Span]

    @property
    def place(self) -> tuple[str, str]:
        return self.vhost, self.queue

    @property
    def waiting_us(self) -> int | None:
        """As `processing_us` and `delayed_us`, the sum of the spans of known length; None without any."""
        return self._sum(WAITING)

    @property
    def processing_us(self) -> int | None:
        return self._sum(PROCESSING)

    @property
    def delayed_us(self) -> int | None:
        return self._sum(DELAYED)

    def _sum(self, kind: str) -> int | None:
        spans = [span for span in self.spans if span.kind == kind and span.end is not None and span.outcome != LOST]
        return sum(span.length for span in spans) if spans else None


@dataclass(frozen=True, slots=True)
class Biography:
    """What happened to a message, to its source, and to those made from it."""

    message_id: str | None
    uid: int  # of the first one; 0: only notes are kept of it
    events: Sequence[Event]
    legs: Sequence[Leg]
    is_complete: bool
    is_truncated: bool = False  # events were left out to save work


def build_biography(events: Iterable[Event], is_truncated: bool = False, began: int = 0) -> Biography | None:
    """Return the biography of these events, None without any.

    `is_truncated`: events were left out to save work. `began`: when the broker started, in us; what consumers had
    before is lost.
    """
    builder = BiographyBuilder()
    builder.add(events)
    return builder.biography(builder.stays, began, is_truncated)


def _is_complete(events: Sequence[Event], legs: Sequence[Leg]) -> bool:
    """Return True if every message has a beginning and an end."""
    uids = {event.uid for event in events if event.uid}
    begun = {event.uid for event in events if event.kind == schema.PUBLISHED or event.source_uid is not None}
    queued = {leg.uid for leg in legs}
    never_queued = {event.uid for event in events if event.kind in _NEVER_QUEUED}
    return bool(uids) and uids == begun and uids <= queued | never_queued and all(leg.is_over for leg in legs)


class BiographyBuilder:
    """Takes events in order, any number at a time. `events` are those that belong to the biography."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._seen: set[Event] = set()
        self.stays: list[_Stay] = []  # in the order of their beginnings
        self._current: dict[tuple[object, ...], _Stay] = {}
        self._waiting: dict[tuple[str, str], dict[_Stay, None]] = {}  # by virtual host and queue
        self._scheduled: dict[int, _Stay] = {}  # by uid

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event in self._seen:
                continue
            self._seen.add(event)
            if event.uid == 0 and event.kind != schema.NOTED:
                self._add_removal(event)
            elif event.queue is None or event.kind not in _IN_QUEUE:
                self.events.append(event)
            else:
                stay = self._stay_of(event)
                self._end_schedule(event, stay)
                self.events.append(stay.add(event))
                self._note_waiting(stay)

    def biography(self, stays: Iterable[_Stay], began: int, is_truncated: bool) -> Biography | None:
        """Return the biography of all that was added, None if there is nothing. `stays`: all of them, in order."""
        if not self.events:
            return None
        legs = [stay.leg(began) for stay in stays]
        message_id = next((event.message_id for event in self.events if event.message_id is not None), None)
        is_complete = not is_truncated and _is_complete(self.events, legs)
        uid = next((event.uid for event in self.events if event.uid), 0)
        return Biography(message_id, uid, self.events, legs, is_complete, is_truncated)

    def waiting_since(self) -> dict[tuple[str, str], int]:
        """Return the queues (virtual host and name) in which a message still waits, and since when."""
        return {place: min(stay.wait_begin for stay in stays) for place, stays in self._waiting.items() if stays}

    def _stay_of(self, event: Event) -> _Stay:
        # Dead letters of two queues may be in a third at the same time: two stays, which began at different times.
        place = (event.uid, event.vhost or "", event.queue or "", event.enqueue_time)
        stay = self._current.get(place)
        if stay is None or (event.kind == schema.ENQUEUED and stay.is_over):
            stay = self._current[place] = _Stay(event)
            self.stays.append(stay)
        return stay

    def _end_schedule(self, event: Event, stay: _Stay) -> None:
        """A scheduled message is released: no event but the first in another queue tells so."""
        if event.kind == schema.SCHEDULED:
            self._scheduled[event.uid] = stay
        elif event.uid in self._scheduled and self._scheduled[event.uid] is not stay:
            released = self._scheduled.pop(event.uid)
            released.release(event)
            self._note_waiting(released)

    def _note_waiting(self, stay: _Stay) -> None:
        waiting = self._waiting.setdefault(stay.place, {})
        if stay.is_waiting:
            waiting[stay] = None
        else:
            waiting.pop(stay, None)

    def _add_removal(self, event: Event) -> None:
        """Add the removal of messages on disk: one event for all, as they were not read.

        If only some messages of the queue were removed, it is unknown whether this one was.
        """
        place = event.vhost or "", event.queue or ""
        if event.kind not in (schema.DROPPED, schema.EXPIRED) or not (waiting := self._waiting.get(place)):
            return
        self.events.append(event)
        if event.reason in _ALL_GONE:
            del self._waiting[place]
            for stay in waiting:
                stay.add(event)


class _Stay:
    """A leg that is being built."""

    def __init__(self, event: Event) -> None:
        self.place = event.vhost or "", event.queue or ""
        self.is_over = False
        self._uid = event.uid
        self._spans: list[Span] = []
        self._wait: int | None = None  # index of the open span of waiting or delay
        self._processing: dict[int, tuple[object, ...]] = {}  # open processing spans by index, and the consumer
        self._consumers: dict[str, None] = {}
        self._outcome = WAITING
        self._deliveries = 0
        self._attempt = 0  # of the last delivery, as counted by the broker
        self._attempts_before = 0  # counted before the broker restarted
        has_joined = event.kind != schema.ENQUEUED and event.reason not in _NEVER_JOINED
        if has_joined and event.enqueue_time is not None:
            self._begin_wait(event.enqueue_time)  # earlier events are no longer kept

    @property
    def is_waiting(self) -> bool:
        return self._outcome in (WAITING, DELAYED)

    @property
    def wait_begin(self) -> int:
        """The begin of the last span."""
        return self._spans[-1].begin

    def add(self, event: Event) -> Event:
        """Add the event; return it with its attempt counted on over restarts."""
        event = self._renumber(event)
        if event.kind == schema.ENQUEUED:
            if self._outcome == DELAYED:
                self._end_wait(event)
            self._begin_wait(event.time)
        elif event.kind == schema.SCHEDULED:
            self._begin_delay(event)
        elif event.kind == schema.DELIVERED:
            self._deliver(event)
        elif event.kind in SETTLED:
            self._settle(event)
        elif event.kind in RETURNED_TO_QUEUE:
            self._settle(event)
            if event.due_time is None:
                self._begin_wait(event.time)
            else:
                self._begin_delay(event)
        else:
            self._leave(event)
        return event

    def release(self, event: Event) -> None:
        """The schedule has published it: this event is in another queue."""
        self._leave(replace(event, kind=schema.ROUTED, attempt=None))

    def leg(self, began: int) -> Leg:
        """Return the leg. Consumers that had the message before the broker `began` lost it.

        If it was durable it waits again, without an event.
        """
        lost = [number for number in self._processing if self._spans[number].begin < began]
        for number in lost:
            self._end(number, began, LOST)
        if lost and not self._processing:
            self._outcome = LOST
        consumers = tuple(self._consumers)
        return Leg(*self.place, self._uid, self._outcome, self.is_over, self._deliveries, consumers, tuple(self._spans))

    def _renumber(self, event: Event) -> Event:
        if event.attempt is None or event.depth is None:  # a stream, which counts for each reader
            return event
        if event.kind == schema.DELIVERED:
            if event.attempt <= self._attempt:
                self._attempts_before += self._attempt
            self._attempt = event.attempt
        return replace(event, attempt=event.attempt + self._attempts_before) if self._attempts_before else event

    def _begin_wait(self, time: int) -> None:
        self._begin(Span(WAITING, time))

    def _begin_delay(self, event: Event) -> None:
        self._begin(Span(DELAYED, event.time, None, event.attempt, due=event.due_time, retry_max=event.retry_max))

    def _begin(self, span: Span) -> None:
        """Begin to wait or to be delayed, unless it does so already."""
        self.is_over = False
        self._outcome = span.kind
        if self._wait is None:
            self._wait = len(self._spans)
            self._spans.append(span)

    def _end_wait(self, event: Event) -> None:
        if self._wait is not None:
            self._end(self._wait, event.time, kind_name(event.kind), event.attempt)
            self._wait = None

    def _deliver(self, event: Event) -> None:
        self._end_wait(event)
        self._deliveries += 1
        if event.consumer is not None:
            self._consumers[event.consumer] = None
        if event.depth is not None:  # a queue has a depth, and one consumer at a time; a stream has not
            for number in list(self._processing):
                self._end(number, event.time, LOST)
        if event.reason == schema.R_AUTO_ACK:
            self._outcome = kind_name(event.kind)
            self.is_over = not self._processing
            return
        self._processing[len(self._spans)] = receiver_of(event)
        self._spans.append(Span(PROCESSING, event.time, None, event.attempt, event.consumer))
        self._outcome = PROCESSING
        self.is_over = False

    def _settle(self, event: Event) -> None:
        """The consumer settles it."""
        number = self._find(event)
        if number is not None:
            self._end(number, event.time, kind_name(event.kind))
        self._outcome = PROCESSING if self._processing else kind_name(event.kind)
        self.is_over = not self._processing

    def _leave(self, event: Event) -> None:
        self._end_wait(event)
        for number in list(self._processing):
            self._end(number, event.time, kind_name(event.kind))
        self._outcome = kind_name(event.kind)
        self.is_over = True

    def _find(self, event: Event) -> int | None:
        """Return the span that this settlement ends: that of the same consumer, else the oldest."""
        consumer = receiver_of(event)
        same = (number for number, receiver in self._processing.items() if receiver == consumer)
        return next(same, next(iter(self._processing), None))

    def _end(self, number: int, time: int, outcome: str, attempt: int | None = None) -> None:
        span = self._spans[number]
        self._processing.pop(number, None)
        self._spans[number] = replace(span, end=time, outcome=outcome, attempt=span.attempt or attempt)


def receiver_of(event: Event) -> tuple[object, ...]:
    """Return what identifies the consumer of a delivery and of its settlement."""
    return event.connection, event.channel, event.consumer
