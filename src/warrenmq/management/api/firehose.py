"""RabbitMQ's firehose: GET /api/firehose; PUT and DELETE /api/firehose/{vhost} switch it on and off."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from warrenmq.management.auth import identity_of
from warrenmq.management.errors import NotFound, Unavailable
from warrenmq.management.ports import Firehose
from warrenmq.management.responses import Json
from warrenmq.management.view import NodeView


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/firehose")
    async def all_vhosts(request: Request) -> Response:
        is_open = set(_firehose(node).open_vhosts())
        visible = node.visible_vhosts(identity_of(request).name)
        names = [name for name in node.broker.vhosts if visible is None or name in visible]
        return Json({"vhosts": [{"name": name, "open": name in is_open} for name in names]})

    @router.put("/firehose/{vhost:path}")
    async def switch_on(vhost: str, request: Request) -> Response:
        return _switch(vhost, True, request)

    @router.delete("/firehose/{vhost:path}")
    async def switch_off(vhost: str, request: Request) -> Response:
        return _switch(vhost, False, request)

    def _switch(vhost: str, is_open: bool, request: Request) -> Response:
        firehose = _firehose(node)
        node.require_everywhere(identity_of(request).name)
        if not firehose.switch(vhost, is_open):
            raise NotFound(f"no such virtual host: '{vhost}'")
        return Response(status_code=204)

    return router


def _firehose(node: NodeView) -> Firehose:
    if node.firehose is None:
        raise Unavailable("this broker has no firehose")
    return node.firehose
