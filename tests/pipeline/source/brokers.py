"""What the tests of the source share: streams with known messages, and a broker that comes and goes."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warrenmq import Broker, client
from warrenmq.storage.options import StorageOptions

STREAM = {"x-queue-type": "stream"}


@contextmanager
def channel_to(url: str) -> Iterator[client.Channel]:
    with client.connect(url, recovery=False) as connection:
        channel = connection.channel()
        channel.confirm_select()
        yield channel


def declare_stream(url: str, name: str, **arguments: Any) -> None:
    with channel_to(url) as channel:
        channel.queue_declare(name, durable=True, arguments=STREAM | arguments)


def publish(url: str, name: str, bodies: Iterable[str | bytes], **properties: Any) -> None:
    """To the stream of this name, which is made if it is not there."""
    with channel_to(url) as channel:
        channel.queue_declare(name, durable=True, arguments=STREAM)
        publish_by(channel, name, bodies, **properties)


def publish_by(channel: client.Channel, name: str, bodies: Iterable[str | bytes], **properties: Any) -> None:
    for body in bodies:
        channel.publish("", name, body, client.Properties(**properties))
    channel.wait_for_confirms()


def fill_and_trim(url: str, name: str) -> int:
    """A stream whose oldest messages are gone; return how many were published, from 0."""
    arguments = {"x-max-length-bytes": 200_000, "x-stream-max-segment-size-bytes": 50_000}
    with channel_to(url) as channel:
        channel.queue_declare(name, durable=True, arguments=STREAM | arguments)
        for round_ in range(60):
            publish_by(channel, name, [f"{round_ * 10 + number:06}" * 1000 for number in range(10)])
    return 600


def small_pages(folder: Path) -> Broker:
    """A broker whose streams are cut into small pages, so that limits take effect soon."""
    return Broker(data_dir=folder, storage=StorageOptions(page_size=8192))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
