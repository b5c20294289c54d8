"""Queues, by RabbitMQ's paths: GET /api/queues and /api/queues/VHOST list them, GET /api/queues/VHOST/NAME returns one.

GET /api/queues/VHOST/NAME/messages peeks at the waiting messages, and /retrying at those that wait for their next
attempt: nothing is consumed or changed.

A user needs the tag administrator, policymaker, monitoring or management, and access to the virtual host; to peek, also
the permission to read the queue. System streams are listed for users who may read them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.core.classic_queue import ClassicQueue
from warrenmq.core.errors import AccessRefused
from warrenmq.core.message import QueuedMessage
from warrenmq.core.peek import Peeked, PeekedMessage, Start, has_levels, peek
from warrenmq.core.queue import Queue
from warrenmq.core.reserved import is_system_stream
from warrenmq.core.snapshot import ConsumerView, PolicyView, QueueView, consumers, policy_view, queue_view, view_queue
from warrenmq.core.vhost import VHost
from warrenmq.management import paging
from warrenmq.management.api.messages import (
    MAX_RESPONSE,
    count_of,
    json_value,
    payload_values,
    property_values,
    truncate_of,
)
from warrenmq.management.api.paths import NUMBER, names_in_path, vhost_of, vhosts_of
from warrenmq.management.api.policies import READERS
from warrenmq.management.api.reads import answer_to, cursor_of, list_delayed
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import BadRequest, Forbidden, NotFound
from warrenmq.management.responses import Json, JsonParts, render, render_items
from warrenmq.management.view import NodeView

PEEK_PARAMETERS = frozenset({"count", "from", "truncate"})
DEFAULT_COUNT = 10
LEVEL_POSITION = re.compile(r"([0-9]{1,3}):([0-9]{1,18})")
# Views are made on the loop, this many at a time: less than a millisecond.
VIEWS_AT_ONCE = 50

TYPICAL_HEADER = 200  # bytes

View = tuple[QueueView, PolicyView]


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/queues")
    async def all_queues(request: Request) -> Response:
        node.require_tag(identity_of(request).name, *READERS)
        paging.require_known(request.query_params, ())
        return await _list(node, request, vhosts_of(node, request))

    @router.get("/queues/{rest:path}")
    async def read(request: Request) -> Response:
        node.require_tag(identity_of(request).name, *READERS)
        names = names_in_path(request, 3)
        vhost = vhost_of(node, request, names[0])
        if len(names) == 3 and names[2] not in PEEKS:
            raise NotFound("Not Found")
        paging.require_known(request.query_params, PEEK_PARAMETERS if len(names) == 3 else ())
        if len(names) == 1:
            return await _list(node, request, [vhost])
        queue = vhost.queues.get(names[1])
        if queue is None or not _may_see(node, request, vhost.name, names[1]):
            raise NotFound("Not Found")
        if len(names) == 3:
            return await PEEKS[names[2]](node, request, queue)
        details = [consumer_values(consumer) for consumer in consumers(queue)]
        return Json({**queue_values((queue_view(queue), policy_view(vhost, queue))), "consumer_details": details})

    return router


async def _list(node: NodeView, request: Request, vhosts: Iterable[VHost]) -> Response:
    queues = [(vhost, name) for vhost in vhosts for name in vhost.queues if _may_see(node, request, vhost.name, name)]
    queues.sort(key=lambda pair: (pair[0].name, pair[1]))
    views: list[View] = []
    for at, (vhost, name) in enumerate(queues):
        if at % VIEWS_AT_ONCE == 0:
            await asyncio.sleep(0)
        if name in vhost.queues:
            views.append(view_queue(vhost, name))
    return JsonParts([b"[", *await render_items(views, queue_values), b"]"])


def _may_see(node: NodeView, request: Request, vhost: str, queue: str) -> bool:
    return not is_system_stream(vhost, queue) or node.may_monitor(identity_of(request).name)


def queue_values(view: View) -> dict[str, Any]:
    """Return RabbitMQ's fields of a queue, and `messages_retrying`."""
    queue, policies = view
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.type,
        "durable": queue.is_durable,
        "auto_delete": queue.is_auto_delete,
        "exclusive": queue.is_exclusive,
        "arguments": json_value(queue.arguments),
        "state": "running",
        "messages": queue.messages_ready + queue.messages_unacked,
        "messages_ready": queue.messages_ready,
        "messages_unacknowledged": queue.messages_unacked,
        "messages_retrying": queue.messages_retrying,
        "messages_paged_out": queue.messages_paged,
        "consumers": queue.consumers,
        "policy": policies.policy,
        "operator_policy": policies.operator_policy,
        "effective_policy_definition": dict(policies.definition),
        "message_stats": {
            "publish": queue.published,
            "deliver_get": queue.delivered,
            "redeliver": queue.redelivered,
            "ack": queue.acked,
        },
    }


def consumer_values(consumer: ConsumerView) -> dict[str, Any]:
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": consumer.queue, "vhost": consumer.vhost},
        "channel_details": {"connection_name": consumer.connection, "number": consumer.channel},
        "ack_required": consumer.is_ack_required,
        "exclusive": consumer.is_exclusive,
        "prefetch_count": consumer.prefetch,
        "active": consumer.active,
        "activity_status": consumer.activity_status,
        "arguments": json_value(consumer.arguments),
    }


# -- peek --------------------------------------------------------------------------------------------------------------


def _require_read(node: NodeView, request: Request, queue: Queue) -> None:
    try:
        node.broker.users.require(identity_of(request).name, queue.vhost, "read", "queue", queue.name)
    except AccessRefused as refused:
        raise Forbidden(refused.text) from None


async def _peek(node: NodeView, request: Request, queue: Queue) -> Response:
    _require_read(node, request, queue)
    params = request.query_params
    count, truncate = count_of(params, DEFAULT_COUNT), truncate_of(params)
    found = await _collect(queue, _start_of(params.get("from"), queue), count, truncate)
    levels = has_levels(queue)
    about = {"next": None if found.next is None else place_of(found.next, levels), "unreadable": found.unreadable}
    messages = await render_items(found.messages, lambda message: message_values(message, levels))
    return JsonParts([b'{"messages":[', *messages, b"],", render(about)[1:]])


async def _collect(queue: Queue, start: Start | None, count: int, truncate: int) -> Peeked:
    """Peek until there are `count` messages or enough bytes. `next` is the message after them, None at the end."""
    messages: list[PeekedMessage] = []
    unreadable = size = 0
    affordable = 1 + MAX_RESPONSE // (truncate + TYPICAL_HEADER)
    while True:
        wanted = min(count + 1 - len(messages), affordable)  # one more than `count`, which is the next
        some: Peeked = await answer_to(partial(peek, queue, start, wanted, truncate), lambda: queue.is_deleted)
        messages += some.messages
        unreadable += some.unreadable
        size += sum(len(message.header) + len(message.body) for message in some.messages)
        start = some.next
        if len(messages) > count:
            return Peeked(messages[:count], messages[count].start, unreadable)
        if start is None or size > MAX_RESPONSE:
            return Peeked(messages, start, unreadable)


def _start_of(text: str | None, queue: Queue) -> Start | None:
    """Parse the parameter `from`: a position, or in a queue with priorities `PRIORITY:POSITION`."""
    if not text:
        return None
    if has_levels(queue):
        if found := LEVEL_POSITION.fullmatch(text):
            return Start(int(found[2]), int(found[1]))
        raise BadRequest("'from' must be PRIORITY:POSITION, such as 3:1042, as this queue has priorities")
    if not NUMBER.fullmatch(text):
        raise BadRequest("'from' must be a position, such as 1042")
    return Start(int(text))


def place_of(start: Start, levels: bool) -> str:
    """Return the text that the parameter `from` takes."""
    return f"{start.priority}:{start.position}" if levels else str(start.position)


def message_values(message: PeekedMessage, levels: bool) -> dict[str, Any]:
    return {
        "position": place_of(message.start, levels),
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "redelivered": message.is_redelivered,
        "delivery_attempts": message.attempts,
        "expires": paging.iso(message.expires_ms * 1000) if message.expires_ms else None,
        "published": paging.iso(message.publish_time) if message.publish_time else None,
        "properties": property_values(message.header),
        **payload_values(message.body, message.size),
    }


async def _peek_retrying(node: NodeView, request: Request, queue: Queue) -> Response:
    _require_read(node, request, queue)
    params = request.query_params
    count, truncate = count_of(params, DEFAULT_COUNT), truncate_of(params)
    retry = queue.retry if isinstance(queue, ClassicQueue) else None
    if retry is None:
        return Json({"messages": [], "next": None})
    show = partial(retry_values, truncate)
    found, next = await list_delayed(retry.list_from, lambda: queue.is_deleted, cursor_of(params), count, show)
    return Json({"messages": found, "next": next})


def retry_values(truncate: int, entry: QueuedMessage) -> dict[str, Any]:
    message = entry.message
    return {
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "next_attempt": paging.iso(entry.expires_ms * 1000),
        "delivery_attempts": entry.attempts,
        "published": paging.iso(message.publish_time) if message.publish_time else None,
        "properties": property_values(message.header),
        **payload_values(message.body[:truncate], message.size),
    }


PEEKS = {"messages": _peek, "retrying": _peek_retrying}
