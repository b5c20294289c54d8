"""Where a streaming read began, kept by the broker under the reader's name until Spark has it in its checkpoint.

Spark asks a source where to begin once more if the first batch did not end, and gives it no place to write to. "latest"
would then mean something else. So the answer is kept as the first message of a queue, `warren.reader.NAME`, which goes
once the first batch is committed. One thread.
"""

from __future__ import annotations

import json

from warrenmq import client
from warrenmq.pipeline.source.access import Link
from warrenmq.pipeline.source.ranges import Positions

PREFIX = "warren.reader."


class ReaderNote:
    """The note of one reader."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._queue = PREFIX + name

    def read(self) -> Positions | None:
        """What was kept; None: nothing was."""
        return self._link.call(self._read)

    def keep(self, positions: Positions) -> None:
        """Keep it, returning when it is safe; what was kept first stays."""
        self._link.call(lambda connection: self._keep(connection, positions))

    def forget(self) -> None:
        """The checkpoint has it now."""
        self._link.call(self._forget)

    def _read(self, connection: client.Connection) -> Positions | None:
        try:
            with connection.channel() as channel:
                delivery = channel.get(self._queue)  # not acked: it goes back when the channel closes
                return None if delivery is None else json.loads(delivery.body)
        except client.NotFound:
            return None

    def _keep(self, connection: client.Connection, positions: Positions) -> None:
        with connection.channel() as channel:
            channel.queue_declare(self._queue, durable=True)
            channel.confirm_select()
            properties = client.Properties(content_type="application/json", delivery_mode=2)
            channel.publish("", self._queue, json.dumps(positions), properties).result()

    def _forget(self, connection: client.Connection) -> None:
        with connection.channel() as channel:
            channel.queue_delete(self._queue)
