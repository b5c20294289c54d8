"""A purge of messages that wait on disk: one event tells of all of them, and each biography has it."""

from __future__ import annotations

import pytest

from tests.support.client import PERSISTENT
from tests.tracing.test_event_log import TracedLife, a_disk, durable_queue
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.events.schema import Event
from warrenmq.tracing.biography import build_biography

COUNT = 60


def all_events(life: TracedLife) -> list[Event]:
    """Those of no message, too."""
    life.traced.tracing.recorder.hand_over()
    life.settle()
    stream = life.broker.vhosts["/"].queues[schema.STREAM_NAME]
    return [event for data in life._read_stream(stream) for event in decode(data).events()]  # type: ignore[arg-type]


@pytest.mark.parametrize(("is_deleted", "reason"), [(False, schema.R_PURGED), (True, schema.R_QUEUE_DELETED)])
def test_every_dropped_message_has_an_event_and_is_counted_once(is_deleted: bool, reason: int) -> None:
    life = TracedLife(a_disk())
    durable_queue(life)
    for number in range(COUNT):
        life.publisher.publish(bytes(300), "q", delivery_mode=PERSISTENT, message_id=str(number))
        life.settle()
    queue = life.queue("q")
    paged = queue.backlog.paged
    assert 0 < paged < COUNT
    if is_deleted:
        life.publisher.delete(queue)
    else:
        queue.purge()
    life.settle()
    events = all_events(life)
    dropped = [event for event in events if event.kind == schema.DROPPED]
    assert {event.reason for event in dropped} == {reason}
    (at_once,) = [event for event in dropped if not event.uid]
    assert (at_once.queue, at_once.depth) == ("q", paged)
    assert len(dropped) - 1 + paged == COUNT
    for number in range(COUNT):
        biography = build_biography([event for event in events if event.message_id == str(number) or event is at_once])
        assert biography is not None
        assert [leg.outcome for leg in biography.legs] == ["dropped"]
        assert [event.kind for event in biography.events].count(schema.DROPPED) == 1
        assert biography.is_complete
