"""Reports to the producer: what became of a message with the header `x-report-to: <queue>`.

A report is a JSON message in that queue. It is published when the message is dead-lettered, expires, is dropped or is
unroutable, and with `x-report: all` also when it is acked. It is enqueued in the epoch of that outcome, and is
persistent if the message is: after a crash there are both or neither. Purging or deleting a queue is not reported.

Owned by the loop thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from warrenmq.core import definitions
from warrenmq.core.message import Message
from warrenmq.core.outcome import DELIVERED, QUEUED, UNROUTED, WAITS_FOR
from warrenmq.core.ports import NOTHING
from warrenmq.core.publish_rules import REPORT, REPORT_ALL, REPORT_TO
from warrenmq.events import schema
from warrenmq.protocol import properties
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.core.vhost import VHost

ACKED = "acked"
DEAD_LETTERED = "dead_lettered"
DROPPED = "dropped"
EXPIRED = "expired"
UNROUTABLE = "unroutable"

# The definition of a queue with this name says that messages in a durable queue may want reports: after a restart they
# are read before they are removed.
MARK_PREFIX = "warren.reports."

_TYPE = "warren.report"
_PERSISTENT, _TRANSIENT = 2, 1


@dataclass(frozen=True, slots=True)
class _Report:
    """A report to be published to `target`. `queue` is the one that the message left, `uid` the message's."""

    target: str
    header: bytes
    body: bytes
    outcome: str
    queue: str | None
    uid: int


class Reports:
    """Publishes the reports of one virtual host."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost
        self._pending: list[_Report] = []
        self._expected: set[str] = set()  # durable queues with messages that may want reports

    # -- which queues ------------------------------------------------------------------------------------------------

    def expect_from(self, queue: str) -> None:
        """Record that messages in this durable queue may want reports, until it is deleted."""
        name = MARK_PREFIX + queue
        vhost = self._vhost
        vhost.broker.catalog.save("queue", (vhost.name, name), definitions.of_store(vhost.name, name))
        self._expected.add(queue)

    def are_expected_from(self, queue: str) -> bool:
        return queue in self._expected

    def restore(self, mark: str) -> None:
        """Restore what `expect_from` recorded; called before the queue is restored."""
        self._expected.add(mark.removeprefix(MARK_PREFIX))

    def forget(self, queue: str) -> None:
        """The queue was deleted."""
        if queue in self._expected:
            self._expected.remove(queue)
            self._vhost.broker.catalog.delete("queue", (self._vhost.name, MARK_PREFIX + queue))

    # -- publishing --------------------------------------------------------------------------------------------------

    def add(self, message: Message, outcome: str, reason: str | None, queue: str | None, attempts: int) -> int:
        """Report the outcome if the message asks for it. Return what a confirm of the message waits for."""
        headers = properties.headers(message.header) or {}
        target = headers.get(REPORT_TO)
        if not isinstance(target, str) or (outcome == ACKED and headers.get(REPORT) != REPORT_ALL):
            return NOTHING
        asked = message.properties
        body = json.dumps(
            {
                "message_id": asked.message_id,
                "correlation_id": asked.correlation_id,
                "outcome": outcome,
                "reason": reason,
                "queue": queue,
                "exchange": message.exchange,
                "routing_key": message.routing_key,
                "attempts": attempts,
                "time": _format_time(self._vhost.broker.turn.now_ms),
            }
        ).encode()
        header = properties.content_header(
            len(body),
            BasicProperties(
                content_type="application/json",
                delivery_mode=_PERSISTENT if message.is_persistent() else _TRANSIENT,
                correlation_id=asked.correlation_id,
                type=_TYPE,
            ),
        )
        self._pending.append(_Report(target, header, body, outcome, queue, message.uid))
        return self._publish_pending()

    def _publish_pending(self) -> int:
        """Publish pending reports, and those that follow from them, without recursion: one may push out the next."""
        pending = self._pending
        if len(pending) > 1:
            return NOTHING  # the call that added the first one publishes all
        turn = self._vhost.broker.turn
        was_settling, turn.is_settling = turn.is_settling, True
        outcome = UNROUTED
        try:
            for each in pending:  # the list grows meanwhile
                outcome |= self._publish(each)
        finally:
            pending.clear()
            turn.is_settling = was_settling
        return outcome & WAITS_FOR

    def _publish(self, report: _Report) -> int:
        broker = self._vhost.broker
        outcome = self._vhost.publish("", report.target, report.header, report.body)
        if outcome & (QUEUED | DELIVERED):
            broker.stats.reports += 1
            if report.uid and broker.events.is_watching:
                text = f"reported as {report.outcome} to queue {report.target}"
                fields = {"uid": report.uid, "queue": report.queue, "note": text}
                broker.events.resource_event(schema.NOTED, self._vhost.name, fields)
        else:
            broker.warning_log.warn(
                "report queue",
                f"queue '{report.target}' in vhost '{self._vhost.name}', to which producers want reports, does not "
                "exist or takes no message: the reports are dropped",
            )
        return outcome


def _format_time(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
