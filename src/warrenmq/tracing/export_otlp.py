"""Exports what happens to messages as spans, to an OpenTelemetry collector over OTLP/HTTP.

It listens to the batches of the event log, so it sees what the rules of tracing keep, and costs the loop nothing but
handing over a batch. A thread makes spans of them and posts these. A collector that is slow or away costs spans,
which are counted, and nothing else.

Owned by the thread: everything but the batches that wait, which a queue hands over.
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
MOST_SPANS = 2_000
# Bytes of batches that may wait; above that they are dropped.
MOST_WAITING = 32 * 1024 * 1024
# When nothing comes for so many seconds, publishes that have no confirm are over.
QUIET = 1.0
# A request is tried so often, after so many seconds, each twice as long as the one before.
TRIES = 5
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
# OTLP/HTTP: these may be tried again, everything else is final.
TRY_AGAIN = frozenset({429, 502, 503, 504})
# What is there at the end is sent within so many seconds.
LAST_PATIENCE = 5.0
COMPLAINT_INTERVAL = 60.0
_MOST_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class OtlpOptions:
    """`endpoint`: the collector's URL; one without a path gets OTLP's own. ValueError if it is none."""

    endpoint: str
    headers: Mapping[str, str] = field(default_factory=dict)
    service_name: str = "warrenmq"
    version: str = ""
    timeout: float = 10.0
    first_pause: float = FIRST_PAUSE

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{self.endpoint}' is no URL of a collector, such as http://localhost:4318")

    @property
    def url(self) -> str:
        parts = urllib.parse.urlsplit(self.endpoint)
        return urllib.parse.urlunsplit(parts._replace(path="/v1/traces") if parts.path in ("", "/") else parts)


class OtlpExporter:
    """`sent` and `dropped` count spans; `dropped_batches` those of which no spans were made."""

    def __init__(self, options: OtlpOptions) -> None:
        self._options = options
        self._jobs: SimpleQueue[bytes | None] = SimpleQueue()
        self._waiting = 0  # bytes; the loop adds, the thread takes away
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_stopping = threading.Event()
        self._maker = SpanMaker()
        self._spans: list[OtelSpan] = []
        self._complained_at = -COMPLAINT_INTERVAL
        self.sent = 0
        self.dropped = 0
        self.dropped_batches = 0
        self.failure: str | None = None

    # -- on the loop -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="warren-otlp", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Send what is there, as far as the collector is quick."""
        if self._thread is not None:
            self._is_stopping.set()
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join, LAST_PATIENCE)
            self._thread = None

    def batch_added(self, offset: int, octets: bytes, note: object = None) -> None:
        """The event log has a new batch."""
        with self._lock:
            is_full = self._waiting + len(octets) > MOST_WAITING
            if not is_full:
                self._waiting += len(octets)
        if is_full:
            self.dropped_batches += 1
            self._complain("the collector is too slow")
        else:
            self._jobs.put(octets)

    def state(self) -> dict[str, Any]:
        """For people."""
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
                octets = self._jobs.get(timeout=QUIET)
            except Empty:
                self._send(self._maker.end_publishes())
                self._send_rest()
                continue
            if octets is None:
                break
            self._make_spans(octets)
            with self._lock:
                self._waiting -= len(octets)
            if self._jobs.empty():
                self._send_rest()
        self._send(self._maker.end_publishes())
        self._send_rest()

    def _make_spans(self, octets: bytes) -> None:
        try:
            batch = decode(octets)
        except BadEvents as problem:
            self._complain(f"a batch of events cannot be read: {problem}")
            return
        for start in range(0, batch.count, MOST_SPANS):
            rows = list(range(start, min(start + MOST_SPANS, batch.count)))
            self._send(self._maker.add(batch.events(rows)))

    def _send(self, spans: list[OtelSpan]) -> None:
        """When there are enough of them."""
        self._spans += spans
        while len(self._spans) >= MOST_SPANS:
            self._post(self._spans[:MOST_SPANS])
            del self._spans[:MOST_SPANS]

    def _send_rest(self) -> None:
        if self._spans:
            self._post(self._spans)
            self._spans = []

    def _post(self, spans: list[OtelSpan]) -> None:
        resource = {"service.name": self._options.service_name}
        if self._options.version:
            resource["service.version"] = self._options.version
        body = gzip.compress(encode_request(spans, resource, SCOPE, self._options.version), 1)
        pause = self._options.first_pause
        for attempt in range(TRIES):
            problem, wanted_pause = self._try(body, len(spans))
            if problem is None:
                return
            is_last = attempt == TRIES - 1 or wanted_pause is None or self._is_stopping.is_set()
            if is_last or self._is_stopping.wait(min(max(pause, wanted_pause or 0.0), LONGEST_PAUSE)):
                break
            pause *= 2
        self._drop(len(spans), problem)

    def _try(self, body: bytes, count: int) -> tuple[str | None, float | None]:
        """What went wrong, and how long to wait before the next try; None: do not try again."""
        # A broker that exports nothing must not spend 40 ms of its start on importing these.
        import urllib.error
        import urllib.request
        from http.client import HTTPException

        headers = {"Content-Type": CONTENT_TYPE, "Content-Encoding": "gzip", "User-Agent": "warrenmq"}
        request = urllib.request.Request(self._options.url, body, headers | dict(self._options.headers))
        try:
            with urllib.request.urlopen(request, timeout=self._options.timeout) as answer:
                self._accept(count, answer.read(_MOST_ANSWER))
            return None, None
        except urllib.error.HTTPError as refusal:
            refusal.close()
            wait = _seconds(refusal.headers.get("Retry-After")) if refusal.code in TRY_AGAIN else None
            return f"the collector answers {refusal.code} {refusal.reason}", wait
        except (OSError, HTTPException) as problem:
            return f"the collector cannot be reached: {problem}", 0.0

    def _accept(self, count: int, answer: bytes) -> None:
        rejected, why = rejected_spans(answer)
        rejected = min(rejected, count)
        self.failure = None
        with self._lock:
            self.sent += count - rejected
        if rejected:
            self._drop(rejected, f"the collector refused spans: {why}")

    def _drop(self, count: int, reason: str | None) -> None:
        with self._lock:
            self.dropped += count
        self._complain(reason or "the collector gives no answer")

    def _complain(self, reason: str) -> None:
        self.failure = reason
        now = time.monotonic()
        if now - self._complained_at >= COMPLAINT_INTERVAL:
            self._complained_at = now
            log.warning("spans were not exported (%d since the start): %s", self.dropped, reason)


def _seconds(text: str | None) -> float:
    """Of a Retry-After; as a date it is not worth the trouble."""
    return float(text) if text is not None and text.isdigit() else 0.0
