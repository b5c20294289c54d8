"""Who is asking: a user of the broker, by basic auth or by the session cookie of the pages.

The cookie is HttpOnly and SameSite=Strict. A request that changes something is refused when it comes from another
site, and, where the cookie vouches for it, unless it carries the session's token in X-Warren-CSRF. The node checks the
passwords, and limits how fast they can be guessed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from warrenmq.core.login_limit import TooManyFailures
from warrenmq.core.users import Users
from warrenmq.management.errors import Forbidden, NotAuthorized, TooManyLogins
from warrenmq.management.ports import Login
from warrenmq.management.proxies import origin_of
from warrenmq.management.sessions import LONGEST_SECONDS, Session, Sessions

CSRF_HEADER = "X-Warren-CSRF"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Asker:
    """The user behind a request, and the session that vouches, if it is one."""

    name: str
    session: Session | None = None


class Auth:
    """Decides who is asking. Owned by the loop."""

    def __init__(self, users: Users, login: Login, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._login = login
        self._clock = clock
        self._sessions = Sessions()

    async def require(self, request: Request) -> None:
        """Let in who may come in, known as `asker_of(request)` from here on; refuse everybody else."""
        asker = await self.asker(request)
        if asker is None:
            raise NotAuthorized("sign in with a user of the broker", _challenge(request))
        if request.method not in SAFE_METHODS:
            _require_own_site(request)
            _require_csrf_token(request, asker)
        request.state.asker = asker

    async def asker(self, request: Request) -> Asker | None:
        """Who is asking; None for nobody. A wrong password is refused, whatever the cookie says."""
        if credentials := _basic_credentials(request):
            await self._check(request, *credentials)
            return Asker(credentials[0])
        session = self._session(request)
        return None if session is None else Asker(session.user, session)

    async def sign_in(self, request: Request, name: str, password: str) -> tuple[str, Session]:
        """Check the password and begin a session; its token goes into the cookie of the answer."""
        _require_own_site(request)
        await self._check(request, name, password)
        return self._sessions.begin(name, self._clock())

    def sign_out(self, request: Request) -> None:
        self._sessions.end(request.cookies.get(cookie_name(request), ""))

    def _session(self, request: Request) -> Session | None:
        session = self._sessions.find(request.cookies.get(cookie_name(request), ""), self._clock())
        return session if session is not None and self._users.exists(session.user) else None

    async def _check(self, request: Request, name: str, password: str) -> None:
        try:
            is_right = await self._login(name, password, origin_of(request))
        except TooManyFailures as refused:
            raise TooManyLogins(str(refused), {"Retry-After": str(math.ceil(refused.wait))}) from None
        if not is_right:
            raise NotAuthorized("unknown user or wrong password, or a user that may not come from there")


def asker_of(request: Request) -> Asker:
    """Who was let in by `Auth.require`."""
    asker: Asker = request.state.asker
    return asker


def cookie_name(request: Request) -> str:
    """One for each port: browsers do not tell the brokers of one machine apart otherwise."""
    server = request.scope.get("server")
    return f"warren_session_{server[1]}" if server and server[1] else "warren_session"


def set_cookie(request: Request, answer: Response, token: str) -> None:
    """Let the browser keep the token; an empty one makes it forget."""
    answer.set_cookie(
        cookie_name(request),
        token,
        max_age=LONGEST_SECONDS if token else 0,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path="/",
    )


def _basic_credentials(request: Request) -> tuple[str, str] | None:
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(encoded.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        raise NotAuthorized("the Authorization header is no basic auth") from None
    name, _, password = decoded.partition(":")
    return name, password


def _challenge(request: Request) -> dict[str, str]:
    """Ask for basic auth; but not the pages, for a browser would open a window of its own."""
    return {} if CSRF_HEADER in request.headers else {"WWW-Authenticate": 'Basic realm="WarrenMQ"'}


def _require_own_site(request: Request) -> None:
    """Refuse what a page of another site makes a browser send."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        is_system_stream = site in ("same-origin", "none")
    else:
        origin = request.headers.get("Origin")
        is_system_stream = origin is None or urlsplit(origin).netloc == request.headers.get("Host")
    if not is_system_stream:
        raise Forbidden("this request comes from a page of another site")


def _require_csrf_token(request: Request, asker: Asker) -> None:
    if asker.session is None:
        return
    shown = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), asker.session.csrf.encode()):
        raise Forbidden(f"the header {CSRF_HEADER} must hold the session's token, as /api/session gives it")
