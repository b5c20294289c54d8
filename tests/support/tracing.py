"""A broker whose events are kept, without a loop and without threads: a batch is made when the test asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.client import Client
from warrenmq.core.broker import Broker
from warrenmq.core.message import Message
from warrenmq.core.ports import Storage, StreamStore
from warrenmq.core.reserved import ADMINISTRATOR
from warrenmq.core.users import EVERYTHING
from warrenmq.events import schema
from warrenmq.events.codec import decode
from warrenmq.events.schema import Event
from warrenmq.storage.memory_store import MemoryStorage
from warrenmq.tracing.rules import TraceRule
from warrenmq.tracing.service import Tracing, TracingOptions

ALL = TraceRule("all")


class TracedBroker:
    """`rules` are fixed ones, as from the settings."""

    def __init__(self, rules: Sequence[TraceRule] = (ALL,), storage: Storage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self.tracing = Tracing(self.storage, TracingOptions(rules))
        self.broker = Broker(self.storage, self.tracing.recorder)
        self.broker.users.add("guest", "guest", [ADMINISTRATOR])
        self.broker.users.grant("guest", None, EVERYTHING, EVERYTHING, EVERYTHING)
        self.tracing.attach(self.broker)

    def client(self, vhost: str = "/") -> Client:
        return Client(self.broker, vhost)

    def make_batch(self) -> None:
        """All rows so far go to the event log."""
        self.broker.end_turn()
        self.tracing.recorder.hand_over()
        self.broker.end_turn()

    def events(self, *, resources: bool = False) -> list[Event]:
        """All that the event log holds, in order; those about no message only if asked for."""
        self.make_batch()
        found = [event for data in self.batches() for event in decode(data).events()]
        return [event for event in found if resources or event.uid]

    def batches(self) -> list[bytes]:
        stream = self.broker.vhosts["/"].queues.get(schema.STREAM_NAME)
        return [] if stream is None else read_all(stream.store)


def read_all(store: Any) -> list[bytes]:
    """The bodies of all messages of a stream whose store answers at once."""
    assert isinstance(store, StreamStore)
    bodies: list[bytes] = []
    position = store.first_position
    pages: list[tuple[int, list[Message]]] = []
    while True:
        store.read(position, lambda first, messages: pages.append((first, messages)))
        first, messages = pages[-1]
        if not messages:
            return bodies
        bodies += [message.body for message in messages]
        position = first + len(messages)


def story(events: Sequence[Event]) -> list[str]:
    """What happened, as words: the kind, and the queue where there is one."""
    return [" ".join(filter(None, (schema.kind_name(event.kind), event.queue))) for event in events]
