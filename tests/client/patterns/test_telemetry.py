"""The trace goes along with the message. What needs spans to be recorded needs OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from warrenmq.client.delivery import Delivery, Settler
from warrenmq.client.errors import ConnectionLost, MalformedMessage
from warrenmq.protocol.properties import BasicProperties, content_header

pytest.importorskip("opentelemetry", reason="OpenTelemetry is the extra warrenmq[otel]")

from opentelemetry import trace

from warrenmq.client import telemetry

TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
SPAN_ID = 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"


def delivery(headers: dict[str, Any] | None, body: bytes = b"body", **properties: Any) -> Delivery:
    header = content_header(len(body), BasicProperties(headers=headers, **properties))
    return Delivery(Settler(), None, "tag", 7, False, "shop", "order.new", header, body)


@pytest.fixture
def current() -> Iterator[None]:
    """A span of somebody else's is current, as in a web request."""
    context = trace.SpanContext(TRACE_ID, SPAN_ID, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield


class Spans:
    """A provider that remembers the spans that ended."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def ended(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def spans() -> Spans:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    return Spans()


# -- propagation: the API alone


def test_injected_context_is_in_a_copy(current: None) -> None:
    given = BasicProperties(headers={"mine": 1}, message_id="m")
    injected = telemetry.inject(given)
    assert injected == BasicProperties(headers={"mine": 1, "traceparent": TRACEPARENT}, message_id="m")
    assert given.headers == {"mine": 1}


def test_nothing_is_added_without_a_trace() -> None:
    assert telemetry.inject(None) == BasicProperties()
    assert telemetry.inject(BasicProperties(type="t")) == BasicProperties(type="t")


def test_extracted_context_is_the_publishers() -> None:
    context = trace.get_current_span(telemetry.extract(delivery({"traceparent": TRACEPARENT}))).get_span_context()
    assert (context.trace_id, context.span_id, context.is_remote) == (TRACE_ID, SPAN_ID, True)


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": 7}, {"traceparent": "nonsense"}, {"n": {"x": 1}}])
def test_message_without_a_readable_trace_begins_its_own(headers: dict[str, Any] | None) -> None:
    context = trace.get_current_span(telemetry.extract(delivery(headers))).get_span_context()
    assert not context.is_valid


def test_properties_that_cannot_be_read_are_the_callbacks_affair() -> None:
    broken = Delivery(
        Settler(), None, "tag", 7, False, "shop", "order.new", b"\x00\x3c" + bytes(10) + b"\x20\x00\xff", b""
    )
    assert telemetry.Tracing().traced(lambda delivery: delivery.body)(broken) == b""
    with pytest.raises(MalformedMessage):
        _ = broken.properties


def test_without_an_sdk_the_current_trace_is_propagated(current: None) -> None:
    span = telemetry.Tracing().publishing("shop", "order.new", b"body", None)
    assert (span.properties.headers or {})["traceparent"] == TRACEPARENT
    span.end()


def test_library_does_not_import_opentelemetry_by_itself() -> None:
    program = "import sys; import warrenmq.client.telemetry; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_missing_opentelemetry_names_the_extra() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from warrenmq.client import Misuse, telemetry
try:
    telemetry.Tracing()
except Misuse as misuse:
    sys.exit("warrenmq[otel]" not in str(misuse))
sys.exit(2)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


# -- spans: the SDK


def test_publish_is_a_producer_span_that_the_message_carries(spans: Spans) -> None:
    span = telemetry.Tracing(spans.provider).publishing(
        "shop", "order.new", b"body", BasicProperties(message_id="m-1", correlation_id="c-1")
    )
    span.end()
    (ended,) = spans.ended
    assert ended.name == "publish shop"
    assert ended.kind is trace.SpanKind.PRODUCER
    assert dict(ended.attributes) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "shop:order.new",
        "messaging.rabbitmq.destination.routing_key": "order.new",
        "messaging.message.body.size": 4,
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "c-1",
    }
    assert f"{ended.context.span_id:016x}" in (span.properties.headers or {})["traceparent"]


def test_failed_publish_is_an_error_of_the_span(spans: Spans) -> None:
    telemetry.Tracing(spans.provider).publishing("", "q", b"", None).end(ConnectionLost("away"))
    (ended,) = spans.ended
    assert ended.status.status_code is trace.StatusCode.ERROR
    assert ended.attributes["error.type"] == "ConnectionLost"


def test_processing_continues_the_publishers_trace(spans: Spans) -> None:
    tracing = telemetry.Tracing(spans.provider)
    published = tracing.publishing("shop", "order.new", b"body", None)
    published.end()
    with tracing.processing(delivery(published.properties.headers), "orders"):
        inside = trace.get_current_span().get_span_context()
    producer, consumer = spans.ended
    assert (consumer.name, consumer.kind) == ("process orders", trace.SpanKind.CONSUMER)
    assert consumer.parent.span_id == producer.context.span_id
    assert consumer.context.span_id == inside.span_id
    assert consumer.attributes["messaging.destination.name"] == "shop:order.new:orders"
    assert consumer.attributes["messaging.rabbitmq.message.delivery_tag"] == 7


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_callback_runs_inside_its_span(spans: Spans, kind: str) -> None:
    seen: list[int] = []

    def plain(delivery: Delivery) -> str:
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return "given back"

    async def coroutine(delivery: Delivery) -> str:
        await asyncio.sleep(0)
        return plain(delivery)

    traced = telemetry.Tracing(spans.provider).traced(plain if kind == "plain" else coroutine, "orders")
    message = delivery({"traceparent": TRACEPARENT})
    result = traced(message) if kind == "plain" else asyncio.run(traced(message))
    assert (result, seen) == ("given back", [TRACE_ID])
    assert [ended.name for ended in spans.ended] == ["process orders"]


def test_failed_callback_is_an_error_of_the_span(spans: Spans) -> None:
    def fail(delivery: Delivery) -> None:
        raise ValueError("bad order")

    with pytest.raises(ValueError, match="bad order"):
        telemetry.Tracing(spans.provider).traced(fail)(delivery(None))
    assert spans.ended[0].status.status_code is trace.StatusCode.ERROR


@pytest.mark.parametrize(
    ("exchange", "routing_key", "name"),
    [
        ("shop", "order.17", "publish shop"),
        ("", "orders", "publish orders"),
        ("", "amq.gen-Xa2", "publish (anonymous)"),
        ("", "amq.rabbitmq.reply-to.g1h2", "publish (anonymous)"),
        ("", "", "publish amq.default"),
    ],
)
def test_span_names_are_few(spans: Spans, exchange: str, routing_key: str, name: str) -> None:
    telemetry.Tracing(spans.provider).publishing(exchange, routing_key, b"", None).end()
    assert spans.ended[0].name == name
