"""Signing in and out: POST /api/login, GET and DELETE /api/session."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from warrenmq.management.answers import Json
from warrenmq.management.api.bodies import json_object
from warrenmq.management.auth import Auth, asker_of, set_cookie
from warrenmq.management.errors import BadRequest
from warrenmq.management.sessions import IDLE_SECONDS, Session

LARGEST_LOGIN = 16 * 1024  # of anybody, so not more than a login needs


def login_routes(auth: Auth) -> APIRouter:
    """The one path under /api that nobody has to be known for."""
    router = APIRouter()

    @router.post("/api/login")
    async def login(request: Request) -> Response:
        body = await json_object(request, LARGEST_LOGIN)
        name, password = body.get("username"), body.get("password")
        if not isinstance(name, str) or not isinstance(password, str):
            raise BadRequest("'username' and 'password' must be texts")
        token, session = await auth.sign_in(request, name, password)
        answer = Json(_shown(name, session))
        set_cookie(request, answer, token)
        return answer

    return router


def session_routes(auth: Auth) -> APIRouter:
    router = APIRouter()

    @router.get("/session")
    async def session(request: Request) -> Response:
        asker = asker_of(request)
        return Json(_shown(asker.name, asker.session))

    @router.delete("/session")
    async def sign_out(request: Request) -> Response:
        auth.sign_out(request)
        answer = Response(status_code=204)
        set_cookie(request, answer, "")
        return answer

    return router


def _shown(name: str, session: Session | None) -> dict[str, Any]:
    if session is None:
        return {"user": name}
    return {"user": name, "csrf": session.csrf, "idle_seconds": IDLE_SECONDS}
