"""HTTP errors, in RabbitMQ's JSON form: {"error": ..., "reason": ...}."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """An error response; `reason` is one line for the client."""

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
    """The request has no valid user."""

    status = 401
    error = "not_authorized"


class Forbidden(ApiError):
    """The user lacks a permission."""

    status = 403
    error = "not_authorized"


class NotFound(ApiError):
    status = 404
    error = "Object Not Found"


class Misdirected(ApiError):
    """The Host header names another host."""

    status = 421
    error = "misdirected_request"


class TooManyLogins(ApiError):
    status = 429
    error = "too_many_requests"


class Unavailable(ApiError):
    status = 503
    error = "service_unavailable"
