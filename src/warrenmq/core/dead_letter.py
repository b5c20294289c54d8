"""Dead letters: messages that are dropped from a queue are published to its dead-letter exchange.

A dead letter is enqueued in the same epoch in which its source queue removes it: after a crash it is in exactly one of
them. It has RabbitMQ's headers: `x-death` with an entry for each queue and reason, latest first, and `x-first-death-*`
and `x-last-death-*`. An `x-death` header written by a client is replaced. To prevent endless cycles, a dead letter is
not routed to a queue that it was in before, unless a consumer has rejected it since, nor after MAX_DEATHS deaths.

With the strategy at-least-once, a dead letter that no queue takes is held, and published again every `RETRY_MS`; until
then it stays in the store of its source queue.

Owned by the loop thread. Compiled when the package is built (dead_letter.pxd).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warrenmq.core import report
from warrenmq.core.errors import NotFound
from warrenmq.core.message import Message, QueuedMessage, address_of, enqueue_as, make_message
from warrenmq.core.outcome import DELIVERED, DROPPED, QUEUED, REJECTED, UNROUTED
from warrenmq.core.publish_rules import decode_blind_keys, find_extra_keys, wants_report
from warrenmq.core.publishing import DeferredRoute, find_target, resolve_route
from warrenmq.core.queue import Queue
from warrenmq.core.stats import Revision, Stats
from warrenmq.core.turn import Turn
from warrenmq.events import schema
from warrenmq.protocol import properties
from warrenmq.protocol.values import Timestamp, encode_shortstr, encode_timestamp

if TYPE_CHECKING:
    from warrenmq.core.classic_queue import ClassicQueue
    from warrenmq.core.exchange import Route
    from warrenmq.core.options import QueueOptions
    from warrenmq.core.timers import Timer
    from warrenmq.core.vhost import VHost

RETRY_MS = 30_000

# A message with more deaths is dropped: its header would eventually exceed a frame.
MAX_DEATHS = 256

DEATHS = "x-death"
_FIRST = ("x-first-death-exchange", "x-first-death-queue", "x-first-death-reason")
_REJECTED = schema.REASON_NAMES[schema.R_REJECTED]

Death = dict[str, Any]


# A dead letter to be published: its queue's DeadLetters, the message, the reason, the number of attempts, the entry if
# the queue has not yet removed it, and whether it is a retry.
PendingDeadLetter = tuple["DeadLetters", Message, int, int, QueuedMessage | None, bool]


class DeadLetters:
    """Dead-letters messages of one queue. `is_at_least_once`: messages that no queue takes are held."""

    __slots__ = (
        "_cached",
        "_exchange",
        "_held",
        "_key",
        "_pending",
        "_queue",
        "_stats",
        "_timer",
        "_topology",
        "_turn",
        "_vhost",
        "is_at_least_once",
    )

    def __init__(self, vhost: VHost, queue: ClassicQueue, options: QueueOptions) -> None:
        assert options.dead_letter_exchange is not None
        self._vhost = vhost
        self._queue = queue
        self._exchange = options.dead_letter_exchange
        self._key = options.dead_letter_routing_key
        self.is_at_least_once = options.is_dead_letter_at_least_once
        broker = vhost.broker
        self._turn: Turn = broker.turn
        self._stats: Stats = broker.stats
        self._topology: Revision = vhost.topology
        self._pending = broker.dead_letters  # of all queues
        self._cached: _Template | None = None  # the last one: consecutive dead letters mostly look the same
        self._held: list[tuple[QueuedMessage, int]] = []
        self._timer: Timer | None = None

    def publish(self, message: Message, reason: int, attempts: int) -> None:
        """Publish a message that the queue removes in this epoch."""
        self._pending.append((self, message, reason, attempts, None, False))
        self._publish_pending()

    def publish_or_hold(self, entry: QueuedMessage, reason: int, is_retry: bool) -> None:
        """Publish a message; the queue removes it if another queue takes it, or if nothing is held."""
        self._pending.append((self, entry.message, reason, entry.attempts, entry, is_retry))
        self._publish_pending()

    def _publish_pending(self) -> None:
        """Publish pending dead letters, and those that follow from them, without recursion: chains may be long."""
        pending = self._pending
        if len(pending) > 1:
            return  # the call that added the first one publishes all
        turn = self._turn
        was_settling = turn.is_settling
        turn.is_settling = True
        try:
            for letters, message, reason, attempts, entry, is_retry in pending:  # the list grows meanwhile
                letters.send(message, reason, attempts, entry, is_retry)
        finally:
            pending.clear()
            turn.is_settling = was_settling

    def send(self, message: Message, reason: int, attempts: int, entry: QueuedMessage | None, is_retry: bool) -> None:
        """Publish one dead letter, then remove it from its queue or hold it."""
        outcome = self._send(message, reason, is_retry)
        is_settled = bool(outcome & (QUEUED | DELIVERED | DROPPED)) and not outcome & REJECTED
        if entry is not None:
            if not is_settled and self.is_at_least_once and not self._queue.is_deleted:
                self._hold(entry, reason)
                return
            self._queue.discard(entry)
        if outcome & (QUEUED | DELIVERED):
            self._stats.dead_lettered[reason] += 1
        if wants_report(message.header):
            self._report(message, reason, attempts, bool(outcome & (QUEUED | DELIVERED)))

    def _report(self, message: Message, reason: int, attempts: int, is_dead_lettered: bool) -> None:
        queue = self._queue
        if is_dead_lettered:
            self._vhost.reports.add(message, report.DEAD_LETTERED, schema.reason_name(reason), queue.name, attempts)
        else:
            queue.report_dropped(message, reason, attempts)

    def _send(self, message: Message, reason: int, is_retry: bool) -> int:
        letter = self._template_of(message, reason)
        if len(letter.deaths) > MAX_DEATHS:
            self._stats.dead_letter_cycles += 1
            self._emit(schema.DROPPED, message, message.address, schema.R_CYCLE)
            return DROPPED
        route = self._route_of(letter)
        if route is None:
            if not is_retry:
                address = address_of(self._exchange, letter.routing_key)
                self._emit(schema.UNROUTABLE, message, address, schema.R_NO_ROUTE)
            return UNROUTED
        dead = make_message(route.address, letter.header, message.body)
        dead.has_deaths = True
        dead.wants_report = wants_report(message.header)
        if self._key is None:
            dead.blind_keys = message.blind_keys
        if message.uid != 0:  # for tracing it is the same message
            dead.uid = message.uid
            dead.publish_time = message.publish_time
        if route.queues is not None and letter.extra_keys is None:
            if message.uid != 0:
                self._emit_route(message, dead.address, len(route.queues) != 0, is_retry)
            return self._enqueue(dead, route.queues, letter.deaths)
        return self._route(message, dead, route, letter, is_retry)

    def _route_of(self, letter: _Template) -> Route | None:
        """Return the route of a dead letter, cached until the topology changes; None if the exchange is missing."""
        if letter.route is None or letter.topology != self._topology.number:
            try:
                letter.route = self._vhost.find_own_route(self._exchange, letter.routing_key)
            except NotFound:
                self._vhost.broker.warning_log.warn(
                    "dead-letter exchange",
                    f"queue '{self._queue.name}' in vhost '{self._vhost.name}' has the dead-letter exchange "
                    f"'{self._exchange}', which does not exist: its dead letters are dropped",
                )
                return None
            letter.topology = self._topology.number
        return letter.route

    def _route(self, message: Message, dead: Message, route: Route, letter: _Template, is_retry: bool) -> int:
        """Route a dead letter with several keys, or whose queues depend on its header."""
        headers = properties.headers(letter.header)
        target = find_target(self._vhost, route, letter.extra_keys or [], letter.header, headers)
        if not isinstance(target, DeferredRoute):
            self._emit_route(message, dead.address, bool(target), is_retry)
            return self._enqueue(dead, target, letter.deaths)
        queues, path = resolve_route(self._vhost, dead, target)
        if not queues and path.was_dropped:
            self._emit(schema.DROPPED, message, dead.address, schema.R_DUPLICATE)
        else:
            self._emit_route(message, dead.address, bool(queues), is_retry)
        outcome = self._enqueue(dead, queues, letter.deaths) if queues else path.outcome()
        return outcome | path.record(bool(queues) and not outcome & REJECTED)

    def _enqueue(self, message: Message, queues: list[Queue], deaths: list[Death]) -> int:
        outcome = UNROUTED
        if message.uid != 0:
            self._queue.events.advance_clock()
        for queue in queues:
            if is_cycle(queue.name, deaths):
                self._stats.dead_letter_cycles += 1
                if message.uid != 0:
                    queue.events.queue_event(schema.DROPPED, enqueue_as(message, 0), queue, None, schema.R_CYCLE)
                outcome |= DROPPED
            else:
                outcome |= queue.enqueue(message)
        return outcome

    def _emit_route(self, message: Message, address: bytes, is_routed: bool, is_retry: bool) -> None:
        """Emit that a dead letter was routed, or, on the first attempt only, that it is unroutable."""
        if is_routed:
            self._emit(schema.ROUTED, message, address, 0)
        elif not is_retry:
            self._emit(schema.UNROUTABLE, message, address, schema.R_NO_ROUTE)

    def _emit(self, kind: int, message: Message, address: bytes, reason: int) -> None:
        """Emit an event of a message of this queue, with the exchange and routing key of its dead letter."""
        if message.uid != 0:
            copy = make_message(address, message.header, message.body)
            copy.uid, copy.publish_time, copy.enqueue_time = message.uid, message.publish_time, message.enqueue_time
            self._queue.events.queue_event(kind, enqueue_as(copy, 0), self._queue, None, reason)

    def _template_of(self, message: Message, reason: int) -> _Template:
        second = self._turn.now_ms // 1000
        cached = self._cached
        if cached is None or not cached.fits(message, reason, second):
            cached = self._cached = _Template(message, self._queue.name, reason, second, self._key)
        return cached

    # -- at-least-once -----------------------------------------------------------------------------------------------

    def _hold(self, entry: QueuedMessage, reason: int) -> None:
        self._held.append((entry, reason))
        if self._timer is None:
            broker = self._vhost.broker
            self._timer = broker.timers.schedule(broker.turn.now_ms + RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self.retry_held()

    def retry_held(self) -> None:
        """Drop the held messages again, by the queue's current options."""
        self._cancel_timer()
        held, self._held = self._held, []
        for entry, reason in held:
            self._queue.retry_drop(entry, reason)

    def stop(self) -> None:
        """The queue was deleted: discard the held messages."""
        self._cancel_timer()
        held, self._held = self._held, []
        for entry, _ in held:
            self._emit(schema.DROPPED, entry.message, entry.message.address, schema.R_QUEUE_DELETED)
            self._queue.discard(entry)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._vhost.broker.timers.cancel(self._timer)
            self._timer = None


class _Template:
    """The header and routing keys of a dead letter. `deaths` are those in the header, latest first.

    `extra_keys` is None if there are none. `route` is valid for one `topology` revision.
    """

    __slots__ = (
        "_message",
        "_reason",
        "_second",
        "deaths",
        "extra_keys",
        "header",
        "route",
        "routing_key",
        "topology",
    )

    def __init__(self, message: Message, queue: str, reason: int, second: int, key: str | None) -> None:
        self._message = make_message(message.address, message.header, b"")
        self._message.has_deaths = message.has_deaths
        self._message.blind_keys = message.blind_keys
        self._reason = reason
        self._second = second
        self.route: Route | None = None
        self.topology = -1
        header = message.header
        headers = properties.headers(header) or {}
        cc = headers.get("CC")
        keys = [message.routing_key, *(find_extra_keys({"CC": cc}) if isinstance(cc, list) else [])]
        expiration = properties.expiration(header)
        known = headers.get(DEATHS) if message.has_deaths else None
        deaths = _add_death(known or [], queue, reason, second, message.exchange, keys, expiration)
        first = headers if message.has_deaths else _described("first", deaths[0], message.exchange)
        last = _described("last", deaths[0], message.exchange)
        for name in (DEATHS, *_FIRST, *last):
            if name in headers:
                header = properties.without_header(header, name)
        entries = [_entry(DEATHS, _encode_deaths(deaths))]
        entries += [_entry(name, _encode_text(first[name])) for name in _FIRST if name in first]
        entries += [_entry(name, _encode_text(text)) for name, text in last.items()]
        if expiration is not None:
            header = properties.without_expiration(header)
        self.routing_key = message.routing_key if key is None else key
        self.extra_keys = [*keys[1:], *decode_blind_keys(message.blind_keys)] or None
        if key is not None:
            self.extra_keys = None
            if cc is not None:
                header = properties.without_header(header, "CC")
        self.header = properties.with_entry(header, b"".join(entries))
        self.deaths = deaths

    def fits(self, message: Message, reason: int, second: int) -> bool:
        """Return True if this message has the same dead-letter header and keys."""
        source = self._message
        return (
            reason == self._reason
            and second == self._second
            and message.has_deaths == source.has_deaths
            and message.header == source.header
            and message.address == source.address
            and message.blind_keys == source.blind_keys
        )


def is_cycle(queue: str, deaths: list[Death]) -> bool:
    """Return True if a message with these deaths was in the queue before and no consumer has rejected it since."""
    for death in deaths:
        if death.get("reason") == _REJECTED:
            return False
        if death.get("queue") == queue:
            return True
    return False


def _add_death(
    deaths: Sequence[Death],
    queue: str,
    reason: int,
    second: int,
    exchange: str,
    keys: list[str],
    expiration: str | None,
) -> list[Death]:
    """Return the deaths with one more in front; an entry for the same queue and reason is counted up instead."""
    name = schema.REASON_NAMES[reason]
    alike = [death for death in deaths if death["queue"] == queue and death["reason"] == name]
    others = [death for death in deaths if death not in alike]
    if alike:
        return [{**alike[0], "count": alike[0]["count"] + 1}, *others]
    death: Death = {"count": 1, "reason": name, "queue": queue, "time": Timestamp(second)}
    death |= {"exchange": exchange, "routing-keys": keys}
    if expiration is not None:
        death["original-expiration"] = expiration
    return [death, *others]


def _described(which: str, death: Death, exchange: str) -> dict[str, str]:
    return {
        f"x-{which}-death-exchange": exchange,
        f"x-{which}-death-queue": death["queue"],
        f"x-{which}-death-reason": death["reason"],
    }


# -- encoding, with RabbitMQ's field types, to which clients cast -----------------------------------------------------


def _encode_deaths(deaths: Sequence[Death]) -> bytes:
    return _encode_long(b"A", b"".join(_encode_death(death) for death in deaths))


def _encode_death(death: Death) -> bytes:
    fields = [
        _entry("count", b"l" + int(death["count"]).to_bytes(8, "big")),
        _entry("reason", _encode_text(death["reason"])),
        _entry("queue", _encode_text(death["queue"])),
        _entry("time", b"T" + encode_timestamp(death["time"])),
        _entry("exchange", _encode_text(death["exchange"])),
        _entry("routing-keys", _encode_long(b"A", b"".join(_encode_text(key) for key in death["routing-keys"]))),
    ]
    if "original-expiration" in death:
        fields.append(_entry("original-expiration", _encode_text(death["original-expiration"])))
    return _encode_long(b"F", b"".join(fields))


def _entry(name: str, value: bytes) -> bytes:
    return encode_shortstr(name) + value


def _encode_text(text: str | bytes) -> bytes:
    return _encode_long(b"S", text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text)


def _encode_long(kind: bytes, value: bytes) -> bytes:
    return kind + len(value).to_bytes(4, "big") + value
