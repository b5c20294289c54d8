"""Turns events into OpenTelemetry spans: publish, wait in a queue, delay, deliver to a consumer, and notes.

All spans of a message belong to the trace that its producer began (`traceparent`), below the producer's span; a
delivery also links to that span. A message without one gets a trace of its own. Ids are derived from the message's uid,
so a span that is sent twice has the same id.

Pure: events in, in their order; spans out when they end. Open spans are bounded: the oldest is dropped.
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
from warrenmq.tracing.biography import RETURNED_TO_QUEUE, SETTLED, receiver_of

INTERNAL = 1
PRODUCER = 4
CONSUMER = 5

# A publish ends with its confirm, or after this time.
PUBLISH_TIMEOUT_US = 1_000_000
MAX_OPEN_SPANS = 100_000

SYSTEM = "warrenmq"
DEFAULT_EXCHANGE = "amq.default"
WAIT, DELAY = "wait", "delay"

_PUBLISH_GOES_ON = frozenset({schema.ROUTED, schema.ENQUEUED, schema.TX_COMMITTED, schema.REPUBLISHED})
_UNQUEUED = frozenset({schema.UNROUTABLE, schema.RETURNED, schema.TX_ROLLED_BACK})
_PUBLISH_ENDED = _UNQUEUED | {schema.CONFIRMED}
_LEFT_QUEUE = frozenset({schema.EXPIRED, schema.DROPPED, schema.DEAD_LETTERED})
_FAILED = (SETTLED - {schema.ACKED}) | RETURNED_TO_QUEUE | _LEFT_QUEUE | _UNQUEUED

Value = str | int
Stay = tuple[int, str, str, int | None]  # message, virtual host, queue, enqueue time: a dead letter may come again
Key = TypeVar("Key")
Item = TypeVar("Item")


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

    def __init__(self, max_open: int = MAX_OPEN_SPANS) -> None:
        self._max_open = max_open
        self._publishes: OrderedDict[int, _Publish] = OrderedDict()
        self._waits: OrderedDict[Stay, tuple[str, int]] = OrderedDict()  # wait or delay, and when it began
        self._scheduled: OrderedDict[int, Stay] = OrderedDict()  # by uid
        self._deliveries: OrderedDict[tuple[object, ...], Event] = OrderedDict()
        self._spans: list[OtelSpan] = []
        self._last_time = 0

    def add(self, events: Iterable[Event]) -> list[OtelSpan]:
        """Return the spans that end with these events."""
        for event in events:
            if event.uid != 0:
                self._last_time = max(self._last_time, event.time)
                self._add(event)
        self._end_publishes(self._last_time - PUBLISH_TIMEOUT_US)
        return self._take()

    def end_publishes(self) -> list[OtelSpan]:
        """End publishes that wait for a confirm, as no events come."""
        self._end_publishes(self._last_time)
        return self._take()

    def _take(self) -> list[OtelSpan]:
        spans, self._spans = self._spans, []
        return spans

    def _add(self, event: Event) -> None:
        if event.kind == schema.PUBLISHED:
            _put_bounded(self._publishes, event.uid, _Publish(event, event.time), self._max_open)
        elif event.kind in _PUBLISH_ENDED and event.queue is None:
            self._end_publish(event)
        elif event.uid in self._publishes:
            self._publishes[event.uid].add(event)
        if event.kind == schema.NOTED:
            self._spans.append(_note_span(event))
        elif event.queue is not None:
            self._add_in_queue(event, (event.uid, event.vhost or "", event.queue, event.enqueue_time))

    def _add_in_queue(self, event: Event, stay: Stay) -> None:
        if event.uid in self._scheduled and event.kind != schema.SCHEDULED:
            self._end_wait(event, self._scheduled.pop(event.uid))
        if event.kind == schema.ENQUEUED:
            if stay in self._waits:  # for a retry
                self._end_wait(event, stay)
            _put_bounded(self._waits, stay, (WAIT, event.time), self._max_open)
        elif event.kind == schema.SCHEDULED:
            _put_bounded(self._waits, stay, (DELAY, event.time), self._max_open)
            _put_bounded(self._scheduled, event.uid, stay, self._max_open)
        elif event.kind == schema.DELIVERED:
            self._end_wait(event, stay)
            if event.reason == schema.R_AUTO_ACK:
                self._spans.append(_deliver_span(event, event))
            else:
                _put_bounded(self._deliveries, (*stay, *receiver_of(event)), event, self._max_open)
        elif event.kind in SETTLED:
            self._end_delivery(event, stay)
        elif event.kind in RETURNED_TO_QUEUE:
            self._end_delivery(event, stay)
            operation = WAIT if event.due_time is None else DELAY
            _put_bounded(self._waits, stay, (operation, event.time), self._max_open)
        elif event.kind in _LEFT_QUEUE:
            self._end_delivery(event, stay)
            self._end_wait(event, stay)

    def _end_publish(self, event: Event) -> None:
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

    def _end_wait(self, event: Event, stay: Stay) -> None:
        operation, begin = self._waits.pop(stay, (WAIT, None))
        if begin is None and event.kind == schema.DELIVERED and event.attempt == 1 and event.depth is not None:
            # It was enqueued before the exporter started. In a stream, which has no depth, only the first ends a wait.
            begin = event.enqueue_time
        if begin is not None:
            self._spans.append(_wait_span(event, stay, operation, begin))

    def _end_delivery(self, event: Event, stay: Stay) -> None:
        delivered = self._deliveries.pop((*stay, *receiver_of(event)), None)
        if delivered is not None:
            self._spans.append(_deliver_span(delivered, event))


@dataclass(slots=True)
class _Publish:
    """A publish that has not ended."""

    event: Event
    end: int
    outcome: Event | None = None
    is_dead_lettered: bool = False  # from now on the queues are those of its dead letter

    def add(self, event: Event) -> None:
        """Add an event from before its confirm."""
        if event.reason == schema.R_REFUSED:
            self.end = event.time
            self.outcome = event
        if event.kind == schema.DEAD_LETTERED:
            self.is_dead_lettered = True
        elif event.kind in _PUBLISH_GOES_ON and not self.is_dead_lettered:
            self.end = event.time

    def span(self) -> OtelSpan:
        event, destination = self.event, self.event.exchange or DEFAULT_EXCHANGE
        ids = publish_id(event.uid), _from_hex(event.span_id)
        return _span(event, PRODUCER, ("publish", "send", destination), ids, (event.time, self.end), self.outcome)


def trace_id_of(event: Event) -> bytes:
    """Return the producer's trace id, or one of the message's own."""
    return _from_hex(event.trace_id) or _digest(16, "trace", event.uid)


def publish_id(uid: int) -> bytes:
    return _digest(8, "publish", uid)


def _wait_span(event: Event, stay: Stay, operation: str, begin: int) -> OtelSpan:
    """Return the span of a wait, or of a delay, that this event ends."""
    uid, vhost, queue, _ = stay
    ids = _digest(8, "wait", uid, vhost or None, queue, begin), publish_id(uid)
    return _span(event, INTERNAL, (operation, None, queue), ids, (begin, event.time), event)


def _note_span(event: Event) -> OtelSpan:
    ids = _digest(8, "note", event.uid, event.time, event.note), publish_id(event.uid)
    times = event.time, event.time
    return _span(event, INTERNAL, ("note", None, event.queue or event.exchange or DEFAULT_EXCHANGE), ids, times, None)


def _deliver_span(delivered: Event, settled: Event) -> OtelSpan:
    queue, time = delivered.queue or "", delivered.time
    span_id = _digest(8, "deliver", delivered.uid, delivered.vhost, queue, *receiver_of(delivered), time)
    producer = _from_hex(delivered.span_id)
    links = ((trace_id_of(delivered), producer),) if producer else ()
    ids = span_id, publish_id(delivered.uid)
    return _span(delivered, CONSUMER, ("deliver", "process", queue), ids, (time, settled.time), settled, links)


def _span(
    event: Event,
    kind: int,
    operation: tuple[str, str | None, str],  # its name, OpenTelemetry's type of it, the destination
    ids: tuple[bytes, bytes],  # of the span and its parent
    times: tuple[int, int],
    outcome: Event | None,
    links: tuple[tuple[bytes, bytes], ...] = (),
) -> OtelSpan:
    begin, end = times
    name = f"{operation[0]} {operation[2]}"
    attributes = _attributes(event, outcome, *operation)
    failure = kind_name(outcome.kind) if outcome is not None and outcome.kind in _FAILED else None
    return OtelSpan(trace_id_of(event), *ids, name, kind, begin, max(begin, end), attributes, links, failure)


def _attributes(
    event: Event, outcome: Event | None, operation: str, operation_type: str | None, destination: str
) -> dict[str, Value]:
    """Name attributes by OpenTelemetry's messaging conventions, and with our prefix what these do not define."""
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
        "warrenmq.note": event.note,
        "warrenmq.source_uid": None if event.source_uid is None else uid_text(event.source_uid),
        "warrenmq.outcome": None if outcome is None else kind_name(outcome.kind),
        "warrenmq.reason": None if outcome is None or outcome.reason is None else reason_name(outcome.reason),
    }
    return {name: value for name, value in found.items() if value is not None}


def _from_hex(digits: str | None) -> bytes:
    return bytes.fromhex(digits) if digits else b""


def _digest(size: int, *parts: object) -> bytes:
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=size).digest()


def _put_bounded(items: OrderedDict[Key, Item], key: Key, value: Item, limit: int) -> None:
    items[key] = value
    if len(items) > limit:
        items.popitem(last=False)
