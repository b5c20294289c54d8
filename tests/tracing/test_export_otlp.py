"""Spans reach a collector over OTLP/HTTP; a collector that is slow, away or picky costs spans and nothing else.

The collector is a small HTTP server in this process; it reads requests with OpenTelemetry's own classes.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.waiting import until
from tests.tracing.stories import SPAN_ID, TRACE_ID, EventBuilder, bytes_of, simple_life
from warrenmq.events import schema
from warrenmq.events.schema import Event
from warrenmq.tracing import export_otlp
from warrenmq.tracing.export_otlp import OtlpExporter, OtlpOptions
from warrenmq.tracing.otlp import rejected_spans

service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="opentelemetry-proto is not installed"
)


class Collector:
    """Takes spans. `answers` are the status codes of its next answers, then 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.body = b""
        self.headers: list[dict[str, str]] = []
        self.requests: list[Any] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                code = collector.answers.pop(0) if collector.answers else 200
                collector.paths.append(self.path)
                collector.headers.append(dict(self.headers))
                if code == 200:
                    collector.requests.append(service.ExportTraceServiceRequest.FromString(gzip.decompress(data)))
                self.send_response(code)
                self.send_header("Content-Length", str(len(collector.body)))
                self.end_headers()
                self.wfile.write(collector.body)

            def log_message(self, *_: object) -> None:
                """Not to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


def export(options: OtlpOptions, *batches: list[Event], exporter: OtlpExporter | None = None) -> OtlpExporter:
    async def run() -> OtlpExporter:
        used = exporter or OtlpExporter(options)
        used.start()
        for offset, batch in enumerate(batches):
            used.batch_added(offset, bytes_of(batch))
        await used.stop()
        return used

    return asyncio.run(run())


def exported_before_the_end(options: OtlpOptions, batch: list[Event]) -> OtlpExporter:
    """Wait for the thread to be done with it, so that it is not in a hurry."""

    async def run() -> OtlpExporter:
        exporter = OtlpExporter(options)
        exporter.start()
        exporter.batch_added(0, bytes_of(batch))
        await until(lambda: exporter.sent + exporter.dropped >= 2)
        await exporter.stop()
        return exporter

    return asyncio.run(run())


def attributes_of(thing: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value or each.value.int_value for each in thing.attributes}


def test_the_spans_of_a_message_reach_the_collector_in_the_producers_trace(collector: Collector) -> None:
    life = EventBuilder(0, "order-1", trace_id=TRACE_ID, span_id=SPAN_ID)
    life.enqueued(2, "work").delivered(102, "work", "wörker").acked(152, "work", "wörker")
    exporter = export(OtlpOptions(collector.url, version="1.2"), life.events)
    spans = {span.name: span for span in collector.spans()}
    assert set(spans) == {"publish orders", "wait work", "deliver work"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE_ID}
    publish, deliver = spans["publish orders"], spans["deliver work"]
    assert publish.parent_span_id.hex() == SPAN_ID
    assert deliver.parent_span_id == publish.span_id
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in deliver.links] == [(TRACE_ID, SPAN_ID)]
    assert deliver.end_time_unix_nano - deliver.start_time_unix_nano == 50_000
    assert deliver.start_time_unix_nano == life.events[2].time * 1000
    assert attributes_of(deliver)["warrenmq.consumer"] == "wörker"
    assert attributes_of(deliver)["warrenmq.attempt"] == 1
    (resource,) = collector.requests[0].resource_spans
    assert attributes_of(resource.resource) == {"service.name": "warrenmq", "service.version": "1.2"}
    assert resource.scope_spans[0].scope.name == "warrenmq"
    assert exporter.state() == {"sent": 3, "dropped": 0, "dropped_batches": 0, "failure": None}


def test_a_failure_has_the_status_of_an_error(collector: Collector) -> None:
    life = EventBuilder().enqueued(0, "work").delivered(5, "work", "one").settled(9, 20, "work", "one")
    export(OtlpOptions(collector.url), life.events)
    (deliver,) = [span for span in collector.spans() if span.name == "deliver work"]
    assert (deliver.status.code, deliver.status.message) == (2, "rejected")


def test_the_path_of_otlp_is_added_and_another_one_is_kept(collector: Collector) -> None:
    for path in ("", "/", "/v1/traces", "/own/path?key=1"):
        collector.paths.clear()
        export(OtlpOptions(collector.url + path), simple_life(0))
        wanted = "/own/path?key=1" if "own" in path else "/v1/traces"
        assert set(collector.paths) == {wanted}  # once, or twice: a thread that is quick sends what it has


def test_headers_are_sent_along(collector: Collector) -> None:
    export(OtlpOptions(collector.url, {"Authorization": "Bearer secret"}), simple_life(0))
    assert collector.headers[0]["Authorization"] == "Bearer secret"
    assert collector.headers[0]["Content-Type"] == "application/x-protobuf"


def test_many_spans_go_in_requests_of_bounded_size(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_otlp, "MAX_SPANS_PER_REQUEST", 10)
    lives = [event for at in range(40) for event in simple_life(200 * at)]
    assert export(OtlpOptions(collector.url), lives[:80], lives[80:]).sent == 120
    assert len(collector.spans()) == 120
    sizes = [len(request.resource_spans[0].scope_spans[0].spans) for request in collector.requests]
    assert max(sizes) == 10


@pytest.mark.parametrize("code", [429, 502, 503, 504])
def test_a_collector_that_is_busy_is_asked_again(collector: Collector, code: int) -> None:
    collector.answers = [code, code]
    exporter = exported_before_the_end(OtlpOptions(collector.url, first_pause=0.01), simple_life(0)[:4])
    assert len(collector.spans()) == exporter.sent
    assert (exporter.dropped, exporter.failure) == (0, None)


@pytest.mark.parametrize("code", [400, 401, 404, 500])
def test_what_a_collector_refuses_is_dropped_and_counted(collector: Collector, code: int) -> None:
    collector.answers = [code] * 2
    exporter = exported_before_the_end(OtlpOptions(collector.url, first_pause=0.01), simple_life(0))
    assert (exporter.sent, exporter.dropped, len(collector.paths)) == (0, 3, 2)
    assert str(code) in str(exporter.failure)


def test_a_collector_that_stays_busy_costs_its_spans(collector: Collector) -> None:
    collector.answers = [503] * export_otlp.ATTEMPTS
    exporter = exported_before_the_end(OtlpOptions(collector.url, first_pause=0.001), simple_life(0))
    assert exporter.dropped >= 2


def test_a_collector_that_is_down_costs_its_spans_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Collector()
    server.close()
    exporter = export(OtlpOptions(server.url, first_pause=0.001), simple_life(0), simple_life(500), simple_life(900))
    assert (exporter.sent, exporter.dropped) == (0, 9)
    assert "cannot be reached" in str(exporter.failure)
    assert caplog.text.count("spans were not exported") == 1


def test_a_collector_that_takes_only_some_is_believed(collector: Collector) -> None:
    response = service.ExportTraceServiceResponse()
    response.partial_success.rejected_spans = 2
    response.partial_success.error_message = "too old"
    collector.body = response.SerializeToString()
    life = (
        EventBuilder()
        .enqueued(1, "work")
        .add(schema.CONFIRMED, 50)
        .delivered(101, "work", "one")
        .acked(151, "work", "one")
    )
    exporter = export(OtlpOptions(collector.url), life.events)  # all three are over with it: in one request
    assert (exporter.sent, exporter.dropped) == (1, 2)
    assert "too old" in str(exporter.failure)


@pytest.mark.parametrize("answer", [b"", b"\x0a", b"\x0a\x05\x08", b"\xff" * 20, b"<html>", b"\x08\x01", b"\x0f"])
def test_an_answer_that_is_none_rejects_nothing(answer: bytes) -> None:
    assert rejected_spans(answer) == (0, "")


def test_batches_that_come_too_fast_are_dropped_and_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_otlp, "MAX_WAITING_BYTES", 10)
    exporter = export(OtlpOptions(collector.url), simple_life(0), simple_life(500))
    assert exporter.state() == {"sent": 0, "dropped": 0, "dropped_batches": 2, "failure": "the collector is too slow"}


def test_a_batch_that_is_damaged_is_left_out(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        exporter = OtlpExporter(OtlpOptions(collector.url))
        exporter.start()
        exporter.batch_added(0, b"nonsense")
        exporter.batch_added(1, bytes_of(simple_life(0)))
        await exporter.stop()

    asyncio.run(run())
    assert len(collector.spans()) == 3
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("url", ["", "localhost:4318", "ftp://host/", "http://", "file:///etc/passwd"])
def test_an_invalid_collector_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the URL"):
        OtlpOptions(url)
