"""Responses: JSON that can hold any name, security headers, and the response to an internal error."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from warrenmq.management.errors import ApiError

log = logging.getLogger("warrenmq.http")

Item = TypeVar("Item")

ITEMS_AT_ONCE = 50

# Scripts come only from this server, and are never inline. Styles may be inline: plotly adds its own.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Json(Response):
    """JSON in ASCII, so that names which are not valid UTF-8 (held with lone surrogates) survive."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, {"Cache-Control": "no-store"} | dict(headers or {}))

    def render(self, content: Any) -> bytes:
        return render(content)


class JsonParts(Response):
    """JSON that was rendered in parts and is sent in parts, so that no step takes long."""

    media_type = "application/json"

    def __init__(self, parts: Sequence[bytes]) -> None:
        size = sum(len(part) for part in parts)
        super().__init__(None, headers={"Cache-Control": "no-store", "Content-Length": str(size)})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)  # `send` itself waits only for a client that does not read
        await send({"type": "http.response.body", "body": b""})


async def render_items(items: Sequence[Item], show: Callable[[Item], Any]) -> list[bytes]:
    """Render the items of a JSON array, with commas, ITEMS_AT_ONCE at a time in a thread.

    That takes about a millisecond; a longer step would keep the interpreter lock from the loop.
    """
    parts: list[bytes] = []
    for start in range(0, len(items), ITEMS_AT_ONCE):
        some = items[start : start + ITEMS_AT_ONCE]
        parts.append((b"," if parts else b"") + await asyncio.to_thread(_render_some, some, show))
    return parts


def _render_some(items: Sequence[Item], show: Callable[[Item], Any]) -> bytes:
    return render([show(item) for item in items])[1:-1]


def render(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def error_response(error: ApiError) -> Json:
    return Json({"error": error.error, "reason": error.reason}, error.status, error.headers)


class ResponseMiddleware:
    """Adds SECURITY_HEADERS to every response of the wrapped application.

    An internal error is logged with its traceback and answered with 500; a client that disconnects before its request
    is read is logged at debug level only.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.debug("%s %s: client disconnected before its request was read", scope["method"], scope["path"])
        except Exception:
            log.exception("%s %s: internal error", scope["method"], scope["path"])
            if not has_started:
                error = ApiError("internal error; see the broker's log for details")
                await error_response(error)(scope, receive, send_with_headers)
