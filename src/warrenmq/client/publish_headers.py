"""Headers by which a publisher asks the broker for more: a delay, a time of delivery, a report.

WarrenMQ reads `x-delay`, `x-deliver-at` and `x-report-to`; other brokers ignore them. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from warrenmq.client.errors import Misuse
from warrenmq.protocol.properties import BasicProperties

DELAY: Final = "x-delay"
DELIVER_AT: Final = "x-deliver-at"
REPORT_TO: Final = "x-report-to"
REPORT: Final = "x-report"

_LONGEST_MS: Final = 1 << 62  # fits into a long-long-int of a headers table
_LONGEST_NAME: Final = 255  # bytes, AMQP 0-9-1 §4.2.5.3


def with_publish_headers(
    properties: BasicProperties | None,
    delay: float | None = None,
    deliver_at: datetime | int | str | None = None,
    report_to: str | None = None,
) -> BasicProperties | None:
    """Return a copy of the properties with these headers; the properties themselves if there is nothing to add.

    >>> with_publish_headers(None, delay=1.5).headers
    {'x-delay': 1500}
    """
    added: dict[str, Any] = {}
    if delay is not None:
        added[DELAY] = _milliseconds(delay)
    if deliver_at is not None:
        if delay is not None:
            raise Misuse("give delay or deliver_at, not both")
        added[DELIVER_AT] = _time_of(deliver_at)
    if report_to is not None:
        if not isinstance(report_to, str) or not 0 < len(report_to.encode("utf-8", "replace")) <= _LONGEST_NAME:
            raise Misuse(f"report_to must be the name of a queue, of 1 to {_LONGEST_NAME} bytes, not {report_to!r:.80}")
        added[REPORT_TO] = report_to
    if not added:
        return properties
    given = {} if properties is None else properties.headers or {}
    return copy_properties(properties, headers={**given, **added})


def _milliseconds(delay: float) -> int:
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay <= _LONGEST_MS / 1000:
        raise Misuse(f"delay must be a number of seconds >= 0, not {delay!r}")
    return round(delay * 1000)


def _time_of(deliver_at: datetime | int | str) -> int | str:
    """Return milliseconds since 1970; a text is left to the broker, which reads ISO 8601."""
    if isinstance(deliver_at, datetime):
        if deliver_at.utcoffset() is None:
            raise Misuse(
                f"deliver_at has no time zone: use datetime.now(UTC), or {deliver_at.isoformat()!r} with an offset"
            )
        return round(deliver_at.timestamp() * 1000)
    if isinstance(deliver_at, bool) or not isinstance(deliver_at, (int, str)):
        raise Misuse(f"deliver_at must be a datetime, milliseconds since 1970 or ISO 8601 text, not {deliver_at!r:.80}")
    if isinstance(deliver_at, int) and not 0 <= deliver_at <= _LONGEST_MS:
        raise Misuse(f"deliver_at must be milliseconds since 1970, not {deliver_at}")
    return deliver_at


def copy_properties(properties: BasicProperties | None, **changes: Any) -> BasicProperties:
    """Return a copy with these changes."""
    if properties is None:
        return BasicProperties(**changes)
    copy = {name: getattr(properties, name) for name in BasicProperties.__slots__}
    copy["headers"] = None if properties.headers is None else dict(properties.headers)
    return BasicProperties(**(copy | changes))
