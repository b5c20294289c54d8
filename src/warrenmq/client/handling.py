"""Handlers of a service, and what happens to a message after its handler.

`@consumer(queue)` makes a function the handler of a queue; a Service of either face runs it. If the handler returns,
the message is acked; if it raises, the message is requeued, parked in a failed queue or rejected, depending on the
decorator, `on_error` and the exception (`Reject`, `Requeue`). Pure; any thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from warrenmq.client.errors import ClientError, Misuse
from warrenmq.client.parking import is_of_stream, log_dropped
from warrenmq.client.publish_headers import copy_properties
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery

_log = logging.getLogger("warrenmq.client")

Verdict = Literal["ack", "reject", "requeue", "park"]
Function = Callable[["Delivery"], Any]
ErrorHandler = Callable[["Delivery", Exception], "Verdict | None"]


class Reject(Exception):
    """Raise it in a handler to reject the message, which is dead-lettered if its queue is configured so."""


class Requeue(Exception):
    """Raise it in a handler to requeue the message."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply with its own properties, to be returned by a handler."""

    body: bytes | str | bytearray | memoryview
    properties: BasicProperties = field(default_factory=BasicProperties)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and the queue it serves. Calling it calls the function, which can so be tested alone."""

    function: Function
    queue: str
    prefetch: int
    concurrency: int
    auto_ack: bool
    requeue_on_error: bool | Literal["once"]
    failed_queue: str | None
    on_error: ErrorHandler | None
    setup: Callable[[Any], Any] | None
    exclusive: bool
    arguments: Mapping[str, Any] | None
    group: str | None = None
    partitions: int = 8

    def __call__(self, delivery: Delivery) -> Any:
        return self.function(delivery)

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    @property
    def is_async(self) -> bool:
        return is_async(self.function)

    @property
    def channel_prefetch(self) -> int:
        """The prefetch of each of its channels, which share `prefetch`; 0 is no limit."""
        return max(1, self.prefetch // self.concurrency) if self.prefetch else 0


def consumer(
    queue: str,
    *,
    prefetch: int = 20,
    concurrency: int = 1,
    auto_ack: bool = False,
    requeue_on_error: bool | Literal["once"] = "once",
    failed_queue: str | None = "{queue}.failed",
    on_error: ErrorHandler | None = None,
    setup: Callable[[Any], Any] | None = None,
    exclusive: bool = False,
    arguments: Mapping[str, Any] | None = None,
    group: str | None = None,
    partitions: int = 8,
) -> Callable[[Function], Handler]:
    """Make a function the handler of a queue's messages.

    >>> @consumer("orders", prefetch=50)
    ... def handle(delivery):
    ...     print(delivery.body)
    >>> handle.queue, handle.prefetch
    ('orders', 50)

    - If the function returns, the message is acked. For a message with `reply_to`, the value returned is published as
      the reply first.
    - If it raises, the message is requeued (`requeue_on_error=True`), parked (False), or requeued the first time and
      parked if redelivered ("once"). `Reject` and `Requeue` override this. `on_error(delivery, error)` is called for
      every other exception; it may return "ack", "reject", "requeue" or "park".
    - A parked message is published, with the error in headers, to the durable queue `failed_queue`, which is declared
      if missing; then the original is acked. With None the message is rejected: the broker dead-letters it if the queue
      is configured so, and drops it otherwise.
    - `concurrency` handlers run at the same time, each on a channel of its own and in order; together they have at most
      `prefetch` unsettled messages.
    - `setup(channel)` is called before consuming starts, for example to declare the queue.
    - With `auto_ack` the broker removes a message when it sends it: it cannot be acked, requeued or rejected.
    - With `group` the name is that of a topic (see Channel.declare_topic): the function handles the partitions that
      this member of the group gets, in parallel, each in order. Each has at most `prefetch` unsettled messages.
    """
    if prefetch < 0 or concurrency < 1:
        raise Misuse("prefetch must be >= 0 and concurrency >= 1")
    if group is not None and (prefetch < 1 or auto_ack or exclusive):
        raise Misuse("a consumer group needs prefetch >= 1, and cannot have auto_ack or exclusive")
    failed_queue_name = _failed_queue_of(queue, failed_queue)

    def decorate(function: Function) -> Handler:
        return Handler(
            function,
            queue,
            prefetch,
            concurrency,
            auto_ack,
            requeue_on_error,
            failed_queue_name,
            on_error,
            setup,
            exclusive,
            None if arguments is None else dict(arguments),
            group,
            partitions,
        )

    return decorate


def _failed_queue_of(queue: str, failed_queue: str | None) -> str | None:
    """Return the name of the failed queue; None for a queue with a generated name, unless a fixed name is given."""
    if failed_queue is None or ("{queue}" in failed_queue and (not queue or queue.startswith("amq."))):
        return None
    name = failed_queue.replace("{queue}", queue)
    if name == queue or not name or len(name.encode()) > 255:
        raise Misuse(f"failed_queue must be None or the name of another queue, of at most 255 bytes, not {name!r:.80}")
    return name


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def verdict_after(handler: Handler, delivery: Delivery, error: Exception) -> Verdict:
    """Return what to do with a message whose handler raised."""
    if isinstance(error, Reject):
        return "reject"
    if isinstance(error, Requeue):
        return "requeue"
    decided: Verdict | None = None
    if handler.on_error is None:
        _log.error("the handler %s failed on %r", handler.name, delivery, exc_info=error)
    else:
        try:
            decided = handler.on_error(delivery, error)
        except Exception:  # noqa: BLE001 - the user's code; the handler's own error is the one that decides
            _log.exception("on_error of the handler %s failed on %r", handler.name, delivery)
    if delivery.is_settled:
        return "ack"  # the handler settled it before it failed
    if decided in ("ack", "reject", "requeue") or (decided == "park" and handler.failed_queue is not None):
        return decided
    if handler.auto_ack:
        log_dropped(handler, delivery, "its handler failed, and the broker no longer has it (auto_ack)")
        return "ack"
    if decided != "park" and _may_requeue(handler, delivery):
        return "requeue"
    if handler.failed_queue is not None:
        return "park"
    log_dropped(handler, delivery, "its handler failed and has no failed_queue; it may be dead-lettered")
    return "reject"


def _may_requeue(handler: Handler, delivery: Delivery) -> bool:
    if is_of_stream(delivery):
        return False
    return not delivery.redelivered if handler.requeue_on_error == "once" else handler.requeue_on_error


def settle(handler: Handler, delivery: Delivery, verdict: Verdict) -> None:
    """Ack or reject the message, unless the handler did. If that fails, the broker redelivers it."""
    if handler.auto_ack or delivery.is_settled:
        return
    try:
        if verdict == "ack" or (verdict == "reject" and is_of_stream(delivery)):
            delivery.ack()
        elif is_of_stream(delivery):
            _log.error("%r stays unsettled: a stream cannot requeue", delivery)
        else:
            delivery.reject(requeue=verdict == "requeue")
    except ClientError as error:
        _log.info("%r was not settled, the broker will redeliver it: %s", delivery, error)


def reply_for(delivery: Delivery, result: Any) -> tuple[str, Reply] | None:
    """Return the queue for the reply and the reply; None if the message asks for none or the handler returned None."""
    if result is None:
        return None
    request = delivery.properties
    if not request.reply_to:
        return None
    reply = result if isinstance(result, Reply) else Reply(result)
    if not isinstance(reply.body, (bytes, str, bytearray, memoryview)):
        raise Misuse(f"a handler must reply with bytes, str or Reply, not {type(result).__name__}")
    if reply.properties.correlation_id is None:
        # A copy: the handler may return the same Reply for every message.
        reply = Reply(reply.body, copy_properties(reply.properties, correlation_id=request.correlation_id))
    return request.reply_to, reply
