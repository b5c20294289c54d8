"""The HTTP application: which paths there are, and what each answers.

Every handler is `async` and runs on the loop that owns the broker's state, so it may read that state as it stands;
none of them awaits between two reads that belong together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse

from warrenmq.core.broker import Broker
from warrenmq.core.snapshot import overview
from warrenmq.management import prometheus


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the HTTP side may see of the node it runs in."""

    broker: Broker
    ready: Callable[[], tuple[bool, str]]  # whether clients are served, and if not, why
    loop_lag: Callable[[], float]
    version: str
    alarms: Callable[[], list[str]] = list  # the resources that are short
    figures: Callable[[], dict[str, int]] = dict  # of the storage, where there is one


def create_app(node: NodeView) -> FastAPI:
    """The application for one node."""
    app = FastAPI(title="WarrenMQ", version=node.version, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def health() -> JSONResponse:
        is_ready, reason = node.ready()
        if is_ready:
            return JSONResponse({"status": "ready"} | _detail(node))
        return JSONResponse({"status": "not ready", "reason": reason}, status_code=503)

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        text = prometheus.render(
            overview(node.broker),
            loop_lag=node.loop_lag(),
            version=node.version,
            alarms=node.alarms(),
            figures=node.figures(),
        )
        return PlainTextResponse(text, media_type=prometheus.CONTENT_TYPE)

    return app


def _detail(node: NodeView) -> dict[str, Any]:
    """What there is to say about the state of memory and storage."""
    detail: dict[str, Any] = {}
    if alarms := node.alarms():
        detail["alarms"] = alarms
    if figures := node.figures():
        detail["storage"] = figures
    return detail
