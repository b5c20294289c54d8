"""What the tests of queue features share: queues with arguments, messages that have died, and waiting for the broker.

Nothing here sleeps for a fixed time. A test that must let time pass on the broker's clock publishes a marker that
expires, and waits until it arrives (`let_pass`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import wait_until
from tests.support.wire import WireChannel
from tests.support.wire_format import Content

DEADLINE = 20.0
LONG_MS = 600_000  # no test takes this long


@dataclass(frozen=True, slots=True)
class Topology:
    """Declares queues and exchanges of one test on one channel, and looks into them."""

    channel: WireChannel
    name: Callable[[str], str]

    def queue(self, label: str = "queue", **arguments: Any) -> str:
        """Declare a queue; `message_ttl=5` stands for the argument x-message-ttl."""
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        is_quorum = arguments.get("queue_type") == "quorum"  # always durable
        self.channel.call("queue.declare", queue=self.name(label), durable=is_quorum, arguments=named)
        return self.name(label)

    def exchange(self, label: str, kind: str = "fanout", **arguments: Any) -> str:
        self.channel.call("exchange.declare", exchange=self.name(label), type=kind, arguments=arguments)
        return self.name(label)

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
        self.channel.call("queue.bind", queue=queue, exchange=exchange, routing_key=key, arguments=arguments)

    def grave(self, label: str = "grave") -> dict[str, str]:
        """Declare a queue for dead letters; return the arguments that send them there."""
        return {"dead_letter_exchange": "", "dead_letter_routing_key": self.queue(label)}

    def publish(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        for body in bodies:
            self.channel.publish(body, properties, routing_key=queue)

    def depth(self, queue: str) -> int:
        """The number of messages that are ready."""
        count: int = self.channel.call("queue.declare", queue=queue, passive=True)["message_count"]
        return count

    def header_bytes(self, queue: str) -> bytes:
        """The content header of the next message as it came from the wire."""
        self.channel.send("basic.get", queue=queue, no_ack=True)
        answer = self.channel.expect("basic.get-ok")
        header = self.channel.connection.read_frame(answer.channel)
        self.channel.connection.read_frame(answer.channel)
        return header.payload

    def await_depth(self, queue: str, depth: int) -> None:
        wait_until(lambda: self.depth(queue) == depth, f"a depth of {depth}")

    def take(self, queue: str, count: int = 1, no_ack: bool = True) -> list[Content]:
        """Wait for this many messages and get them."""
        taken: list[Content] = []

        def all_came() -> bool:
            while len(taken) < count and (message := self.channel.get(queue, no_ack)) is not None:
                taken.append(message)
            return len(taken) == count

        wait_until(all_came, f"message {len(taken) + 1} of {count}")
        return taken

    def take_one(self, queue: str, no_ack: bool = True) -> Content:
        return self.take(queue, 1, no_ack)[0]

    def bodies(self, queue: str) -> list[bytes]:
        """Every ready message, taken."""
        return [message.body for message in self._all(queue)]

    def _all(self, queue: str) -> Iterator[Content]:
        while (message := self.channel.get(queue)) is not None:
            yield message

    def hold(self, queue: str, count: int = 1) -> list[int]:
        """Get this many without acks; their delivery tags."""
        return [message["delivery_tag"] for message in self.take(queue, count, no_ack=False)]

    def reject(self, *tags: int, requeue: bool = False) -> None:
        for tag in tags:
            self.channel.send("basic.reject", delivery_tag=tag, requeue=requeue)

    def let_pass(self, milliseconds: int) -> None:
        """Return when at least this time has passed on the broker's clock."""
        clock = self.queue("clock", **self.grave("alarm"))
        self.publish(clock, b"", expiration=str(milliseconds))
        self.take_one(self.name("alarm"))

    def confirm(self) -> None:
        self.channel.call("confirm.select")

    def answers(self, count: int) -> list[str]:
        """The broker's answers to the first publishes of a channel in confirm mode, from tag 1 on: "ack" or "nack"."""
        answered: dict[int, str] = {}
        while len(answered) < count:
            answer = self.channel.read()
            tag = answer["delivery_tag"]
            covered = range(1, tag + 1) if answer["multiple"] else (tag,)
            for each in covered:
                answered.setdefault(each, answer.name.removeprefix("basic."))
        return [answered[tag] for tag in sorted(answered)]


def deaths(message: Content) -> list[Mapping[str, Any]]:
    """The entries of the x-death header."""
    found: list[Mapping[str, Any]] = message.properties["headers"]["x-death"]
    return found


def history(message: Content) -> list[tuple[str, str, int]]:
    """Queue, reason and count of each death, the most recent first."""
    return [(death["queue"], death["reason"], death["count"]) for death in deaths(message)]
