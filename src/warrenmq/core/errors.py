"""Errors that are reported to the peer, with RabbitMQ's codes and texts.

An error closes the channel, or the connection for "hard" errors (AMQP 0-9-1 §1.2). Only `server/session.py` turns them
into frames.
"""

from warrenmq.protocol.errors import Scope


class BrokerError(Exception):
    """The broker refuses a request. The text is sent to the peer after the name of the code."""

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
    """More than the broker has memory for; the client may retry later (AMQP 0-9-1 §1.2)."""

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
