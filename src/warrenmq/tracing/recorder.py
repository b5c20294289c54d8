"""The event sink of the core: decides what is traced, and writes a row for each event of that.

What the rules say of a way (exchange, queues) is worked out once per route and kept there (`Plan`), until the rules
change; so a message that is not traced costs a comparison or two. A row is written where the event happens, by a C call
into a buffer (events/rows.py); when the turn ends the rows go to the event log, which batches them.

Rows have numbers, which only grow. When an epoch holds durable work, the rows that are in no batch yet go with it: what
is durable has its events after a crash, too.

Owned by the loop thread. Compiled when the package is built (recorder.pxd).
"""

import secrets
import time
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
from warrenmq.tracing.trace_ids import is_republished, priority_of, sampling_hash, texts_of

if TYPE_CHECKING:
    from warrenmq.tracing.firehose import Firehose
    from warrenmq.tracing.log import EventLog
    from warrenmq.tracing.rules import RuleBook, TraceRule

# In a burst, where the clock was read twice within so many us, one reading counts for so many more events: it takes
# 35 ns or so, a third of what an event costs.
_BURST_US = 8
_EVENTS_PER_READING = 7

# So many rows are worth a batch of their own; fewer wait for more, for a while (log.py).
BATCH_ROWS = 131_072

_BATCH_ROWS = BATCH_ROWS  # as C integers
_REPUBLISHED = schema.REPUBLISHED
_ROUTED = schema.ROUTED
_ENQUEUED = schema.ENQUEUED
_DELIVERED = schema.DELIVERED
_AUTO_ACK = schema.R_AUTO_ACK
_BRIEF_ATTEMPTS = 255
_MESSAGE_ID_KEY = MESSAGE_ID_KEY
_ALL = 0xFFFF_FFFF_FFFF_FFFF
_EVENT_LOG = schema.STREAM_NAME  # nothing is told of it
_MULTIPLIER = 0x2545_F491_4F6C_DD1D
_CHANCES = 18446744073709551616.0
_MANY = 1 << 60


class Plan(RouteSampler):
    """What the rules of one `version` say of messages on one route.

    Messages with an id are traced if its hash is below the threshold. For those without, the number of messages to skip
    until the next traced one is drawn at once (`skip`, -1 until the first draw), which is cheaper than a draw for each.
    """

    __slots__ = ("header_rules", "recorder", "skip", "step", "threshold", "version")

    def __init__(self, recorder: "Recorder", ratio: float, header_rules: "list[TraceRule]") -> None:
        self.recorder = recorder
        self.version = recorder.version
        self.skip = -1
        self.threshold = threshold_of(ratio)
        share = self.threshold / _CHANCES
        self.step = 1.0 / log(1.0 - share) if 0.0 < share < 1.0 else 0.0
        self.header_rules: list[TraceRule] | None = header_rules or None

    def skips(self, header: bytes) -> bool:
        if self.skip > 0 and self.version == self.recorder.version and not has_ids(header):
            self.skip -= 1
            return True
        return False


class Recorder(EventSink):
    """`rows` are those of no batch yet; `numbered` is the number of the last row before them.

    `version` counts changes of the rules and of the firehose.
    """

    __slots__ = (
        "_chance",
        "_firehose",
        "_is_tapping",
        "_log",
        "_logged",
        "_now",
        "_priority",
        "_read_at",
        "_readings_left",
        "_rules",
        "_texts",
        "_told",
        "_uids",
        "_work",
        "commit_log",
        "numbered",
        "rows",
        "version",
    )

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.version = 1
        self.rows = Rows()
        self.numbered = 0
        self._logged = 0  # the last row that is in an epoch or with the event log
        self.commit_log = CommitLog()
        self._uids = UidClock()
        self._chance = seed or secrets.randbits(63) | 1
        self._is_tapping = False
        self._work = 0
        self._now = 0  # of the publish or commit that is under way: what follows from it is of the same time
        self._read_at = 0  # when the clock was read last, and for how many events more that counts
        self._readings_left = 0
        self._told = 0  # the uid of the message of the last row, its ids and its priority
        self._texts: bytes | None = None
        self._priority = 0
        self._rules: RuleBook | None = None
        self._firehose: Firehose | None = None
        self._log: EventLog | None = None

    def connect(
        self,
        rules: "RuleBook",
        firehose: "Firehose",
        log: "EventLog",
        commit_log: CommitLog,
        uids: UidClock,
        numbered: int = 0,
    ) -> None:
        """The broker is there: begin to listen as the rules say. `numbered` rows were there before."""
        self.numbered = self._logged = numbered
        self._uids = uids
        self._rules = rules
        self._firehose = firehose
        self._log = log
        self.commit_log = commit_log
        self.rules_changed()

    def rules_changed(self) -> None:
        """All plans are out of date; from the next publish on the new rules count."""
        assert self._rules is not None
        assert self._firehose is not None
        self.version += 1
        self._is_tapping = self._firehose.is_open
        self.is_watching = self._rules.is_keeping or self._is_tapping

    # -- what is traced ----------------------------------------------------------------------------------------------

    def published(self, channel: object, route: object, message: Message, queues: list[Queue]) -> None:
        publisher: Channel = channel  # type: ignore[assignment]
        way: Route = route  # type: ignore[assignment]
        if self._is_tapping and publisher.vhost.is_tapped:
            self._firehose.published(publisher, message, queues)  # type: ignore[union-attr]
            self.has_events = True
        plan = way.sampler if isinstance(way.sampler, Plan) else None
        if plan is None or plan.version != self.version or queues is not way.queues:
            plan = self._make_plan(publisher, way, queues)
        if plan.threshold != _ALL and not self._is_drawn(plan, way, queues, message.header):
            return
        self._begin(message, publisher, queues is way.queues and len(queues) != 0 and publisher.transaction is None)

    def _begin(self, message: Message, publisher: Channel, is_routed: bool) -> None:
        """The first row of a message, and that it is routed where that is sure: elsewhere it may yet be dropped."""
        self.has_events = True
        now = self._now = self._read_clock()
        uid = self._told = message.uid = self._uids.next(now)
        message.publish_time = now
        self._texts = texts_of(message.header)
        self._priority = priority_of(message.header)
        is_new = not is_republished(message.header)
        if is_routed and is_new:
            self.routed_uid = uid
        context = self._publisher_context(message.address, publisher)
        self.rows.put_published(is_routed and is_new, context, now, uid, self._texts, message.size, self._priority)
        if not is_new:
            self._put(_REPUBLISHED, 0, context, now, message, -1, 0)

    def _make_plan(self, publisher: Channel, way: Route, queues: list[Queue]) -> Plan:
        assert self._rules is not None
        ratio, header_rules = self._rules.find(publisher.vhost.name, way.exchange.name, queues)
        plan = Plan(self, ratio, header_rules)
        if queues is way.queues:
            way.sampler = plan
        return plan

    def _is_drawn(self, plan: Plan, way: Route, queues: list[Queue], header: bytes) -> bool:
        """Whether a sample has this message: by its id, so that all with that id are in or out, or by chance."""
        if plan.header_rules is not None:
            return self._is_wanted(plan, plan.header_rules, header)
        if has_ids(header):
            return plan.threshold != 0 and sampling_hash(header, _MESSAGE_ID_KEY) < plan.threshold
        if queues is not way.queues or self._is_tapping:
            return self._chance_of_64_bits() < plan.threshold
        is_due = plan.skip == 0
        if plan.skip > 0:
            plan.skip -= 1  # a message that was inspected: the channel does not ask the sampler about those
            return False
        plan.skip = self._draw_skip(plan)
        return is_due or self._chance_of_64_bits() < plan.threshold

    def _is_wanted(self, plan: Plan, rules: "list[TraceRule]", header: bytes) -> bool:
        """The same where rules ask for headers: the one that takes the most counts."""
        threshold = plan.threshold
        headers = properties.headers(header) or {}
        for rule in rules if headers else ():
            if rule.matches_headers(headers):
                threshold = max(threshold, threshold_of(rule.ratio))
        if threshold != 0 and has_ids(header):
            return threshold == _ALL or sampling_hash(header, _MESSAGE_ID_KEY) < threshold
        return threshold == _ALL or self._chance_of_64_bits() < threshold

    def _draw_skip(self, plan: Plan) -> int:
        """Draw the number of messages until the next traced one, where each has the same chance."""
        if plan.threshold == 0:
            return _MANY
        luck = (self._chance_of_64_bits() + 1.0) / _CHANCES
        skip = log(luck) * plan.step
        return int(skip) if skip < _MANY else _MANY

    def _chance_of_64_bits(self) -> int:
        chance = self._chance  # xorshift*
        chance ^= chance >> 12
        chance ^= chance << 25 & _ALL
        chance ^= chance >> 27
        self._chance = chance
        return chance * _MULTIPLIER & _ALL

    # -- what happens ------------------------------------------------------------------------------------------------

    def message_event(self, kind: int, message: Message, channel: object, reason: int) -> None:
        publisher: Channel = channel  # type: ignore[assignment]
        if kind != _ROUTED:
            self._now = self._read_clock()
        self.has_events = True
        self._put(kind, reason, self._publisher_context(message.address, publisher), self._now, message, -1, 0)

    def _publisher_context(self, address: bytes, publisher: Channel) -> int:
        rows = self.rows
        context = rows.context_cache.find(address, publisher, None)
        if context < 0:
            context = rows.context_of(
                address, publisher.vhost_name, None, None, publisher.connection_name, publisher.number
            )
            rows.context_cache.add(context, -1, address, publisher, None)
        return context

    def _put(self, kind: int, reason: int, context: int, now: int, message: Message, depth: int, attempt: int) -> None:
        if message.uid != self._told:
            self._told = message.uid  # most events are of the same message as the one before
            self._texts = texts_of(message.header)
            self._priority = priority_of(message.header)
        self.rows.put(
            kind,
            reason,
            False,
            context,
            now,
            message.uid,
            message.publish_time,
            self._texts,
            message.enqueue_time,
            message.size,
            depth,
            attempt,
            self._priority,
        )

    def enqueued(self, message: Message, queue: object, depth: int) -> None:
        place: Queue = queue  # type: ignore[assignment]
        now = self._now
        if message.enqueue_time == 0:
            message.enqueue_time = now
        self.has_events = True
        rows = self.rows
        address = message.address
        context = rows.context_cache.find(address, place, None)
        if context < 0:
            context = rows.context_of(address, place.vhost, place.name, None, None, 0)
            rows.context_cache.add(context, -1, address, place, None)
        if self._is_at(now, message):
            rows.put_short(_ENQUEUED, 0, context, depth, 0)
        else:
            self._put(_ENQUEUED, 0, context, now, message, depth, 0)

    def advance_clock(self) -> None:
        now = self._read_clock()
        if now <= self._now:
            now = self._read_at = self._now + 1
        self._now = now

    def _is_at(self, now: int, message: Message) -> bool:
        """Whether the last row was of this message and of this time, and it came to its queue then."""
        rows = self.rows
        return message.uid == self._told and rows.time == now and message.enqueue_time == now

    def queue_event(self, kind: int, entry: QueuedMessage, queue: object, who: object, reason: int) -> None:
        place: Queue = queue  # type: ignore[assignment]
        message = entry.message
        address = message.address
        # Where somebody has to do with it, the consumer it was handed to says it all: that belongs to one channel.
        known = who if who is None or entry.consumer is None else entry.consumer
        context = -1 if known is None else self.rows.context_cache.find(address, place, known)
        if context < 0:
            context = self._queue_context(address, place, entry.consumer, who, known)
        self._tell(kind, reason, context, message, place, entry.attempts)

    def direct_delivery(self, message: Message, queue: object, consumer: object) -> None:
        place: Queue = queue  # type: ignore[assignment]
        now = self._now  # of the publish, which is under way
        if message.enqueue_time == 0:
            message.enqueue_time = now
        self.has_events = True
        rows = self.rows
        context = rows.context_cache.find(message.address, place, consumer)
        if context < 0:
            context = self._queue_context(message.address, place, None, consumer, consumer)
        if self._is_at(now, message):
            rows.put_direct_delivery(rows.context_cache.enqueue_context, context, 1)
        else:
            self._put(_ENQUEUED, 0, rows.context_cache.enqueue_context, now, message, 1, 0)
            self._put(_DELIVERED, _AUTO_ACK, context, now, message, 0, 1)

    def _tell(self, kind: int, reason: int, context: int, message: Message, place: Queue, attempts: int) -> None:
        """A row about the message in one queue."""
        self.has_events = True
        depth = place.backlog.waiting if isinstance(place, ClassicQueue) else -1
        now = self._read_clock()
        if self._is_at(now, message) and attempts <= _BRIEF_ATTEMPTS:
            self.rows.put_short(kind, reason, context, depth, attempts)
        else:
            self._put(kind, reason, context, now, message, depth, attempts)

    def _read_clock(self) -> int:
        """Microseconds since 1970, a few too early at most."""
        if self._readings_left > 0:
            self._readings_left -= 1
            return self._read_at
        now = now_us()
        self._readings_left = _EVENTS_PER_READING if now - self._read_at < _BURST_US else 0
        self._read_at = now
        return now

    def _queue_context(self, address: bytes, place: Queue, holder: object, who: object, known: object) -> int:
        """One that was not found; it will be by `known`, if that is not None."""
        rows = self.rows
        tag: str | None = None
        connection: str | None = None
        number = 0
        receiver: object = who
        if holder is not None:
            consumer: Consumer = holder  # type: ignore[assignment]
            tag = consumer.tag
        if isinstance(who, Consumer):
            consumer = who
            tag = consumer.tag
            receiver = consumer.channel
        if receiver is not None:
            channel: Channel = receiver  # type: ignore[assignment]
            connection = channel.connection_name
            number = channel.number
        context = rows.context_of(address, place.vhost, place.name, tag, connection, number)
        if known is not None:
            before = rows.context_of(address, place.vhost, place.name, None, None, 0)
            rows.context_cache.add(context, before, address, place, known)
        return context

    def firehose_delivery(self, entry: QueuedMessage, queue: object, who: object) -> None:
        assert self._firehose is not None
        self._firehose.delivered(entry, queue, who)  # type: ignore[arg-type]
        self.has_events = True

    def resource_event(self, kind: int, vhost: str, fields: dict[str, Any]) -> None:
        assert self._rules is not None
        if fields.get("queue") != _EVENT_LOG and self._rules.keeps_vhost(vhost):
            self.has_events = True
            self._told = 0  # the next row of a message does not follow from one of its own
            self._readings_left = 0
            self.rows.add_event(kind, now_us(), vhost=vhost, **fields)

    # -- the turn ----------------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        self.has_events = False
        self._readings_left = 0
        if self._firehose is not None and self._firehose.has_copies:
            self._firehose.publish()
        rows = self.rows
        log = self._log
        if rows.count == 0 or log is None:
            return
        if rows.is_full(_BATCH_ROWS):
            self.hand_over()
        else:
            log.expect_rows()

    def end_epoch(self) -> None:
        """The open epoch is about to be closed: if it holds anything durable, the rows so far go with it."""
        if self.commit_log.work == self._work:
            return
        self._work = self.commit_log.work
        raw = self.rows.take_unlogged()
        if raw is not None and self._log is not None and self._log.is_keeping:
            last = self.numbered + self.rows.count
            self.commit_log.put_events(self._logged + 1, last, raw)
            self._logged = last

    def relog(self) -> None:
        """Put all rows into the open epoch, also those that were put into one before."""
        if self.rows.count:
            self.rows.take_unlogged()
            self._logged = self.numbered + self.rows.count
            self.commit_log.put_events(self.numbered + 1, self._logged, self.rows.to_bytes())

    def hand_over(self) -> None:
        """Give all rows to the event log."""
        assert self._log is not None
        if self.rows.count:
            self.end_epoch()  # the epoch of what they tell of may still be open, and must have them
            first = self.numbered + 1
            self.numbered += self.rows.count
            self._logged = self.numbered
            self._log.take(self.rows.take(), first, self.numbered)


def has_ids(header: bytes) -> bool:
    """Return True for a message with a message id or a correlation id: all messages with one id are sampled alike.

    Here and not in trace_ids.py, so that the C compiler inlines it: it is called for each message that is skipped.
    """
    return (header[12] & 0x04) | (header[13] & 0x80) != 0


def threshold_of(ratio: float) -> int:
    """A share of all hashes of 64 bits."""
    if ratio >= 1:
        return _ALL
    high = int(ratio * 4294967296.0)
    return high << 32


def now_us() -> int:
    """Microseconds since 1970."""
    if cython.compiled:
        clock_gettime(CLOCK_REALTIME, cython.address(_clock))  # type: ignore[name-defined]  # noqa: F821
        return _clock.tv_sec * 1000000 + _clock.tv_nsec // 1000  # type: ignore[name-defined,no-any-return]  # noqa: F821
    return time.time_ns() // 1000
