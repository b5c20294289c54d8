"""Refusals, with the words that the peer hears.

A refusal closes the channel, or the connection where the protocol says so (AMQP 0-9-1 §1.2: "hard" errors).
`server/session.py` turns them into frames; nothing else does.
"""

from warrenmq.protocol.errors import Scope


class BrokerError(Exception):
    """The broker will not do what was asked. The text goes to the peer behind the name of the code."""

    reply_code = 541
    code_name = "INTERNAL_ERROR"
    scope = Scope.CONNECTION

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    @property
    def reply_text(self) -> str:
        return f"{self.code_name} - {self.text}"


class ContentTooLarge(BrokerError):
    """More than the broker can hold at present; the client may try again later (AMQP 0-9-1 §1.2)."""

    reply_code = 311
    code_name = "CONTENT_TOO_LARGE"
    scope = Scope.CHANNEL


class AccessRefused(BrokerError):
    reply_code = 403
    code_name = "ACCESS_REFUSED"
    scope = Scope.CHANNEL


class NotFound(BrokerError):
    reply_code = 404
    code_name = "NOT_FOUND"
    scope = Scope.CHANNEL


class ResourceLocked(BrokerError):
    reply_code = 405
    code_name = "RESOURCE_LOCKED"
    scope = Scope.CHANNEL


class PreconditionFailed(BrokerError):
    reply_code = 406
    code_name = "PRECONDITION_FAILED"
    scope = Scope.CHANNEL


class CommandInvalid(BrokerError):
    reply_code = 503
    code_name = "COMMAND_INVALID"


class NotAllowed(BrokerError):
    reply_code = 530
    code_name = "NOT_ALLOWED"


class NotImplementedHere(BrokerError):
    reply_code = 540
    code_name = "NOT_IMPLEMENTED"
