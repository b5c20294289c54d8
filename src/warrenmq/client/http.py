"""Client for the HTTP API of a running broker. Failures are one line: RequestFailed.

Blocks; any thread.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from warrenmq.client.errors import ClientError

TIME_LIMIT = 30.0
CREATED = 201


class RequestFailed(ClientError):
    """A request to the HTTP API failed; `status` is the HTTP status, 0 without a response."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class BrokerHttp:
    """The HTTP port of one broker. A URL may hold the user, as in http://guest:guest@127.0.0.1:15672."""

    def __init__(self, url: str, user: str, password: str) -> None:
        try:
            parts = urlsplit(url if "://" in url else "http://" + url)
            host = parts.hostname
            shown_host = f"[{host}]" if host and ":" in host else host
            netloc = f"{shown_host}:{parts.port}" if parts.port else shown_host
        except ValueError as error:
            raise RequestFailed(f"'{url}' is not a valid URL: {error}") from None
        if parts.scheme not in ("http", "https") or not netloc:
            raise RequestFailed(f"'{url}' is not an HTTP URL; use one such as http://127.0.0.1:15672")
        if parts.username is not None:
            user, password = unquote(parts.username), unquote(parts.password or "")
        self.url = urlunsplit((parts.scheme, netloc, parts.path.rstrip("/"), "", ""))
        self.user = user
        # A redirect would send the password to another server.
        self._opener = build_opener(_NoRedirect)
        token = base64.b64encode(f"{user}:{password}".encode("utf-8", "surrogateescape")).decode()
        self._headers = {"Authorization": f"Basic {token}", "Accept": "application/json"}

    def get(self, path: str, parameters: dict[str, str] | None = None) -> Any:
        """Return the JSON at a path; its parts must be escaped already."""
        query = "?" + urlencode(parameters, errors="surrogateescape") if parameters else ""
        return self._request("GET", path + query)

    def put(self, path: str, body: Any) -> bool:
        """Write JSON to a path; return True if it was created, False if replaced."""
        return bool(self._request("PUT", path, json.dumps(body).encode()) == CREATED)

    def delete(self, path: str) -> None:
        self._request("DELETE", path)

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON of a GET, the status of other requests."""
        headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
        request = Request(self.url + path, body, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIME_LIMIT) as response:
                return json.load(response) if method == "GET" else response.status
        except HTTPError as refused:
            raise RequestFailed(_reason(refused), refused.code) from None
        except (URLError, TimeoutError, ConnectionError) as failure:
            reason = getattr(failure, "reason", failure)
            raise RequestFailed(f"cannot reach a broker at {self.url}: {reason}") from None
        except ValueError:
            raise RequestFailed(f"the server at {self.url} is not WarrenMQ: its response is not JSON") from None


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


def _reason(refused: HTTPError) -> str:
    try:
        return str(json.load(refused)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"the broker responded with {refused.code} {refused.reason}"
