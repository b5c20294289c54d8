"""A browser without a screen: asks the HTTP application in this process, and keeps its cookies."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.management.fakes import FakeNode
from warrenmq.management.app import create_app
from warrenmq.management.options import HttpOptions

GUEST = ("guest", "guest")
LIMITED = ("limited", "secret")
PLAIN = ("plain", "secret")


class Browser:
    """Speaks to the application of one node, `http://broker`. `now` is the time of its sessions; the test moves it."""

    def __init__(
        self, node: FakeNode | None = None, address: str = "127.0.0.1", options: HttpOptions | None = None
    ) -> None:
        self.node = node or FakeNode()
        self.now = 1000.0
        self.cookies = httpx.Cookies()
        self.csrf = ""
        self._app = create_app(self.node.view(), lambda: self.now, options or HttpOptions(), ["broker"])
        self._address = address

    def ask(self, method: str, path: str, **further: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(self._address, 50000))
            async with httpx.AsyncClient(transport=transport, base_url="http://broker", cookies=self.cookies) as client:
                response = await client.request(method, path, **further)
                self.cookies = client.cookies
                return response

        return asyncio.run(send())

    def get(self, path: str, **further: Any) -> httpx.Response:
        return self.ask("GET", path, **further)

    def sign_in(self, name: str = "guest", password: str = "guest", **further: Any) -> httpx.Response:
        response = self.ask("POST", "/api/login", json={"username": name, "password": password}, **further)
        if response.status_code == 200:
            self.csrf = response.json()["csrf"]
        return response

    def change(self, method: str, path: str, **further: Any) -> httpx.Response:
        """As a page does it."""
        return self.ask(method, path, headers={"X-Warren-CSRF": self.csrf} | further.pop("headers", {}), **further)
