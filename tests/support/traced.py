"""A broker process that keeps events, asked over HTTP what happened and how it is."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.process import BrokerProcess
from tests.support.waiting import wait_until
from tests.support.wire import WireChannel
from warrenmq.events import schema

TRACED = {"WARREN_TRACE": "all"}
PERSISTENT = {"delivery_mode": 2}
LIMIT = 60.0

Found = TypeVar("Found")


class TracedProcess(BrokerProcess):
    """`warren serve --trace all` with its HTTP port."""

    def __init__(self, folder: Path, environ: dict[str, str] | None = None, log_file: Path | None = None) -> None:
        before = log_file or folder.with_suffix(".log")
        self._known = len(before.read_text(errors="replace")) if before.exists() else 0  # what earlier lives said
        super().__init__(folder, TRACED | (environ or {}), log_file, "0")
        self.url = ""

    def ready(self) -> Self:
        super().ready()
        found = wait_until(lambda: re.search(r"HTTP on (http://[^ ]+): ", self.log()[self._known :]))
        self.url = found[1]
        return self

    def ask(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                raw = answer.read()
                return answer.status, json.loads(raw) if raw else None
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read())

    def says(self, failure: str | None) -> bool:
        """Whether /healthz and /api/trace-rules both say that this is wrong with the event log."""
        status, health = self.ask("/healthz")
        assert status == 200
        return health.get("tracing", {}).get("failure") == failure == self.tracing()["failure"]

    def tracing(self) -> dict[str, Any]:
        status, answer = self.ask("/api/trace-rules")
        assert status == 200
        found: dict[str, Any] = answer["tracing"]
        return found

    def story(self, message_id: str) -> list[str]:
        """The kinds of the events of a message; none if nothing is kept of it."""
        status, answer = self.ask(f"/api/traces/{message_id}")
        assert status in (200, 404), answer
        return [event["kind"] for event in answer["events"]] if status == 200 else []


def live_once(channel: WireChannel, message_id: str, queue: str = "q") -> None:
    """A durable message is confirmed, delivered and acked."""
    channel.publish(b"body", PERSISTENT | {"message_id": message_id}, routing_key=queue)
    channel.expect("basic.ack")
    got = channel.get(queue, no_ack=False)
    assert got is not None
    assert got.properties["message_id"] == message_id
    channel.send("basic.ack", delivery_tag=got.method["delivery_tag"])
    channel.barrier(queue)


def segments_of_event_log(folder: Path) -> list[Path]:
    """The files that hold batches."""
    mark = schema.HEADER_VERSION.encode()
    return [path for path in sorted(folder.glob("queues/*/*.seg")) if mark in path.read_bytes()]
