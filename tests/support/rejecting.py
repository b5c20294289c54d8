"""A queue that rejects publishes, as a full one with x-overflow=reject-publish does in RabbitMQ."""

from __future__ import annotations

from tests.support.outbox import Confirmed, Nacked, RecordingOutbox
from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.message import Message
from warrenmq.core.outcome import REJECTED
from warrenmq.core.vhost import VHost


class RejectingQueue(ClassicQueue):
    """Takes nothing while `is_full`."""

    __slots__ = ("is_full",)

    def enqueue(self, message: Message) -> int:
        return REJECTED if self.is_full else super().enqueue(message)


def add_rejecting_queue(vhost: VHost, name: str = "full") -> RejectingQueue:
    """Put one into the virtual host, bound to nothing but the default exchange."""
    broker = vhost.broker
    queue = RejectingQueue(vhost.name, name, False, False, None, {}, broker.stats, broker.turn)
    queue.is_full = True
    vhost.queues[name] = queue
    vhost._topology_changed()
    return queue


def take_answers(outbox: RecordingOutbox) -> list[tuple[str, int, bool]]:
    """Return the confirms and nacks that were sent since the last time, in order: what, tag, multiple."""
    answers = [said for said in outbox.said if isinstance(said, (Confirmed, Nacked))]
    outbox.said = [said for said in outbox.said if not isinstance(said, (Confirmed, Nacked))]
    return [("ack" if isinstance(answer, Confirmed) else "nack", answer.tag, answer.multiple) for answer in answers]
