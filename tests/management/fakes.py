"""A node without tracing behind the ports of `management`: complete biographies, and rules in a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from warrenmq.core.broker import Broker
from warrenmq.core.users import EVERYTHING
from warrenmq.events import schema
from warrenmq.events.ids import parse_uid
from warrenmq.events.schema import Event
from warrenmq.management.ports import Origin
from warrenmq.management.view import NodeView
from warrenmq.storage.memory_store import MemoryStorage
from warrenmq.tracing.biography import Biography, build_biography
from warrenmq.tracing.rules import TraceRule, parse_rule
from warrenmq.tracing.search import TracePage, TraceQuery, TracingUnavailable, summarize

BEGIN = 1_794_804_600_123_456  # 2026-11-16 04:50:00.123456 UTC
UID = 0x0654_3210_FEDC_BA98
CONNECTION = "127.0.0.1:53422 -> 127.0.0.1:5672"


class FakeReader:
    """Tells the stories it is given. `queries` are those it was asked; `failure` makes it fail."""

    def __init__(self, *biographies: Biography, failure: str = "") -> None:
        self.biographies = list(biographies)
        self.queries: list[TraceQuery] = []
        self.failure = failure
        self.page_size = 1000  # the most that one call returns

    async def biography(self, key: str) -> Biography | None:
        self._fail()
        return next((each for each in self.biographies if key == each.message_id or parse_uid(key) == each.uid), None)

    async def search(self, query: TraceQuery) -> TracePage:
        self._fail()
        self.queries.append(query)
        found = [summarize(each.events) for each in self.biographies if _fits(each, query)]
        begin = _offset(query.cursor)
        end = begin + min(query.limit, self.page_size)
        return TracePage(found[begin:end], str(end) if end < len(found) else None)

    def _fail(self) -> None:
        if self.failure:
            raise TracingUnavailable(self.failure)


class FakeRules:
    """Rules that are checked as the real ones are, and kept in a dictionary."""

    def __init__(self, *rules: TraceRule) -> None:
        self.rules = {rule.name: rule for rule in rules}

    def all(self) -> list[TraceRule]:
        return list(self.rules.values())

    async def put(self, name: str, definition: Mapping[str, Any]) -> bool:
        self._require_changeable(name)
        is_new = name not in self.rules
        self.rules[name] = parse_rule(name, definition)
        return is_new

    async def remove(self, name: str) -> bool:
        self._require_changeable(name)
        return self.rules.pop(name, None) is not None

    def _require_changeable(self, name: str) -> None:
        if name in self.rules and self.rules[name].is_fixed:
            raise ValueError(f"the rule '{name}' comes from the settings of the broker")


class FakeFirehose:
    """Knows where it is open, and nothing else."""

    def __init__(self, *vhosts: str) -> None:
        self._is_open = dict.fromkeys(vhosts, False)

    def open_vhosts(self) -> list[str]:
        return [vhost for vhost, is_open in self._is_open.items() if is_open]

    def switch(self, vhost: str, is_open: bool) -> bool:
        if vhost in self._is_open:
            self._is_open[vhost] = is_open
        return vhost in self._is_open


class FakeNode:
    """A node with an administrator `guest`, `limited` who monitors only `other`, and `plain` without tags."""

    def __init__(self, *biographies: Biography, rules: Sequence[TraceRule] = (), failure: str = "") -> None:
        self.broker = Broker(MemoryStorage())
        self.broker.add_vhost("other")
        self.broker.users.add("guest", "guest", ["administrator"])
        self.broker.users.grant("guest", None, EVERYTHING, EVERYTHING, EVERYTHING)
        self.broker.users.add("limited", "secret", ["monitoring"])
        self.broker.users.grant("limited", "other", EVERYTHING, EVERYTHING, EVERYTHING)
        self.broker.users.add("plain", "secret")
        self.broker.users.grant("plain", None, EVERYTHING, EVERYTHING, EVERYTHING)
        self.reader = FakeReader(*biographies, failure=failure)
        self.rules = FakeRules(*rules)
        self.firehose = FakeFirehose(*self.broker.vhosts)
        self.log_failure: str | None = None

    async def login(self, name: str, password: str, origin: Origin) -> bool:
        return self.broker.users.authenticate(name, password)

    def state(self) -> dict[str, Any]:
        enabled = any(rule.enabled and rule.ratio > 0 for rule in self.rules.all())
        return {"enabled": enabled, "kept": 12_345, "dropped": 0, "failure": self.log_failure}

    def view(self) -> NodeView:
        return NodeView(
            self.broker,
            lambda: (True, ""),
            lambda: 0.5,
            "9.9",
            login=self.login,
            traces=self.reader,
            rules=self.rules,
            firehose=self.firehose,
            tracing_state=self.state,
        )


def story(message_id: str | None = "order-17", uid: int = UID, queue: str = "shipping") -> Biography:
    """Fanout to three queues, a requeue, a second consumer, acks, and a republish into one of them."""
    told = Telling(message_id, uid)
    told.at(0, schema.PUBLISHED)
    told.at(12, schema.ROUTED)
    for late, name in enumerate((queue, "billing", "audit")):
        told.at(20 + late, schema.ENQUEUED, queue=name, depth=1)
    told.at(310, schema.CONFIRMED)
    told.at(1_800, schema.DELIVERED, queue="audit", consumer="auditor", attempt=1, reason=schema.R_AUTO_ACK, depth=0)
    told.at(2_400, schema.DELIVERED, queue=queue, consumer="packer-1", attempt=1, depth=0)
    told.at(2_900, schema.DELIVERED, queue="billing", consumer="clerk", attempt=1, depth=0)
    told.at(7_400, schema.REQUEUED, queue=queue, consumer="packer-1", attempt=1, reason=schema.R_CONNECTION_CLOSED)
    told.at(9_100, schema.DELIVERED, queue=queue, consumer="packer-2", attempt=2, depth=0)
    told.at(11_900, schema.ACKED, queue="billing", consumer="clerk", attempt=1)
    told.at(14_200, schema.ACKED, queue=queue, consumer="packer-2", attempt=2)
    again: dict[str, Any] = {"uid": uid + 1_000_000, "source_uid": uid}
    told.at(16_000, schema.REPUBLISHED, **again)
    told.at(16_020, schema.ENQUEUED, queue="billing", depth=1, **again)
    told.at(17_000, schema.DELIVERED, queue="billing", consumer="clerk", attempt=1, depth=0, **again)
    told.at(18_500, schema.ACKED, queue="billing", consumer="clerk", attempt=1, **again)
    return told.biography()


def killed_story() -> Biography:
    """The broker was killed while a consumer had it, and another got it after the start."""
    told = Telling("order-18", UID)
    told.at(0, schema.PUBLISHED)
    told.at(20, schema.ENQUEUED, queue="shipping", depth=1)
    told.at(2_000, schema.DELIVERED, queue="shipping", consumer="packer-1", attempt=1, depth=0)
    told.at(9_000, schema.DELIVERED, queue="shipping", consumer="packer-2", attempt=1, depth=0)
    told.at(12_000, schema.ACKED, queue="shipping", consumer="packer-2", attempt=1, depth=0)
    return told.biography()


def purged_story() -> Biography:
    """It waited on disk when its queue was purged."""
    told = Telling("order-19", UID)
    told.at(0, schema.PUBLISHED)
    told.at(20, schema.ENQUEUED, queue="shipping", depth=1)
    at_once = Event(BEGIN + 5_020, schema.DROPPED, 0, vhost="/", queue="shipping", reason=schema.R_PURGED, depth=12_000)
    return begun([*told.events, at_once])


def retried_story() -> Biography:
    """Scheduled, released, and rejected with a note: it waits for its second attempt."""
    told = Telling("order-21", UID)
    told.at(0, schema.PUBLISHED)
    told.at(20, schema.SCHEDULED, queue="warren.scheduled", due_time=BEGIN + 1_500_000)
    told.at(1_500_100, schema.ENQUEUED, queue="shipping", depth=1)
    told.at(1_600_000, schema.DELIVERED, queue="shipping", consumer="packer-1", attempt=1, depth=0)
    told.at(1_700_000, schema.NOTED, queue="shipping", consumer="packer-1", attempt=1, note="no such account \x1b[2J")
    told.at(1_700_020, schema.REJECTED, queue="shipping", consumer="packer-1", attempt=1, depth=0)
    retry = {"reason": schema.R_REJECTED, "due_time": BEGIN + 5_700_000, "retry_max": 16}
    told.at(1_700_030, schema.RETRIED, queue="shipping", attempt=1, depth=0, **retry)
    return told.biography()


def scheduled_story() -> Biography:
    """Scheduled for the next day."""
    told = Telling("order-22", UID)
    told.at(0, schema.PUBLISHED)
    told.at(20, schema.SCHEDULED, queue="warren.scheduled", due_time=BEGIN + 86_400_000_000)
    return told.biography()


def dead_story() -> Biography:
    """A consumer rejected it, and some messages of the queue of its dead letter expired on disk."""
    told = Telling("order-20", UID)
    told.at(0, schema.PUBLISHED)
    told.at(20, schema.ENQUEUED, queue="shipping", depth=1)
    told.at(1_020, schema.DELIVERED, queue="shipping", consumer="packer-1", attempt=1, depth=0)
    told.at(3_020, schema.REJECTED, queue="shipping", consumer="packer-1", attempt=1, depth=0)
    told.at(3_030, schema.DEAD_LETTERED, queue="shipping", consumer="packer-1", attempt=1, reason=schema.R_REJECTED)
    told.at(3_040, schema.ROUTED, queue="shipping", exchange="dlx")
    told.at(3_050, schema.ENQUEUED, queue="dead", exchange="dlx", depth=9_000)
    place = {"vhost": "/", "queue": "dead"}
    some = Event(BEGIN + 9_050, schema.EXPIRED, 0, **place, reason=schema.R_EXPIRED, depth=4_000)
    return begun([*told.events, some])


class Telling:
    """Events of one message, by microseconds since it was published."""

    def __init__(self, message_id: str | None, uid: int) -> None:
        self.events: list[Event] = []
        self._first = Event(
            BEGIN,
            schema.PUBLISHED,
            uid,
            message_id,
            publish_time=BEGIN,
            vhost="/",
            exchange="orders",
            routing_key="order.created.eu",
            connection=CONNECTION,
            channel=1,
            size=1_843,
            correlation_id="basket-9",
            trace_id="0af7651916cd43dd8448eb211c80319c",
            span_id="b7ad6b7169203331",
        )

    def at(self, microseconds: int, kind: int, **further: Any) -> None:
        self.events.append(replace(self._first, time=BEGIN + microseconds, kind=kind, **further))

    def biography(self) -> Biography:
        return begun(self.events)


def begun(events: Sequence[Event]) -> Biography:
    """What these events tell, be it a whole story or not."""
    biography = build_biography(events)
    assert biography is not None
    return biography


def _fits(biography: Biography, query: TraceQuery) -> bool:
    first = biography.events[0]
    wanted = {"correlation_id": query.correlation_id, "trace_id": query.trace_id, "exchange": query.exchange}
    if any(value is not None and getattr(first, name) != value for name, value in wanted.items()):
        return False
    if query.vhosts is not None and first.vhost not in query.vhosts:
        return False
    return query.queue is None or any(event.queue == query.queue for event in biography.events)


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not cursor.isdigit():
        raise ValueError(f"'{cursor}' is no cursor of this search")
    return int(cursor)
