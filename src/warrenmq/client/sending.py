"""What producers decide, without doing any of it: whether a message is sent again, when, and what is told of it.

Pure values and bookkeeping, shared by the producers of both faces. A `Sending` belongs to the call that makes it; a
`Backlog` to its producer, which guards it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
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
    PublishLost,
    Unroutable,
    channel_error,
)
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.properties import BasicProperties
from warrenmq.protocol.values import Timestamp, encode_shortstr

if TYPE_CHECKING:
    from warrenmq.client.confirms import Confirmation

Body = bytes | str | bytearray | memoryview

# confirmed: the broker took responsibility. sent: on its way, nobody answers for it. queued: in the producer's backlog.
# dropped: given up without an exception. failed: given up, and `error` says why.
Outcome = Literal["confirmed", "sent", "queued", "dropped", "failed"]


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message for `send_many` that differs from the producer's settings; None takes the producer's."""

    body: Body
    properties: BasicProperties | None = None
    routing_key: str | None = None
    exchange: str | None = None

    @property
    def size(self) -> int:
        return len(self.body)


def as_outgoing(message: Body | OutgoingMessage) -> OutgoingMessage:
    return message if isinstance(message, OutgoingMessage) else OutgoingMessage(message)


@dataclass(frozen=True, slots=True)
class SendResult:
    """What became of a message: how it ended, after how many attempts, in how many seconds, and the id it has.

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
        """Nothing is known to be lost. Only of "confirmed" does the broker say so."""
        return self.outcome not in ("dropped", "failed")


PERSISTENT: Final = 2


def stamped(message: OutgoingMessage) -> tuple[OutgoingMessage, str]:
    """The message as a producer sends it, and its id: persistent, with an id and the time, where its owner set none.

    Done once per message: what is sent again has the same id.
    """
    given = message.properties
    if given is None:
        message_id = uuid4().hex
        properties = BasicProperties(delivery_mode=PERSISTENT, message_id=message_id, timestamp=Timestamp(time()))
    else:
        message_id = uuid4().hex if given.message_id is None else given.message_id
        properties = copied(
            given,
            delivery_mode=PERSISTENT if given.delivery_mode is None else given.delivery_mode,
            message_id=message_id,
            timestamp=Timestamp(time()) if given.timestamp is None else given.timestamp,
        )
    return OutgoingMessage(message.body, properties, message.routing_key, message.exchange), message_id


class SendFailed(ClientError):
    """A message was given up. `result` says why; `results` has every message's of a `send_many`."""

    def __init__(self, result: SendResult, results: Sequence[SendResult] = ()) -> None:
        super().__init__(result)
        self.result = result
        self.results = tuple(results) or (result,)

    def __str__(self) -> str:
        result = self.result
        failed = sum(not each.ok for each in self.results)
        many = f"{failed} of {len(self.results)} messages were given up; the first of them " if failed > 1 else ""
        return f"{many}after {result.attempts} attempts: {result.error}"


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after which pauses, a message is sent again.

    `retries` come after the first attempt; the pauses are those of Backoff (`interval`, times `backoff` each time, at
    most `longest`, less up to the part `jitter`). `unroutable` retries also what no queue took.
    """

    retries: int = 16
    interval: float = 0.1
    backoff: float = 2.0
    longest: float = 30.0
    jitter: float = 0.5
    unroutable: bool = False

    def __post_init__(self) -> None:
        if self.retries < 0 or self.interval < 0 or self.longest < 0 or self.backoff < 1 or not 0 <= self.jitter <= 1:
            raise Misuse("retries, interval and longest go from 0, backoff from 1, and jitter from 0 to 1")

    def pauses(self) -> Backoff:
        return Backoff(self.interval, self.backoff, self.longest, self.jitter)


class Sending:
    """One message on its way to being confirmed: counts attempts, and says what to do after a failed one."""

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
        """Another attempt; how long it may take."""
        self.attempts += 1
        if self._deadline is None:
            return attempt_timeout
        return max(0.0, min(attempt_timeout, self._deadline - monotonic()))

    def failed(self, error: ClientError, is_alone: bool) -> float | None:
        """How long to wait before the next attempt; None: give up.

        When the broker refuses a message it closes the channel, and with it fall all messages that were under way
        there; so one that fell in company (not `is_alone`) may be innocent and gets a second chance.
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
    """A message, how far its sending is, and the confirmation that it waits for."""

    __slots__ = ("_sending", "_until", "channel", "confirmation", "error", "message", "result")

    def __init__(self, message: OutgoingMessage, retry: Retry, timeout: float | None) -> None:
        self.message, message_id = stamped(message)
        self._sending = Sending(retry, timeout, message_id)
        self._until = 0.0  # when this attempt is over
        self.channel: HasCloseReason | None = None  # where it was published
        self.confirmation: Confirmation | None = None
        self.error: ClientError | None = None  # publishing it failed
        self.result: SendResult | None = None

    def begin(self, attempt_timeout: float) -> float:
        """Another attempt; how long it may take."""
        allowed = self._sending.begin(attempt_timeout)
        self._until = monotonic() + allowed
        self.error = None
        return allowed

    @property
    def allowed(self) -> float:
        """The seconds that are left for this attempt."""
        return max(0.0, self._until - monotonic())

    def confirmed(self) -> None:
        assert self.confirmation is not None
        self.result = self._sending.confirmed(self.confirmation.tag)

    def failed(self, error: ClientError, is_alone: bool) -> float | None:
        """The pause before the next attempt; None: that was the last. A confirmation that may still come is kept.

        The word may have come after the time was up: then it counts, and a copy would be one too many.
        """
        if self.confirmation is not None and self.confirmation.done():
            word = self.confirmation.exception()
            if word is None:
                self.confirmed()
                return None
            error = word
            self.confirmation = None
        pause = self._sending.failed(self._reason_of(error), is_alone)
        if pause is None:
            self.give_up()
        return pause

    def give_up(self) -> None:
        self.result = self._sending.given_up()

    def _reason_of(self, error: ClientError) -> ClientError:
        """The broker's own words, where it closed the channel and the confirmation was lost with it."""
        reason = self.channel.close_reason if isinstance(error, PublishLost) and self.channel is not None else None
        return error if reason is None or reason.by != "server" else channel_error(reason)


def raise_failure(results: Sequence[SendResult]) -> None:
    """Raise for the first message that was given up, if any was."""
    for result in results:
        if not result.ok:
            raise SendFailed(result, results) from result.error


BACKLOG_BYTES: Final = 64 * 1024 * 1024

# What keeps a one-way message back for now; whatever else goes wrong is for good, or the caller's mistake.
RETRIED_LATER: Final = (ConnectionLost, ConnectionFailed, CallTimedOut, ChannelClosed)


class Backlog:
    """What a one-way producer holds back while its connection is away, and its sums.

    The first message stays in it until it is sent, so "empty" means that whatever came before is on its way. Messages
    count failed rounds, not attempts of their own: when the first one cannot be sent, none can.
    """

    __slots__ = ("_retries", "_round", "_waiting", "dropped", "max_bytes", "max_messages", "sent", "size")

    def __init__(self, max_messages: int, max_bytes: int, retries: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self._retries = retries
        self._round = 0
        self._waiting: deque[tuple[int, OutgoingMessage]] = deque()
        self.size = 0
        self.sent = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: OutgoingMessage) -> bool:
        """Hold the message back; False, and it is dropped, when there is no room."""
        if len(self._waiting) >= self.max_messages or self.size + message.size > self.max_bytes:
            self.dropped += 1
            return False
        self._waiting.append((self._round, message))
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
        """The first could not be sent; drops those for which that was the end, and says how many."""
        is_over = isinstance(error, ConnectionClosed) or (isinstance(error, ConnectionFailed) and error.is_refusal)
        if is_last or is_over:
            return self.drop_all()
        if not isinstance(error, RETRIED_LATER):  # the fault is the message's own
            self._remove_first()
            self.dropped += 1
            return 1
        return self._round_failed()

    def _round_failed(self) -> int:
        """Nothing could be sent: drop what has seen enough of that."""
        self._round += 1
        dropped = 0
        while self._waiting and self._round - self._waiting[0][0] > self._retries:
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
    """The message as it is now, whatever its owner does with body and properties meanwhile; raises where it is none."""
    properties = None if message.properties is None else copied(message.properties)
    try:
        if properties is not None:
            properties.encode()
        for name in (message.exchange, message.routing_key):
            encode_shortstr(name or "")
    except LocalMisuse as misuse:
        raise Misuse(str(misuse)) from misuse
    return OutgoingMessage(as_bytes(message.body), properties, message.routing_key, message.exchange)


def copied(properties: BasicProperties | None, **changes: Any) -> BasicProperties:
    """Properties of one's own, with these changes."""
    if properties is None:
        return BasicProperties(**changes)
    copy = {name: getattr(properties, name) for name in BasicProperties.__slots__}
    copy["headers"] = None if properties.headers is None else dict(properties.headers)
    return BasicProperties(**(copy | changes))
