"""A plain model of a broker with durable storage: lists of messages, and what a restart leaves of them.

A queue holds its messages in order, waiting or unacked. A restart drops transient messages and requeues unacked ones.
A stream keeps all messages, whether read or not. `World.durable` is what must be on the disk: a crash may restore an
earlier state, but never one before the last that was confirmed, and never a mixture of two.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class ModelMessage:
    body: bytes
    is_persistent: bool


@dataclass
class ModelQueue:
    is_durable: bool = True
    is_stream: bool = False
    messages: list[ModelMessage] = field(default_factory=list)  # alive, by place
    unacked: set[ModelMessage] = field(default_factory=set)
    delivered: set[ModelMessage] = field(default_factory=set)  # they come as redelivered the next time

    def ready(self) -> list[ModelMessage]:
        return [message for message in self.messages if message not in self.unacked]

    def take(self) -> ModelMessage | None:
        """The next one goes out, unacked."""
        waiting = self.ready()
        if not waiting:
            return None
        self.unacked.add(waiting[0])
        return waiting[0]

    def settle(self, message: ModelMessage) -> None:
        if message in self.unacked:
            self.unacked.remove(message)
            self.messages.remove(message)

    def put_back(self, message: ModelMessage) -> None:
        if message in self.unacked:
            self.unacked.remove(message)
            self.delivered.add(message)

    def purge(self) -> int:
        count = len(self.messages) - len(self.unacked)
        self.messages = [message for message in self.messages if message in self.unacked]
        return count

    def restart(self) -> None:
        self.messages = [message for message in self.messages if message.is_persistent or self.is_stream]
        self.delivered = set(self.messages)
        self.unacked.clear()


State = tuple[tuple[tuple[str, tuple[bytes, ...]], ...], tuple[str, ...]]


class World:
    """Queues by name, and which of them the fanout exchange leads to."""

    def __init__(self) -> None:
        self.queues: dict[str, ModelQueue] = {}
        self.bound: set[str] = set()

    def publish(self, names: list[str], body: bytes, is_persistent: bool) -> None:
        message = ModelMessage(body, is_persistent)
        for name in names:
            if name in self.queues:
                self.queues[name].messages.append(message)

    def delete(self, name: str) -> None:
        del self.queues[name]
        self.bound.discard(name)

    def restart(self) -> None:
        for name in [name for name, queue in self.queues.items() if not queue.is_durable]:
            self.delete(name)
        for queue in self.queues.values():
            queue.restart()

    def durable(self) -> State:
        """All that a restart at this moment must bring back."""
        kept = {
            name: tuple(message.body for message in queue.messages if message.is_persistent or queue.is_stream)
            for name, queue in sorted(self.queues.items())
            if queue.is_durable
        }
        return tuple(kept.items()), tuple(sorted(self.bound & kept.keys()))
