"""The streams that there are: GET /api/streams, for readers that want all whose names fit a pattern.

Streams of the broker are listed for users who may read them.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from warrenmq.core.reserved import is_system_stream
from warrenmq.core.stream import Stream
from warrenmq.management import paging
from warrenmq.management.answers import Json
from warrenmq.management.auth import asker_of
from warrenmq.management.errors import NotFound
from warrenmq.management.view import NodeView

PARAMETERS = frozenset({"vhost"})


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/streams")
    async def streams(request: Request) -> Response:
        paging.require_known(request.query_params, PARAMETERS)
        wanted = paging.text(request.query_params, "vhost")
        visible = node.visible_vhosts(asker_of(request).name)
        names = [name for name in node.broker.vhosts if visible is None or name in visible]
        if wanted is not None and wanted not in names:
            raise NotFound(f"there is no virtual host '{wanted}', or it is not yours to enter")
        may_monitor = node.may_monitor(asker_of(request).name)
        found = [
            {
                "name": queue.name,
                "vhost": name,
                "first_offset": queue.first_offset,
                "next_offset": queue.readable,  # what comes behind it is not safe yet
            }
            for name in names
            if wanted is None or name == wanted
            for queue in node.broker.vhosts[name].queues.values()
            if isinstance(queue, Stream) and (may_monitor or not is_system_stream(name, queue.name))
        ]
        return Json({"streams": sorted(found, key=lambda stream: (stream["vhost"], stream["name"]))})

    return router
