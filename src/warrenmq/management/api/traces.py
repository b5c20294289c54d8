"""What happened to a message: GET /api/traces/{message-id}, and GET /api/traces?... to find messages.

A user needs the tag `monitoring` or `administrator`, and sees what happened in virtual hosts that the user may enter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.datastructures import QueryParams

from warrenmq.events.ids import uid_text
from warrenmq.events.schema import COLUMNS, KIND_CODES, Event, kind_name, reason_name
from warrenmq.management import paging
from warrenmq.management.answers import Json
from warrenmq.management.auth import asker_of
from warrenmq.management.errors import BadRequest, NotFound, Unavailable
from warrenmq.management.ports import TraceReader
from warrenmq.management.view import NodeView
from warrenmq.tracing.biography import Biography, Leg, Span
from warrenmq.tracing.rules import DEFAULT_EXCHANGE
from warrenmq.tracing.search import TraceQuery, TraceSummary

NAMES = ("correlation_id", "vhost", "queue", "exchange", "routing_key", "cursor")
PARAMETERS = frozenset({*NAMES, "trace_id", "kind", "from", "to", "limit"})
# How the fields of an event are shown that are not shown as they are.
SHOWN: dict[str, Callable[[Any], Any]] = {
    "kind": kind_name,
    "reason": reason_name,
    "uid": uid_text,
    "source_uid": uid_text,
    "time": paging.iso,
    "publish_time": paging.iso,
    "enqueue_time": paging.iso,
}
MOST_TRACES = 500


def routes(node: NodeView, clock: Callable[[], float] = time.time) -> APIRouter:
    router = APIRouter()

    @router.get("/traces")
    async def search(request: Request) -> Response:
        node.require_monitoring(asker_of(request).name)
        query = parse_query(request.query_params, int(clock() * 1e6), node.visible_vhosts(asker_of(request).name))
        try:
            page = await _reader(node).search(query)
        except ValueError as unfit:
            raise BadRequest(str(unfit)) from None
        except OSError as failure:
            raise Unavailable(f"the event log cannot be read: {failure}") from None
        found = [summary_values(summary) for summary in page.traces]
        return Json({"traces": found, "next": page.next, "tracing": dict(node.tracing_state())})

    @router.get("/traces/{key:path}")
    async def biography(key: str, request: Request) -> Response:
        node.require_monitoring(asker_of(request).name)
        visible = node.visible_vhosts(asker_of(request).name)
        try:
            found = await _reader(node).biography(key)
        except OSError as failure:
            raise Unavailable(f"the event log cannot be read: {failure}") from None
        # A long story takes a while to write down: not on the loop.
        answer = await asyncio.to_thread(_told, found, visible) if found is not None else None
        if answer is None:
            raise NotFound(f"nothing is kept of a message '{key}'" + _why_nothing(node))
        return answer

    return router


def parse_query(params: QueryParams, now: int, visible: frozenset[str] | None) -> TraceQuery:
    """The query that the parameters ask for, or BadRequest."""
    paging.require_known(params, PARAMETERS)
    named = {name: paging.text(params, name) for name in NAMES}
    if named["exchange"] == DEFAULT_EXCHANGE:
        named["exchange"] = ""
    start, end = paging.moment(params, "from", now), paging.moment(params, "to", now)
    if start is not None and end is not None and start > end:
        raise BadRequest("'from' is later than 'to'")
    limit = paging.whole_number(params, "limit", TraceQuery().limit, 1, MOST_TRACES)
    trace_id, kind = _trace_id(paging.text(params, "trace_id")), _kind(paging.text(params, "kind"))
    return TraceQuery(**named, trace_id=trace_id, kind=kind, start=start, end=end, limit=limit, vhosts=visible)


def biography_values(biography: Biography, visible: frozenset[str] | None) -> dict[str, Any]:
    """The biography as JSON has it, without what happened in virtual hosts that are not visible."""
    return {
        "message_id": biography.message_id or uid_text(biography.uid),
        "uid": uid_text(biography.uid),
        "complete": biography.is_complete,
        "events": [event_values(event) for event in biography.events if _is_visible(event.vhost, visible)],
        "legs": [leg_values(leg) for leg in biography.legs if _is_visible(leg.vhost, visible)],
    }


def event_values(event: Event) -> dict[str, Any]:
    """What the event says; a field that says nothing is left out."""
    values: dict[str, Any] = {}
    for column in COLUMNS:
        value = getattr(event, column.name)
        if value is not None:
            show = SHOWN.get(column.name)
            values[column.name] = value if show is None else show(value)
    if event.publish_time is not None:
        values["latency_us"] = event.time - event.publish_time
    if event.uid == 0:  # it tells of a queue: so many messages were on disk there, and went with this one
        del values["uid"]
        values["messages"] = values.pop("depth", None)
    return values


def leg_values(leg: Leg) -> dict[str, Any]:
    return {
        "vhost": leg.vhost,
        "queue": leg.queue,
        "uid": uid_text(leg.uid),
        "waiting_us": leg.waiting_us,
        "processing_us": leg.processing_us,
        "outcome": leg.outcome,
        "deliveries": leg.deliveries,
        "consumers": list(leg.consumers),
        "spans": [span_values(span) for span in leg.spans],
    }


def span_values(span: Span) -> dict[str, Any]:
    return {
        "kind": span.kind,
        "begin": paging.iso(span.begin),
        "end": paging.iso(span.end),
        "attempt": span.attempt,
        "consumer": span.consumer,
        "outcome": span.outcome,
    }


def summary_values(summary: TraceSummary) -> dict[str, Any]:
    return {
        "message_id": summary.message_id or uid_text(summary.uid),
        "uid": uid_text(summary.uid),
        "first_time": paging.iso(summary.first_time),
        "last_time": paging.iso(summary.last_time),
        "last_kind": kind_name(summary.last_kind),
        "vhost": summary.vhost,
        "exchange": summary.exchange,
        "routing_key": summary.routing_key,
        "queues": list(summary.queues),
        "size": summary.size,
        "events": summary.events,
        "correlation_id": summary.correlation_id,
        "trace_id": summary.trace_id,
    }


def _told(biography: Biography, visible: frozenset[str] | None) -> Json | None:
    """The answer; None if the asker may see none of it."""
    values = biography_values(biography, visible)
    return Json(values) if values["events"] else None


def _reader(node: NodeView) -> TraceReader:
    if node.traces is None:
        raise Unavailable("this broker keeps no events")
    return node.traces


def _why_nothing(node: NodeView) -> str:
    state = node.tracing_state()
    if state.get("failure"):
        return f"; the event log has failed: {state['failure']}"
    return "" if state.get("enabled", True) else "; tracing is off"


def _trace_id(text: str | None) -> str | None:
    """32 hexadecimal digits, or a whole traceparent that holds them."""
    if text is None:
        return None
    parts = text.strip().lower().split("-")
    digits = parts[1] if len(parts) == 4 else parts[0]
    if len(digits) != 32 or set(digits) - set("0123456789abcdef"):
        raise BadRequest("'trace_id' must be 32 hexadecimal digits, or a traceparent")
    return digits


def _kind(name: str | None) -> int | None:
    if name is None:
        return None
    if name not in KIND_CODES:
        raise BadRequest(f"there is no kind of event '{name}'; there are {', '.join(KIND_CODES)}")
    return KIND_CODES[name]


def _is_visible(vhost: str | None, visible: frozenset[str] | None) -> bool:
    return visible is None or vhost in visible
