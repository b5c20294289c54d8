"""The HTTP application: its paths.

/healthz and /metrics are open; everything under /api, and the pages, need a user of the broker (auth.py) and are served
only for the broker's own hosts (hosts.py). Every handler is `async` and runs on the loop that owns the broker's state,
so it may read that state directly; none awaits between two reads that must be consistent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException

from warrenmq.core.snapshot import memory, overview
from warrenmq.management import pages, prometheus
from warrenmq.management.api import (
    analysis,
    firehose,
    policies,
    queues,
    scheduled,
    session,
    streams,
    trace_rules,
    traces,
)
from warrenmq.management.auth import Auth
from warrenmq.management.errors import ApiError, NotFound
from warrenmq.management.hosts import HostCheck, OwnHosts
from warrenmq.management.options import HttpOptions
from warrenmq.management.process import resident_bytes
from warrenmq.management.proxies import Proxies
from warrenmq.management.responses import Json, ResponseMiddleware, error_response
from warrenmq.management.view import NodeView


def create_app(
    node: NodeView,
    clock: Callable[[], float] = time.monotonic,
    options: HttpOptions | None = None,
    listening: Collection[str] = (),
) -> FastAPI:
    """Return the application of one node; `listening` are its host names and addresses, `clock` is for sessions."""
    options = options or HttpOptions()
    app = FastAPI(
        title="WarrenMQ",
        version=node.version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    auth = Auth(node.broker.users, node.login, clock)
    app.add_middleware(Proxies, trusted=options.trusted_proxies)
    app.add_middleware(HostCheck, hosts=OwnHosts(listening, options.allowed_hosts))
    app.add_middleware(ResponseMiddleware)  # added last, so the outermost
    app.add_exception_handler(ApiError, _refuse)
    app.add_exception_handler(HTTPException, _refuse_unknown)
    app.include_router(_open_routes(node))
    app.include_router(session.login_routes(auth))
    app.include_router(_api_routes(node, auth))
    app.include_router(pages.routes(auth))
    return app


def _api_routes(node: NodeView, auth: Auth) -> APIRouter:
    api = APIRouter(prefix="/api", dependencies=[Depends(auth.require)])
    api.include_router(session.session_routes(auth))
    api.include_router(traces.routes(node))
    api.include_router(trace_rules.routes(node))
    api.include_router(firehose.routes(node))
    api.include_router(policies.routes(node))
    api.include_router(queues.routes(node))
    api.include_router(scheduled.routes(node))
    api.include_router(analysis.routes(node))
    api.include_router(streams.routes(node))

    @api.api_route("/{rest:path}", methods=["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
    async def unknown(rest: str) -> Response:
        raise NotFound(f"no such path or method: /api/{rest}")

    return api


def _open_routes(node: NodeView) -> APIRouter:
    router = APIRouter()

    @router.get("/healthz")
    async def health() -> Response:
        is_ready, reason = node.ready()
        if is_ready:
            return Json({"status": "ready"} | _detail(node))
        return Json({"status": "not ready", "reason": reason}, status_code=503)

    @router.get("/metrics")
    async def metrics() -> Response:
        text = prometheus.render(
            overview(node.broker),
            loop_lag=node.loop_lag(),
            version=node.version,
            alarms=node.alarms(),
            figures=node.figures(),
            refused=node.refused_connections(),
            memory=memory(node.broker),
            resident_bytes=resident_bytes(),
        )
        return PlainTextResponse(text, media_type=prometheus.CONTENT_TYPE)

    return router


def _detail(node: NodeView) -> dict[str, Any]:
    """Return alarms, figures of the storage, and a failure of the event log."""
    detail: dict[str, Any] = {}
    if alarms := node.alarms():
        detail["alarms"] = alarms
    if figures := node.figures():
        detail["storage"] = figures
    if failure := node.tracing_state().get("failure"):
        detail["tracing"] = {"failure": failure}
    return detail


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    """Respond to errors of the framework: unknown path, method not allowed."""
    assert isinstance(error, HTTPException)
    return Json({"error": error.detail, "reason": error.detail}, error.status_code, error.headers)
