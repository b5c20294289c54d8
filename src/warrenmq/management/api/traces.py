"""Traces: GET /api/traces/{message-id} returns the biography of a message, GET /api/traces?... finds messages.

A user needs the tag `monitoring` or `administrator`, and sees the events of virtual hosts that the user may enter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.datastructures import QueryParams

from warrenmq.events import schema
from warrenmq.events.ids import uid_text
from warrenmq.events.schema import COLUMNS, KIND_CODES, Event, kind_name, reason_name
from warrenmq.management import paging
from warrenmq.management.auth import identity_of
from warrenmq.management.disconnect import ClientGone, while_connected
from warrenmq.management.errors import BadRequest, NotFound, Unavailable
from warrenmq.management.ports import TraceReader
from warrenmq.management.responses import JsonParts, render, render_items
from warrenmq.management.view import NodeView
from warrenmq.tracing.biography import Biography, Leg, Span
from warrenmq.tracing.rules import DEFAULT_EXCHANGE
from warrenmq.tracing.search import TraceQuery, TraceSummary, TracingBusy

NAMES = ("correlation_id", "vhost", "queue", "exchange", "routing_key", "cursor")
PARAMETERS = frozenset({*NAMES, "trace_id", "kind", "from", "to", "limit"})
# Fields of an event that are converted for display.
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "kind": kind_name,
    "reason": reason_name,
    "uid": uid_text,
    "source_uid": uid_text,
    "time": paging.iso,
    "publish_time": paging.iso,
    "enqueue_time": paging.iso,
    "due_time": paging.iso,
}
REMOVALS = (schema.EXPIRED, schema.DROPPED)
MAX_TRACES = 500
SPANS_AT_ONCE = 20
CLIENT_CLOSED_REQUEST = 499  # as in nginx logs
HINT = (
    "this id has more events than one response can hold: request a single message by its uid, "
    "found with GET /api/traces and its parameters from, to, queue or kind"
)

Result = TypeVar("Result")


def routes(node: NodeView, clock: Callable[[], float] = time.time) -> APIRouter:
    router = APIRouter()

    @router.get("/traces")
    async def search(request: Request) -> Response:
        node.require_monitoring(identity_of(request).name)
        query = parse_query(request.query_params, int(clock() * 1e6), node.visible_vhosts(identity_of(request).name))
        try:
            page = await _read(request, _reader(node).search(query))
        except ValueError as error:
            raise BadRequest(str(error)) from None
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        about = render({"next": page.next, "tracing": dict(node.tracing_state())})
        found = await render_items(page.traces, summary_values)
        return JsonParts([b'{"traces":[', *found, b"],", about[1:]])

    @router.get("/traces/{key:path}")
    async def biography(key: str, request: Request) -> Response:
        node.require_monitoring(identity_of(request).name)
        visible = node.visible_vhosts(identity_of(request).name)
        try:
            found = await _read(request, _reader(node).biography(key))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        parts = await _render_biography(found, visible, int(clock() * 1e6)) if found is not None else []
        if not parts:
            raise NotFound(f"no events of a message '{key}'" + _reason_for_no_events(node))
        return JsonParts(parts)

    return router


def parse_query(params: QueryParams, now: int, visible: frozenset[str] | None) -> TraceQuery:
    """Parse the search parameters; raise BadRequest if one is invalid."""
    paging.require_known(params, PARAMETERS)
    named = {name: paging.text(params, name) for name in NAMES}
    if named["exchange"] == DEFAULT_EXCHANGE:
        named["exchange"] = ""
    start, end = paging.moment(params, "from", now), paging.moment(params, "to", now)
    if start is not None and end is not None and start > end:
        raise BadRequest("'from' is later than 'to'")
    limit = paging.whole_number(params, "limit", TraceQuery().limit, 1, MAX_TRACES)
    trace_id, kind = _trace_id(paging.text(params, "trace_id")), _kind(paging.text(params, "kind"))
    return TraceQuery(**named, trace_id=trace_id, kind=kind, start=start, end=end, limit=limit, vhosts=visible)


def event_values(event: Event) -> dict[str, Any]:
    """Return the fields of an event, without empty ones."""
    values: dict[str, Any] = {}
    for column in COLUMNS:
        value = getattr(event, column.name)
        if value is not None:
            show = CONVERSIONS.get(column.name)
            values[column.name] = value if show is None else show(value)
    if event.publish_time is not None:
        values["latency_us"] = event.time - event.publish_time
    if event.uid == 0:  # about a queue: `depth` is the number of its messages on disk that were removed
        del values["uid"]
        if event.kind in REMOVALS:
            values["messages"] = values.pop("depth", None)
    return values


def leg_values(leg: Leg) -> dict[str, Any]:
    """Return the fields except the spans, which may be many."""
    return {
        "vhost": leg.vhost,
        "queue": leg.queue,
        "uid": uid_text(leg.uid),
        "waiting_us": leg.waiting_us,
        "processing_us": leg.processing_us,
        "delayed_us": leg.delayed_us,
        "outcome": leg.outcome,
        "deliveries": leg.deliveries,
        "consumers": list(leg.consumers),
    }


def span_values(span: Span) -> dict[str, Any]:
    values = {
        "kind": span.kind,
        "begin": paging.iso(span.begin),
        "end": paging.iso(span.end),
        "attempt": span.attempt,
        "consumer": span.consumer,
        "outcome": span.outcome,
    }
    if span.due is not None:
        values |= {"due": paging.iso(span.due), "retry_max": span.retry_max}
    return values


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
        "priority": summary.priority,
    }


async def _render_biography(biography: Biography, visible: frozenset[str] | None, now: int) -> list[bytes]:
    """Render the biography as JSON, in parts, without events of virtual hosts that are not visible.

    Returns no parts if no event is visible.
    """
    events = [event for event in biography.events if _is_visible(event.vhost, visible)]
    if not events:
        return []
    about: dict[str, Any] = {
        "message_id": biography.message_id or uid_text(biography.uid),
        "uid": uid_text(biography.uid) if biography.uid else None,
        "complete": biography.is_complete,
        "truncated": biography.is_truncated,
        "now": paging.iso(now),
    }
    if biography.is_truncated:
        about["hint"] = HINT
    parts = [render(about)[:-1], b',"events":[', *await render_items(events, event_values), b'],"legs":[']
    legs = [leg for leg in biography.legs if _is_visible(leg.vhost, visible)]
    parts += await _render_legs(legs)
    return [*parts, b"]}"]


async def _render_legs(legs: Sequence[Leg]) -> list[bytes]:
    """Render legs; one with many spans in parts."""
    parts: list[bytes] = []
    few: list[Leg] = []
    for leg in [*legs, None]:
        if leg is not None and len(leg.spans) < SPANS_AT_ONCE:
            few.append(leg)
            continue
        if few:
            parts += [b","] if parts else []
            parts += await render_items(few, lambda each: leg_values(each) | {"spans": _spans(each)})
            few = []
        if leg is not None:
            head = (b"," if parts else b"") + await asyncio.to_thread(_render_leg, leg)
            parts += [head[:-1], b',"spans":[', *await render_items(leg.spans, span_values), b"]}"]
    return parts


def _render_leg(leg: Leg) -> bytes:
    return render(leg_values(leg))


def _spans(leg: Leg) -> list[dict[str, Any]]:
    return [span_values(span) for span in leg.spans]


async def _read(request: Request, answer: Coroutine[Any, Any, Result]) -> Result:
    """Return the reader's result; stop if the client disconnects."""
    try:
        return await while_connected(request, answer)
    except TracingBusy as busy:
        raise Unavailable(str(busy), {"Retry-After": str(busy.retry_seconds)}) from None
    except OSError as failure:
        raise Unavailable(f"the event log cannot be read: {failure}") from None


def _reader(node: NodeView) -> TraceReader:
    if node.traces is None:
        raise Unavailable("this broker records no events")
    return node.traces


def _reason_for_no_events(node: NodeView) -> str:
    state = node.tracing_state()
    if state.get("failure"):
        return f"; the event log has failed: {state['failure']}"
    return "" if state.get("enabled", True) else "; tracing is off"


def _trace_id(text: str | None) -> str | None:
    """Parse 32 hexadecimal digits, or a traceparent that contains them."""
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
        raise BadRequest(f"unknown kind of event '{name}'; known: {', '.join(KIND_CODES)}")
    return KIND_CODES[name]


def _is_visible(vhost: str | None, visible: frozenset[str] | None) -> bool:
    return visible is None or vhost in visible
