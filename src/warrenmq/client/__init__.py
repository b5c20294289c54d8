"""The AMQP 0-9-1 client: thread-safe, and whole again after every lost connection. For any broker of that protocol.

>>> from warrenmq import client
>>> with client.connect(url) as connection:  # "amqp://guest:guest@localhost/", or nothing
...     channel = connection.channel()
...     _ = channel.queue_declare("package-example", auto_delete=True)
...     channel.confirm_select()
...     channel.publish("", "package-example", "hello").result()
...     for delivery in channel.consume("package-example", timeout=0.5):
...         print(delivery.body)
...         _ = delivery.ack()
b'hello'

This is the blocking face; `warrenmq.client.aio` has the same names for asyncio.
"""

from warrenmq.client.biography import Biography, trace
from warrenmq.client.blocking.channel import Channel
from warrenmq.client.blocking.connection import Connection, connect
from warrenmq.client.blocking.consumer import Consumer
from warrenmq.client.blocking.producer import OneWayProducer, SyncProducer
from warrenmq.client.blocking.pull import PullConsumer
from warrenmq.client.blocking.rpc import RpcClient
from warrenmq.client.blocking.service import Service, run
from warrenmq.client.blocking.topic import Topic, TopicConsumer
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
