# cython: nonecheck=False
"""The event sink of the core: decides which messages are traced, and writes a row for each of their events.

What the rules say of a route (exchange and queues) is computed once and cached with the route (`Plan`) until the rules
change, so an untraced message costs a comparison or two. A row is written where the event happens, by a C call into a
buffer (events/rows.py). At the end of the turn the event log takes the rows and batches them.

Rows are numbered. When an epoch has durable work, the rows that are in no batch yet are logged with it, so that durable
messages have their events after a crash.

Owned by the loop thread. Compiled when the package is built (recorder.pxd).
"""

import time
from random import random
from typing import TYPE_CHECKING, Any

try:
    import cython
except ImportError:
    from warrenmq.events.uncompiled import cython

if cython.compiled:
    from cython.cimports.libc.math import log
    from cython.cimports.posix.time import CLOCK_REALTIME, clock_gettime
else:
    from math import log

from warrenmq.core.channel import Channel
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.consumer import Consumer
from warrenmq.core.exchange import Route
from warrenmq.core.message import Message, QueuedMessage
from warrenmq.core.ports import CommitLog, EventSink, RouteSampler
from warrenmq.core.queue import Queue
from warrenmq.events import schema
from warrenmq.events.ids import MESSAGE_ID_KEY, UidClock
from warrenmq.events.rows import Rows
from warrenmq.protocol import properties
from warrenmq.tracing.trace_ids import is_republished, message_ids_of, priority_of, sampling_hash

if TYPE_CHECKING:
    from warrenmq.tracing.firehose import Firehose
    from warrenmq.tracing.log import EventLog
    from warrenmq.tracing.rules import RuleBook, TraceRule

# If the clock was read twice within this time (a burst), one reading serves that many more events: it takes 35 ns, a
# third of the cost of an event.
_BURST_US = 8
_EVENTS_PER_READING = 7

# The rows of a full batch; fewer wait for more, for a while (log.py).
BATCH_ROWS = 131_072

_BATCH_ROWS = BATCH_ROWS  # as C integers
_REPUBLISHED = schema.REPUBLISHED
_ROUTED = schema.ROUTED
_ENQUEUED = schema.ENQUEUED
_DELIVERED = schema.DELIVERED
_AUTO_ACK = schema.R_AUTO_ACK
_MAX_SHORT_ATTEMPTS = 255
_MESSAGE_ID_KEY = MESSAGE_ID_KEY
_ALL_BITS = 0xFFFF_FFFF_FFFF_FFFF
_EVENT_LOG = schema.STREAM_NAME  # not traced itself
_RANDOM_RANGE = 18446744073709551616.0
_MAX_SKIP = 1 << 60


class Plan(RouteSampler):
    """What the rules of one `version` say of messages on one route.

    Messages with an id are traced if its hash is below the threshold. For those without, the number of messages to skip
    until the next traced one is drawn in advance (`skip`, -1 before the first draw), cheaper than a draw for each.
    """

    __slots__ = ("header_rules", "recorder", "skip", "step", "threshold", "version")

    def __init__(self, recorder: "Recorder", ratio: float, header_rules: "list[TraceRule]") -> None:
        self.recorder = recorder
        self.version = recorder.version
        self.skip = -1
        self.threshold = threshold_of(ratio)
        share = self.threshold / _RANDOM_RANGE
        self.step = 1.0 / log(1.0 - share) if 0.0 < share < 1.0 else 0.0
        self.header_rules: list[TraceRule] | None = header_rules or None

    def skips(self, header: bytes) -> bool:
        if self.skip > 0 and self.version == self.recorder.version and not has_ids(header):
            self.skip -= 1
            return True
        return False


class Recorder(EventSink):
    """`rows` are in no batch yet; `last_batched` is the number of the row before them.

    `version` counts changes of the rules and of the firehose.
    """

    __slots__ = (
        "_durable_work",
        "_firehose",
        "_is_tapping",
        "_log",
        "_logged",
        "_message_ids",
        "_now",
        "_priority",
        "_read_at",
        "_readings_left",
        "_row_uid",
        "_rules",
        "_uids",
        "commit_log",
        "last_batched",
        "rows",
        "version",
    )

    def __init__(self) -> None:
        super().__init__()
        self.version = 1
        self.rows = Rows()
        self.last_batched = 0
        self._logged = 0  # the last row that was put into an epoch or handed to the event log
        self.commit_log = CommitLog()
        self._uids = UidClock()
        self._is_tapping = False
        self._durable_work = 0
        self._now = 0  # time of the current publish or commit, shared by the events that follow from it
        self._read_at = 0  # when the clock was read last, and how many more events that serves
        self._readings_left = 0
        self._row_uid = 0  # the message of the last row: its uid, ids and priority
        self._message_ids: bytes | None = None
        self._priority = 0
        self._rules: RuleBook  # from `connect` on; before there are no events
        self._firehose: Firehose
        self._log: EventLog

    def connect(
        self,
        rules: "RuleBook",
        firehose: "Firehose",
        log: "EventLog",
        commit_log: CommitLog,
        uids: UidClock,
        last_batched: int = 0,
    ) -> None:
        """Begin to record as the rules say. Row numbers continue after `last_batched`."""
        self.last_batched = self._logged = last_batched
        self._uids = uids
        self._rules = rules
        self._firehose = firehose
        self._log = log
        self.commit_log = commit_log
        self.rules_changed()

    def rules_changed(self) -> None:
        """Apply the new rules from the next publish on."""
        self.version += 1
        self._is_tapping = self._firehose.is_open
        self.is_watching = self._rules.is_keeping or self._is_tapping

    # -- what is traced ----------------------------------------------------------------------------------------------

    def published(self, channel: object, route: object, message: Message, queues: list[Queue]) -> None:
        publisher: Channel = channel  # type: ignore[assignment]
        cached_route: Route = route  # type: ignore[assignment]
        if self._is_tapping and publisher.vhost.is_tapped:
            self._firehose.published(publisher, message, queues)
            self.has_events = True
        plan = cached_route.sampler if isinstance(cached_route.sampler, Plan) else None
        if plan is None or plan.version != self.version or queues is not cached_route.queues:
            plan = self._make_plan(publisher, cached_route, queues)
        if plan.threshold != _ALL_BITS and not self._is_sampled(plan, cached_route, queues, message.header):
            return
        self._put_published(
            message, publisher, queues is cached_route.queues and len(queues) != 0 and publisher.transaction is None
        )

    def _put_published(self, message: Message, publisher: Channel, is_routed: bool) -> None:
        """Put the first row of a message. Includes `routed` if that is certain: otherwise it may be dropped."""
        self.has_events = True
        now = self._now = self._read_clock()
        uid = self._row_uid = message.uid = self._uids.next(now)
        message.publish_time = now
        self._message_ids = message_ids_of(message.header)
        self._priority = priority_of(message.header)
        is_new = not is_republished(message.header)
        if is_routed and is_new:
            self.routed_uid = uid
        context = self._publisher_context(message.address, publisher)
        self.rows.put_published(
            is_routed and is_new, context, now, uid, self._message_ids, message.size, self._priority
        )
        if not is_new:
            self._put(_REPUBLISHED, 0, context, now, message, -1, 0)

    def _make_plan(self, publisher: Channel, cached_route: Route, queues: list[Queue]) -> Plan:
        ratio, header_rules = self._rules.find(publisher.vhost.name, cached_route.exchange.name, queues)
        plan = Plan(self, ratio, header_rules)
        if queues is cached_route.queues:
            cached_route.sampler = plan
        return plan

    def _is_sampled(self, plan: Plan, cached_route: Route, queues: list[Queue], header: bytes) -> bool:
        """Decide by the id, so that all messages with that id are traced or none; without an id, at random."""
        if plan.header_rules is not None:
            return self._is_sampled_by_header(plan, plan.header_rules, header)
        if has_ids(header):
            return plan.threshold != 0 and sampling_hash(header, _MESSAGE_ID_KEY) < plan.threshold
        if queues is not cached_route.queues or self._is_tapping:
            return random() * _RANDOM_RANGE < plan.threshold
        was_due = plan.skip == 0
        if plan.skip > 0:
            plan.skip -= 1  # the channel does not ask the sampler about messages that it inspects
            return False
        plan.skip = self._draw_skip(plan)
        return was_due or random() * _RANDOM_RANGE < plan.threshold

    def _is_sampled_by_header(self, plan: Plan, rules: "list[TraceRule]", header: bytes) -> bool:
        """Decide with the largest ratio among the rules whose headers match."""
        threshold = plan.threshold
        headers = properties.headers(header) or {}
        for rule in rules if headers else ():
            if rule.matches_headers(headers):
                threshold = max(threshold, threshold_of(rule.ratio))
        if threshold != 0 and has_ids(header):
            return threshold == _ALL_BITS or sampling_hash(header, _MESSAGE_ID_KEY) < threshold
        return threshold == _ALL_BITS or random() * _RANDOM_RANGE < threshold

    def _draw_skip(self, plan: Plan) -> int:
        """Draw the number of messages until the next traced one, where each has the same chance."""
        if plan.threshold == 0:
            return _MAX_SKIP
        skip = log(1.0 - random()) * plan.step
        return int(skip) if skip < _MAX_SKIP else _MAX_SKIP

    # -- what happens ------------------------------------------------------------------------------------------------

    def message_event(self, kind: int, message: Message, channel: object, reason: int) -> None:
        publisher: Channel = channel  # type: ignore[assignment]
        if kind != _ROUTED:
            self._now = self._read_clock()
        self._put(kind, reason, self._publisher_context(message.address, publisher), self._now, message, -1, 0)

    def enqueued(self, message: Message, queue: object, depth: int) -> None:
        target: Queue = queue  # type: ignore[assignment]
        if message.enqueue_time == 0:
            message.enqueue_time = self._now
        context = self._queue_context(message.address, target, None, None)
        self._put(_ENQUEUED, 0, context, self._now, message, depth, 0)

    def advance_clock(self) -> None:
        now = self._read_clock()
        if now <= self._now:
            now = self._read_at = self._now + 1
        self._now = now

    def queue_event(self, kind: int, entry: QueuedMessage, queue: object, who: object, reason: int) -> None:
        target: Queue = queue  # type: ignore[assignment]
        message = entry.message
        context = self._queue_context(message.address, target, entry.consumer, who)
        depth = target.backlog.waiting if isinstance(target, ClassicQueue) else -1
        self._put(kind, reason, context, self._read_clock(), message, depth, entry.attempts)

    def detailed_event(
        self,
        kind: int,
        entry: QueuedMessage,
        queue: object,
        who: object,
        reason: int,
        due_ms: int,
        retry_max: int,
        note: bytes | None,
    ) -> None:
        self._row_uid = 0  # the row must not be a short one, which has no details
        self.queue_event(kind, entry, queue, who, reason)
        self.rows.put_details(due_ms * 1000, retry_max, note)

    def direct_delivery(self, message: Message, queue: object, consumer: object) -> None:
        target: Queue = queue  # type: ignore[assignment]
        now = self._now  # of the current publish
        if message.enqueue_time == 0:
            message.enqueue_time = now
        rows = self.rows
        context = self._queue_context(message.address, target, None, consumer)
        if self._continues_row(now, message):
            self.has_events = True
            rows.put_direct_delivery(rows.context_cache.enqueue_context, context, 1)
        else:
            self._put(_ENQUEUED, 0, rows.context_cache.enqueue_context, now, message, 1, 0)
            self._put(_DELIVERED, _AUTO_ACK, context, now, message, 0, 1)

    def _put(self, kind: int, reason: int, context: int, now: int, message: Message, depth: int, attempt: int) -> None:
        """Put a row about a message; null: -1 for the depth, 0 for the attempt."""
        self.has_events = True
        if self._continues_row(now, message) and attempt <= _MAX_SHORT_ATTEMPTS:
            self.rows.put_short(kind, reason, context, depth, attempt)
            return
        if message.uid != self._row_uid:
            self._row_uid = message.uid  # most events are of the same message as the one before
            self._message_ids = message_ids_of(message.header)
            self._priority = priority_of(message.header)
        self.rows.put(
            kind,
            reason,
            False,
            context,
            now,
            message.uid,
            message.publish_time,
            self._message_ids,
            message.enqueue_time,
            message.size,
            depth,
            attempt,
            self._priority,
        )

    def _continues_row(self, now: int, message: Message) -> bool:
        """Return True if a short row is enough: the last row has the same message, time and enqueue time."""
        return message.uid == self._row_uid and self.rows.time == now and message.enqueue_time == now

    def _publisher_context(self, address: bytes, publisher: Channel) -> int:
        rows = self.rows
        context = rows.context_cache.find(address, publisher, None)
        if context < 0:
            context = rows.context_of(
                address, publisher.vhost_name, None, None, publisher.connection_name, publisher.number
            )
            rows.context_cache.add(context, -1, address, publisher, None)
        return context

    def _queue_context(self, address: bytes, target: Queue, holder: object, who: object) -> int:
        """Return the context of an event in a queue: the consumer that has the message, and who caused the event."""
        if who is None and holder is not None:
            return self._make_queue_context(address, target, holder, None)
        key = who if holder is None else holder  # which identifies the channel as well
        context = self.rows.context_cache.find(address, target, key)
        if context < 0:
            context = self._make_queue_context(address, target, holder, who)
            before = self.rows.context_of(address, target.vhost, target.name, None, None, 0)
            self.rows.context_cache.add(context, before, address, target, key)
        return context

    def _make_queue_context(self, address: bytes, target: Queue, holder: object, who: object) -> int:
        consumer: Consumer = who if isinstance(who, Consumer) else holder  # type: ignore[assignment]
        channel: Channel = who.channel if isinstance(who, Consumer) else who  # type: ignore[assignment]
        tag = None if consumer is None else consumer.tag
        connection = None if channel is None else channel.connection_name
        number = 0 if channel is None else channel.number
        return self.rows.context_of(address, target.vhost, target.name, tag, connection, number)

    def _read_clock(self) -> int:
        """Return microseconds since 1970, at most a few too early."""
        if self._readings_left > 0:
            self._readings_left -= 1
            return self._read_at
        now = now_us()
        self._readings_left = _EVENTS_PER_READING if now - self._read_at < _BURST_US else 0
        self._read_at = now
        return now

    def firehose_delivery(self, entry: QueuedMessage, queue: object, who: object) -> None:
        self._firehose.delivered(entry, queue, who)  # type: ignore[arg-type]
        self.has_events = True

    def resource_event(self, kind: int, vhost: str, fields: dict[str, Any]) -> None:
        if fields.get("queue") != _EVENT_LOG and self._rules.keeps_vhost(vhost):
            self.has_events = True
            self._row_uid = 0  # the next row cannot be a short one
            self._readings_left = 0
            self.rows.add_event(kind, now_us(), vhost=vhost, **fields)

    # -- the turn ----------------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        self.has_events = False
        self._readings_left = 0
        if self._firehose.has_copies:
            self._firehose.publish()
        if self.rows.is_full(_BATCH_ROWS):
            self.hand_over()
        elif self.rows.count:
            self._log.expect_rows()

    def end_epoch(self) -> None:
        """Put the rows so far into the epoch that is about to be closed, if it has durable work."""
        if self.commit_log.work == self._durable_work:
            return
        self._durable_work = self.commit_log.work
        raw = self.rows.take_unlogged()
        if raw is not None and self._log.is_keeping:
            last = self.last_batched + self.rows.count
            self.commit_log.put_events(self._logged + 1, last, raw)
            self._logged = last

    def relog(self) -> None:
        """Put all rows into the open epoch again."""
        if self.rows.count:
            self.rows.take_unlogged()
            self._logged = self.last_batched + self.rows.count
            self.commit_log.put_events(self.last_batched + 1, self._logged, self.rows.to_bytes())

    def hand_over(self) -> None:
        """Give all rows to the event log."""
        if self.rows.count:
            self.end_epoch()  # their epoch may still be open, and must have them
            first = self.last_batched + 1
            self.last_batched += self.rows.count
            self._logged = self.last_batched
            taken = self.rows
            self.rows = taken.successor()
            self._log.take(taken, first, self.last_batched)


def has_ids(header: bytes) -> bool:
    """Return True for a message with a message id or a correlation id: all messages with one id are sampled alike.

    Here and not in trace_ids.py, so that the C compiler inlines it: it runs for each skipped message.
    """
    return (header[12] & 0x04) | (header[13] & 0x80) != 0


def threshold_of(ratio: float) -> int:
    """Return the 64-bit hash below which this share of all hashes lies."""
    if ratio >= 1:
        return _ALL_BITS
    high = int(ratio * 4294967296.0)
    return high << 32


def now_us() -> int:
    """Microseconds since 1970."""
    if cython.compiled:
        clock_gettime(CLOCK_REALTIME, cython.address(_clock))  # type: ignore[name-defined]  # noqa: F821
        return _clock.tv_sec * 1000000 + _clock.tv_nsec // 1000  # type: ignore[name-defined,no-any-return]  # noqa: F821
    return time.time_ns() // 1000
