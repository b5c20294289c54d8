"""A queue with every feature, as plainly as it can be said: a list in delivery order, and what removes from it.

Times are multiples of the timers' resolution, so that a message expires exactly at its time. Whatever leaves the queue
for another reason than an ack or a purge is in `died`, with that reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.storage.driver import body_of

EXPIRED, MAXLEN, REJECTED, DELIVERY_LIMIT = "expired", "maxlen", "rejected", "delivery_limit"


@dataclass(frozen=True)
class Features:
    """What the queue is declared with; None: without it."""

    ttl_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    max_priority: int = 0
    has_dead_letters: bool = True
    delivery_limit: int | None = None  # of a quorum queue

    def __post_init__(self) -> None:
        """A quorum queue has no priorities, and does not know reject-publish-dlx."""
        if self.delivery_limit is not None:
            object.__setattr__(self, "max_priority", 0)
            if self.overflow == "reject-publish-dlx":
                object.__setattr__(self, "overflow", "drop-head")

    @property
    def gives_way(self) -> bool:
        return self.overflow == "drop-head" and (self.max_length is not None or self.max_bytes is not None)

    def arguments(self, grave: str) -> dict[str, Any]:
        given: dict[str, Any] = {
            "x-message-ttl": self.ttl_ms,
            "x-max-length": self.max_length,
            "x-max-length-bytes": self.max_bytes,
            "x-overflow": self.overflow,
            "x-max-priority": self.max_priority or None,
            "x-queue-type": None if self.delivery_limit is None else "quorum",
            "x-delivery-limit": self.delivery_limit,
            "x-dead-letter-exchange": "" if self.has_dead_letters else None,
            "x-dead-letter-routing-key": grave if self.has_dead_letters else None,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(eq=False)
class ModelMessage:
    """`number` says which came first; `level` is its priority in the queue."""

    number: int
    is_persistent: bool
    level: int = 0
    expires_ms: int | None = None
    is_redelivered: bool = False
    returns: int = 0  # how often it came back

    @property
    def size(self) -> int:
        return len(body_of(self.number))


@dataclass
class ModelQueue:
    features: Features
    now_ms: int = 0
    waiting: list[ModelMessage] = field(default_factory=list)
    unacked: dict[int, ModelMessage] = field(default_factory=dict)
    died: list[tuple[ModelMessage, str]] = field(default_factory=list)

    # -- messages in -------------------------------------------------------------------------------------------------

    def publish(self, number: int, is_persistent: bool, priority: int, ttl_ms: int | None) -> bool:
        """Return False if the message is rejected."""
        features = self.features
        message = ModelMessage(number, is_persistent, min(priority, features.max_priority))
        if features.overflow != "drop-head" and self._is_too_long(1, message.size):
            if features.overflow == "reject-publish-dlx":
                self._die(message, MAXLEN)
            return False
        times = [ttl for ttl in (ttl_ms, features.ttl_ms) if ttl is not None]
        if times:
            message.expires_ms = self.now_ms + min(times)
        self._insert([message])
        self._shorten()
        self.expire()
        return True

    def _insert(self, messages: Iterable[ModelMessage]) -> None:
        self.waiting = sorted([*self.waiting, *messages], key=lambda each: (-each.level, each.number))

    # -- messages out ------------------------------------------------------------------------------------------------

    def get(self) -> ModelMessage | None:
        if not self.waiting:
            return None
        message = self.waiting.pop(0)
        self.unacked[message.number] = message
        return message

    def ack(self, number: int) -> None:
        del self.unacked[number]

    def reject(self, number: int) -> None:
        self._die(self.unacked.pop(number), REJECTED)

    def requeue(self, numbers: Iterable[int]) -> None:
        returned = [self.unacked.pop(number) for number in numbers]
        limit = self.features.delivery_limit
        for message in returned:
            message.is_redelivered = True
            message.returns += 1
            if limit is not None and message.returns > limit:
                self._die(message, DELIVERY_LIMIT)
        self._insert(each for each in returned if limit is None or each.returns <= limit)
        self._shorten()
        self.expire()

    def purge(self) -> int:
        count = len(self.waiting)
        self.waiting.clear()
        return count

    # -- what removes by itself --------------------------------------------------------------------------------------

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.expire()

    def expire(self) -> None:
        """Those that expire earlier leave first; of those that expire at the same time, the first in the queue."""
        over = [each for each in self.waiting if each.expires_ms is not None and each.expires_ms <= self.now_ms]
        for message in sorted(over, key=lambda each: each.expires_ms or 0):
            self.waiting.remove(message)
            self._die(message, EXPIRED)

    def restart(self) -> None:
        """What is transient is lost; what is unacked waits again. Dead letters of `died` are the caller's."""
        kept = [each for each in (*self.waiting, *self.unacked.values()) if each.is_persistent]
        self.waiting.clear()
        self.unacked.clear()
        for message in kept:
            message.is_redelivered = True
        self._insert(kept)
        self.expire()
        self._shorten()

    def _shorten(self) -> None:
        if self.features.overflow == "drop-head":
            while self._is_too_long():
                self._die(self.waiting.pop(0), MAXLEN)

    def _is_too_long(self, more: int = 0, more_bytes: int = 0) -> bool:
        length, size = len(self.waiting) + more, sum(each.size for each in self.waiting) + more_bytes
        limits = self.features
        return (limits.max_length is not None and length > limits.max_length) or (
            limits.max_bytes is not None and size > limits.max_bytes
        )

    def _die(self, message: ModelMessage, reason: str) -> None:
        if self.features.has_dead_letters:
            self.died.append((message, reason))
