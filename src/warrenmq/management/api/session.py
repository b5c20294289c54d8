"""Signing in and out: POST /api/login, GET and DELETE /api/session."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.management.api.bodies import json_object
from warrenmq.management.auth import Auth, identity_of, set_cookie
from warrenmq.management.errors import BadRequest
from warrenmq.management.responses import Json
from warrenmq.management.sessions import IDLE_SECONDS, Session

MAX_LOGIN = 16 * 1024  # bytes; anyone may send it


def login_routes(auth: Auth) -> APIRouter:
    """The only path under /api that needs no user."""
    router = APIRouter()

    @router.post("/api/login")
    async def login(request: Request) -> Response:
        body = await json_object(request, MAX_LOGIN)
        name, password = body.get("username"), body.get("password")
        if not isinstance(name, str) or not isinstance(password, str):
            raise BadRequest("'username' and 'password' must be strings")
        token, session = await auth.sign_in(request, name, password)
        response = Json(_session_values(name, session))
        set_cookie(request, response, token)
        return response

    return router


def session_routes(auth: Auth) -> APIRouter:
    router = APIRouter()

    @router.get("/session")
    async def session(request: Request) -> Response:
        identity = identity_of(request)
        return Json(_session_values(identity.name, identity.session))

    @router.delete("/session")
    async def sign_out(request: Request) -> Response:
        auth.sign_out(request)
        response = Response(status_code=204)
        set_cookie(request, response, "")
        return response

    return router


def _session_values(name: str, session: Session | None) -> dict[str, Any]:
    if session is None:
        return {"user": name}
    return {"user": name, "csrf": session.csrf, "idle_seconds": IDLE_SECONDS}
