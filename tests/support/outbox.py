"""The broker's words, written down: an outbox for tests that drive the core without a socket.

Everything the core says goes into one list, in order. Nothing is congested unless the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from warrenmq.core.consumer import wake_parked
from warrenmq.core.errors import BrokerError
from warrenmq.core.message import Message
from warrenmq.core.ports import Outbox


@dataclass(frozen=True, slots=True)
class Sent:
    """What the broker sent on one channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class Delivered(Sent):
    consumer: str
    tag: int
    redelivered: bool
    message: Message

    @property
    def body(self) -> bytes:
        return self.message.body


@dataclass(frozen=True, slots=True)
class GetOk(Sent):
    tag: int
    redelivered: bool
    message: Message
    remaining: int

    @property
    def body(self) -> bytes:
        return self.message.body


@dataclass(frozen=True, slots=True)
class Returned(Sent):
    code: int
    text: str
    message: Message

    @property
    def body(self) -> bytes:
        return self.message.body


@dataclass(frozen=True, slots=True)
class Confirmed(Sent):
    tag: int
    multiple: bool


@dataclass(frozen=True, slots=True)
class Nacked(Sent):
    tag: int
    multiple: bool


@dataclass(frozen=True, slots=True)
class Cancelled(Sent):
    consumer: str


@dataclass(frozen=True, slots=True)
class ChannelClosed(Sent):
    code: int
    text: str
    cause: str


Kind = TypeVar("Kind", bound=Sent)


class RecordingOutbox(Outbox):
    """Keeps what was said until the test takes it. `on_deliver` lets a test act in the middle of a dispatch."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Sent] = []
        self.on_deliver: Callable[[], None] | None = None
        self.on_close: Callable[[int], None] | None = None  # a session closes the core's channel

    def take(self, kind: type[Kind], channel: int) -> list[Kind]:
        """All of one kind that was said on the channel since the last time, in order."""
        taken = [said for said in self.said if isinstance(said, kind) and said.channel == channel]
        self.said = [said for said in self.said if not (isinstance(said, kind) and said.channel == channel)]
        return taken

    def drain(self) -> None:
        """The peer has read everything: consumers that waited for it go on."""
        self.is_congested = False
        wake_parked(self.parked)

    # -- the port ----------------------------------------------------------------------------------------------------

    def deliver(
        self, channel: int, consumer_tag: bytes, delivery_tag: int, redelivered: bool, message: Message
    ) -> None:
        assert consumer_tag[0] == len(consumer_tag) - 1, "the consumer tag is a wire short string"
        self.said.append(Delivered(channel, consumer_tag[1:].decode(), delivery_tag, bool(redelivered), message))
        if self.on_deliver is not None:
            self.on_deliver()

    def get_ok(self, channel: int, delivery_tag: int, redelivered: bool, message: Message, remaining: int) -> None:
        self.said.append(GetOk(channel, delivery_tag, bool(redelivered), message, remaining))

    def return_message(self, channel: int, reply_code: int, reply_text: str, message: Message) -> None:
        self.said.append(Returned(channel, reply_code, reply_text, message))

    def confirm(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.said.append(Confirmed(channel, delivery_tag, bool(multiple)))

    def nack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        self.said.append(Nacked(channel, delivery_tag, bool(multiple)))

    def cancel_consumer(self, channel: int, consumer_tag: str) -> None:
        self.said.append(Cancelled(channel, consumer_tag))

    def close_channel(self, channel: int, refusal: BrokerError, cause: str) -> None:
        self.said.append(ChannelClosed(channel, refusal.reply_code, refusal.reply_text, cause))
        if self.on_close is not None:
            self.on_close(channel)
