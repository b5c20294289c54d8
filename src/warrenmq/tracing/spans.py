"""Events to spans, as OpenTelemetry has them: publish, wait in a queue, deliver to a consumer.

All spans of a message are in the trace that its producer began (`traceparent`), below the producer's span; a
delivery is linked to that as well. A message without one gets a trace of its own. Ids are made from the message's
uid, so a span that is sent twice is the same one.

Pure: events in their order go in, spans come out when they end. What is open is bounded: the oldest is given up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.events.schema import Event, kind_name, reason_name

INTERNAL = 1
PRODUCER = 4
CONSUMER = 5

# A publish is over with its confirm, or when nothing was heard of it for so many microseconds.
PUBLISH_PATIENCE_US = 1_000_000
# So many spans may be open.
MOST_OPEN = 100_000

SYSTEM = "warrenmq"
DEFAULT_EXCHANGE = "amq.default"

_ARRIVING = frozenset({schema.ROUTED, schema.ENQUEUED, schema.TX_COMMITTED, schema.REPUBLISHED})
_ARRIVED = frozenset({schema.CONFIRMED, schema.UNROUTABLE, schema.RETURNED, schema.TX_ROLLED_BACK})
_SETTLED = frozenset({schema.ACKED, schema.NACKED, schema.REJECTED})
_BACK = frozenset({schema.REQUEUED, schema.RETRIED})
_GONE = frozenset({schema.EXPIRED, schema.DROPPED, schema.DEAD_LETTERED})
_FAILED = (_SETTLED - {schema.ACKED}) | _BACK | _GONE | {schema.UNROUTABLE, schema.RETURNED, schema.TX_ROLLED_BACK}

Value = str | int
Place = tuple[int, str, str, int | None]  # a message, a queue, and when it came there: a dead letter may come again
Key = TypeVar("Key")
Held = TypeVar("Held")


@dataclass(frozen=True, slots=True)
class OtelSpan:
    """Times are microseconds since 1970; `links`: pairs of trace id and span id; `failure`: None if it went well."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    name: str
    kind: int
    begin: int
    end: int
    attributes: dict[str, Value]
    links: tuple[tuple[bytes, bytes], ...] = ()
    failure: str | None = None


class SpanMaker:
    """Owned by one thread."""

    def __init__(self, most_open: int = MOST_OPEN) -> None:
        self._most_open = most_open
        self._publishes: OrderedDict[int, _Publish] = OrderedDict()
        self._waits: OrderedDict[Place, int] = OrderedDict()
        self._deliveries: OrderedDict[tuple[object, ...], Event] = OrderedDict()
        self._spans: list[OtelSpan] = []
        self._newest = 0

    def add(self, events: Iterable[Event]) -> list[OtelSpan]:
        """The spans that end with these events."""
        for event in events:
            if event.uid != 0:
                self._newest = max(self._newest, event.time)
                self._add(event)
        self._end_publishes(self._newest - PUBLISH_PATIENCE_US)
        return self._take()

    def end_publishes(self) -> list[OtelSpan]:
        """Nothing happens any more: those that wait for a confirm are over, too."""
        self._end_publishes(self._newest)
        return self._take()

    def _take(self) -> list[OtelSpan]:
        spans, self._spans = self._spans, []
        return spans

    def _add(self, event: Event) -> None:
        if event.kind == schema.PUBLISHED:
            _hold(self._publishes, event.uid, _Publish(event), self._most_open)
        elif event.kind in _ARRIVED and event.queue is None:
            self._arrive(event)
        elif event.uid in self._publishes:
            self._publishes[event.uid].add(event)
        if event.queue is not None:
            self._add_place(event, (event.uid, event.vhost or "", event.queue, event.enqueue_time))

    def _add_place(self, event: Event, place: Place) -> None:
        if event.kind == schema.ENQUEUED:
            _hold(self._waits, place, event.time, self._most_open)
        elif event.kind == schema.DELIVERED:
            self._end_wait(event, place)
            if event.reason == schema.R_AUTO_ACK:
                self._spans.append(_deliver_span(event, event))
            else:
                _hold(self._deliveries, (*place, *_receiver(event)), event, self._most_open)
        elif event.kind in _SETTLED | _BACK:
            self._end_delivery(event, place)
            if event.kind in _BACK:
                _hold(self._waits, place, event.time, self._most_open)
        elif event.kind in _GONE:
            self._end_delivery(event, place)
            self._end_wait(event, place)

    def _arrive(self, event: Event) -> None:
        publish = self._publishes.pop(event.uid, None)
        if publish is not None:
            publish.end = event.time
            publish.outcome = event
            self._spans.append(publish.span())

    def _end_publishes(self, before: int) -> None:
        for uid, publish in list(self._publishes.items()):
            if publish.event.time > before:
                return
            del self._publishes[uid]
            self._spans.append(publish.span())

    def _end_wait(self, event: Event, place: Place) -> None:
        begin = self._waits.pop(place, None)
        if begin is None and event.kind == schema.DELIVERED and event.attempt == 1 and event.depth is not None:
            begin = event.enqueue_time  # it came before this began to listen; a stream's message is waited for once
        if begin is not None:
            self._spans.append(_wait_span(event, begin))

    def _end_delivery(self, event: Event, place: Place) -> None:
        delivered = self._deliveries.pop((*place, *_receiver(event)), None)
        if delivered is not None:
            self._spans.append(_deliver_span(delivered, event))


class _Publish:
    """A publish that is not over."""

    __slots__ = ("_has_died", "end", "event", "outcome")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.end = event.time
        self.outcome: Event | None = None
        self._has_died = False  # the queues that it joins from now on are those of its dead letter

    def add(self, event: Event) -> None:
        """Something happened before it was confirmed."""
        if event.reason == schema.R_REFUSED:
            self.end = event.time
            self.outcome = event
        if event.kind == schema.DEAD_LETTERED:
            self._has_died = True
        elif event.kind in _ARRIVING and not self._has_died:
            self.end = event.time

    def span(self) -> OtelSpan:
        event = self.event
        destination = event.exchange or DEFAULT_EXCHANGE
        attributes = _attributes(event, "publish", "send", destination) | _outcome(self.outcome)
        parent = _bytes(event.span_id)
        return OtelSpan(
            trace_id_of(event),
            publish_id(event.uid),
            parent,
            f"publish {destination}",
            PRODUCER,
            event.time,
            max(event.time, self.end),
            attributes,
            (),
            _failure(self.outcome),
        )


def trace_id_of(event: Event) -> bytes:
    """The producer's, or one that is the message's own."""
    return _bytes(event.trace_id) or _digest(16, "trace", event.uid)


def publish_id(uid: int) -> bytes:
    return _digest(8, "publish", uid)


def _wait_span(event: Event, begin: int) -> OtelSpan:
    queue = event.queue or ""
    return OtelSpan(
        trace_id_of(event),
        _digest(8, "wait", event.uid, event.vhost, queue, begin),
        publish_id(event.uid),
        f"wait {queue}",
        INTERNAL,
        begin,
        max(begin, event.time),
        _attributes(event, "wait", None, queue) | _outcome(event),
        (),
        _failure(event),
    )


def _deliver_span(delivered: Event, settled: Event) -> OtelSpan:
    queue = delivered.queue or ""
    producer = _bytes(delivered.span_id)
    return OtelSpan(
        trace_id_of(delivered),
        _digest(8, "deliver", delivered.uid, delivered.vhost, queue, *_receiver(delivered), delivered.time),
        publish_id(delivered.uid),
        f"deliver {queue}",
        CONSUMER,
        delivered.time,
        max(delivered.time, settled.time),
        _attributes(delivered, "deliver", "process", queue) | _outcome(settled),
        ((trace_id_of(delivered), producer),) if producer else (),
        _failure(settled),
    )


def _attributes(event: Event, operation: str, operation_type: str | None, destination: str) -> dict[str, Value]:
    """In the words of OpenTelemetry's conventions for messaging; what they have no word for has our own."""
    found: dict[str, Value | None] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation_type,
        "messaging.destination.name": destination,
        "messaging.rabbitmq.destination.routing_key": event.routing_key or None,
        "messaging.message.id": event.message_id or uid_text(event.uid),
        "messaging.message.conversation_id": event.correlation_id,
        "messaging.message.body.size": event.size,
        "warrenmq.uid": uid_text(event.uid),
        "warrenmq.vhost": event.vhost,
        "warrenmq.consumer": event.consumer,
        "warrenmq.connection": event.connection,
        "warrenmq.attempt": event.attempt,
        "warrenmq.priority": event.priority,
        "warrenmq.source_uid": None if event.source_uid is None else uid_text(event.source_uid),
    }
    return {name: value for name, value in found.items() if value is not None}


def _outcome(event: Event | None) -> dict[str, Value]:
    if event is None:
        return {}
    found: dict[str, Value] = {"warrenmq.outcome": kind_name(event.kind)}
    if event.reason is not None:
        found["warrenmq.reason"] = reason_name(event.reason)
    return found


def _failure(event: Event | None) -> str | None:
    return kind_name(event.kind) if event is not None and event.kind in _FAILED else None


def _receiver(event: Event) -> tuple[object, ...]:
    return event.connection, event.channel, event.consumer


def _bytes(digits: str | None) -> bytes:
    return bytes.fromhex(digits) if digits else b""


def _digest(size: int, *parts: object) -> bytes:
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def _hold(held: OrderedDict[Key, Held], key: Key, value: Held, most: int) -> None:
    held[key] = value
    if len(held) > most:
        held.popitem(last=False)
