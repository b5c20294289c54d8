"""What a small service is made of, without doing any of it: handlers, and what becomes of a message after one.

`@consumer(queue)` marks a function as the handler of a queue; a Service of either face runs it. A handler that returns
has its message acked; one that raises has it requeued, parked in a failed queue or rejected, as the decorator,
`on_error` or the exception (`Reject`, `Requeue`) says. Values and pure functions; any thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from warrenmq.client.errors import ClientError, Misuse
from warrenmq.client.parking import is_of_stream, log_dropped
from warrenmq.client.sending import copied
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery

_log = logging.getLogger("warrenmq.client")

Verdict = Literal["ack", "reject", "requeue", "park"]
Function = Callable[["Delivery"], Any]
ErrorHandler = Callable[["Delivery", Exception], "Verdict | None"]


class Reject(Exception):
    """Raise it in a handler: this message is not wanted back (it is dead-lettered where its queue says so)."""


class Requeue(Exception):
    """Raise it in a handler: give this message back to its queue."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with properties of its own, for a handler to return."""

    body: bytes | str | bytearray | memoryview
    properties: BasicProperties = field(default_factory=BasicProperties)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and the queue it serves. Calling it calls the function, so that it can be tested alone."""

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
        """Its prefetch is shared among the channels that work side by side; 0 is no limit."""
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
) -> Callable[[Function], Handler]:
    """Mark a function as the handler of a queue's messages.

    >>> @consumer("orders", prefetch=50)
    ... def handle(delivery):
    ...     print(delivery.body)
    >>> handle.queue, handle.prefetch
    ('orders', 50)

    - Returning acks the message. A value returned for a message with `reply_to` is published as the answer first.
    - Raising requeues the message (`requeue_on_error=True`), parks it (False), or requeues it the first time and parks
      it when it had been delivered before ("once"). `Reject` and `Requeue` decide by themselves. `on_error(delivery,
      error)` hears of every other exception and may decide by returning "ack", "reject", "requeue" or "park".
    - To park a message is to publish it, with the error in headers, to the durable queue `failed_queue`, which is
      declared if it is not there, and to ack it then. None rejects it instead: the broker dead-letters it where the
      queue says so, and drops it otherwise.
    - `concurrency` handlers run side by side, each in order on a channel of its own; `prefetch` messages are at most in
      hand for all of them.
    - `setup(channel)` is called before consuming starts: the place to declare the queue.
    - With `auto_ack` the broker forgets a message when it sends it: nothing is acked, given back or rejected.
    """
    if prefetch < 0 or concurrency < 1:
        raise Misuse("prefetch goes from 0 and concurrency from 1")
    parks_in = _failed_queue_of(queue, failed_queue)

    def mark(function: Function) -> Handler:
        return Handler(
            function,
            queue,
            prefetch,
            concurrency,
            auto_ack,
            requeue_on_error,
            parks_in,
            on_error,
            setup,
            exclusive,
            None if arguments is None else dict(arguments),
        )

    return mark


def _failed_queue_of(queue: str, failed_queue: str | None) -> str | None:
    """The name with the queue's put in; None for a queue without a lasting name, unless another name is given."""
    if failed_queue is None or ("{queue}" in failed_queue and (not queue or queue.startswith("amq."))):
        return None
    name = failed_queue.replace("{queue}", queue)
    if name == queue or not name or len(name.encode()) > 255:
        raise Misuse(f"failed_queue is another queue's name of at most 255 bytes, or None, not {name!r:.80}")
    return name


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def verdict_after(handler: Handler, delivery: Delivery, error: Exception) -> Verdict:
    """What becomes of a message whose handler raised."""
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
        log_dropped(handler, delivery, "its handler failed, and the broker has forgotten it (auto_ack)")
        return "ack"
    if decided != "park" and _may_come_again(handler, delivery):
        return "requeue"
    if handler.failed_queue is not None:
        return "park"
    log_dropped(handler, delivery, "its handler failed, and it has no failed_queue; a dead-letter exchange may have it")
    return "reject"


def _may_come_again(handler: Handler, delivery: Delivery) -> bool:
    if is_of_stream(delivery):
        return False
    return not delivery.redelivered if handler.requeue_on_error == "once" else handler.requeue_on_error


def settle(handler: Handler, delivery: Delivery, verdict: Verdict) -> None:
    """Tell the broker, unless the handler did or nobody asks; what cannot be told comes again by itself."""
    if handler.auto_ack or delivery.is_settled:
        return
    try:
        if verdict == "ack" or (verdict == "reject" and is_of_stream(delivery)):
            delivery.ack()
        elif is_of_stream(delivery):
            _log.error("%r stays unsettled: a stream takes no message back", delivery)
        else:
            delivery.reject(requeue=verdict == "requeue")
    except ClientError as error:
        _log.info("%r was not settled, the broker will deliver it again: %s", delivery, error)


def reply_for(delivery: Delivery, answer: Any) -> tuple[str, Reply] | None:
    """Where the answer goes, and what goes there; None where nobody asked or the handler has nothing to say."""
    if answer is None:
        return None
    asked = delivery.properties
    if not asked.reply_to:
        return None
    reply = answer if isinstance(answer, Reply) else Reply(answer)
    if not isinstance(reply.body, (bytes, str, bytearray, memoryview)):
        raise Misuse(f"a handler answers with bytes, str or Reply, not with {type(answer).__name__}")
    if reply.properties.correlation_id is None:
        # A copy: the handler may return the same Reply for every message.
        reply = Reply(reply.body, copied(reply.properties, correlation_id=asked.correlation_id))
    return asked.reply_to, reply
