"""Queues, channels and consumers as plainly as they can be said: lists, and a rule for what may be delivered next.

The model does not say which consumer gets a message, as any with credit may. It says which message must be next, that
its consumer had credit, and (at the end of a turn) that no message waits while somebody could take it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.outbox import Delivered, GetOk


@dataclass(eq=False)
class ModelMessage:
    body: bytes
    is_persistent: bool
    redelivered: bool = False


@dataclass(eq=False)
class ModelQueue:
    is_durable: bool
    messages: list[ModelMessage] = field(default_factory=list)  # all ever published, in order: their places
    ready: list[ModelMessage] = field(default_factory=list)
    is_deleted: bool = False

    def put_back(self, message: ModelMessage) -> None:
        if not self.is_deleted:
            message.redelivered = True
            self.ready = sorted([*self.ready, message], key=self.messages.index)


@dataclass(eq=False)
class ModelConsumer:
    channel: ModelChannel
    queue: ModelQueue
    no_ack: bool
    prefetch: int


@dataclass(eq=False)
class Out:
    """One unacked delivery; no consumer: it was fetched."""

    queue: ModelQueue
    message: ModelMessage
    consumer: ModelConsumer | None


@dataclass(eq=False)
class ModelChannel:
    prefetch: int = 0
    last_tag: int = 0
    unacked: dict[int, Out] = field(default_factory=dict)
    consumers: dict[str, ModelConsumer] = field(default_factory=dict)

    def take(self, tag: int, multiple: bool) -> list[Out]:
        tags = [known for known in self.unacked if known == tag or (multiple and (tag == 0 or known < tag))]
        return [self.unacked.pop(known) for known in tags]


class Model:
    def __init__(self) -> None:
        self.queues: dict[str, ModelQueue] = {}
        self.channels: dict[int, ModelChannel] = {}
        self.is_congested = False

    def has_credit(self, consumer: ModelConsumer) -> bool:
        if self.is_congested:
            return False
        out = [each.consumer for each in consumer.channel.unacked.values() if each.consumer is not None]
        if 0 < consumer.channel.prefetch <= len(out):
            return False  # holds back those without acks too
        return consumer.no_ack or not 0 < consumer.prefetch <= out.count(consumer)

    def hear(self, said: Delivered) -> None:
        """The broker delivered something: it must have been allowed to, and it must be what was next."""
        channel = self.channels[said.channel]
        consumer = channel.consumers[said.consumer]
        assert self.has_credit(consumer), f"{said} was delivered to a consumer without credit"
        self._leave(said, channel, consumer.queue, consumer, consumer.no_ack)

    def hear_get(self, said: GetOk, queue: ModelQueue, no_ack: bool) -> None:
        assert said.remaining == len(queue.ready) - 1
        self._leave(said, self.channels[said.channel], queue, None, no_ack)

    def _leave(
        self,
        said: Delivered | GetOk,
        channel: ModelChannel,
        queue: ModelQueue,
        consumer: ModelConsumer | None,
        no_ack: bool,
    ) -> None:
        message = queue.ready.pop(0)
        channel.last_tag += 1
        expected = (channel.last_tag, message.body, message.redelivered)
        assert (said.tag, said.body, said.redelivered) == expected
        if not no_ack:
            channel.unacked[channel.last_tag] = Out(queue, message, consumer)

    def hungry_consumers(self) -> list[ModelConsumer]:
        """Who could take a message that is there; nobody, when a turn is over."""
        consumers = [consumer for channel in self.channels.values() for consumer in channel.consumers.values()]
        return [consumer for consumer in consumers if consumer.queue.ready and self.has_credit(consumer)]

    def unacked(self) -> list[Out]:
        return [out for channel in self.channels.values() for out in channel.unacked.values()]

    def held(self) -> list[ModelMessage]:
        """Every message that takes memory."""
        waiting = [message for queue in self.queues.values() for message in queue.ready]
        return waiting + [out.message for out in self.unacked()]

    def kept(self, queue: ModelQueue) -> list[ModelMessage]:
        """What the store of a durable queue must hold, in order."""
        alive = {*queue.ready, *(out.message for out in self.unacked() if out.queue is queue)}
        return [
            message for message in queue.messages if message in alive and message.is_persistent and queue.is_durable
        ]
