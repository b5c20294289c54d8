"""A real disk that is really full: publishers wait, consumers go on, and everything resumes when writing resumed.

Needs the right to mount a small file system in memory; skipped elsewhere.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import BrokerProcess
from tests.support.wire import WireConnection
from tests.support.wire_format import read_method

SIZE = 4 << 20
BODY = bytes(10_000)
# The alarm is not to come before the disk is full.
SETTINGS = {
    "WARREN_DISK_FREE_LIMIT": "0",
    "WARREN_TEST_LIMITS": "log_file_size=262144,segment_size=262144",
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def publish_until_blocked(connection: WireConnection) -> int:
    """How many were sent when connection.blocked came."""
    channel = connection.channel(1)
    channel.call("queue.declare", queue="q", durable=True)
    channel.call("confirm.select")
    for number in range(1, 2 * SIZE // len(BODY)):
        channel.publish(b"%d " % number + BODY, {"delivery_mode": 2}, routing_key="q")
        answer = read_from_either(connection)
        if answer == "connection.blocked":
            return number
        assert answer == "basic.ack", answer
    raise AssertionError("the disk was never full")


def read_from_either(connection: WireConnection) -> str:
    """The name of the next method, be it the channel's or the connection's."""
    return read_method(connection.read_any_frame()).name


# With a small limit the log is trimmed, and most likely a segment finds no room first; with a large one only the log is
# there to find none, and the last publish waits for a confirm that cannot come.
@pytest.mark.parametrize("log_limit", ["1MiB", "64MiB"])
def test_publishers_wait_for_room_and_nothing_is_lost(small_disk: Path, tmp_path: Path, log_limit: str) -> None:
    data = small_disk / "data"
    settings = SETTINGS | {"WARREN_LOG_LIMIT": log_limit}
    with BrokerProcess(data, settings, tmp_path / "broker.log").ready() as broker:
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(SIZE // 2))
        with WireConnection(broker.address).open({"connection.blocked": True}) as connection:
            sent = publish_until_blocked(connection)
            assert not broker.is_dead
            with broker.connect() as reader:  # deliveries go on
                channel = reader.channel(1)
                first = channel.get("q", no_ack=False)
                assert first is not None
                assert first.body.startswith(b"1 ")
            ballast.unlink()
            answers = {read_from_either(connection) for _ in range(2)}
            assert answers == {"connection.unblocked", "basic.ack"}
        broker.kill()
    with BrokerProcess(data, settings, tmp_path / "broker.log").ready() as broker, broker.connect() as connection:
        channel = connection.channel(1)
        numbers = []
        while (content := channel.get("q")) is not None:
            numbers.append(int(content.body.split()[0]))
        assert numbers == list(range(1, sent + 1))
