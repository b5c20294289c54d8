"""What a scenario may ask of a client library, in the words of AMQP 0-9-1.

Every adapter is synchronous and used from one thread. A refusal by the broker is raised as `Refused`, from the call
that provoked it where the library tells there, else from `wait_closed`. What arrives by itself (deliveries,
returns, cancellations) is gathered by the adapter and taken with `next_*`, which answer None when nothing comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

PATIENCE = 25.0
"""How long a `next_*` or `wait_*` waits for something that must come."""

GLANCE = 0.2
"""How long to look for something that must not come."""


class Scope(Enum):
    CHANNEL = "channel"
    CONNECTION = "connection"


class Feature(Enum):
    """What a library may lack; a scenario that needs it is not run with that library."""

    TRANSACTIONS = "transactions"
    NACK = "nack"
    RECOVER = "recover"
    RETURN_WITHOUT_CONFIRM = "returns outside confirm mode"
    RETURN_CONTENT = "the content of a returned message"
    PUBLISH_EMPTY_PROPERTIES = "publishing without any property"
    FRAME_MAX = "choosing frame-max"
    OPEN_REASON = "the reason why a virtual host was refused"
    INTERNAL_EXCHANGE = "internal exchanges"
    ANY_NAME = "names of any characters"
    DUPLICATE_TAG = "sending a consumer tag that is in use"


class Refused(Exception):
    """The broker closed a channel or the connection, with a code and a text."""

    def __init__(self, scope: Scope, code: int, text: str) -> None:
        super().__init__(f"{scope.value} closed with {code}: {text}")
        self.scope = scope
        self.code = code
        self.text = text


@dataclass(frozen=True, slots=True)
class QueueState:
    """What declare-ok says."""

    name: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as it came, from a consumer or a get."""

    body: bytes
    exchange: str
    routing_key: str
    tag: int
    redelivered: bool
    properties: Mapping[str, Any] = field(default_factory=dict)
    consumer: str | None = None
    remaining: int | None = None

    @property
    def headers(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.properties.get("headers") or {}
        return found


@dataclass(frozen=True, slots=True)
class Returned:
    """A mandatory message that no queue took."""

    code: int
    text: str
    exchange: str
    routing_key: str
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message published in confirm mode."""

    confirmed: bool
    returned: Returned | None = None


PROPERTY_NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""The fourteen properties; `timestamp` is in whole seconds of the Unix epoch."""


class Channel(ABC):
    """One AMQP channel."""

    @abstractmethod
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
    ) -> None: ...

    @abstractmethod
    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None: ...

    @abstractmethod
    def bind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def unbind_exchange(
        self, destination: str, source: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def declare_queue(
        self,
        name: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> QueueState: ...

    @abstractmethod
    def bind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def unbind_queue(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None: ...

    @abstractmethod
    def purge_queue(self, name: str) -> int:
        """Empty the queue and say how many messages that were."""

    @abstractmethod
    def delete_queue(self, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete the queue and say how many messages it held."""

    @abstractmethod
    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        """Send a message and wait for nothing."""

    @abstractmethod
    def select_confirms(self) -> None: ...

    @abstractmethod
    def confirm(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Mapping[str, Any] | None = None,
        *,
        mandatory: bool = False,
    ) -> Outcome:
        """Send a message on a channel in confirm mode and wait for what the broker says of it."""

    @abstractmethod
    def confirm_many(self, exchange: str, routing_key: str, bodies: list[bytes]) -> int:
        """Send messages, many in flight where the library can, and say how many were confirmed."""

    @abstractmethod
    def next_return(self, timeout: float = PATIENCE) -> Returned | None: ...

    @abstractmethod
    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None: ...

    @abstractmethod
    def consume(
        self,
        queue: str,
        *,
        tag: str = "",
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Subscribe and give back the consumer tag."""

    @abstractmethod
    def cancel(self, tag: str) -> None: ...

    @abstractmethod
    def next_delivery(self, timeout: float = PATIENCE) -> Delivery | None: ...

    @abstractmethod
    def next_cancellation(self, timeout: float = PATIENCE) -> str | None:
        """The tag of a consumer that the broker cancelled by itself."""

    @abstractmethod
    def ack(self, tag: int, *, multiple: bool = False) -> None: ...

    @abstractmethod
    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None: ...

    @abstractmethod
    def reject(self, tag: int, *, requeue: bool = True) -> None: ...

    @abstractmethod
    def recover(self) -> None:
        """Have every unacknowledged message put back."""

    @abstractmethod
    def qos(self, count: int, *, for_channel: bool = False) -> None: ...

    @abstractmethod
    def select_transactions(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def wait_closed(self, timeout: float = PATIENCE) -> Refused:
        """Wait until the broker has closed the channel (or the connection) and say why."""

    def take(self, count: int) -> list[Delivery]:
        """The next deliveries, all of which must come."""
        taken = []
        for position in range(count):
            delivery = self.next_delivery()
            assert delivery is not None, f"only {position} of {count} deliveries came"
            taken.append(delivery)
        return taken


class Client(ABC):
    """A connection made with one library."""

    name: ClassVar[str]
    lacks: ClassVar[frozenset[Feature]] = frozenset()
    header_samples: ClassVar[Mapping[str, Any]]
    """Header values that this library sends and reads back as the same values."""

    @classmethod
    def unavailable(cls) -> str | None:
        """Why the library cannot be used on this machine, or None."""
        return None

    @abstractmethod
    def __init__(self, url: str, *, heartbeat: int = 0, frame_max: int | None = None) -> None:
        """Connect; a refusal is raised as `Refused`."""

    @abstractmethod
    def channel(self) -> Channel: ...

    @abstractmethod
    def idle(self, seconds: float) -> None:
        """Do nothing for a while but what the library does to keep a connection alive."""

    @property
    @abstractmethod
    def is_open(self) -> bool: ...

    @abstractmethod
    def close(self) -> None:
        """Say goodbye, or just let go when the connection is lost already."""
