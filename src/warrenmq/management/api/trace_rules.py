"""The rules of what is kept: GET /api/trace-rules, and GET, PUT and DELETE /api/trace-rules/{name}.

Rules hold for the whole broker: only who may enter every virtual host may change them.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.management.answers import Json
from warrenmq.management.api.bodies import json_object
from warrenmq.management.auth import asker_of
from warrenmq.management.errors import BadRequest, NotFound, Unavailable
from warrenmq.management.ports import TraceRules
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
        node.require_everywhere(asker_of(request).name)
        definition = await json_object(request)
        try:
            is_new = await rules.put(name, definition)
        except ValueError as unfit:
            raise BadRequest(str(unfit)) from None
        return Response(status_code=201 if is_new else 204)

    @router.delete("/trace-rules/{name:path}")
    async def delete_rule(name: str, request: Request) -> Response:
        rules = _rules(node)
        node.require_everywhere(asker_of(request).name)
        try:
            if not await rules.remove(name):
                raise NotFound(f"there is no rule '{name}'")
        except ValueError as fixed:
            raise BadRequest(str(fixed)) from None
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
        raise Unavailable("this broker keeps no events")
    return node.rules


def _find(rules: TraceRules, name: str) -> TraceRule:
    for rule in rules.all():
        if rule.name == name:
            return rule
    raise NotFound(f"there is no rule '{name}'")
