"""The client on asyncio: the same names as `warrenmq.client`, where what waits for the server is a coroutine.

>>> import asyncio
>>> from warrenmq.client import aio
>>> async def main():
...     async with aio.connect(url) as connection:  # "amqp://guest:guest@localhost/", or nothing
...         channel = await connection.channel()
...         _ = await channel.queue_declare("aio-example", auto_delete=True)
...         await channel.confirm_select()
...         confirmation = await channel.publish("", "aio-example", "hello")
...         await confirmation
...         async for delivery in channel.consume("aio-example", timeout=0.5):
...             print(delivery.body)
...             _ = delivery.ack()
>>> asyncio.run(main())
b'hello'
"""

from warrenmq.client.aio.channel import Channel
from warrenmq.client.aio.connection import Connection, connect
from warrenmq.client.aio.consumer import Consumer
from warrenmq.client.aio.producer import OneWayProducer, SyncProducer
from warrenmq.client.aio.pull import PullConsumer
from warrenmq.client.aio.rpc import RpcClient
from warrenmq.client.aio.service import Service, run
from warrenmq.client.aio.topic import Topic, TopicConsumer
from warrenmq.client.biography import Biography
from warrenmq.client.biography import trace_async as trace
from warrenmq.client.confirms import Confirmation
from warrenmq.client.delivery import Delivery, Returned
from warrenmq.client.delivery_batch import DeliveryBatch
from warrenmq.client.engine.channel import QueueState
from warrenmq.client.engine.connection import RecoveryEvent
from warrenmq.client.errors import (
    AccessRefused,
    AuthenticationFailed,
    CallTimedOut,
    ChannelClosed,
    ClientError,
    CloseReason,
    ConnectionBlocked,
    ConnectionClosed,
    ConnectionFailed,
    ConnectionLost,
    ConsumerCancelled,
    ContentTooLarge,
    MalformedMessage,
    Misuse,
    Nacked,
    NoConsumers,
    NoRoute,
    NotFound,
    PreconditionFailed,
    PublishFailed,
    PublishLost,
    ResourceLocked,
    Unroutable,
)
from warrenmq.client.factory import ConnectionFactory, Recovery
from warrenmq.client.handling import Handler, Reject, Reply, Requeue, consumer
from warrenmq.client.http import RequestFailed
from warrenmq.client.metrics import CountingMetrics, MetricsCollector
from warrenmq.client.pending_calls import RpcTimeout
from warrenmq.client.sending import OutgoingMessage, Retry, SendFailed, SendResult
from warrenmq.client.url import TlsFiles
from warrenmq.protocol.properties import BasicProperties as Properties

__all__ = [
    "AccessRefused",
    "AuthenticationFailed",
    "Biography",
    "CallTimedOut",
    "Channel",
    "ChannelClosed",
    "ClientError",
    "CloseReason",
    "Confirmation",
    "Connection",
    "ConnectionBlocked",
    "ConnectionClosed",
    "ConnectionFactory",
    "ConnectionFailed",
    "ConnectionLost",
    "Consumer",
    "ConsumerCancelled",
    "ContentTooLarge",
    "CountingMetrics",
    "Delivery",
    "DeliveryBatch",
    "Handler",
    "MalformedMessage",
    "MetricsCollector",
    "Misuse",
    "Nacked",
    "NoConsumers",
    "NoRoute",
    "NotFound",
    "OneWayProducer",
    "OutgoingMessage",
    "PreconditionFailed",
    "Properties",
    "PublishFailed",
    "PublishLost",
    "PullConsumer",
    "QueueState",
    "Recovery",
    "RecoveryEvent",
    "Reject",
    "Reply",
    "RequestFailed",
    "Requeue",
    "ResourceLocked",
    "Retry",
    "Returned",
    "RpcClient",
    "RpcTimeout",
    "SendFailed",
    "SendResult",
    "Service",
    "SyncProducer",
    "TlsFiles",
    "Topic",
    "TopicConsumer",
    "Unroutable",
    "connect",
    "consumer",
    "run",
    "trace",
]
