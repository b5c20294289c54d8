"""Streams: GET /api/streams lists them, for readers that select streams by a name pattern.

Streams of the broker itself are listed for users who may read them.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from warrenmq.core.reserved import is_system_stream
from warrenmq.core.stream import Stream
from warrenmq.management import paging
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import NotFound
from warrenmq.management.responses import Json
from warrenmq.management.view import NodeView

PARAMETERS = frozenset({"vhost"})


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/streams")
    async def streams(request: Request) -> Response:
        paging.require_known(request.query_params, PARAMETERS)
        selected = paging.text(request.query_params, "vhost")
        visible = node.visible_vhosts(identity_of(request).name)
        names = [name for name in node.broker.vhosts if visible is None or name in visible]
        if selected is not None and selected not in names:
            raise NotFound(f"no such virtual host, or no access to it: '{selected}'")
        may_monitor = node.may_monitor(identity_of(request).name)
        found = [
            {
                "name": queue.name,
                "vhost": name,
                "first_offset": queue.first_offset,
                "next_offset": queue.readable,  # later messages are not durable yet
            }
            for name in names
            if selected is None or name == selected
            for queue in node.broker.vhosts[name].queues.made()
            if isinstance(queue, Stream) and (may_monitor or not is_system_stream(name, queue.name))
        ]
        return Json({"streams": sorted(found, key=lambda stream: (stream["vhost"], stream["name"]))})

    return router
