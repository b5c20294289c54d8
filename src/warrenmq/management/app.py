"""The HTTP application: which paths there are, and what each answers.

/healthz and /metrics are open; everything under /api, and the pages, want a user of the broker (auth.py) and are served
for the broker's own hosts only (hosts.py). Every handler is `async` and runs on the loop that owns the broker's state,
so it may read that state as it stands; none of them awaits between two reads that belong together.
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
from warrenmq.management.answers import Answers, Json, refusal
from warrenmq.management.api import analysis, firehose, policies, session, streams, trace_rules, traces
from warrenmq.management.auth import Auth
from warrenmq.management.errors import ApiError, NotFound
from warrenmq.management.hosts import HostCheck, OwnHosts
from warrenmq.management.options import HttpOptions
from warrenmq.management.process import resident_bytes
from warrenmq.management.proxies import Proxies
from warrenmq.management.view import NodeView


def create_app(
    node: NodeView,
    clock: Callable[[], float] = time.monotonic,
    options: HttpOptions | None = None,
    listening: Collection[str] = (),
) -> FastAPI:
    """The application for one node that listens there; `clock` is for the age of sessions."""
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
    app.add_middleware(Answers)  # added last: around the others
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
    api.include_router(analysis.routes(node))
    api.include_router(streams.routes(node))

    @api.api_route("/{rest:path}", methods=["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"])
    async def unknown(rest: str) -> Response:
        raise NotFound(f"there is no /api/{rest}, or not with this method")

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
    """What there is to say about the state of memory, storage and the event log."""
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
    return refusal(error)


async def _refuse_unknown(request: Request, error: Exception) -> Response:
    """What the framework refuses: a path that is none, a method that is not for it."""
    assert isinstance(error, HTTPException)
    return Json({"error": error.detail, "reason": error.detail}, error.status_code, error.headers)
