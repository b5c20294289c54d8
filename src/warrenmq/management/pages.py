"""Serves the pages: HTML, scripts and styles from `ui/`, and plotly.js from the installed package.

A page is one .html and one .js file. Pages need a signed-in user; the sign-in page, scripts and styles are public.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from warrenmq.management.auth import Auth
from warrenmq.management.errors import ApiError, NotFound

UI = Path(__file__).parent / "ui"
HOME = "/ui/traces.html"
SIGN_IN = "login.html"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
# Browsers revalidate each time: an upgraded broker must not be used with old scripts.
CACHING = {"Cache-Control": "no-cache"}


def routes(auth: Auth, ui: Path = UI) -> APIRouter:
    router = APIRouter()
    files = {path.name: path for path in sorted(ui.iterdir()) if path.suffix in TYPES}

    @router.get("/")
    async def home() -> Response:
        return RedirectResponse(HOME, 303)

    @router.get("/ui/vendor/plotly.js")
    async def plotly() -> Response:
        path = plotly_file()
        if path is None:
            raise NotFound("plotly is not installed: pip install 'warrenmq[ui]'")
        return FileResponse(path, headers=CACHING, media_type="text/javascript")

    @router.get("/ui/{name}")
    async def file(name: str, request: Request) -> Response:
        path = files.get(name)
        if path is None:
            raise NotFound(f"no such page: '{name}'")
        if path.suffix == ".html" and name != SIGN_IN and not await _is_signed_in(auth, request):
            return RedirectResponse(f"/ui/{SIGN_IN}?next={quote(_path_and_query(request), safe='')}", 303)
        return FileResponse(path, headers=CACHING, media_type=TYPES[path.suffix])

    return router


def plotly_file() -> Path | None:
    """Return the script of the `plotly` package, without importing it; None if it is not installed."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None


async def _is_signed_in(auth: Auth, request: Request) -> bool:
    try:
        return await auth.identify(request) is not None
    except ApiError:  # a wrong password; the sign-in page reports it
        return False


def _path_and_query(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")
