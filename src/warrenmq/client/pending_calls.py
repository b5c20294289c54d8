"""Remote calls over messages: a request goes out, the answer comes back to this channel by direct reply-to.

The broker's pseudo-queue `amq.rabbitmq.reply-to` needs no declaration and keeps nothing, so an answer that nobody waits
for is gone. Requests are told apart by correlation id; any number may be under way. The other side is any consumer that
publishes its answer to `reply_to` with the same correlation id, as handlers of a Service do.

`PendingCalls` is shared by both faces and guarded by its own lock. Answers arrive on the channel's worker.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from warrenmq.client.backoff import Backoff
from warrenmq.client.errors import (
    CallTimedOut,
    ClientError,
    CloseReason,
    ConnectionClosed,
    ConnectionLost,
    Unroutable,
    channel_error,
)
from warrenmq.client.sending import copied
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery, Returned

REPLY_TO: Final = "amq.rabbitmq.reply-to"


class RpcTimeout(CallTimedOut):
    """No answer came in time; whether the request was worked on is not known."""


class _Waiter(Protocol):
    """A future, of either kind."""

    def done(self) -> bool: ...
    def set_result(self, result: Delivery, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


W = TypeVar("W", bound=_Waiter)


class PendingCalls(Generic[W]):
    """The requests without an answer, by correlation id, and the life of the channel in which each went out."""

    __slots__ = ("_lock", "_numbers", "_prefix", "_waiting", "late_replies")

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[int, W]] = {}
        self._lock = threading.Lock()
        self.late_replies = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiter: W, life: int) -> str:
        """A new request; its correlation id."""
        correlation_id = f"{self._prefix}.{next(self._numbers)}"
        with self._lock:
            self._waiting[correlation_id] = life, waiter
        return correlation_id

    def forget(self, correlation_id: str) -> None:
        with self._lock:
            self._waiting.pop(correlation_id, None)

    def answered(self, delivery: Delivery) -> None:
        """An answer came; one that nobody waits for any more is dropped and counted."""
        waiter = self._take(delivery.properties.correlation_id)
        if waiter is None:
            with self._lock:
                self.late_replies += 1
        else:
            waiter.set_result(delivery)

    def returned(self, returned: Returned) -> None:
        """A request came back: there is nobody to work on it."""
        waiter = self._take(returned.properties.correlation_id)
        if waiter is not None:
            waiter.set_exception(Unroutable(returned))

    def fail(self, error: ClientError, last_life: int | None = None) -> None:
        """No answer can come for requests of lives up to that one (None: of any)."""
        with self._lock:
            hit = [key for key, (life, _) in self._waiting.items() if last_life is None or life <= last_life]
            waiters = [self._waiting.pop(key)[1] for key in hit]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _take(self, correlation_id: str | None) -> W | None:
        with self._lock:
            _, waiter = self._waiting.pop(correlation_id or "", (0, None))
        return waiter if waiter is not None and not waiter.done() else None


def request_properties(properties: BasicProperties | None, correlation_id: str) -> BasicProperties:
    """The caller's properties, asking for the answer here."""
    return copied(properties, reply_to=REPLY_TO, correlation_id=correlation_id)


def recovery_pauses() -> Backoff:
    """A request that finds the connection away has not been sent: it is tried again until its time is over."""
    return Backoff(initial=0.02, factor=2.0, longest=0.5, jitter=0.5)


def forgetful(method: Callable[[], None]) -> Callable[[object], None]:
    """A listener that does not keep the method's owner: connections outlive RPC clients, and keep their listeners."""
    reference = weakref.WeakMethod(method)

    def listen(_: object) -> None:
        still_there = reference()
        if still_there is not None:
            still_there()

    return listen


def last_life_lost(life: int, is_open: bool) -> int:
    """The last life of a channel whose requests cannot be answered any more."""
    return life - 1 if is_open else life


def closed_error(reason: CloseReason) -> ClientError:
    """What calls under way hear when their channel ends: the broker's refusal, or that the connection has ended."""
    return channel_error(reason) if reason.by == "server" and reason.reply_code else ConnectionClosed(reason)


def no_answer(exchange: str, routing_key: str) -> RpcTimeout:
    return RpcTimeout(f"no answer from exchange {exchange!r}, routing key {routing_key!r} in time")


def lost() -> ConnectionLost:
    return ConnectionLost("the connection was lost while the answer was waited for")


def remaining(deadline: float) -> float:
    return max(0.0, deadline - monotonic())
