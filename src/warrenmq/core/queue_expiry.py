"""Queue expiry (`x-expires`): a queue that is not used for a while is deleted, with its messages.

Consumers, basic.get and queue.declare, passive or not, are uses. Its messages are not dead-lettered. A restart of the
broker counts as a use.

One timer for each queue that expires; a use only notes the time, and the timer goes on if there was one.

Owned by the loop thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warrenmq.core.timers import Timer
from warrenmq.events import schema

if TYPE_CHECKING:
    from warrenmq.core.queue import Queue
    from warrenmq.core.vhost import VHost


class QueueExpiry:
    """That of one queue, which is deleted when it is unused for `unused_ms`."""

    __slots__ = ("_queue", "_timer", "_used_ms", "_vhost", "unused_ms")

    def __init__(self, vhost: VHost, queue: Queue, unused_ms: int) -> None:
        self._vhost = vhost
        self._queue = queue
        self.unused_ms = unused_ms
        self._used_ms = 0
        self._timer: Timer | None = None
        self.touch()

    def touch(self) -> None:
        """The queue was used, or its last consumer has left."""
        self._used_ms = self._queue.turn.now_ms
        if self._timer is None and not self._queue.consumers:
            self._schedule()

    def stop(self) -> None:
        """The queue does not expire any more, or is deleted."""
        if self._timer is not None:
            self._vhost.broker.timers.cancel(self._timer)
            self._timer = None

    def _schedule(self) -> None:
        self._timer = self._vhost.broker.timers.schedule(self._used_ms + self.unused_ms, self._check)

    def _check(self) -> None:
        self._timer = None
        if self._queue.consumers:
            return  # `touch` is called when the last of them leaves
        if self._queue.turn.now_ms < self._used_ms + self.unused_ms:
            self._schedule()
        else:
            self._vhost.remove_queue(self._queue, schema.R_UNUSED)


def apply_expiry(vhost: VHost, queue: Queue) -> None:
    """Let the queue expire as its options say, from now on."""
    unused_ms = queue.options.unused_ms
    if queue.expiry is not None:
        if queue.expiry.unused_ms == unused_ms:
            return
        queue.expiry.stop()
        queue.expiry = None
    if unused_ms is not None:
        queue.expiry = QueueExpiry(vhost, queue, unused_ms)
