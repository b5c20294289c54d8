"""Reads what comes with a request: one JSON object, of a size that is bounded."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Request

from warrenmq.management.errors import BadRequest

LARGEST_BODY = 1024 * 1024


async def json_object(request: Request) -> dict[str, Any]:
    """The body, which must say that it is JSON: a form of another site cannot."""
    kind = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("the body must be JSON, with Content-Type: application/json")
    try:
        body = json.loads(await _read(request), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _refuse_constant(name: str) -> None:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(name)


async def _read(request: Request) -> bytes:
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > LARGEST_BODY:
            raise BadRequest(f"the body is larger than {LARGEST_BODY} bytes")
    return bytes(received)
