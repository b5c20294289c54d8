"""What happens to the messages that an iterated consumer has not read. On the connection's loop, for both faces."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from warrenmq.client.errors import ClientError

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery
    from warrenmq.client.engine.consumers import EngineConsumer


class Inbox(Protocol):
    """The work queue of an iterated consumer, of either face."""

    is_stopped: bool

    def take_rest(self) -> list[Delivery]: ...


async def requeue_unread(consumer: EngineConsumer, inbox: Inbox) -> None:
    """Requeue the messages that the consumer has not read."""
    if not consumer.auto_ack:
        consumer.channel.requeue(delivery.delivery_tag for delivery in inbox.take_rest())


def release_forgotten(
    spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], None], consumer: EngineConsumer, inbox: Inbox
) -> None:
    """Cancel a consumer that was garbage collected, without waiting: any thread may be collecting."""
    if not inbox.is_stopped:
        spawn(lambda: _cancel_and_requeue(consumer, inbox))


async def _cancel_and_requeue(consumer: EngineConsumer, inbox: Inbox) -> None:
    try:
        await consumer.channel.cancel(consumer)
        await requeue_unread(consumer, inbox)
    except ClientError:
        return  # the channel has ended meanwhile: the broker has requeued everything
