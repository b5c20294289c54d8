"""What goes wrong for a user of the client, and who began it.

Everything here is a `ClientError`, so one `except` clause is enough; most are also the built-in exception that a
program may already catch (ConnectionError, TimeoutError, ValueError). Values and exceptions only: any thread may hold
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from warrenmq.protocol import spec

if TYPE_CHECKING:
    from warrenmq.client.delivery import Returned

Closer = Literal["client", "server", "network"]


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Why a connection or channel ended: who began it, and the words of the close method where there was one.

    `is_final` is False when the connection is about to be recovered.
    """

    by: Closer
    reply_code: int = 0
    reply_text: str = ""
    class_id: int = 0
    method_id: int = 0
    is_final: bool = True

    def __str__(self) -> str:
        code = f"{self.reply_code} " if self.reply_code else ""
        method = spec.METHODS.get(self.class_id << 16 | self.method_id)
        during = f" (in answer to {method.name})" if method is not None else ""
        return f"closed by the {self.by}: {code}{self.reply_text or 'no reason given'}{during}"


class ClientError(Exception):
    """The root: whatever the client raises for a reason of its own."""


class Misuse(ClientError, ValueError):
    """The caller asked for what cannot be done; nothing was sent."""


class MalformedMessage(ClientError, ValueError):
    """The properties of a message cannot be read; its body and the rest can."""


# -- connections -------------------------------------------------------------------------------------------------------


class ConnectionFailed(ClientError, ConnectionError):
    """No connection came about. `failures` has the exception of each address that was tried, in order.

    `reply_code` is the server's, where it closed the connection in the handshake.
    """

    def __init__(self, text: str, failures: Sequence[tuple[str, Exception]] = (), reply_code: int = 0) -> None:
        super().__init__(text)
        self.failures = tuple(failures)
        self.reply_code = reply_code

    @property
    def is_refusal(self) -> bool:
        """Whether a server refused the user or the virtual host (403, 530): trying again would not help."""
        return self.reply_code in (spec.ACCESS_REFUSED, spec.NOT_ALLOWED) or any(
            isinstance(failure, ConnectionFailed) and failure.is_refusal for _, failure in self.failures
        )


class AuthenticationFailed(ConnectionFailed):
    """The server refused the login, or hung up on it without a word."""


class ConnectionLost(ClientError, ConnectionError):
    """The connection was lost under the call, or is gone; whether the server did what was asked is not known."""

    def __init__(self, text: str, reason: CloseReason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class ConnectionClosed(ClientError, ConnectionError):
    """The connection has ended for good: closed by this program, by the server, or given up by the recovery."""

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(reason)
        self.reason = reason


# -- channels ----------------------------------------------------------------------------------------------------------


class ChannelClosed(ClientError):
    """The channel has ended. A child class per reply code; this one itself where there is no code of an error."""

    reply_code: ClassVar[int] = 0

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(reason)
        self.reason = reason


class ContentTooLarge(ChannelClosed):
    reply_code = spec.CONTENT_TOO_LARGE


class NoRoute(ChannelClosed):
    reply_code = spec.NO_ROUTE


class NoConsumers(ChannelClosed):
    reply_code = spec.NO_CONSUMERS


class AccessRefused(ChannelClosed):
    reply_code = spec.ACCESS_REFUSED


class NotFound(ChannelClosed):
    reply_code = spec.NOT_FOUND


class ResourceLocked(ChannelClosed):
    reply_code = spec.RESOURCE_LOCKED


class PreconditionFailed(ChannelClosed):
    reply_code = spec.PRECONDITION_FAILED


_BY_CODE: dict[int, type[ChannelClosed]] = {
    kind.reply_code: kind
    for kind in (ContentTooLarge, NoRoute, NoConsumers, AccessRefused, NotFound, ResourceLocked, PreconditionFailed)
}


def channel_error(reason: CloseReason) -> ChannelClosed:
    """The exception for a channel that ended for this reason: of the reply code's own class where it has one."""
    return _BY_CODE.get(reason.reply_code, ChannelClosed)(reason)


class ConsumerCancelled(ClientError):
    """The server ended a consumer, for instance because its queue was deleted."""

    def __init__(self, consumer_tag: str) -> None:
        super().__init__(consumer_tag)
        self.consumer_tag = consumer_tag

    def __str__(self) -> str:
        return f"the server cancelled the consumer {self.consumer_tag!r}"


# -- calls -------------------------------------------------------------------------------------------------------------


class CallTimedOut(ClientError, TimeoutError):
    """No answer in time; what was asked may still happen."""


class ConnectionBlocked(CallTimedOut):
    """The time-out passed while the server blocks publishers, as it does when it is short of memory or disk."""


# -- publishing --------------------------------------------------------------------------------------------------------


class PublishFailed(ClientError):
    """The broker did not take responsibility for a message."""


class Nacked(PublishFailed):
    """The broker said no to the message."""


class Unroutable(PublishFailed):
    """The message was mandatory, reached no queue and came back; `returned` is what came."""

    def __init__(self, returned: Returned) -> None:
        super().__init__(returned)
        self.returned = returned

    def __str__(self) -> str:
        returned = self.returned
        where = f"exchange {returned.exchange!r}, routing key {returned.routing_key!r}"
        return f"no queue took the message: {returned.reply_code} {returned.reply_text} ({where})"


class PublishLost(PublishFailed):
    """The connection or channel ended before the broker's word came: the message may have arrived, or not."""
