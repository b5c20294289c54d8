"""OpenTelemetry: messages carry the trace context; publishing and processing are spans.

Optional (`pip install warrenmq[otel]`, which installs only opentelemetry-api): OpenTelemetry is imported when first
used. Two ways, which can be combined:

- `ConnectionFactory(tracing=True)` (or `tracing=Tracing(...)`): every publish of the connection is a producer span,
  whose context is in the message's headers (`traceparent`, `tracestate`, or those of the configured propagator), and
  every callback runs in a consumer span that continues the publisher's trace.
- By hand, for messages that are fetched or iterated: `with telemetry.processing(delivery): ...`,
  `telemetry.extract(delivery)`, `telemetry.inject(properties)`.

Spans and attributes follow OpenTelemetry's semantic conventions for messaging. Stateless and thread-safe.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, cast

from warrenmq.client.errors import MalformedMessage, Misuse
from warrenmq.client.handling import is_async
from warrenmq.client.publish_headers import copy_properties
from warrenmq.protocol.properties import BasicProperties

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from warrenmq.client.delivery import Delivery

SYSTEM: Final = "rabbitmq"  # the name of the conventions for this protocol family


class Tracing:
    """Creates the spans of a connection, by default with the global tracer provider and propagator."""

    __slots__ = ("_propagator", "_tracer")

    def __init__(
        self, tracer_provider: TracerProvider | None = None, propagator: TextMapPropagator | None = None
    ) -> None:
        trace = _trace_api()
        self._tracer: Tracer = trace.get_tracer("warrenmq.client", tracer_provider=tracer_provider)
        self._propagator = propagator

    def publishing(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str | bytearray | memoryview,
        properties: BasicProperties | None,
    ) -> PublishSpan:
        """Start the span of a publish: publish with its `properties`, then `end` it."""
        trace = _trace_api()
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": _destination(exchange, routing_key),
            "messaging.message.body.size": len(body),
        }
        _describe(attributes, routing_key, properties)
        span = self._tracer.start_span(
            f"publish {_short_name(exchange, routing_key)}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        )
        injected = inject(properties, context=trace.set_span_in_context(span), propagator=self._propagator)
        return PublishSpan(span, injected)

    @contextmanager
    def processing(self, delivery: Delivery, queue: str = "") -> Iterator[Span]:
        """A consumer span around the handling of a delivery, in the trace of its publisher."""
        trace = _trace_api()
        destination = _destination(delivery.exchange, delivery.routing_key, queue)
        attributes: dict[str, str | int] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": destination,
            "messaging.message.body.size": len(delivery.body),
            "messaging.rabbitmq.message.delivery_tag": delivery.delivery_tag,
        }
        _describe(attributes, delivery.routing_key, _properties_of(delivery))
        with self._tracer.start_as_current_span(
            f"process {_short_name('', queue) if queue else _short_name(delivery.exchange, delivery.routing_key)}",
            context=extract(delivery, propagator=self._propagator),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
        ) as span:
            yield span

    def traced(self, callback: Callable[[Delivery], Any], queue: str = "") -> Callable[[Delivery], Any]:
        """Return the callback, plain or async, wrapped in `processing`."""
        if is_async(callback):
            return self._traced_async(cast("Callable[[Delivery], Awaitable[Any]]", callback), queue)

        @wraps(callback)
        def call(delivery: Delivery) -> Any:
            with self.processing(delivery, queue):
                return callback(delivery)

        return call

    def _traced_async(
        self, callback: Callable[[Delivery], Awaitable[Any]], queue: str
    ) -> Callable[[Delivery], Awaitable[Any]]:
        @wraps(callback)
        async def call(delivery: Delivery) -> Any:
            with self.processing(delivery, queue):
                return await callback(delivery)

        return call


class PublishSpan:
    """The span of one publish, and the properties that carry it."""

    __slots__ = ("_span", "properties")

    def __init__(self, span: Span, properties: BasicProperties) -> None:
        self._span = span
        self.properties = properties

    def end(self, error: BaseException | None = None) -> None:
        """End the span: the message was sent, or the error prevented it."""
        if error is not None:
            trace = _trace_api()
            self._span.record_exception(error)
            self._span.set_attribute("error.type", type(error).__qualname__)
            self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()


def inject(
    properties: BasicProperties | None = None,
    *,
    context: Context | None = None,
    propagator: TextMapPropagator | None = None,
) -> BasicProperties:
    """Return a copy of the properties with the trace context (by default the current one) in its headers."""
    headers = dict(properties.headers or {}) if properties is not None else {}
    _propagator(propagator).inject(headers, context=context)
    return copy_properties(properties, headers=headers or None)


def extract(
    delivery: Delivery, *, context: Context | None = None, propagator: TextMapPropagator | None = None
) -> Context:
    """Return the trace context in the message, or the current one if there is none."""
    properties = _properties_of(delivery)
    headers = {} if properties is None else properties.headers or {}
    carrier = {key: value for key, value in headers.items() if isinstance(value, str)}
    return _propagator(propagator).extract(carrier, context=context)


def processing(delivery: Delivery, queue: str = "") -> Any:
    """`with telemetry.processing(delivery): ...` continues the publisher's trace, with the global tracer provider."""
    return Tracing().processing(delivery, queue)


def _describe(attributes: dict[str, str | int], routing_key: str, properties: BasicProperties | None) -> None:
    """Add the attributes that have a value."""
    if routing_key:
        attributes["messaging.rabbitmq.destination.routing_key"] = routing_key
    if properties is not None and properties.message_id:
        attributes["messaging.message.id"] = properties.message_id
    if properties is not None and properties.correlation_id:
        attributes["messaging.message.conversation_id"] = properties.correlation_id


def _destination(exchange: str, routing_key: str, queue: str = "") -> str:
    """Return exchange:routing key:queue, without empty parts and repetitions."""
    return ":".join(dict.fromkeys(part for part in (exchange, routing_key, queue) if part)) or "amq.default"


def _short_name(exchange: str, routing_key: str) -> str:
    """Return the destination for a span name, which must have low cardinality: no routing keys, no generated names."""
    if exchange:
        return exchange
    return "(anonymous)" if routing_key.startswith("amq.") else routing_key or "amq.default"


def _properties_of(delivery: Delivery) -> BasicProperties | None:
    """Return None if they cannot be decoded; the callback finds out if it reads them."""
    try:
        return delivery.properties
    except MalformedMessage:
        return None


def _propagator(given: TextMapPropagator | None) -> TextMapPropagator:
    if given is not None:
        return given
    _trace_api()
    from opentelemetry import propagate

    return propagate.get_global_textmap()


def _trace_api() -> Any:
    try:
        from opentelemetry import trace
    except ImportError:
        raise Misuse("tracing needs OpenTelemetry: pip install 'warrenmq[otel]'") from None
    return trace
