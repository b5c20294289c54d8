"""Members of a group come, leave and are killed at random, and so is the broker. No message is lost or overtaken."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.breaker import Breaker
from tests.support.crash import effort
from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from warrenmq import client

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "orders"
KEYS = 7
FAST = client.Recovery(initial=0.01, longest=0.1)


class Group:
    """The processes of a group, and what they have logged."""

    def __init__(self, url: str, folder: Path) -> None:
        self.log = folder / "handled.log"
        self.log.touch()
        self.killed: set[int] = set()
        self._url = url
        self._running: list[subprocess.Popen[bytes]] = []
        self._errors = folder / "members.err"

    def join(self, face: str) -> None:
        command = [sys.executable, "-m", "tests.adversity.topic_member", self._url, TOPIC, face, str(self.log)]
        with self._errors.open("ab") as errors:
            self._running.append(subprocess.Popen(command, stderr=errors, cwd=ROOT))

    def leave(self, chosen: random.Random) -> None:
        member = self._running.pop(chosen.randrange(len(self._running)))
        member.terminate()
        member.wait(60)

    def kill(self, chosen: random.Random) -> None:
        member = self._running.pop(chosen.randrange(len(self._running)))
        member.kill()
        member.wait(60)
        self.killed.add(member.pid)

    @property
    def size(self) -> int:
        return len(self._running)

    def lines(self) -> list[tuple[str, int, int, int]]:
        """What was logged: (kind, key, number, process)."""
        rows = (line.split() for line in self.log.read_text().splitlines())
        return [(kind, int(key), int(number), int(process)) for kind, key, number, process in rows]

    def handled(self) -> set[tuple[int, int]]:
        return {(key, number) for kind, key, number, _ in self.lines() if kind == "end"}

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._running:
            member.kill()
            member.wait(60)
        print(self._errors.read_text())


def assert_none_was_overtaken(lines: list[tuple[str, int, int, int]]) -> None:
    """For each key the numbers begin in order; only what was handled before may come again."""
    latest: dict[int, int] = {}
    for kind, key, number, _ in lines:
        if kind == "begin":
            assert number <= latest.get(key, -1) + 1, f"{key}: {number} came after {latest.get(key)}"
            latest[key] = max(number, latest.get(key, -1))


def assert_one_at_a_time(lines: list[tuple[str, int, int, int]], killed: set[int]) -> None:
    """No member began with a message while another was handling one with the same key."""
    handling: dict[int, int] = {}
    for kind, key, number, process in lines:
        if kind == "end":
            assert handling.pop(key, None) == process, f"{key}.{number} was handled twice at the same time"
            continue
        other = handling.get(key)
        assert other is None or other in killed, f"{process} began with {key}.{number} before {other} had ended"
        handling[key] = process


@pytest.fixture
def chance() -> random.Random:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


class Publisher:
    """Sends numbered messages with KEYS keys, each until it is confirmed."""

    def __init__(self, url: str) -> None:
        self.connection = client.connect(url, recovery=FAST, unconfirmed="resend")
        self.topic = self.connection.channel().declare_topic(TOPIC, 4, groups=["g"])
        self.sent: set[tuple[int, int]] = set()

    def send(self, count: int) -> list[Any]:
        first = len(self.sent) // KEYS
        made = [(key, number) for number in range(first, first + count) for key in range(KEYS)]
        self.sent |= set(made)
        return [self.topic.publish(f"{key} {number}", key=str(key)) for key, number in made]

    def queued(self) -> int:
        with self.connection.channel() as channel:
            return sum(channel.message_count(f"{TOPIC}.g.{number}") for number in range(4))


@pytest.mark.timeout(300)
def test_members_that_come_and_go_lose_and_overtake_nothing(
    tmp_path: Path, chance: random.Random, stack: ExitStack
) -> None:
    with BrokerProcess(tmp_path / "data").ready() as broker:
        url = f"amqp://guest:guest@127.0.0.1:{broker.address.port}/"
        publisher = Publisher(url)
        stack.enter_context(publisher.connection)
        group = stack.enter_context(Group(url, tmp_path))
        group.join("blocking")
        for _ in range(effort(12)):
            confirmations = publisher.send(30)
            change = chance.choice([group.kill, group.leave]) if group.size > 2 else None
            if change is None or (group.size < 5 and chance.random() < 0.4):
                group.join(chance.choice(["blocking", "aio"]))
            else:
                change(chance)
            for each in confirmations:
                each.result()
            share = len(publisher.sent) * 2 // 3  # so that members come and go while others work
            wait_until(lambda share=share: len(group.handled()) >= share, "the group goes on")  # type: ignore[misc]
        wait_until(lambda: publisher.sent <= group.handled(), "all were handled")
        wait_until(lambda: publisher.queued() == 0, "all were acked")
        lines = group.lines()
        assert_none_was_overtaken(lines)
        assert_one_at_a_time(lines, group.killed)


@pytest.mark.timeout(300)
def test_killed_broker_loses_and_overtakes_nothing(tmp_path: Path, chance: random.Random, stack: ExitStack) -> None:
    broker = stack.enter_context(BrokerProcess(tmp_path / "data").ready())
    breaker = stack.enter_context(Breaker(f"amqp://guest:guest@127.0.0.1:{broker.address.port}/"))
    publisher = Publisher(breaker.url)
    stack.enter_context(publisher.connection)
    group = stack.enter_context(Group(breaker.url, tmp_path))
    for face in ("blocking", "aio", "blocking"):
        group.join(face)
    for _ in range(effort(2)):
        handled = len(group.handled())
        confirmations = publisher.send(60)
        wait_until(lambda handled=handled: len(group.handled()) > handled + 20, "the group works")  # type: ignore[misc]
        broker.kill()
        group.kill(chance)
        broker = stack.enter_context(BrokerProcess(tmp_path / "data").ready())
        breaker.aim(f"amqp://guest:guest@127.0.0.1:{broker.address.port}/")
        group.join("aio")
        for each in confirmations:
            each.result()
    wait_until(lambda: publisher.sent <= group.handled(), "all were handled")
    wait_until(lambda: publisher.queued() == 0, "all were acked")
    assert_none_was_overtaken(group.lines())
