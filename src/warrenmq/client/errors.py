"""The errors of the client.

All are `ClientError`, so one `except` clause is enough; most are also the built-in exception that a program may already
catch (ConnectionError, TimeoutError, ValueError).
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
    """Why a connection or channel ended: which side closed it, and the fields of the close method if there was one.

    `is_final` is False if the connection is about to be recovered.
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
        during = f" (caused by {method.name})" if method is not None else ""
        return f"closed by the {self.by}: {code}{self.reply_text or 'no reason given'}{during}"


class ClientError(Exception):
    """The base class of all errors of the client."""


class Misuse(ClientError, ValueError):
    """The call is invalid; nothing was sent."""


class MalformedMessage(ClientError, ValueError):
    """The properties of a message cannot be decoded; its body and the rest can be read."""


# -- connections -------------------------------------------------------------------------------------------------------


class ConnectionFailed(ClientError, ConnectionError):
    """The connection could not be opened. `failures` has the exception of each address that was tried, in order.

    `reply_code` is the server's, if it closed the connection during the handshake.
    """

    def __init__(self, text: str, failures: Sequence[tuple[str, Exception]] = (), reply_code: int = 0) -> None:
        super().__init__(text)
        self.failures = tuple(failures)
        self.reply_code = reply_code

    @property
    def is_refusal(self) -> bool:
        """Whether a server refused the user or the virtual host (403, 530), so that a retry would not help."""
        return self.reply_code in (spec.ACCESS_REFUSED, spec.NOT_ALLOWED) or any(
            isinstance(failure, ConnectionFailed) and failure.is_refusal for _, failure in self.failures
        )


class AuthenticationFailed(ConnectionFailed):
    """The server refused the login, or closed the socket during it."""


class ConnectionLost(ClientError, ConnectionError):
    """The connection was lost before the reply came; whether the server executed the call is unknown."""

    def __init__(self, text: str, reason: CloseReason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class ConnectionClosed(ClientError, ConnectionError):
    """The connection has ended for good: closed by the program or the server, or its recovery failed."""

    def __init__(self, reason: CloseReason) -> None:
        super().__init__(reason)
        self.reason = reason


# -- channels ----------------------------------------------------------------------------------------------------------


class ChannelClosed(ClientError):
    """The channel has ended. There is a subclass per reply code; this class is used for all others."""

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
    """Return the exception for a channel that ended for this reason, of the class for its reply code."""
    return _BY_CODE.get(reason.reply_code, ChannelClosed)(reason)


class ConsumerCancelled(ClientError):
    """The server cancelled a consumer, for instance because its queue was deleted."""

    def __init__(self, consumer_tag: str) -> None:
        super().__init__(consumer_tag)
        self.consumer_tag = consumer_tag

    def __str__(self) -> str:
        return f"the server cancelled the consumer {self.consumer_tag!r}"


# -- calls -------------------------------------------------------------------------------------------------------------


class CallTimedOut(ClientError, TimeoutError):
    """No reply came in time; the server may still execute the call."""


class ConnectionBlocked(CallTimedOut):
    """The call timed out while the server blocked publishers because it is short of memory or disk."""


# -- publishing --------------------------------------------------------------------------------------------------------


class PublishFailed(ClientError):
    """The broker did not confirm a message."""


class Nacked(PublishFailed):
    """The broker nacked the message."""


class Unroutable(PublishFailed):
    """The message was mandatory, reached no queue and was returned, as `returned`."""

    def __init__(self, returned: Returned) -> None:
        super().__init__(returned)
        self.returned = returned

    def __str__(self) -> str:
        returned = self.returned
        where = f"exchange {returned.exchange!r}, routing key {returned.routing_key!r}"
        return f"the message reached no queue: {returned.reply_code} {returned.reply_text} ({where})"


class PublishLost(PublishFailed):
    """The connection or channel ended before the confirm came; whether the message arrived is unknown."""
