"""Parses request parameters; raises BadRequest with the expected form."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from starlette.datastructures import QueryParams

from warrenmq.management.errors import BadRequest

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
FIRST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
UNITS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000, "w": 604_800_000_000}


def require_known(params: QueryParams, known: Collection[str]) -> None:
    """Refuse an unknown or repeated parameter."""
    for name in params:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(sorted(known))}"
            raise BadRequest(f"unknown parameter '{name}'{hint}")
        if len(params.getlist(name)) > 1:
            raise BadRequest(f"the parameter '{name}' is given twice")


def text(params: QueryParams, name: str) -> str | None:
    """Return the value; None if missing or empty (as forms send it)."""
    return params.get(name) or None


def whole_number(params: QueryParams, name: str, default: int, low: int, high: int) -> int:
    value = params.get(name)
    if not value:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", value) or not low <= int(value) <= high:
        raise BadRequest(f"'{name}' must be a whole number from {low} to {high}")
    return int(value)


def moment(params: QueryParams, name: str, now: int) -> int | None:
    """Return a time in microseconds: ISO 8601 (UTC without a zone), or an age such as 15m or 2h."""
    value = params.get(name)
    if not value:
        return None
    if ago := re.fullmatch(r"([0-9]{1,9})\s*([smhdw])", value.strip()):
        found = now - int(ago[1]) * UNITS[ago[2]]
    else:
        try:
            when = datetime.fromisoformat(value.strip())
            found = in_microseconds(when if when.tzinfo is not None else when.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            raise BadRequest(
                f"'{name}' must be a time such as 2026-11-16T04:30:00Z, or an age such as 30s, 15m, 2h or 7d"
            ) from None
    if found < FIRST:
        raise BadRequest(f"'{name}' is before the year 1")
    return found


def in_microseconds(when: datetime) -> int:
    """Return microseconds since 1970; raise OverflowError outside the years 1 to 9999 in UTC."""
    found = (when - EPOCH) // MICROSECOND
    if not FIRST <= found <= LAST:
        raise OverflowError(f"{when} is not in the years 1 to 9999 in UTC")
    return found


def iso(microseconds: int | None) -> str | None:
    """Format as ISO 8601 in UTC, with six decimals."""
    if microseconds is None:
        return None
    return (EPOCH + microseconds * MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")
