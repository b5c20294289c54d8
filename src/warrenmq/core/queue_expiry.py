"""Queue expiry (`x-expires`): a queue that is unused for this long is deleted, without dead-lettering its messages.

Consumers, basic.get, queue.declare (also passive) and a restart of the broker count as use.

Each such queue has one timer. A use only records the time; the timer is rescheduled when it runs.

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
    """Deletes one queue when it is unused for `unused_ms`."""

    __slots__ = ("_queue", "_timer", "_used_ms", "_vhost", "unused_ms")

    def __init__(self, vhost: VHost, queue: Queue, unused_ms: int) -> None:
        self._vhost = vhost
        self._queue = queue
        self.unused_ms = unused_ms
        self._used_ms = 0
        self._timer: Timer | None = None
        self.touch()

    def touch(self) -> None:
        """Record a use of the queue; also called when its last consumer leaves."""
        self._used_ms = self._queue.turn.now_ms
        if self._timer is None and not self._queue.consumers:
            self._schedule()

    def stop(self) -> None:
        """Cancel the expiry: the queue is deleted or no longer expires."""
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
    """Apply the `unused_ms` option of the queue."""
    unused_ms = queue.options.unused_ms
    if queue.expiry is not None:
        if queue.expiry.unused_ms == unused_ms:
            return
        queue.expiry.stop()
        queue.expiry = None
    if unused_ms is not None:
        queue.expiry = QueueExpiry(vhost, queue, unused_ms)
