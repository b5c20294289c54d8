"""Asks a running broker over HTTP, as one of its users. What keeps it from answering is one line: AskError."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

TIME_LIMIT = 30.0
CREATED = 201


class AskError(Exception):
    """The broker did not give what was asked for; `status` is its answer, 0 if there was none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class BrokerHttp:
    """The HTTP port of one broker. A URL may hold the user, as in http://guest:guest@127.0.0.1:15672."""

    def __init__(self, url: str, user: str, password: str) -> None:
        try:
            parts = urlsplit(url if "://" in url else "http://" + url)
            host = parts.hostname
            where = f"[{host}]" if host and ":" in host else host
            netloc = f"{where}:{parts.port}" if parts.port else where
        except ValueError as unfit:
            raise AskError(f"'{url}' is no URL: {unfit}") from None
        if parts.scheme not in ("http", "https") or not netloc:
            raise AskError(f"'{url}' is no URL of a broker; it looks like http://127.0.0.1:15672")
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        self.url = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        self.user = user
        # A redirect would carry the password to wherever it leads.
        self._opener = build_opener(_NoRedirect)
        token = base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()
        self._headers = {"Authorization": f"Basic {token}", "Accept": "application/json"}

    def get(self, path: str, parameters: dict[str, str] | None = None) -> Any:
        """The JSON at a path, whose parts are escaped already."""
        query = "?" + urlencode(parameters, errors="surrogateescape") if parameters else ""
        return self._ask("GET", path + query)

    def put(self, path: str, body: Any) -> bool:
        """Write JSON to a path. Return whether there was nothing before."""
        return bool(self._ask("PUT", path, json.dumps(body).encode()) == CREATED)

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON that is answered to GET, the status to others."""
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        request = Request(self.url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIME_LIMIT) as answer:
                return json.load(answer) if method == "GET" else answer.status
        except HTTPError as refused:
            raise AskError(_reason(refused), refused.code) from None
        except (URLError, TimeoutError, ConnectionError) as failure:
            reason = getattr(failure, "reason", failure)
            raise AskError(f"no broker answers at {self.url}: {reason}") from None
        except ValueError:
            raise AskError(f"what answers at {self.url} is no WarrenMQ") from None


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


def _reason(refused: HTTPError) -> str:
    try:
        answer = json.load(refused)
        return str(answer["reason"])
    except (ValueError, KeyError, TypeError):
        return f"the answer was {refused.code} {refused.reason}"
