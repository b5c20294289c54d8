"""Every client library that the scenarios are run with."""

from __future__ import annotations

from .aiormq_client import AiormqClient
from .amqpstorm_client import AmqpStormClient
from .contract import Client
from .pika_blocking import PikaBlockingClient
from .pika_callbacks import PikaAsyncioClient, PikaSelectClient
from .py_amqp import PyAmqpClient
from .remote import JavaClient, NodeClient

CLIENTS: tuple[type[Client], ...] = (
    PikaBlockingClient,
    PikaAsyncioClient,
    PikaSelectClient,
    AiormqClient,
    PyAmqpClient,
    AmqpStormClient,
    NodeClient,
    JavaClient,
)
