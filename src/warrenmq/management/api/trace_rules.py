"""Trace rules: GET /api/trace-rules, and GET, PUT and DELETE /api/trace-rules/{name}.

Rules apply to the whole broker: changing them needs access to every virtual host.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.management.api.bodies import json_object
from warrenmq.management.auth import identity_of
from warrenmq.management.errors import BadRequest, NotFound, Unavailable
from warrenmq.management.ports import TraceRules
from warrenmq.management.responses import Json
from warrenmq.management.view import NodeView
from warrenmq.tracing.rules import TraceRule


def routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/trace-rules")
    async def all_rules() -> Response:
        rules = [rule_values(rule) for rule in _rules(node).all()]
        return Json({"rules": rules, "tracing": dict(node.tracing_state())})

    @router.get("/trace-rules/{name:path}")
    async def one_rule(name: str) -> Response:
        return Json(rule_values(_find(_rules(node), name)))

    @router.put("/trace-rules/{name:path}")
    async def put_rule(name: str, request: Request) -> Response:
        rules = _rules(node)
        node.require_everywhere(identity_of(request).name)
        definition = await json_object(request)
        try:
            is_new = await rules.put(name, definition)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        return Response(status_code=201 if is_new else 204)

    @router.delete("/trace-rules/{name:path}")
    async def delete_rule(name: str, request: Request) -> Response:
        rules = _rules(node)
        node.require_everywhere(identity_of(request).name)
        try:
            if not await rules.remove(name):
                raise NotFound(f"no such rule: '{name}'")
        except ValueError as error:
            raise BadRequest(str(error)) from None
        return Response(status_code=204)

    return router


def rule_values(rule: TraceRule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "vhost": rule.vhost,
        "exchange": rule.exchange,
        "queue": rule.queue,
        "header": dict(rule.header),
        "ratio": rule.ratio,
        "enabled": rule.enabled,
        "fixed": rule.is_fixed,
    }


def _rules(node: NodeView) -> TraceRules:
    if node.rules is None:
        raise Unavailable("this broker records no events")
    return node.rules


def _find(rules: TraceRules, name: str) -> TraceRule:
    for rule in rules.all():
        if rule.name == name:
            return rule
    raise NotFound(f"no such rule: '{name}'")
