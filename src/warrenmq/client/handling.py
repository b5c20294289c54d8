"""Handlers of a service, and what happens to a message after its handler.

`@consumer(queue)` makes a function the handler of a queue; a Service of either face runs it. If the handler returns,
the message is acked. If it raises, the message is retried after a pause, and parked in a dead queue when its retries
are used up, unless `on_error` or the exception (`Reject`, `Requeue`) decide otherwise. Pure; any thread.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from warrenmq.client.errors import ClientError, Misuse
from warrenmq.client.parking import is_of_stream, log_dropped
from warrenmq.client.publish_headers import copy_properties
from warrenmq.client.sending import Retry
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery

_log = logging.getLogger("warrenmq.client")

CONSUMER_RETRY: Final = "warrenmq.consumer_retry"  # a capability of the broker
_RETRY_MAX: Final = "x-retry-max"

# The end of a consumer counts as a failed attempt of its unhandled messages, too. The broker dead-letters them, without
# an error, after this many retries, even if the handler has fewer.
_BROKER_RETRIES: Final = 16

Verdict = Literal["ack", "reject", "requeue", "park", "retry"]
Function = Callable[["Delivery"], Any]
ErrorHandler = Callable[["Delivery", Exception], "Verdict | None"]


class Reject(Exception):
    """Raise it in a handler to give up on the message: it is parked, without further attempts.

    With `dead_queue=None` it is rejected: dead-lettered if its queue is configured so, dropped otherwise.
    """


class Requeue(Exception):
    """Raise it in a handler to requeue the message, for any consumer.

    It returns at once or, where the broker makes the retries, after a pause, and counts as an attempt.
    """


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
    retry: Retry
    dead_queue: str | None
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

    def retry_arguments(self) -> dict[str, Any]:
        """Return the arguments of basic.consume that have the broker make the retries; none if it cannot.

        The broker's pauses double or stay equal. Without a dead queue messages are rejected in the end, and the broker
        would retry that, too.
        """
        retry = self.retry
        if not retry.retries or retry.backoff not in (1, 2) or self.dead_queue is None or self.auto_ack:
            return {}
        return {
            _RETRY_MAX: max(retry.retries, _BROKER_RETRIES),
            "x-retry-delay": round(retry.interval * 1000),
            "x-retry-backoff": "fixed" if retry.backoff == 1 else "exponential",
            "x-retry-max-delay": round(retry.longest * 1000),
            "x-retry-jitter": float(retry.jitter),
        }


def consumer(
    queue: str,
    *,
    prefetch: int = 20,
    concurrency: int = 1,
    auto_ack: bool = False,
    retries: int = 16,
    interval: float = 1.0,
    backoff: float = 2.0,
    longest: float = 60.0,
    jitter: float = 0.5,
    dead_queue: str | None = "{queue}.dead",
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
    - If it raises, the message is retried up to `retries` times, after `interval` seconds, times `backoff` each time,
      at most `longest`, minus a random part up to `jitter`; then it is parked. WarrenMQ keeps it until the next
      attempt; with other brokers it stays here meanwhile, unsettled, and counts for `prefetch`.
    - `Reject` and `Requeue` override this. `on_error(delivery, error)` is called for every other exception; it may
      return "ack", "reject", "requeue" or "park".
    - A parked message is published, with the error in headers, to the durable queue `dead_queue`, which is declared if
      missing; then the original is acked. With None the message is rejected instead: the broker dead-letters it if the
      queue is configured so, and drops it otherwise.
    - `concurrency` handlers run at the same time, each on a channel of its own and in order; together they have at most
      `prefetch` unsettled messages.
    - `setup(channel)` is called before consuming starts, for example to declare the queue.
    - With `auto_ack` the broker removes a message when it sends it: it cannot be acked, requeued or rejected. If the
      handler fails, it is parked at once.
    - With `group` the name is that of a topic (see Channel.declare_topic): the function handles the partitions that
      this member of the group gets, in parallel, each in order. Each has at most `prefetch` unsettled messages.
    """
    if prefetch < 0 or concurrency < 1:
        raise Misuse("prefetch must be >= 0 and concurrency >= 1")
    if group is not None and (prefetch < 1 or auto_ack or exclusive):
        raise Misuse("a consumer group needs prefetch >= 1, and cannot have auto_ack or exclusive")
    retry = Retry(retries, interval, backoff, longest, jitter)
    dead_queue_name = _dead_queue_of(queue, dead_queue)

    def decorate(function: Function) -> Handler:
        return Handler(
            function,
            queue,
            prefetch,
            concurrency,
            auto_ack,
            retry,
            dead_queue_name,
            on_error,
            setup,
            exclusive,
            None if arguments is None else dict(arguments),
            group,
            partitions,
        )

    return decorate


def _dead_queue_of(queue: str, dead_queue: str | None) -> str | None:
    """Return the name of the dead queue."""
    if dead_queue is None:
        return None
    if "{queue}" in dead_queue and (not queue or queue.startswith("amq.")):
        raise Misuse(
            "messages of a queue with a generated name need a dead_queue with a fixed name; "
            "with dead_queue=None they are rejected when their handler fails for good, which may drop them"
        )
    name = dead_queue.replace("{queue}", queue)
    if name == queue or not name or len(name.encode()) > 255:
        raise Misuse(f"dead_queue must be None or the name of another queue, of at most 255 bytes, not {name!r:.80}")
    return name


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def verdict_after(handler: Handler, delivery: Delivery, error: Exception, attempts: int) -> Verdict:
    """Return what to do with a message whose handler raised, after this many attempts."""
    if isinstance(error, Reject):
        return _give_up(handler, delivery)
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
    if decided in ("ack", "requeue"):
        return decided
    if decided not in ("reject", "park") and attempts <= handler.retry.retries and not handler.auto_ack:
        return "retry"
    return _give_up(handler, delivery)


def _give_up(handler: Handler, delivery: Delivery) -> Verdict:
    if handler.dead_queue is not None:
        return "park"
    log_dropped(handler, delivery, "its handler failed and has no dead_queue; it may be dead-lettered")
    return "reject"


def is_retried_by_broker(delivery: Delivery) -> bool:
    """Whether the broker redelivers the message after a pause, and counts the attempts, if it is requeued."""
    return (
        delivery.consumer is not None
        and _RETRY_MAX in delivery.consumer.arguments
        and delivery.channel.connection.has_capability(CONSUMER_RETRY)
        and not is_of_stream(delivery)
    )


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
