"""Consumers, and the way of deliveries and notifications from the loop to the user's code.

Items leave the loop through a work queue: the ordered worker of a channel or of the connection's own listeners, or the
queue behind an iterator. The two APIs implement it. The engine only puts items there, one batch per socket read, and
stops reading the socket while a work queue is full.

Owned by the connection's loop, except where a docstring says "any thread".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.client.delivery import Delivery

if TYPE_CHECKING:
    from warrenmq.client.engine.channel import EngineChannel
    from warrenmq.client.engine.channel_state import DeliveryBuffer
    from warrenmq.client.errors import ClientError


_log = logging.getLogger("warrenmq.client")


class Notification:
    """A call of the user's code other than a delivery: for a return, confirm, cancel, close or recovery."""

    __slots__ = ("_arguments", "_callback", "context", "source")

    def __init__(self, context: str, source: object, callback: Callable[..., object], *arguments: object) -> None:
        self.context = context
        self.source = source
        self._callback = callback
        self._arguments = arguments

    def run(self) -> Any:
        """Call the user's code; return its result."""
        return self._callback(*self._arguments)


Item: TypeAlias = Delivery | Notification


class WorkQueue:
    """Items on their way from the loop to the user's code, in order. Each API implements it."""

    # Set by the engine when `pending` passes the limit. The queue then calls `on_drained`, from any thread, once only
    # `resume_at` items or fewer are left.
    is_full = False
    resume_at = 0
    # A task runs on the loop until `ended`.
    has_task = False
    on_drained: Callable[[], None]

    def put(self, items: list[Item]) -> None:
        """Append the items and take over the list; never wait. On the loop."""
        raise NotImplementedError

    def pending(self) -> int:
        """Return the number of waiting items. Any thread."""
        raise NotImplementedError

    def stop(self, error: ClientError | None = None, *, is_cancel: bool = False) -> None:
        """Accept no more items. On the loop; only the first call counts.

        Waiting notifications still run. Waiting deliveries are still handed out after a cancel, else dropped, since
        they can no longer be settled. `error` is why an iterator ends, None if the user ended it.
        """
        raise NotImplementedError

    async def ended(self) -> bool:
        """Wait, with a time-out, until no user code runs; return False if called by that code. On the loop."""
        raise NotImplementedError


class EngineConsumer:
    """One consumer, over all links. `buffer` None: its deliveries are requeued."""

    __slots__ = (
        "arguments",
        "auto_ack",
        "buffer",
        "callback",
        "channel",
        "exclusive",
        "is_active",
        "is_subscribed",
        "no_local",
        "on_cancel",
        "prefetch",
        "queue",
        "tag",
        "work_queue",
    )

    def __init__(
        self,
        channel: EngineChannel,
        queue: str,
        tag: str,
        callback: Callable[[Delivery], object] | None,
        work_queue: WorkQueue | None,
        buffer: DeliveryBuffer,
        on_cancel: Callable[..., object] | None,
        auto_ack: bool,
        exclusive: bool,
        no_local: bool,
        arguments: dict[str, Any],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.callback = callback
        self.work_queue = work_queue
        self.buffer: DeliveryBuffer | None = buffer
        self.on_cancel = on_cancel
        self.auto_ack = auto_ack
        self.exclusive = exclusive
        self.no_local = no_local
        self.arguments = arguments
        self.is_active = True
        self.is_subscribed = False  # basic.consume was sent on the present link
        self.prefetch = (0, 0)  # count and size in effect when this consumer was added

    @property
    def has_stream_arguments(self) -> bool:
        """Whether it reads a stream, which cannot requeue. A consumer without such arguments may read one, too."""
        return any(name.startswith("x-stream-") for name in self.arguments)

    def warn_of_rollback(self) -> None:
        if self.auto_ack:
            _log.warning("rolled back, but messages sent to %r are not redelivered: it has auto_ack", self)

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of queue {self.queue!r}>"
