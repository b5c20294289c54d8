"""Scheduled messages: GET /api/scheduled and /api/scheduled/VHOST list them by time.

GET /api/scheduled/VHOST/ID returns one, DELETE cancels it.

A user needs the tag monitoring or administrator, to cancel administrator, and access to the virtual host.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.core.delayed import Cursor
from warrenmq.core.reserved import ADMINISTRATOR
from warrenmq.core.schedule import ScheduledMessage
from warrenmq.core.vhost import VHost
from warrenmq.management import paging
from warrenmq.management.api.messages import count_of, payload_values, property_values, truncate_of
from warrenmq.management.api.paths import NUMBER, names_in_path, vhost_of, vhosts_of
from warrenmq.management.api.reads import answer_to, cursor_of, list_delayed
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import BadRequest, NotFound
from warrenmq.management.responses import Json
from warrenmq.management.view import NodeView

DEFAULT_COUNT = 100


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/scheduled")
    async def all_vhosts(request: Request) -> Response:
        """The next messages of all virtual hosts; those of one can be listed further."""
        node.require_monitoring(identity_of(request).name)
        paging.require_known(request.query_params, {"count"})
        count = count_of(request.query_params, DEFAULT_COUNT)
        vhosts = vhosts_of(node, request)
        found = [each for vhost in vhosts for each in (await _list(node, vhost, None, count))[0]]
        found.sort(key=lambda values: str(values["deliver_at"]))
        return Json({"messages": found[:count], "total": sum(len(vhost.schedule) for vhost in vhosts)})

    @router.get("/scheduled/{rest:path}")
    async def read(request: Request) -> Response:
        node.require_monitoring(identity_of(request).name)
        names = names_in_path(request, 2)
        vhost = vhost_of(node, request, names[0])
        params = request.query_params
        if len(names) == 1:
            paging.require_known(params, {"count", "from"})
            count = count_of(params, DEFAULT_COUNT)
            found, next = await _list(node, vhost, cursor_of(params), count)
            return Json({"messages": found, "next": next, "total": len(vhost.schedule)})
        paging.require_known(params, {"truncate"})
        truncate, id = truncate_of(params), _id(names[1])
        message: ScheduledMessage | None = await answer_to(
            lambda receive: vhost.schedule.find(id, receive), partial(_is_gone, node, vhost)
        )
        if message is None:
            raise NotFound("Not Found")
        payload = payload_values(message.body[:truncate], len(message.body))
        return Json(scheduled_values(vhost.name, message) | payload)

    @router.delete("/scheduled/{rest:path}")
    async def cancel(request: Request) -> Response:
        node.require_tag(identity_of(request).name, ADMINISTRATOR)
        names = names_in_path(request, 2)
        if len(names) == 1:
            raise NotFound(f"no such path or method: {request.url.path}")
        vhost, id = vhost_of(node, request, names[0]), _id(names[1])
        message: ScheduledMessage | None = await answer_to(
            lambda receive: vhost.schedule.cancel(id, receive), partial(_is_gone, node, vhost)
        )
        if message is None:
            raise NotFound("Not Found")
        await node.change(lambda: None)  # until the removal is durable
        return Response(status_code=204)

    return router


async def _list(
    node: NodeView, vhost: VHost, after: Cursor | None, count: int
) -> tuple[list[dict[str, Any]], str | None]:
    show = partial(scheduled_values, vhost.name)
    return await list_delayed(vhost.schedule.list_from, partial(_is_gone, node, vhost), after, count, show)


def scheduled_values(vhost: str, message: ScheduledMessage) -> dict[str, Any]:
    """Return the fields of a message, without the payload."""
    return {
        "id": message.id,
        "vhost": vhost,
        "deliver_at": paging.iso(message.due_ms * 1000),
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": property_values(message.header),
        "payload_bytes": len(message.body),
    }


def _is_gone(node: NodeView, vhost: VHost) -> bool:
    return node.broker.vhosts.get(vhost.name) is not vhost


def _id(text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise BadRequest(f"'{text}' is not the id of a scheduled message, which is a number")
    return int(text)
