"""aiormq, the AMQP library under aio-pika (which has scenarios of its own in test_aio_pika.py).

The event loop runs in a thread of its own and every call is handed to it. What arrives crosses over in queues.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar

import aiormq
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelAccessRefused,
    ChannelClosed,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionChannelError,
    ConnectionClosed,
    ConnectionCommandInvalid,
    ConnectionNotAllowed,
    ConnectionNotImplemented,
    ConnectionUnexpectedFrame,
    DeliveryError,
    ProbableAuthenticationError,
)
from pamqp import commands
from yarl import URL

from .contract import (
    PATIENCE,
    PROPERTY_NAMES,
    Channel,
    Client,
    Delivery,
    Feature,
    Outcome,
    QueueState,
    Refused,
    Returned,
    Scope,
)
from .pika_callbacks import take_from

Result = TypeVar("Result")

# aiormq keeps the code of a close only as the class of its exception.
CODES: Mapping[type[BaseException], tuple[Scope, int]] = {
    ChannelAccessRefused: (Scope.CHANNEL, 403),
    ChannelNotFoundEntity: (Scope.CHANNEL, 404),
    ChannelLockedResource: (Scope.CHANNEL, 405),
    ChannelPreconditionFailed: (Scope.CHANNEL, 406),
    ConnectionCommandInvalid: (Scope.CONNECTION, 503),
    ConnectionChannelError: (Scope.CONNECTION, 504),
    ConnectionUnexpectedFrame: (Scope.CONNECTION, 505),
    ConnectionNotAllowed: (Scope.CONNECTION, 530),
    ConnectionNotImplemented: (Scope.CONNECTION, 540),
    ProbableAuthenticationError: (Scope.CONNECTION, 403),
}


def refusal(failure: BaseException) -> BaseException:
    """The exception of ours that says the same as aiormq's."""
    known = CODES.get(type(failure))
    if known is not None:
        return Refused(*known, str(failure.args[0]))
    if isinstance(failure, ChannelClosed | ConnectionClosed) and failure.args[0]:
        scope = Scope.CHANNEL if isinstance(failure, ChannelClosed) else Scope.CONNECTION
        return Refused(scope, int(failure.args[0]), str(failure.args[1]))
    return failure


def properties_for(properties: Mapping[str, Any] | None) -> commands.Basic.Properties | None:
    if properties is None:
        return None
    given = dict(properties)
    if "type" in given:
        given["message_type"] = given.pop("type")
    if "timestamp" in given:
        given["timestamp"] = datetime.fromtimestamp(given["timestamp"], UTC)
    return commands.Basic.Properties(**given)


def delivery_from(message: Any) -> Delivery:
    found: dict[str, Any] = {}
    for name in PROPERTY_NAMES:
        value = getattr(message.header.properties, "message_type" if name == "type" else name, None)
        if value is not None and value != "":
            found[name] = int(value.timestamp()) if name == "timestamp" else value
    method = message.delivery
    return Delivery(
        body=bytes(message.body),
        exchange=method.exchange,
        routing_key=method.routing_key,
        tag=method.delivery_tag,
        redelivered=bool(method.redelivered),
        properties=found,
        consumer=getattr(method, "consumer_tag", None),
        remaining=getattr(method, "message_count", None),
    )


class AiormqChannel(Channel):
    def __init__(self, client: AiormqClient) -> None:
        self._client = client
        self._deliveries: queue.Queue[Delivery] = queue.Queue()
        self._cancellations: queue.Queue[str] = queue.Queue()
        self._channel: aiormq.Channel = client.run(client.connection.channel(publisher_confirms=False))
        self._channel.on_consumer_cancel_callbacks.add(self._on_cancel)

    async def _on_cancel(self, frame: commands.Basic.Cancel) -> None:
        self._cancellations.put(frame.consumer_tag)

    async def _on_delivery(self, message: Any) -> None:
        self._deliveries.put(delivery_from(message))

    def _run(self, call: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._client.run(call)
        except (asyncio.CancelledError, ChannelInvalidStateError) as failure:
            # Closed in the meantime: the reason is kept elsewhere.
            raise self._why_closed() or failure from failure

    def _why_closed(self) -> BaseException | None:
        closing = self._channel.closing
        if not closing.done() or closing.cancelled():
            return None
        failure = closing.exception()
        return None if failure is None else refusal(failure)

    def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._run(
            self._channel.exchange_declare(
                name,
                exchange_type=kind,
                passive=passive,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=dict(arguments or {}),
            )
        )

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._run(self._channel.exchange_delete(name, if_unused=if_unused))

    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._run(self._channel.exchange_bind(destination, source, routing_key, arguments=dict(arguments or {})))

    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._run(self._channel.exchange_unbind(destination, source, routing_key, arguments=dict(arguments or {})))

    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueState:
        answer = self._run(
            self._channel.queue_declare(
                name,
                passive=passive,
                durable=durable,
                exclusive=exclusive,
                auto_delete=auto_delete,
                arguments=dict(arguments or {}),
            )
        )
        return QueueState(str(answer.queue), int(answer.message_count or 0), int(answer.consumer_count or 0))

    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._run(self._channel.queue_bind(queue, exchange, routing_key, arguments=dict(arguments or {})))

    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._run(self._channel.queue_unbind(queue, exchange, routing_key, arguments=dict(arguments or {})))

    def purge_queue(self, name: str) -> int:
        return int(self._run(self._channel.queue_purge(name)).message_count or 0)

    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        answer = self._run(self._channel.queue_delete(name, if_unused=if_unused, if_empty=if_empty))
        return int(answer.message_count or 0)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        self._run(self._publish(exchange, routing_key, body, properties, mandatory))

    async def _publish(
        self, exchange: str, routing_key: str, body: bytes, properties: Mapping[str, Any] | None, mandatory: bool
    ) -> Any:
        return await self._channel.basic_publish(
            body,
            exchange=exchange,
            routing_key=routing_key,
            properties=properties_for(properties),
            mandatory=mandatory,
        )

    def select_confirms(self) -> None:
        self._run(self._channel.confirm_delivery())
        self._channel.publisher_confirms = True

    def confirm(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> Outcome:
        try:
            self._run(self._publish(exchange, routing_key, body, properties, mandatory))
        except DeliveryError as failure:
            method = failure.frame
            if isinstance(method, commands.Basic.Return):
                content = bytes(failure.message.body) if failure.message else None
                returned = Returned(method.reply_code, method.reply_text, method.exchange, method.routing_key, content)
                return Outcome(True, returned)
            return Outcome(False)
        return Outcome(True)

    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        async def publish_all() -> int:
            answers = await asyncio.gather(
                *(self._publish(exchange, routing_key, body, None, False) for body in bodies)
            )
            return sum(isinstance(answer, commands.Basic.Ack) for answer in answers)

        return self._run(publish_all())

    def next_return(self, timeout: float = PATIENCE) -> Returned | None:
        raise NotImplementedError("aiormq tells returns only in confirm mode")

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        message = self._run(self._channel.basic_get(queue, no_ack=no_ack))
        return None if isinstance(message.delivery, commands.Basic.GetEmpty) else delivery_from(message)

    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        answer = self._run(
            self._channel.basic_consume(
                queue,
                self._on_delivery,
                no_ack=no_ack,
                exclusive=exclusive,
                arguments=dict(arguments or {}),
                consumer_tag=tag or None,
            )
        )
        return str(answer.consumer_tag)

    def cancel(self, tag: str) -> None:
        self._run(self._channel.basic_cancel(tag))

    def next_delivery(self, timeout: float = PATIENCE) -> Delivery | None:
        return take_from(self._deliveries, timeout)

    def next_cancellation(self, timeout: float = PATIENCE) -> str | None:
        return take_from(self._cancellations, timeout)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self._run(self._channel.basic_ack(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._run(self._channel.basic_nack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._run(self._channel.basic_reject(tag, requeue=requeue))

    def recover(self) -> None:
        self._run(self._channel.basic_recover(requeue=True))

    def qos(self, count: int, *, for_channel: bool = False) -> None:
        self._run(self._channel.basic_qos(prefetch_count=count, global_=for_channel))

    def select_transactions(self) -> None:
        self._run(self._channel.tx_select())

    def commit(self) -> None:
        self._run(self._channel.tx_commit())

    def rollback(self) -> None:
        self._run(self._channel.tx_rollback())

    def close(self) -> None:
        try:
            self._run(self._channel.close())
        except (AMQPError, Refused, ChannelInvalidStateError):
            pass

    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        async def closed() -> None:
            await asyncio.wait([self._channel.closing], timeout=timeout)

        self._client.run(closed())
        reason = self._why_closed()
        assert isinstance(reason, Refused), f"not closed by the broker: {reason!r}"
        return reason


class AiormqClient(Client):
    name = "aiormq"
    lacks = frozenset(
        {
            Feature.RETURN_WITHOUT_CONFIRM,
            Feature.PUBLISH_EMPTY_PROPERTIES,
            Feature.FRAME_MAX,
            Feature.OPEN_REASON,
            Feature.ANY_NAME,
            Feature.DUPLICATE_TAG,
        }
    )
    header_samples = {
        "true": True,
        "false": False,
        "zero": 0,
        "negative": -5,
        "32 bit": 2**31 - 1,
        "64 bit": 2**40,
        "float": 1.5,
        "text": "grüße, 世界",
        "decimal": Decimal("3.14"),
        "timestamp": datetime(2024, 2, 29, 12, 30, 15, tzinfo=UTC),
        "nothing": None,
        "list": [1, "two", [3.5, {"four": 4}], None],
        "table": {"inner": {"deeper": [True, False]}, "number": 7},
        "empty list": [],
        "empty table": {},
    }

    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        target = URL(url).update_query(heartbeat=heartbeat)
        if frame_max is not None:
            target = target.update_query(frame_max=frame_max)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self.name, daemon=True)
        self._thread.start()
        try:
            self.connection: Any = self.run(self._connect(target))
        except BaseException:
            self._stop_loop()
            raise

    async def _connect(self, target: URL) -> Any:
        return await aiormq.connect(target)

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Have the loop thread run the call and wait for its end."""
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE)
        except (AMQPError, ConnectionError) as failure:
            raise refusal(failure) from failure

    def channel(self) -> Channel:
        return AiormqChannel(self)

    def idle(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @property
    def is_open(self) -> bool:
        return not self.connection.is_closed

    def close(self) -> None:
        if self._loop.is_closed():
            return
        try:
            self.run(self.connection.close())
        except (AMQPConnectionError, Refused):
            pass
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
