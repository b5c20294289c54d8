"""Exports spans of messages to an OpenTelemetry collector over OTLP/HTTP.

It receives the batches of the event log, so it exports what the tracing rules keep, and the loop only hands over
batches. A thread makes spans of them and posts these. A collector that is slow or down costs spans, which are counted,
and nothing else.

Owned by the thread, except the queue of batches and what the loop counts of it.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from warrenmq.events.codec import decode
from warrenmq.events.errors import BadEvents
from warrenmq.tracing.otlp import CONTENT_TYPE, encode_request, rejected_spans
from warrenmq.tracing.spans import OtelSpan, SpanMaker

log = logging.getLogger("warrenmq.tracing")

SCOPE = "warrenmq"
# Spans in one request.
MAX_SPANS_PER_REQUEST = 2_000
# Bytes of waiting batches; further ones are dropped.
MAX_WAITING_BYTES = 32 * 1024 * 1024
# After this time without events, publishes without a confirm end.
IDLE_SECONDS = 1.0
# A request is tried this often, with pauses in seconds that double.
ATTEMPTS = 5
FIRST_PAUSE = 1.0
MAX_PAUSE = 30.0
# The status codes that OTLP/HTTP allows to retry.
RETRY_STATUS = frozenset({429, 502, 503, 504})
# Time to send what is left at a stop.
STOP_TIMEOUT = 5.0
WARNING_INTERVAL = 60.0
_MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """`endpoint` is the collector's URL; without a path, OTLP's is added. ValueError: it is not a URL."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)
    service_name: str = "warrenmq"
    version: str = ""
    timeout: float = 10.0
    first_pause: float = FIRST_PAUSE

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{self.endpoint}' is not the URL of a collector, such as http://localhost:4318")

    @property
    def url(self) -> str:
        parts = urllib.parse.urlsplit(self.endpoint)
        return urllib.parse.urlunsplit(parts._replace(path="/v1/traces") if parts.path in ("", "/") else parts)


class OtlpExporter:
    """`sent` and `dropped` count spans; `dropped_batches` counts batches from which no spans were made."""

    def __init__(self, options: OtlpOptions) -> None:
        self._options = options
        self._jobs: SimpleQueue[bytes | None] = SimpleQueue()
        self._taken = 0  # bytes of batches that were put in the queue, counted by the loop
        self._done = 0  # and of those whose spans were made, counted by the thread
        self._thread: threading.Thread | None = None
        self._is_stopping = threading.Event()
        self._maker = SpanMaker()
        self._spans: list[OtelSpan] = []
        self._warned_at = -WARNING_INTERVAL
        self.sent = 0
        self.dropped = 0
        self.dropped_batches = 0
        self.failure: str | None = None

    # -- on the loop -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="warren-otlp", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Send what is left, within a time limit."""
        if self._thread is not None:
            self._is_stopping.set()
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join, STOP_TIMEOUT)
            self._thread = None

    def batch_added(self, offset: int, data: bytes, entry: object = None) -> None:
        """The event log has appended a batch."""
        if self._taken - self._done + len(data) > MAX_WAITING_BYTES:
            self.dropped_batches += 1
            self._warn("the collector is too slow")
        else:
            self._taken += len(data)
            self._jobs.put(data)

    def state(self) -> dict[str, Any]:
        """Return figures for people."""
        return {
            "sent": self.sent,
            "dropped": self.dropped,
            "dropped_batches": self.dropped_batches,
            "failure": self.failure,
        }

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                data = self._jobs.get(timeout=IDLE_SECONDS)
            except Empty:
                data = b""
            if data:
                self._make_spans(data)
                self._done += len(data)
            else:
                self._spans += self._maker.end_publishes()
            if data is None or self._jobs.empty():
                self._send(at_least=1)
            if data is None:
                return

    def _make_spans(self, data: bytes) -> None:
        try:
            batch = decode(data)
        except BadEvents as error:
            self._warn(f"a batch of events cannot be read: {error}")
            return
        for start in range(0, batch.count, MAX_SPANS_PER_REQUEST):
            rows = list(range(start, min(start + MAX_SPANS_PER_REQUEST, batch.count)))
            self._spans += self._maker.add(batch.events(rows))
            self._send(at_least=MAX_SPANS_PER_REQUEST)

    def _send(self, at_least: int) -> None:
        """Post the spans, as long as there are that many."""
        while len(self._spans) >= at_least:
            self._post(self._spans[:MAX_SPANS_PER_REQUEST])
            del self._spans[:MAX_SPANS_PER_REQUEST]

    def _post(self, spans: list[OtelSpan]) -> None:
        resource = {"service.name": self._options.service_name}
        if self._options.version:
            resource["service.version"] = self._options.version
        body = gzip.compress(encode_request(spans, resource, SCOPE, self._options.version), 1)
        pause = self._options.first_pause
        for attempt in range(ATTEMPTS):
            error, min_pause = self._try(body, len(spans))
            if error is None:
                return
            is_last = attempt == ATTEMPTS - 1 or min_pause is None or self._is_stopping.is_set()
            if is_last or self._is_stopping.wait(min(max(pause, min_pause or 0.0), MAX_PAUSE)):
                break
            pause *= 2
        self._drop(len(spans), error)

    def _try(self, body: bytes, count: int) -> tuple[str | None, float | None]:
        """Return what went wrong, and the minimum pause before the next attempt, None for a final error."""
        # Imported here, as it takes 40 ms of the start of a broker that exports nothing.
        import urllib.error
        import urllib.request
        from http.client import HTTPException

        headers = {"Content-Type": CONTENT_TYPE, "Content-Encoding": "gzip", "User-Agent": "warrenmq"}
        request = urllib.request.Request(self._options.url, body, headers | dict(self._options.headers))
        try:
            with urllib.request.urlopen(request, timeout=self._options.timeout) as answer:
                self._accept(count, answer.read(_MAX_ANSWER_BYTES))
            return None, None
        except urllib.error.HTTPError as refusal:
            refusal.close()
            wait = _seconds(refusal.headers.get("Retry-After")) if refusal.code in RETRY_STATUS else None
            return f"the collector answers {refusal.code} {refusal.reason}", wait
        except (OSError, HTTPException) as error:
            return f"the collector cannot be reached: {error}", 0.0

    def _accept(self, count: int, answer: bytes) -> None:
        rejected, why = rejected_spans(answer)
        rejected = min(rejected, count)
        self.failure = None
        self.sent += count - rejected
        if rejected:
            self._drop(rejected, f"the collector refused spans: {why}")

    def _drop(self, count: int, reason: str | None) -> None:
        self.dropped += count
        self._warn(reason or "the collector does not answer")

    def _warn(self, reason: str) -> None:
        self.failure = reason
        now = time.monotonic()
        if now - self._warned_at >= WARNING_INTERVAL:
            self._warned_at = now
            log.warning("spans were not exported (%d since the start): %s", self.dropped, reason)


def _seconds(text: str | None) -> float:
    """Parse Retry-After in seconds; dates are ignored."""
    return float(text) if text is not None and text.isdigit() else 0.0
