"""Remote calls that wait for a reply; shared by the RpcClient of both faces.

`PendingCalls` has its own lock. Replies arrive on the channel's worker.
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
from warrenmq.client.publish_headers import copy_properties
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery, Returned

REPLY_TO: Final = "amq.rabbitmq.reply-to"


class RpcTimeout(CallTimedOut):
    """No reply came in time; whether the request was handled is unknown."""


class _Waiter(Protocol):
    """A future of threads or of asyncio."""

    def done(self) -> bool: ...
    def set_result(self, result: Delivery, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


W = TypeVar("W", bound=_Waiter)


class PendingCalls(Generic[W]):
    """Requests without a reply by correlation id, each with the life of its channel (see Channel.life)."""

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
        """Add a request; return its correlation id."""
        correlation_id = f"{self._prefix}.{next(self._numbers)}"
        with self._lock:
            self._waiting[correlation_id] = life, waiter
        return correlation_id

    def forget(self, correlation_id: str) -> None:
        with self._lock:
            self._waiting.pop(correlation_id, None)

    def answered(self, delivery: Delivery) -> None:
        """Pass a reply to its caller; drop and count it if that no longer waits."""
        waiter = self._take(delivery.properties.correlation_id)
        if waiter is None:
            with self._lock:
                self.late_replies += 1
        else:
            waiter.set_result(delivery)

    def returned(self, returned: Returned) -> None:
        """Fail a request that was returned: it reached no queue."""
        waiter = self._take(returned.properties.correlation_id)
        if waiter is not None:
            waiter.set_exception(Unroutable(returned))

    def fail(self, error: ClientError, last_life: int | None = None) -> None:
        """Fail the requests of all lives up to this one (None: of any), whose replies cannot come any more."""
        with self._lock:
            failed = [key for key, (life, _) in self._waiting.items() if last_life is None or life <= last_life]
            waiters = [self._waiting.pop(key)[1] for key in failed]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _take(self, correlation_id: str | None) -> W | None:
        with self._lock:
            _, waiter = self._waiting.pop(correlation_id or "", (0, None))
        return waiter if waiter is not None and not waiter.done() else None


def request_properties(properties: BasicProperties | None, correlation_id: str) -> BasicProperties:
    """Return the caller's properties with reply_to and correlation id."""
    return copy_properties(properties, reply_to=REPLY_TO, correlation_id=correlation_id)


def recovery_pauses() -> Backoff:
    """Return the pauses between attempts to send a request while the connection recovers."""
    return Backoff(initial=0.02, factor=2.0, longest=0.5, jitter=0.5)


def weak_listener(method: Callable[[], None]) -> Callable[[object], None]:
    """Return a listener with a weak reference to the method's object: connections outlive RPC clients."""
    reference = weakref.WeakMethod(method)

    def listen(_: object) -> None:
        target = reference()
        if target is not None:
            target()

    return listen


def last_life_lost(life: int, is_open: bool) -> int:
    """Return the last life of a channel whose requests can get no reply."""
    return life - 1 if is_open else life


def channel_closed_error(reason: CloseReason) -> ClientError:
    """Return the error for pending calls when their channel ends: the broker's, or that the connection has ended."""
    return channel_error(reason) if reason.by == "server" and reason.reply_code else ConnectionClosed(reason)


def no_reply(exchange: str, routing_key: str) -> RpcTimeout:
    return RpcTimeout(f"no reply in time from exchange {exchange!r}, routing key {routing_key!r}")


def connection_lost() -> ConnectionLost:
    return ConnectionLost("the connection was lost while waiting for the reply")


def remaining(deadline: float) -> float:
    return max(0.0, deadline - monotonic())
