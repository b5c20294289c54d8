"""Parking: messages that a handler could not process are published to a dead queue, with the error in headers.

A parked message is a persistent copy with the properties of the original, except for those that would make the copy
expire, be refused or be routed elsewhere (expiration, user_id, CC and BCC); these become headers. Pure functions; the
services of both faces publish the copy.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from warrenmq.client.errors import MalformedMessage
from warrenmq.client.publish_headers import REPORT, REPORT_TO, copy_properties
from warrenmq.client.sending import PERSISTENT
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from warrenmq.client.delivery import Delivery
    from warrenmq.client.handling import Handler

_log = logging.getLogger("warrenmq.client")

_TEXT_LIMIT: Final = 1000  # characters of the exception's text: headers must fit into a frame
_TRACEBACK_LIMIT: Final = 8000  # characters, from its end
_TRACEBACK: Final = "x-exception-traceback"
_STREAM_OFFSET: Final = "x-stream-offset"


def parked_properties(handler: Handler, delivery: Delivery, error: Exception, attempts: int) -> BasicProperties:
    """Return the properties of the copy, which adds these headers:

    x-exception-type, x-exception-message, x-exception-traceback, x-failed-at, x-attempts, x-original-queue,
    x-original-exchange, x-original-routing-key; x-original-expiration, -user-id, -cc and -stream-offset if the message
    had one.
    """
    try:
        original = delivery.properties
    except MalformedMessage:
        original = BasicProperties()
    headers: dict[str, Any] = dict(original.headers or {})
    replaced = {
        "x-original-expiration": original.expiration,
        "x-original-user-id": original.user_id,
        "x-original-cc": headers.pop("CC", None),
        "x-original-stream-offset": headers.pop(_STREAM_OFFSET, None),
    }
    for name in ("BCC", REPORT_TO, REPORT):
        headers.pop(name, None)
    headers |= {name: value for name, value in replaced.items() if value is not None}
    headers |= {
        "x-exception-type": _name_of(type(error)),
        "x-exception-message": _text_of(error),
        _TRACEBACK: _traceback_of(error),
        "x-failed-at": datetime.now(UTC),
        "x-attempts": attempts,
        "x-original-queue": handler.queue,
        "x-original-exchange": delivery.exchange,
        "x-original-routing-key": delivery.routing_key,
    }
    return copy_properties(original, headers=headers, delivery_mode=PERSISTENT, expiration=None, user_id=None)


def report_of(handler: Handler, delivery: Delivery, attempts: int) -> tuple[str, bytes, BasicProperties] | None:
    """Return a report on the parked message for its producer, with the queue that it goes to; None: none is wanted.

    The broker sees an ack. The report has the form of the broker's own (docs/reports.md), with the reason `error`.
    """
    target = _headers_of(delivery).get(REPORT_TO)
    if not isinstance(target, str):
        return None
    asked = delivery.properties
    body = {
        "message_id": asked.message_id,
        "correlation_id": asked.correlation_id,
        "outcome": "dead_lettered",
        "reason": "error",
        "queue": handler.queue,
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "attempts": attempts,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    properties = BasicProperties(
        content_type="application/json",
        delivery_mode=PERSISTENT,
        correlation_id=asked.correlation_id,
        type="warren.report",
    )
    return target, json.dumps(body).encode(), properties


def remove_traceback(properties: BasicProperties) -> bool:
    """Remove the longest header, so that the others may fit into a frame; return False if that was done before."""
    return properties.headers is not None and properties.headers.pop(_TRACEBACK, None) is not None


def attempts_of(delivery: Delivery) -> int:
    """Return how often it was delivered: quorum queues and retries count it, other queues only mark a redelivery."""
    count = _headers_of(delivery).get("x-delivery-count")
    if isinstance(count, int):
        return count + 1
    return 2 if delivery.redelivered else 1


def is_of_stream(delivery: Delivery) -> bool:
    """Whether it came from a stream, which cannot requeue: it can only be acked."""
    return _STREAM_OFFSET in _headers_of(delivery)


def log_parked(handler: Handler, delivery: Delivery, error: Exception) -> None:
    _log.error(
        "message %s of queue %r was parked in %r: the handler %s failed: %s",
        _id_of(delivery),
        handler.queue,
        handler.dead_queue,
        handler.name,
        _text_of(error),
    )


def log_not_parked(handler: Handler, delivery: Delivery, failure: Exception) -> None:
    _log.error(
        "message %s of queue %r could not be parked in %r, and %s: %s",
        _id_of(delivery),
        handler.queue,
        handler.dead_queue,
        "is lost (auto_ack)" if handler.auto_ack else "stays in its queue",
        failure,
    )


def log_dropped(handler: Handler, delivery: Delivery, why: str) -> None:
    _log.error("message %s of queue %r was dropped: %s", _id_of(delivery), handler.queue, why)


def _headers_of(delivery: Delivery) -> dict[str, Any]:
    try:
        return delivery.headers
    except MalformedMessage:
        return {}


def _id_of(delivery: Delivery) -> str:
    try:
        message_id = delivery.properties.message_id
    except MalformedMessage:
        message_id = None
    return repr(delivery) if message_id is None else repr(message_id)


def describe_error(error: Exception) -> str:
    """Return the class and the text of the exception."""
    return f"{_name_of(type(error))}: {_text_of(error)}"


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _text_of(error: Exception) -> str:
    """Return the text of the exception, valid as UTF-8."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's class
        text = "the exception has no text: its __str__ raised"
    return _valid(text[:_TEXT_LIMIT])


def _traceback_of(error: Exception) -> str:
    """Return the end of the traceback: where the error was raised."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - the user's class
        text = "".join(traceback.format_tb(error.__traceback__))
    return _valid(text[-_TRACEBACK_LIMIT:])


def _valid(text: str) -> str:
    """Return the text without what cannot be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()
