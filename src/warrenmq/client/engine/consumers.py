"""Consumers, and the way of deliveries and notifications from the loop to the user's code.

Items leave the loop through a work queue: the ordered worker of a channel or of the connection's own listeners, or the
queue behind an iterator. The two APIs implement it. The engine only puts items there, one batch per socket read, and
stops reading the socket while a work queue is full.

Owned by the connection's loop, except where a docstring says "any thread".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from warrenmq.client.delivery import Delivery

if TYPE_CHECKING:
    from warrenmq.client.engine.channel import EngineChannel
    from warrenmq.client.engine.channel_state import DeliveryBuffer
    from warrenmq.client.errors import ClientError


class Notification:
    """Something for the user's code that is no delivery: a return, a confirm, a cancel, a close, a recovery."""

    __slots__ = ("_arguments", "_callback", "context", "source")

    def __init__(self, context: str, source: object, callback: Callable[..., object], *arguments: object) -> None:
        self.context = context
        self.source = source
        self._callback = callback
        self._arguments = arguments

    def run(self) -> Any:
        """Call the user's code; gives what it gives."""
        return self._callback(*self._arguments)


Item: TypeAlias = Delivery | Notification


class WorkQueue:
    """Where items leave the loop, in order. A facade implements it."""

    # Set by the engine when `pending` has passed the limit. A work_queue that finds it set and has `resume_at` items or
    # fewer left calls `on_drained`, from any thread.
    is_full = False
    resume_at = 0
    # Whether something runs on the loop until `ended`.
    has_task = False
    on_drained: Callable[[], None]

    def put(self, items: list[Item]) -> None:
        """Take them, and own the list; never waits. On the loop."""
        raise NotImplementedError

    def pending(self) -> int:
        """How many items wait. Any thread."""
        raise NotImplementedError

    def stop(self, error: ClientError | None = None, *, is_cancel: bool = False) -> None:
        """Nothing comes after this; on the loop, and heard once only.

        Notices that are there are still run. Deliveries are still handed out after a cancel, and dropped otherwise:
        they can no longer be settled. `error` is why an iteration ends, None where the user ended it.
        """
        raise NotImplementedError

    async def ended(self) -> bool:
        """Wait until no user code runs any more, with an end; False: it is that user code which asks. On the loop."""
        raise NotImplementedError


class EngineConsumer:
    """One consumer, over all links. `buffer` None: nobody wants its deliveries, they go back to the broker."""

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
        self.is_subscribed = False  # on the present link, as far as was asked
        self.prefetch = (0, 0)  # count and size, as the channel had it when this consumer began

    def __repr__(self) -> str:
        return f"<consumer {self.tag!r} of queue {self.queue!r}>"
