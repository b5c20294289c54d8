"""What happened to a message, from the event log of the broker: `trace`, as `warren trace` in a program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from warrenmq.client.errors import Misuse
from warrenmq.client.http import BrokerHttp

HTTP_URL: Final = "http://guest:guest@127.0.0.1:15672"


@dataclass(frozen=True, slots=True)
class Biography:
    """The events of a message in order, and its stay in each queue (`legs`), as `GET /api/traces/{id}` has them.

    `is_complete` is False if the log no longer has the beginning; `is_truncated` is True if there are more events than
    one response holds.
    """

    message_id: str
    uid: str
    is_complete: bool
    is_truncated: bool
    events: tuple[Mapping[str, Any], ...]
    legs: tuple[Mapping[str, Any], ...]


def trace(message_id: str, url: str = HTTP_URL) -> Biography:
    """Return what happened to a message, by its message_id or uid; raise RequestFailed if nothing is known (404).

    `url` is that of the broker's HTTP port, with a user who has the tag `monitoring` or `administrator`.
    """
    if not message_id:
        raise Misuse("an id of a message must not be empty")
    found = BrokerHttp(url, "guest", "guest").get("/api/traces/" + quote(message_id, safe=""))
    return Biography(
        found["message_id"],
        found["uid"],
        found["complete"],
        found["truncated"],
        tuple(found["events"]),
        tuple(found["legs"]),
    )


async def trace_async(message_id: str, url: str = HTTP_URL) -> Biography:
    """Like `trace`, without blocking the event loop."""
    return await asyncio.to_thread(trace, message_id, url)
