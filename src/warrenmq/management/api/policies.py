"""Policies, by RabbitMQ's paths: GET /api/policies and /api/policies/VHOST; GET, PUT, DELETE /api/policies/VHOST/NAME.

The same under /api/operator-policies. Changing policies needs the tag policymaker or administrator, changing operator
policies the tag administrator, and access to the virtual host. The tags management and monitoring allow reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.core.policies import DEFAULT_APPLY_TO, InvalidPolicy, Policies, Policy
from warrenmq.core.reserved import ADMINISTRATOR, MONITORING_TAG
from warrenmq.management.api.bodies import json_object
from warrenmq.management.api.paths import names_in_path
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import BadRequest, NotFound
from warrenmq.management.responses import Json
from warrenmq.management.view import NodeView

POLICYMAKER = "policymaker"
READERS = (ADMINISTRATOR, POLICYMAKER, MONITORING_TAG, "management")


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()
    _add_routes(router, node, "policies", False)
    _add_routes(router, node, "operator-policies", True)
    return router


def _add_routes(router: APIRouter, node: NodeView, path: str, is_operator: bool) -> None:
    writers = (ADMINISTRATOR,) if is_operator else (ADMINISTRATOR, POLICYMAKER)

    @router.get(f"/{path}")
    async def all_policies(request: Request) -> Response:
        user = identity_of(request).name
        node.require_tag(user, *READERS)
        visible = node.visible_vhosts(user)
        return _policies_response(
            policy
            for name, vhost in node.broker.vhosts.items()
            if visible is None or name in visible
            for policy in vhost.policies.list(is_operator)
        )

    @router.get(f"/{path}/{{rest:path}}")
    async def read(request: Request) -> Response:
        node.require_tag(identity_of(request).name, *READERS)
        vhost, name = _path_names(request)
        policies = _policies(node, request, vhost)
        if name is None:
            return _policies_response(policies.list(is_operator))
        policy = policies.get(name, is_operator)
        if policy is None:
            raise NotFound("Not Found")
        return Json(policy.values())

    @router.put(f"/{path}/{{rest:path}}")
    async def put(request: Request) -> Response:
        node.require_tag(identity_of(request).name, *writers)
        vhost, name = _path_of_one(request)
        body = await json_object(request)
        policies = _policies(node, request, vhost)
        missing = [f"{{key_missing,{key}}}" for key in ("pattern", "definition") if key not in body]
        if missing:
            raise BadRequest(f"[{','.join(missing)}]")
        priority, apply_to = body.get("priority", 0), body.get("apply-to", DEFAULT_APPLY_TO)
        try:
            is_new = await node.change(
                lambda: policies.set(name, body["pattern"], body["definition"], priority, apply_to, is_operator)
            )
        except InvalidPolicy as error:
            raise BadRequest(str(error)) from None
        return Response(status_code=201 if is_new else 204)

    @router.delete(f"/{path}/{{rest:path}}")
    async def delete(request: Request) -> Response:
        node.require_tag(identity_of(request).name, *writers)
        vhost, name = _path_of_one(request)
        policies = _policies(node, request, vhost)
        if not await node.change(lambda: policies.clear(name, is_operator)):
            raise NotFound("Not Found")
        return Response(status_code=204)


def _policies_response(policies: Sequence[Policy] | Any) -> Response:
    return Json([policy.values() for policy in policies])


def _path_names(request: Request) -> tuple[str, str | None]:
    vhost, *name = names_in_path(request, 2)
    return vhost, name[0] if name else None


def _path_of_one(request: Request) -> tuple[str, str]:
    vhost, name = _path_names(request)
    if name is None:
        raise NotFound(f"no such path or method: {request.url.path}")
    return vhost, name


def _policies(node: NodeView, request: Request, vhost: str) -> Policies:
    found = node.broker.vhosts.get(vhost)
    if found is None or not node.broker.users.may_enter(identity_of(request).name, vhost):
        raise NotFound("vhost_not_found" if request.method == "PUT" else "Not Found")
    return found.policies
