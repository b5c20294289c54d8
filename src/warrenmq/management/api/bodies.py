"""Reads request bodies: one JSON object of bounded size and depth, with finite numbers."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import Request

from warrenmq.management.errors import BadRequest

MAX_BODY = 1024 * 1024
MAX_DEPTH = 32


async def json_object(request: Request, limit: int = MAX_BODY) -> dict[str, Any]:
    """Return the body; its Content-Type must be JSON, which a form of another site cannot send."""
    kind = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("the body must be JSON, with Content-Type: application/json")
    try:
        body = json.loads(await _read(request, limit), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadRequest("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    _require_sound(body)
    return body


async def _read(request: Request, limit: int) -> bytes:
    """Read the body. One that is slightly too large is read to its end, so that the client gets the refusal."""
    received = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            break
        if size <= limit:
            received += chunk
    if size > limit:
        raise BadRequest(f"the body is larger than {limit} bytes")
    return bytes(received)


def _refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python accepts and JSON does not have."""
    raise BadRequest(f"the body contains {name}, which is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadRequest(f"the body contains the number {text[:40]}, which is too large")
    return number


def _require_sound(body: dict[str, Any]) -> None:
    """Refuse values nested too deep, and strings that are not Unicode.

    Responses show names that are not UTF-8 with surrogates U+DC80 to U+DCFF, so requests may contain these.
    """
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                try:
                    value.encode("utf-8", "surrogateescape")
                except UnicodeEncodeError:
                    raise BadRequest("the body contains a string with a lone surrogate") from None
        if not below:
            return
        level = below
    raise BadRequest(f"the body is nested more than {MAX_DEPTH} deep")
