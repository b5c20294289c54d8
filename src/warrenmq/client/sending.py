"""The rules of producers: whether and when a message is resent, and its result. Shared by both faces.

No I/O. A `Try` is owned by the call that makes it, a `Backlog` by its producer, which guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, time
from typing import TYPE_CHECKING, Final, Literal, Protocol
from uuid import uuid4

from warrenmq.client.backoff import Backoff
from warrenmq.client.engine.channel_state import as_bytes
from warrenmq.client.errors import (
    CallTimedOut,
    ChannelClosed,
    ClientError,
    CloseReason,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    Misuse,
    Nacked,
    NotFound,
    PublishLost,
    Unroutable,
    channel_error,
)
from warrenmq.client.publish_headers import copy_properties, with_publish_headers
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.properties import BasicProperties
from warrenmq.protocol.values import Timestamp, encode_shortstr

if TYPE_CHECKING:
    from warrenmq.client.confirms import Confirmation

Body = bytes | str | bytearray | memoryview

# confirmed: by the broker. sent: without confirms. queued: in the producer's backlog. dropped: given up without an
# exception. failed: given up because of `error`.
Outcome = Literal["confirmed", "sent", "queued", "dropped", "failed"]


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message with properties or a destination of its own, for `send_many`; None means those of the producer.

    `delay`, `deliver_at` and `report_to`: see Channel.publish.
    """

    body: Body
    properties: BasicProperties | None = None
    routing_key: str | None = None
    exchange: str | None = None
    delay: float | None = None
    deliver_at: datetime | int | str | None = None
    report_to: str | None = None

    @property
    def size(self) -> int:
        return len(self.body)


def as_outgoing(message: Body | OutgoingMessage) -> OutgoingMessage:
    return message if isinstance(message, OutgoingMessage) else OutgoingMessage(message)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send: the outcome, the number of attempts, the time in seconds, and the message's id.

    >>> SendResult("confirmed", attempts=2).ok
    True
    """

    outcome: Outcome
    attempts: int = 1
    error: ClientError | None = None
    tag: int = 0
    elapsed: float = 0.0
    message_id: str = ""

    @property
    def ok(self) -> bool:
        """Whether the message is not known to be lost. Only "confirmed" is a guarantee."""
        return self.outcome not in ("dropped", "failed")


PERSISTENT: Final = 2


def with_defaults(message: OutgoingMessage) -> tuple[OutgoingMessage, str]:
    """Return the message with the missing ones of delivery mode, id and timestamp set, and its id.

    Call it once per message: a resent message keeps its id.
    """
    original = with_publish_headers(message.properties, message.delay, message.deliver_at, message.report_to)
    if original is None:
        message_id = uuid4().hex
        properties = BasicProperties(delivery_mode=PERSISTENT, message_id=message_id, timestamp=Timestamp(time()))
    else:
        message_id = uuid4().hex if original.message_id is None else original.message_id
        properties = copy_properties(
            original,
            delivery_mode=PERSISTENT if original.delivery_mode is None else original.delivery_mode,
            message_id=message_id,
            timestamp=Timestamp(time()) if original.timestamp is None else original.timestamp,
        )
    return OutgoingMessage(message.body, properties, message.routing_key, message.exchange), message_id


class SendFailed(ClientError):
    """A message was given up; `result` is its result, `results` those of all messages of a `send_many`."""

    def __init__(self, result: SendResult, results: Sequence[SendResult] = ()) -> None:
        super().__init__(result)
        self.result = result
        self.results = tuple(results) or (result,)

    def __str__(self) -> str:
        result = self.result
        failed = sum(not each.ok for each in self.results)
        several = f"{failed} of {len(self.results)} messages were given up; the first " if failed > 1 else ""
        return f"{several}after {result.attempts} attempts: {result.error}"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after which pauses, a message is resent.

    `retries` come after the first attempt; the pauses are those of Backoff (`interval`, times `backoff` each time, at
    most `longest`, minus a random part up to `jitter`). `unroutable` also retries messages that reached no queue,
    `missing` those whose exchange does not exist yet.
    """

    retries: int = 16
    interval: float = 0.1
    backoff: float = 2.0
    longest: float = 30.0
    jitter: float = 0.5
    unroutable: bool = False
    missing: bool = False

    def __post_init__(self) -> None:
        if self.retries < 0 or self.interval < 0 or self.longest < 0 or self.backoff < 1 or not 0 <= self.jitter <= 1:
            raise Misuse("retries, interval and longest must be >= 0, backoff >= 1, and jitter from 0 to 1")

    def pauses(self) -> Backoff:
        return Backoff(self.interval, self.backoff, self.longest, self.jitter)


class Sending:
    """Counts the attempts to send one message, and decides what follows a failed one."""

    __slots__ = ("_deadline", "_message_id", "_pauses", "_refused", "_retry", "_started", "attempts", "error")

    def __init__(self, retry: Retry, timeout: float | None, message_id: str = "") -> None:
        self._retry = retry
        self._message_id = message_id
        self._pauses: Backoff | None = None  # most messages never fail
        self._started = monotonic()
        self._deadline = None if timeout is None else self._started + timeout
        self._refused = False
        self.attempts = 0
        self.error: ClientError | None = None

    def begin(self, attempt_timeout: float) -> float:
        """Start another attempt; return its timeout."""
        self.attempts += 1
        if self._deadline is None:
            return attempt_timeout
        return max(0.0, min(attempt_timeout, self._deadline - monotonic()))

    def failed(self, error: ClientError, is_alone: bool) -> float | None:
        """Return the pause before the next attempt, or None to give up.

        A message that the broker refuses closes the channel, and all unconfirmed messages there fail with it. So if
        there were others (not `is_alone`), this one may not be the cause and is retried once.
        """
        self.error = error
        if self.attempts > self._retry.retries or not self._may_retry(error, is_alone):
            return None
        if self._pauses is None:
            self._pauses = self._retry.pauses()
        pause = self._pauses.next()
        if self._deadline is not None and monotonic() + pause >= self._deadline:
            return None
        return pause

    def confirmed(self, tag: int) -> SendResult:
        return SendResult("confirmed", self.attempts, None, tag, monotonic() - self._started, self._message_id)

    def given_up(self) -> SendResult:
        return SendResult("failed", self.attempts, self.error, 0, monotonic() - self._started, self._message_id)

    def _may_retry(self, error: ClientError, is_alone: bool) -> bool:
        if isinstance(error, NotFound) and self._retry.missing:
            return True
        if isinstance(error, ChannelClosed):
            if error.reason.by != "server":
                return False
            is_second, self._refused = self._refused, True
            return not is_alone and not is_second
        if isinstance(error, Unroutable):
            return self._retry.unroutable
        if isinstance(error, ConnectionFailed):
            return not error.is_refusal
        return isinstance(error, (Nacked, PublishLost, ConnectionLost, CallTimedOut))


class HasCloseReason(Protocol):
    """A channel of either face."""

    @property
    def close_reason(self) -> CloseReason | None: ...


class Try:
    """A message being sent: its attempts, its confirmation and its result."""

    __slots__ = ("_sending", "_until", "channel", "confirmation", "error", "is_exchange_missing", "message", "result")

    def __init__(self, message: OutgoingMessage, retry: Retry, timeout: float | None) -> None:
        self.message, message_id = with_defaults(message)
        self._sending = Sending(retry, timeout, message_id)
        self._until = 0.0  # end of this attempt
        self.channel: HasCloseReason | None = None  # where it was published
        self.confirmation: Confirmation | None = None
        self.error: ClientError | None = None  # of the publish
        self.is_exchange_missing = False  # or was, at the last attempt
        self.result: SendResult | None = None

    def begin(self, attempt_timeout: float) -> float:
        """Start another attempt; return its timeout."""
        allowed = self._sending.begin(attempt_timeout)
        self._until = monotonic() + allowed
        self.error = None
        return allowed

    @property
    def allowed(self) -> float:
        """The remaining seconds of this attempt."""
        return max(0.0, self._until - monotonic())

    def confirmed(self) -> None:
        assert self.confirmation is not None
        self.result = self._sending.confirmed(self.confirmation.tag)

    def failed(self, error: ClientError, is_alone: bool) -> float | None:
        """Return the pause before the next attempt, or None if that was the last. A pending confirmation is kept.

        A confirm that came after the timeout counts: resending would only make a duplicate.
        """
        if self.confirmation is not None and self.confirmation.done():
            confirm_error = self.confirmation.exception()
            if confirm_error is None:
                self.confirmed()
                return None
            error = confirm_error
            self.confirmation = None
        reason = self._reason_of(error)
        self.is_exchange_missing = isinstance(reason, NotFound)
        pause = self._sending.failed(reason, is_alone)
        if pause is None:
            self.give_up()
        return pause

    def give_up(self) -> None:
        self.result = self._sending.given_up()

    def _reason_of(self, error: ClientError) -> ClientError:
        """Return the broker's error, if it closed the channel and the confirmation was lost with it."""
        reason = self.channel.close_reason if isinstance(error, PublishLost) and self.channel is not None else None
        return error if reason is None or reason.by != "server" else channel_error(reason)


def raise_failure(results: Sequence[SendResult]) -> None:
    """Raise SendFailed for the first message that was given up, if any."""
    for result in results:
        if not result.ok:
            raise SendFailed(result, results) from result.error


BACKLOG_BYTES: Final = 64 * 1024 * 1024

# Errors after which a one-way message goes to the backlog; any other is permanent, or the caller's mistake.
RETRIED_LATER: Final = (ConnectionLost, ConnectionFailed, CallTimedOut, ChannelClosed)


class Backlog:
    """The messages that a one-way producer cannot send yet, and its counters.

    The first message is removed when it is sent, so an empty backlog means that all earlier messages were sent. Failed
    attempts count for all messages in it: if the first cannot be sent, none can.
    """

    __slots__ = ("_failures", "_retries", "_waiting", "dropped", "max_bytes", "max_messages", "sent", "size")

    def __init__(self, max_messages: int, max_bytes: int, retries: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self._retries = retries
        self._failures = 0
        self._waiting: deque[tuple[int, OutgoingMessage]] = deque()
        self.size = 0
        self.sent = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: OutgoingMessage) -> bool:
        """Append the message; return False if it is full, and count the message as dropped."""
        if len(self._waiting) >= self.max_messages or self.size + message.size > self.max_bytes:
            self.dropped += 1
            return False
        self._waiting.append((self._failures, message))
        self.size += message.size
        return True

    def first(self) -> OutgoingMessage:
        return self._waiting[0][1]

    def first_sent(self) -> None:
        """Remove the first message, which was sent; it may be gone if the producer was closed meanwhile."""
        if self._waiting:
            self._remove_first()
            self.sent += 1

    def failed(self, error: ClientError, *, is_last: bool) -> int:
        """Handle a failure to send the first message; drop those out of retries, and return their number."""
        is_over = isinstance(error, ConnectionClosed) or (isinstance(error, ConnectionFailed) and error.is_refusal)
        if is_last or is_over:
            return self.drop_all()
        if not isinstance(error, RETRIED_LATER):  # the message itself is the problem
            self._remove_first()
            self.dropped += 1
            return 1
        return self._attempt_failed()

    def _attempt_failed(self) -> int:
        """Drop the messages that have used up their retries."""
        self._failures += 1
        dropped = 0
        while self._waiting and self._failures - self._waiting[0][0] > self._retries:
            self._remove_first()
            dropped += 1
        self.dropped += dropped
        return dropped

    def drop_all(self) -> int:
        dropped = len(self._waiting)
        self._waiting.clear()
        self.size = 0
        self.dropped += dropped
        return dropped

    def _remove_first(self) -> None:
        if self._waiting:
            self.size -= self._waiting.popleft()[1].size


def owned_copy(message: OutgoingMessage) -> OutgoingMessage:
    """Return a copy that the caller can no longer change; raise Misuse if it cannot be sent."""
    properties = None if message.properties is None else copy_properties(message.properties)
    try:
        if properties is not None:
            properties.encode()
        for name in (message.exchange, message.routing_key):
            encode_shortstr(name or "")
    except LocalMisuse as misuse:
        raise Misuse(str(misuse)) from misuse
    return OutgoingMessage(as_bytes(message.body), properties, message.routing_key, message.exchange)
