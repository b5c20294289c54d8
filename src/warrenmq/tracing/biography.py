"""The biography of a message: its events in order, and what they say about the time it spent in each queue.

A stay of a message in a queue is a leg. It waits there, is with a consumer, waits again if it comes back, until
somebody acks it or it is dropped: these are the spans of the leg, and every number that people see is read off them.
A message that was published again, or made from another one, has legs of its own.

Two things are not in the log of a message, and are read off what is there. A broker that is killed says nothing of the
consumers that had messages: whoever had one when the next delivery came, or when the broker began, has lost it. And the
broker counts deliveries from 1 again after a start: here they are counted on.

Pure: values in, values out. Events come in the order of the event log, which is the order in which they happened,
also where the clock was set back meanwhile; what the log says twice (a crash between two of its writes) counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from warrenmq.events import schema
from warrenmq.events.schema import Event, kind_name

WAITING = "waiting"
PROCESSING = "processing"
# A consumer had it when the broker ended: nobody knows for how long.
LOST = "lost"

# What ends the time with a consumer; some of these are followed by what became of the message then.
_SETTLED = frozenset({schema.ACKED, schema.NACKED, schema.REJECTED})
# The message is in the queue again, for the next consumer.
_BACK = frozenset({schema.REQUEUED, schema.RETRIED, schema.SCHEDULED})
# It is no longer in the queue. `unroutable` of a queue: its dead letter reached no other.
_GONE = frozenset({schema.EXPIRED, schema.DROPPED, schema.DEAD_LETTERED, schema.UNROUTABLE})
_PLACED = _SETTLED | _BACK | _GONE | {schema.ENQUEUED, schema.DELIVERED}
# It was dropped at the door: it never waited in that queue.
_NEVER_JOINED = frozenset({schema.R_REFUSED, schema.R_DUPLICATE, schema.R_CYCLE})
# One event for all that waited on disk, which is gone; with other reasons some of it is, and which is not known.
_ALL_GONE = frozenset({schema.R_PURGED, schema.R_QUEUE_DELETED})
# It came to no queue, and never will.
_NOWHERE = frozenset({schema.UNROUTABLE, schema.RETURNED, schema.TX_ROLLED_BACK, schema.DROPPED})


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which the message waited, or was with a consumer; `end` is None while that goes on."""

    kind: str
    begin: int
    end: int | None = None
    attempt: int | None = None
    consumer: str | None = None
    outcome: str | None = None  # the name of the kind that ended it

    @property
    def length(self) -> int:
        """In microseconds; 0 while it goes on, and where the clock was set back."""
        return 0 if self.end is None else max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Leg:
    """One stay in one queue. `outcome` is the kind of its last event, or waiting or processing while it goes on."""

    vhost: str
    queue: str
    uid: int
    outcome: str
    is_over: bool
    deliveries: int
    consumers: Sequence[str]  # each that it was delivered to, once
    spans: Sequence[Span]

    @property
    def place(self) -> tuple[str, str]:
        return self.vhost, self.queue

    @property
    def waiting_us(self) -> int | None:
        return self._sum(WAITING)

    @property
    def processing_us(self) -> int | None:
        return self._sum(PROCESSING)

    def _sum(self, kind: str) -> int | None:
        """Of the spans whose length is known; None if there is none."""
        spans = [span for span in self.spans if span.kind == kind and span.end is not None and span.outcome != LOST]
        return sum(span.length for span in spans) if spans else None


@dataclass(frozen=True, slots=True)
class Biography:
    """What happened to a message and to those that were made from it, or that it was made from."""

    message_id: str | None
    uid: int  # of the first one
    events: Sequence[Event]
    legs: Sequence[Leg]
    is_complete: bool
    is_truncated: bool = False  # there are more events, which were left out to save work


def build_biography(events: Iterable[Event], is_all: bool = True, began: int = 0) -> Biography | None:
    """The biography that these events are; None if there are none.

    `is_all`: nothing was left out to save work. `began`: when this life of the broker began, in us; no consumer has
    anything of before.
    """
    builder = BiographyBuilder()
    builder.add(events)
    return builder.biography(builder.legs(began), is_all)


def _is_complete(events: Sequence[Event], legs: Sequence[Leg]) -> bool:
    """Whether every message in it has a beginning and an end."""
    uids = {event.uid for event in events if event.uid}
    begun = {event.uid for event in events if event.kind == schema.PUBLISHED or event.source_uid is not None}
    placed = {leg.uid for leg in legs}
    nowhere = {event.uid for event in events if event.kind in _NOWHERE}
    return uids == begun and uids <= placed | nowhere and all(leg.is_over for leg in legs)


class BiographyBuilder:
    """Takes events in their order, as many at a time as the caller likes. `story` are those that belong to it."""

    def __init__(self) -> None:
        self.story: list[Event] = []
        self._heard: set[Event] = set()
        self._stays: list[_Stay] = []  # in the order in which they began
        self._current: dict[tuple[object, ...], _Stay] = {}
        self._waiting: dict[tuple[str, str], dict[_Stay, None]] = {}  # by virtual host and queue

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event in self._heard:
                continue
            self._heard.add(event)
            if event.uid == 0:
                self._add_removal(event)
            elif event.queue is None or event.kind not in _PLACED:
                self.story.append(event)
            else:
                stay = self._stay_of(event)
                self.story.append(stay.add(event))
                self._note_waiting(stay)

    @property
    def leg_count(self) -> int:
        return len(self._stays)

    def legs(self, began: int = 0, first: int = 0, count: int | None = None) -> list[Leg]:
        """All legs, or `count` from the `first` on."""
        stays = self._stays[first:] if count is None else self._stays[first : first + count]
        for stay in stays:
            stay.broker_began(began)
        return [stay.leg() for stay in stays]

    def biography(self, legs: Sequence[Leg], is_all: bool) -> Biography | None:
        """Of all that was added, with its legs; None if there is nothing."""
        if not self.story:
            return None
        message_id = next((event.message_id for event in self.story if event.message_id is not None), None)
        is_complete = is_all and _is_complete(self.story, legs)
        return Biography(message_id, self.story[0].uid, self.story, legs, is_complete, not is_all)

    def waiting_since(self) -> dict[tuple[str, str], int]:
        """In which queues, by virtual host and name, it or one of its kin still waits; and since when."""
        return {place: min(stay.wait_begin for stay in stays) for place, stays in self._waiting.items() if stays}

    def _stay_of(self, event: Event) -> _Stay:
        # Dead letters of two queues may be in a third at the same time: two stays, which began at different times.
        place = (event.uid, event.vhost or "", event.queue or "", event.enqueue_time)
        stay = self._current.get(place)
        if stay is None or (event.kind == schema.ENQUEUED and stay.is_over):
            stay = self._current[place] = _Stay(event)
            self._stays.append(stay)
        return stay

    def _note_waiting(self, stay: _Stay) -> None:
        waiting = self._waiting.setdefault(stay.place, {})
        if stay.is_waiting:
            waiting[stay] = None
        else:
            waiting.pop(stay, None)

    def _add_removal(self, event: Event) -> None:
        """Messages that waited on disk were removed without being read: one event tells it of all of them.

        Where only some of the queue's messages were removed, whether this one was among them is not known.
        """
        place = event.vhost or "", event.queue or ""
        if event.kind not in (schema.DROPPED, schema.EXPIRED) or not (waiting := self._waiting.get(place)):
            return
        self.story.append(event)
        if event.reason in _ALL_GONE:
            del self._waiting[place]
            for stay in waiting:
                stay.add(event)


class _Stay:
    """A leg that is still being told."""

    def __init__(self, event: Event) -> None:
        self.place = event.vhost or "", event.queue or ""
        self.is_over = False
        self._uid = event.uid
        self._spans: list[Span] = []
        self._wait: int | None = None  # the number of the open span of that kind
        self._with: dict[int, tuple[object, ...]] = {}  # those of consumers that have it now, and who they are
        self._consumers: dict[str, None] = {}
        self._outcome = WAITING
        self._deliveries = 0
        self._attempt = 0  # of the last delivery, as the broker counts
        self._attempts_before = 0  # those that it has forgotten since
        has_joined = event.kind != schema.ENQUEUED and event.reason not in _NEVER_JOINED
        if has_joined and event.enqueue_time is not None:
            self._begin_wait(event.enqueue_time)  # what came before is no longer kept

    @property
    def is_waiting(self) -> bool:
        return self._outcome == WAITING

    @property
    def wait_begin(self) -> int:
        """When the last span began."""
        return self._spans[-1].begin

    def add(self, event: Event) -> Event:
        """Gives it as it is told."""
        event = self._count_on(event)
        if event.kind == schema.ENQUEUED:
            self._begin_wait(event.time)
        elif event.kind == schema.DELIVERED:
            self._deliver(event)
        elif event.kind in _SETTLED:
            self._settle(event)
        elif event.kind in _BACK:
            self._settle(event)
            self._begin_wait(event.time)
        else:
            self._leave(event)
        return event

    def broker_began(self, time: int) -> None:
        """Whoever had it before that has lost it. What was durable waits again, and nobody has said so."""
        lost = [number for number in self._with if self._spans[number].begin < time]
        for number in lost:
            self._end(number, time, LOST)
            del self._with[number]
        if lost and not self._with:
            self._outcome = LOST

    def leg(self) -> Leg:
        consumers = tuple(self._consumers)
        return Leg(*self.place, self._uid, self._outcome, self.is_over, self._deliveries, consumers, tuple(self._spans))

    def _count_on(self, event: Event) -> Event:
        if event.attempt is None or event.depth is None:  # a stream, which has no depth, counts for each reader
            return event
        if event.kind == schema.DELIVERED:
            if event.attempt <= self._attempt:
                self._attempts_before += self._attempt
            self._attempt = event.attempt
        return replace(event, attempt=event.attempt + self._attempts_before) if self._attempts_before else event

    def _begin_wait(self, time: int) -> None:
        self.is_over = False
        self._outcome = WAITING
        if self._wait is None:
            self._wait = len(self._spans)
            self._spans.append(Span(WAITING, time))

    def _end_wait(self, event: Event) -> None:
        if self._wait is not None:
            self._end(self._wait, event.time, kind_name(event.kind), event.attempt)
            self._wait = None

    def _deliver(self, event: Event) -> None:
        self._end_wait(event)
        self._deliveries += 1
        if event.consumer is not None:
            self._consumers[event.consumer] = None
        if event.depth is not None:  # a queue, which gives a message to one consumer at a time; a stream has no depth
            for number in list(self._with):
                self._end(number, event.time, LOST)
                del self._with[number]
        if event.reason == schema.R_AUTO_ACK:
            self._outcome = kind_name(event.kind)
            self.is_over = not self._with
            return
        self._with[len(self._spans)] = _receiver(event)
        self._spans.append(Span(PROCESSING, event.time, None, event.attempt, event.consumer))
        self._outcome = PROCESSING
        self.is_over = False

    def _settle(self, event: Event) -> None:
        """The consumer that has it gives it back, one way or another."""
        number = self._find(event)
        if number is not None:
            self._end(number, event.time, kind_name(event.kind))
            del self._with[number]
        self._outcome = PROCESSING if self._with else kind_name(event.kind)
        self.is_over = not self._with

    def _leave(self, event: Event) -> None:
        self._end_wait(event)
        for number in self._with:
            self._end(number, event.time, kind_name(event.kind))
        self._with.clear()
        self._outcome = kind_name(event.kind)
        self.is_over = True

    def _find(self, event: Event) -> int | None:
        """The span that this settlement ends: of the same consumer, else the oldest."""
        wanted = _receiver(event)
        same = (number for number, receiver in self._with.items() if receiver == wanted)
        return next(same, next(iter(self._with), None))

    def _end(self, number: int, time: int, outcome: str, attempt: int | None = None) -> None:
        span = self._spans[number]
        self._spans[number] = replace(span, end=time, outcome=outcome, attempt=span.attempt or attempt)


def _receiver(event: Event) -> tuple[object, ...]:
    return event.connection, event.channel, event.consumer
