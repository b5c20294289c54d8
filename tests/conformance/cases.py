"""Tables of what a broker refuses and accepts: a case is calls that prepare, the method under test, and the answer.

`{queue}`, `{exchange}` and `{other}` in arguments and texts stand for names of the case's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.wire import Refusal, WireChannel

PLACEHOLDERS = ("queue", "exchange", "other")


@dataclass(frozen=True, slots=True)
class Step:
    """One method; with a body it is followed by content."""

    method: str
    arguments: Mapping[str, Any]
    body: bytes | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)

    def send(self, channel: WireChannel, names: Mapping[str, str]) -> None:
        arguments = {key: fill(value, names) for key, value in self.arguments.items()}
        if self.body is None:
            channel.send(self.method, **arguments)
        else:
            channel.publish(self.body, self.properties, **arguments)

    def carry_out(self, channel: WireChannel, names: Mapping[str, str]) -> None:
        self.send(channel, names)
        if self.body is None:
            channel.expect(f"{self.method}-ok")


@dataclass(frozen=True, slots=True)
class RefusedCase:
    """After `given`, `when` closes the channel (or the connection) with this code and text."""

    label: str
    when: Step
    code: int
    text: str
    given: tuple[Step, ...] = ()
    scope: str = "channel"

    def run(self, channel: WireChannel, name: Callable[[str], str]) -> None:
        names = {label: name(label) for label in PLACEHOLDERS}
        for step in self.given:
            step.carry_out(channel, names)
        self.when.send(channel, names)
        expected = Refusal(self.scope, self.code, str(fill(self.text, names)), self.when.method)
        refusal = channel.expect_refusal()
        assert refusal == expected, f"{refusal} came, {expected} was awaited"


@dataclass(frozen=True, slots=True)
class AcceptedCase:
    """After `given`, `when` is answered by its -ok."""

    label: str
    when: Step
    given: tuple[Step, ...] = ()
    answer: Mapping[str, Any] = field(default_factory=dict)

    def run(self, channel: WireChannel, name: Callable[[str], str]) -> None:
        names = {label: name(label) for label in PLACEHOLDERS}
        for step in self.given:
            step.carry_out(channel, names)
        self.when.send(channel, names)
        answer = channel.expect(f"{self.when.method}-ok")
        for key, value in self.answer.items():
            assert answer[key] == fill(value, names), f"{answer} came, {key} of {value!r} was awaited"


def label_of(case: RefusedCase | AcceptedCase) -> str:
    """How a case is called in pytest's output."""
    return case.label.replace(" ", "-")


def fill(value: Any, names: Mapping[str, str]) -> Any:
    """Put this case's names where a text asks for them."""
    if not isinstance(value, str):
        return value
    for placeholder, name in names.items():
        value = value.replace("{" + placeholder + "}", name)
    return value


def call(method: str, **arguments: Any) -> Step:
    return Step(method, arguments)


def publish(body: bytes = b"message", properties: Mapping[str, Any] | None = None, **arguments: Any) -> Step:
    return Step("basic.publish", arguments, body, properties or {})


def declare_queue(queue: str = "{queue}", **arguments: Any) -> Step:
    return call("queue.declare", queue=queue, **arguments)


def declare_exchange(exchange: str = "{exchange}", kind: str = "direct", **arguments: Any) -> Step:
    return call("exchange.declare", exchange=exchange, type=kind, **arguments)
