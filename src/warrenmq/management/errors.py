"""Refusals of the HTTP side, in the JSON form that RabbitMQ's users know: {"error": ..., "reason": ...}."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """A refusal; `reason` is one line for whoever asked, `headers` go with the answer."""

    status = 500
    error = "internal_error"

    def __init__(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.headers = dict(headers or {})


class BadRequest(ApiError):
    status = 400
    error = "bad_request"


class NotAuthorized(ApiError):
    """Nobody known is asking."""

    status = 401
    error = "not_authorized"


class Forbidden(ApiError):
    """Somebody known is asking for what is not theirs."""

    status = 403
    error = "not_authorized"


class NotFound(ApiError):
    status = 404
    error = "Object Not Found"


class Misdirected(ApiError):
    """The request is for another host."""

    status = 421
    error = "misdirected_request"


class TooManyLogins(ApiError):
    status = 429
    error = "too_many_requests"


class Unavailable(ApiError):
    status = 503
    error = "service_unavailable"
