"""Losing the event log never stops messages: it is deleted, damaged or has no room, of a real broker on a real disk.

In each case messages are published, confirmed, delivered and acked as usual; the fault is reported; and events are
kept again as soon as possible.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.adversity.test_full_disk import SIZE, publish_until_blocked, read_from_either, small_disk
from tests.adversity.test_kill import SMALL
from tests.support.traced import TracedProcess, live_once, segments_of_event_log
from tests.support.waiting import wait_until
from tests.support.wire import ChannelRefusal, WireChannel, WireConnection
from warrenmq.events import schema

__all__ = ["small_disk"]  # a fixture

WHOLE = ["published", "routed", "enqueued", "confirmed", "delivered", "acked"]
LIVES = 20


@contextmanager
def living(folder: Path) -> Iterator[tuple[TracedProcess, WireChannel]]:
    """A broker and a channel that confirms; at the end the broker stops in order."""
    with TracedProcess(folder, SMALL).ready() as broker:
        with broker.connect() as connection:
            channel = connection.channel()
            channel.call("queue.declare", queue="q", durable=True)
            channel.call("confirm.select")
            yield broker, channel
        assert broker.stop() == 0, broker.log()


def live(channel: WireChannel, name: str, count: int = LIVES) -> None:
    for number in range(count):
        live_once(channel, f"{name}-{number}")


def is_whole(broker: TracedProcess, message_id: str) -> bool:
    """A confirm may be told before or after a delivery."""
    return sorted(broker.story(message_id)) == sorted(WHOLE)


def first_life(folder: Path) -> None:
    with living(folder) as (broker, channel):
        live(channel, "before")
        channel.publish(b"stays", {"delivery_mode": 2, "message_id": "stays"}, routing_key="q")
        channel.expect("basic.ack")
        assert is_whole(broker, "before-0")
    assert segments_of_event_log(folder)


def second_life(folder: Path, *, may_know: bool = True) -> None:
    """All messages are there, new ones live, and their stories are whole."""
    with living(folder) as (broker, channel):
        stayed = channel.get("q")
        assert stayed is not None
        assert stayed.body == b"stays"
        live(channel, "after")
        assert is_whole(broker, "after-0")
        assert is_whole(broker, f"after-{LIVES - 1}")
        assert broker.says(None)
        told = broker.story("before-0")
        assert sorted(told) in ([], sorted(WHOLE)) if may_know else told == []
        assert broker.ask("/api/traces?limit=500")[0] == 200


# -- before the start --------------------------------------------------------------------------------------------------


def flip(data: bytearray, choice: random.Random) -> bytearray:
    for _ in range(1 + len(data) // 2000):
        data[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
    return data


def cut(data: bytearray, choice: random.Random) -> bytearray:
    return data[: choice.randrange(len(data))]


def overwrite(data: bytearray, choice: random.Random) -> bytearray:
    return bytearray(choice.randbytes(len(data)))


def empty(data: bytearray, choice: random.Random) -> bytearray:
    return bytearray()


@pytest.mark.parametrize("damage", [flip, cut, overwrite])
def test_damaged_segments(damage: Callable[[bytearray, random.Random], bytearray], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first_life(folder)
    choice = random.Random(7)
    for path in segments_of_event_log(folder):
        path.write_bytes(damage(bytearray(path.read_bytes()), choice))
    second_life(folder)


def test_deleted_segments(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first_life(folder)
    for path in segments_of_event_log(folder):
        shutil.rmtree(path.parent, ignore_errors=True)
    second_life(folder, may_know=False)
    with living(folder) as (broker, _):
        assert is_whole(broker, "after-0")


@pytest.mark.parametrize("damage", [flip, empty, None])
def test_a_damaged_or_deleted_index(
    damage: Callable[[bytearray, random.Random], bytearray] | None, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    first_life(folder)
    index = folder / "tracing" / "index"
    files = list(index.iterdir())
    assert files
    for path in files:
        if damage is not None:
            path.write_bytes(damage(bytearray(path.read_bytes()), random.Random(7)))
    if damage is None:
        shutil.rmtree(index)
    with living(folder) as (broker, channel):
        assert is_whole(broker, "before-0"), "it is built again from the event log"
        assert channel.get("q") is not None
        live(channel, "after", 3)
        assert is_whole(broker, "after-2")


# -- while it runs -----------------------------------------------------------------------------------------------------


def test_segments_deleted_while_the_broker_runs(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first_life(folder)
    with living(folder) as (broker, channel):
        assert channel.get("q") is not None
        for round_number in range(3):
            live(channel, f"round-{round_number}")
            for path in segments_of_event_log(folder):
                shutil.rmtree(path.parent, ignore_errors=True)
        live(channel, "after")
        assert broker.says(None)
        assert is_whole(broker, f"after-{LIVES - 1}")
    with living(folder) as (broker, channel):
        live(channel, "again")
        assert is_whole(broker, "again-0")


def test_a_client_cannot_delete_it_nor_take_its_name(tmp_path: Path) -> None:
    attacks: list[tuple[str, dict[str, Any]]] = [
        ("queue.delete", {}),
        ("queue.bind", {"exchange": "amq.fanout"}),
        ("queue.declare", {"durable": True, "arguments": {"x-queue-type": "classic"}}),
    ]
    with living(tmp_path / "data") as (broker, channel):
        live(channel, "before", 3)
        assert is_whole(broker, "before-0")  # the event log exists
        for method, arguments in attacks:
            with broker.connect() as connection, pytest.raises(ChannelRefusal):
                connection.channel().call(method, queue=schema.STREAM_NAME, **arguments)
        live(channel, "after", 3)
        assert is_whole(broker, "before-0")
        assert is_whole(broker, "after-2")
        assert broker.says(None)


def test_a_disk_that_is_really_full(small_disk: Path, tmp_path: Path) -> None:
    """Publishers wait, as they do without events; consumers go on, and their events are dropped and counted."""
    limits = {
        "WARREN_DISK_FREE_LIMIT": "0",
        "WARREN_LOG_LIMIT": "1MiB",
        "WARREN_TEST_LIMITS": "log_file_size=262144,segment_size=262144",
    }
    ballast = small_disk / "ballast"
    with TracedProcess(small_disk / "data", limits, tmp_path / "broker.log").ready() as broker:
        ballast.write_bytes(bytes(SIZE // 2))
        with WireConnection(broker.address).open({"connection.blocked": True}) as connection:
            publish_until_blocked(connection)
            with broker.connect() as reader:
                channel = reader.channel()
                for _ in range(5):
                    assert channel.get("q") is not None
                wait_until(lambda: broker.says("the disk is almost full"))
                assert broker.tracing()["dropped"] > 0
                ballast.unlink()
                answers = {read_from_either(connection) for _ in range(2)}
                assert answers == {"connection.unblocked", "basic.ack"}
                channel.call("queue.declare", queue="new", durable=True)
                channel.call("confirm.select")
                live_once(channel, "after", "new")
                assert is_whole(broker, "after")
                assert broker.says(None)
        assert broker.stop() == 0, broker.log()
