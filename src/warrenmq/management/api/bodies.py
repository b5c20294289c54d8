"""Reads what comes with a request: one JSON object, of a size and depth that are bounded, with finite numbers."""

from __future__ import annotations

import json
import math
from typing import Any

from fastapi import Request

from warrenmq.management.errors import BadRequest

LARGEST_BODY = 1024 * 1024
DEEPEST_BODY = 32


async def json_object(request: Request, largest: int = LARGEST_BODY) -> dict[str, Any]:
    """The body, which must say that it is JSON: a form of another site cannot."""
    kind = request.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("the body must be JSON, with Content-Type: application/json")
    try:
        body = json.loads(await _read(request, largest), parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        raise BadRequest("the body is no JSON") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    _require_sound(body)
    return body


async def _read(request: Request, largest: int) -> bytes:
    """The body. One that is somewhat too large is read to its end, so that the client sees why it is refused."""
    received = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > LARGEST_BODY:
            break
        if size <= largest:
            received += chunk
    if size > largest:
        raise BadRequest(f"the body is larger than {largest} bytes")
    return bytes(received)


def _refuse_constant(name: str) -> None:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise BadRequest(f"the body holds {name}, which is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BadRequest(f"the body holds the number {text[:40]}, which is too large")
    return number


def _require_sound(body: dict[str, Any]) -> None:
    """Refuse what is nested too deep, and texts that are no Unicode.

    Names that are not UTF-8 are shown with surrogates from U+DC80 to U+DCFF, and may come back.
    """
    level: list[Any] = [body]
    for _ in range(DEEPEST_BODY):
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
                    raise BadRequest("the body holds a text with a lone surrogate") from None
        if not below:
            return
        level = below
    raise BadRequest(f"the body is nested more than {DEEPEST_BODY} deep")
