"""Authentication: users of the broker, by basic auth or by the session cookie of the pages.

The cookie is HttpOnly and SameSite=Strict. A request that changes something is refused if it comes from another site;
if authenticated by cookie, it must also carry the session's token in X-Warren-CSRF. The node checks passwords, and
limits how fast they can be guessed.
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
from warrenmq.management.sessions import MAX_AGE_SECONDS, Session, Sessions

CSRF_HEADER = "X-Warren-CSRF"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a request, and the session, if authenticated by cookie."""

    name: str
    session: Session | None = None


class Auth:
    """Authenticates requests. Owned by the loop."""

    def __init__(self, users: Users, login: Login, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._login = login
        self._clock = clock
        self._sessions = Sessions()

    async def require(self, request: Request) -> None:
        """Authenticate the request, for `identity_of(request)`; raise NotAuthorized or Forbidden."""
        identity = await self.identify(request)
        if identity is None:
            raise NotAuthorized("sign in with a user of the broker", _challenge(request))
        if request.method not in SAFE_METHODS:
            _require_own_site(request)
            _require_csrf_token(request, identity)
        request.state.identity = identity

    async def identify(self, request: Request) -> Identity | None:
        """Return who sent the request, None if anonymous. A wrong password is refused even with a valid cookie."""
        if credentials := _basic_credentials(request):
            await self._check(request, *credentials)
            return Identity(credentials[0])
        session = self._session(request)
        return None if session is None else Identity(session.user, session)

    async def sign_in(self, request: Request, name: str, password: str) -> tuple[str, Session]:
        """Check the password and begin a session; return its cookie token and the session."""
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
            raise NotAuthorized("unknown user or wrong password, or the user may not connect from this address")


def identity_of(request: Request) -> Identity:
    """Return the identity that `Auth.require` found."""
    identity: Identity = request.state.identity
    return identity


def cookie_name(request: Request) -> str:
    """Return a name with the port, as browsers share cookies between the ports of a host."""
    server = request.scope.get("server")
    return f"warren_session_{server[1]}" if server and server[1] else "warren_session"


def set_cookie(request: Request, response: Response, token: str) -> None:
    """Set the session cookie; an empty token deletes it."""
    response.set_cookie(
        cookie_name(request),
        token,
        max_age=MAX_AGE_SECONDS if token else 0,
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
        raise NotAuthorized("the Authorization header is not valid basic auth") from None
    name, _, password = decoded.partition(":")
    return name, password


def _challenge(request: Request) -> dict[str, str]:
    """Return the challenge for basic auth; not for the pages, as a browser would open its own dialog."""
    return {} if CSRF_HEADER in request.headers else {"WWW-Authenticate": 'Basic realm="WarrenMQ"'}


def _require_own_site(request: Request) -> None:
    """Raise Forbidden for a request that a browser sends for a page of another site."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        is_own_site = site in ("same-origin", "none")
    else:
        origin = request.headers.get("Origin")
        is_own_site = origin is None or urlsplit(origin).netloc == request.headers.get("Host")
    if not is_own_site:
        raise Forbidden("the request was sent by a page of another site")


def _require_csrf_token(request: Request, identity: Identity) -> None:
    if identity.session is None:
        return
    shown = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), identity.session.csrf.encode()):
        raise Forbidden(f"the header {CSRF_HEADER} must hold the session's token ('csrf' in GET /api/session)")
