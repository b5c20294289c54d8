"""AMQP 0-9-1 in RabbitMQ's dialect: the constants, and a class for every method.

Written by tools/gen_spec.py from tools/amqp091.toml: change those, then run it. The classes only carry data;
`methods.py` encodes and decodes them.
"""
# ruff: noqa: RUF023 - slots stand in wire order, and so does what repr shows

from typing import Any, ClassVar, Literal, TypeAlias

Table: TypeAlias = dict[str, Any]
FieldType: TypeAlias = Literal["bit", "octet", "short", "long", "longlong", "shortstr", "longstr", "table"]

FRAME_METHOD = 1
FRAME_HEADER = 2
FRAME_BODY = 3
FRAME_HEARTBEAT = 8
FRAME_END = 0xCE
FRAME_MIN_SIZE = 4096

REPLY_SUCCESS = 200
CONTENT_TOO_LARGE = 311
NO_ROUTE = 312
NO_CONSUMERS = 313
CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

REPLY_NAMES: dict[int, str] = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

# These end the channel; every other error ends the connection (AMQP 0-9-1 §1.2).
CHANNEL_ERRORS = frozenset(
    {
        CONTENT_TOO_LARGE,
        NO_ROUTE,
        NO_CONSUMERS,
        ACCESS_REFUSED,
        NOT_FOUND,
        RESOURCE_LOCKED,
        PRECONDITION_FAILED,
    }
)


class Method:
    """A method: what the classes below have in common. Equal where class and arguments are."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    index: ClassVar[int]  # class id << 16 | method id
    name: ClassVar[str]  # as in "queue.declare"
    sender: ClassVar[Literal["client", "server", "both"]]
    has_content: ClassVar[bool] = False
    is_synchronous: ClassVar[bool] = False  # the sender waits for an answer
    fields: ClassVar[tuple[tuple[str, FieldType], ...]] = ()  # in wire order; reserved ones have no attribute

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


class ConnectionStart(Method):
    __slots__ = ("version_major", "version_minor", "server_properties", "mechanisms", "locales")

    index = 0x000A_000A
    name = "connection.start"
    sender = "server"
    is_synchronous = True
    fields = (
        ("version_major", "octet"),
        ("version_minor", "octet"),
        ("server_properties", "table"),
        ("mechanisms", "longstr"),
        ("locales", "longstr"),
    )

    def __init__(
        self,
        version_major: int = 0,
        version_minor: int = 9,
        server_properties: Table | None = None,
        mechanisms: bytes = b"PLAIN",
        locales: bytes = b"en_US",
    ) -> None:
        self.version_major = version_major
        self.version_minor = version_minor
        self.server_properties = {} if server_properties is None else server_properties
        self.mechanisms = mechanisms
        self.locales = locales


class ConnectionStartOk(Method):
    __slots__ = ("client_properties", "mechanism", "response", "locale")

    index = 0x000A_000B
    name = "connection.start-ok"
    sender = "client"
    fields = (
        ("client_properties", "table"),
        ("mechanism", "shortstr"),
        ("response", "longstr"),
        ("locale", "shortstr"),
    )

    def __init__(
        self,
        client_properties: Table | None = None,
        mechanism: str = "PLAIN",
        response: bytes = b"",
        locale: str = "en_US",
    ) -> None:
        self.client_properties = {} if client_properties is None else client_properties
        self.mechanism = mechanism
        self.response = response
        self.locale = locale


class ConnectionSecure(Method):
    __slots__ = ("challenge",)

    index = 0x000A_0014
    name = "connection.secure"
    sender = "server"
    is_synchronous = True
    fields = (("challenge", "longstr"),)

    def __init__(self, challenge: bytes = b"") -> None:
        self.challenge = challenge


class ConnectionSecureOk(Method):
    __slots__ = ("response",)

    index = 0x000A_0015
    name = "connection.secure-ok"
    sender = "client"
    fields = (("response", "longstr"),)

    def __init__(self, response: bytes = b"") -> None:
        self.response = response


class ConnectionTune(Method):
    __slots__ = ("channel_max", "frame_max", "heartbeat")

    index = 0x000A_001E
    name = "connection.tune"
    sender = "server"
    is_synchronous = True
    fields = (("channel_max", "short"), ("frame_max", "long"), ("heartbeat", "short"))

    def __init__(self, channel_max: int = 0, frame_max: int = 0, heartbeat: int = 0) -> None:
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat


class ConnectionTuneOk(Method):
    __slots__ = ("channel_max", "frame_max", "heartbeat")

    index = 0x000A_001F
    name = "connection.tune-ok"
    sender = "client"
    fields = (("channel_max", "short"), ("frame_max", "long"), ("heartbeat", "short"))

    def __init__(self, channel_max: int = 0, frame_max: int = 0, heartbeat: int = 0) -> None:
        self.channel_max = channel_max
        self.frame_max = frame_max
        self.heartbeat = heartbeat


class ConnectionOpen(Method):
    __slots__ = ("virtual_host",)

    index = 0x000A_0028
    name = "connection.open"
    sender = "client"
    is_synchronous = True
    fields = (("virtual_host", "shortstr"), ("reserved_1", "shortstr"), ("reserved_2", "bit"))

    def __init__(self, virtual_host: str = "/") -> None:
        self.virtual_host = virtual_host


class ConnectionOpenOk(Method):
    __slots__ = ()

    index = 0x000A_0029
    name = "connection.open-ok"
    sender = "server"
    fields = (("reserved_1", "shortstr"),)


class ConnectionClose(Method):
    __slots__ = ("reply_code", "reply_text", "class_id", "method_id")

    index = 0x000A_0032
    name = "connection.close"
    sender = "both"
    is_synchronous = True
    fields = (("reply_code", "short"), ("reply_text", "shortstr"), ("class_id", "short"), ("method_id", "short"))

    def __init__(self, reply_code: int = 0, reply_text: str = "", class_id: int = 0, method_id: int = 0) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id


class ConnectionCloseOk(Method):
    __slots__ = ()

    index = 0x000A_0033
    name = "connection.close-ok"
    sender = "both"


class ConnectionBlocked(Method):
    __slots__ = ("reason",)

    index = 0x000A_003C
    name = "connection.blocked"
    sender = "server"
    fields = (("reason", "shortstr"),)

    def __init__(self, reason: str = "") -> None:
        self.reason = reason


class ConnectionUnblocked(Method):
    __slots__ = ()

    index = 0x000A_003D
    name = "connection.unblocked"
    sender = "server"


class ConnectionUpdateSecret(Method):
    __slots__ = ("new_secret", "reason")

    index = 0x000A_0046
    name = "connection.update-secret"
    sender = "client"
    is_synchronous = True
    fields = (("new_secret", "longstr"), ("reason", "shortstr"))

    def __init__(self, new_secret: bytes = b"", reason: str = "") -> None:
        self.new_secret = new_secret
        self.reason = reason


class ConnectionUpdateSecretOk(Method):
    __slots__ = ()

    index = 0x000A_0047
    name = "connection.update-secret-ok"
    sender = "server"


class ChannelOpen(Method):
    __slots__ = ()

    index = 0x0014_000A
    name = "channel.open"
    sender = "client"
    is_synchronous = True
    fields = (("reserved_1", "shortstr"),)


class ChannelOpenOk(Method):
    __slots__ = ()

    index = 0x0014_000B
    name = "channel.open-ok"
    sender = "server"
    fields = (("reserved_1", "longstr"),)


class ChannelFlow(Method):
    __slots__ = ("active",)

    index = 0x0014_0014
    name = "channel.flow"
    sender = "both"
    is_synchronous = True
    fields = (("active", "bit"),)

    def __init__(self, active: bool = False) -> None:
        self.active = active


class ChannelFlowOk(Method):
    __slots__ = ("active",)

    index = 0x0014_0015
    name = "channel.flow-ok"
    sender = "both"
    fields = (("active", "bit"),)

    def __init__(self, active: bool = False) -> None:
        self.active = active


class ChannelClose(Method):
    __slots__ = ("reply_code", "reply_text", "class_id", "method_id")

    index = 0x0014_0028
    name = "channel.close"
    sender = "both"
    is_synchronous = True
    fields = (("reply_code", "short"), ("reply_text", "shortstr"), ("class_id", "short"), ("method_id", "short"))

    def __init__(self, reply_code: int = 0, reply_text: str = "", class_id: int = 0, method_id: int = 0) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.class_id = class_id
        self.method_id = method_id


class ChannelCloseOk(Method):
    __slots__ = ()

    index = 0x0014_0029
    name = "channel.close-ok"
    sender = "both"


class AccessRequest(Method):
    __slots__ = ("realm", "exclusive", "passive", "active", "write", "read")

    index = 0x001E_000A
    name = "access.request"
    sender = "client"
    is_synchronous = True
    fields = (
        ("realm", "shortstr"),
        ("exclusive", "bit"),
        ("passive", "bit"),
        ("active", "bit"),
        ("write", "bit"),
        ("read", "bit"),
    )

    def __init__(
        self,
        realm: str = "/data",
        exclusive: bool = False,
        passive: bool = True,
        active: bool = True,
        write: bool = True,
        read: bool = True,
    ) -> None:
        self.realm = realm
        self.exclusive = exclusive
        self.passive = passive
        self.active = active
        self.write = write
        self.read = read


class AccessRequestOk(Method):
    __slots__ = ("ticket",)

    index = 0x001E_000B
    name = "access.request-ok"
    sender = "server"
    fields = (("ticket", "short"),)

    def __init__(self, ticket: int = 1) -> None:
        self.ticket = ticket


class ExchangeDeclare(Method):
    __slots__ = ("exchange", "type", "passive", "durable", "auto_delete", "internal", "no_wait", "arguments")

    index = 0x0028_000A
    name = "exchange.declare"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("exchange", "shortstr"),
        ("type", "shortstr"),
        ("passive", "bit"),
        ("durable", "bit"),
        ("auto_delete", "bit"),
        ("internal", "bit"),
        ("no_wait", "bit"),
        ("arguments", "table"),
    )

    def __init__(
        self,
        exchange: str = "",
        type: str = "direct",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        no_wait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.exchange = exchange
        self.type = type
        self.passive = passive
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments


class ExchangeDeclareOk(Method):
    __slots__ = ()

    index = 0x0028_000B
    name = "exchange.declare-ok"
    sender = "server"


class ExchangeDelete(Method):
    __slots__ = ("exchange", "if_unused", "no_wait")

    index = 0x0028_0014
    name = "exchange.delete"
    sender = "client"
    is_synchronous = True
    fields = (("reserved_1", "short"), ("exchange", "shortstr"), ("if_unused", "bit"), ("no_wait", "bit"))

    def __init__(self, exchange: str = "", if_unused: bool = False, no_wait: bool = False) -> None:
        self.exchange = exchange
        self.if_unused = if_unused
        self.no_wait = no_wait


class ExchangeDeleteOk(Method):
    __slots__ = ()

    index = 0x0028_0015
    name = "exchange.delete-ok"
    sender = "server"


class ExchangeBind(Method):
    __slots__ = ("destination", "source", "routing_key", "no_wait", "arguments")

    index = 0x0028_001E
    name = "exchange.bind"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("destination", "shortstr"),
        ("source", "shortstr"),
        ("routing_key", "shortstr"),
        ("no_wait", "bit"),
        ("arguments", "table"),
    )

    def __init__(
        self,
        destination: str = "",
        source: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments


class ExchangeBindOk(Method):
    __slots__ = ()

    index = 0x0028_001F
    name = "exchange.bind-ok"
    sender = "server"


class ExchangeUnbind(Method):
    __slots__ = ("destination", "source", "routing_key", "no_wait", "arguments")

    index = 0x0028_0028
    name = "exchange.unbind"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("destination", "shortstr"),
        ("source", "shortstr"),
        ("routing_key", "shortstr"),
        ("no_wait", "bit"),
        ("arguments", "table"),
    )

    def __init__(
        self,
        destination: str = "",
        source: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.destination = destination
        self.source = source
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments


class ExchangeUnbindOk(Method):
    __slots__ = ()

    index = 0x0028_0033
    name = "exchange.unbind-ok"
    sender = "server"


class QueueDeclare(Method):
    __slots__ = ("queue", "passive", "durable", "exclusive", "auto_delete", "no_wait", "arguments")

    index = 0x0032_000A
    name = "queue.declare"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("queue", "shortstr"),
        ("passive", "bit"),
        ("durable", "bit"),
        ("exclusive", "bit"),
        ("auto_delete", "bit"),
        ("no_wait", "bit"),
        ("arguments", "table"),
    )

    def __init__(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        no_wait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.queue = queue
        self.passive = passive
        self.durable = durable
        self.exclusive = exclusive
        self.auto_delete = auto_delete
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments


class QueueDeclareOk(Method):
    __slots__ = ("queue", "message_count", "consumer_count")

    index = 0x0032_000B
    name = "queue.declare-ok"
    sender = "server"
    fields = (("queue", "shortstr"), ("message_count", "long"), ("consumer_count", "long"))

    def __init__(self, queue: str = "", message_count: int = 0, consumer_count: int = 0) -> None:
        self.queue = queue
        self.message_count = message_count
        self.consumer_count = consumer_count


class QueueBind(Method):
    __slots__ = ("queue", "exchange", "routing_key", "no_wait", "arguments")

    index = 0x0032_0014
    name = "queue.bind"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("queue", "shortstr"),
        ("exchange", "shortstr"),
        ("routing_key", "shortstr"),
        ("no_wait", "bit"),
        ("arguments", "table"),
    )

    def __init__(
        self,
        queue: str = "",
        exchange: str = "",
        routing_key: str = "",
        no_wait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments


class QueueBindOk(Method):
    __slots__ = ()

    index = 0x0032_0015
    name = "queue.bind-ok"
    sender = "server"


class QueuePurge(Method):
    __slots__ = ("queue", "no_wait")

    index = 0x0032_001E
    name = "queue.purge"
    sender = "client"
    is_synchronous = True
    fields = (("reserved_1", "short"), ("queue", "shortstr"), ("no_wait", "bit"))

    def __init__(self, queue: str = "", no_wait: bool = False) -> None:
        self.queue = queue
        self.no_wait = no_wait


class QueuePurgeOk(Method):
    __slots__ = ("message_count",)

    index = 0x0032_001F
    name = "queue.purge-ok"
    sender = "server"
    fields = (("message_count", "long"),)

    def __init__(self, message_count: int = 0) -> None:
        self.message_count = message_count


class QueueDelete(Method):
    __slots__ = ("queue", "if_unused", "if_empty", "no_wait")

    index = 0x0032_0028
    name = "queue.delete"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("queue", "shortstr"),
        ("if_unused", "bit"),
        ("if_empty", "bit"),
        ("no_wait", "bit"),
    )

    def __init__(self, queue: str = "", if_unused: bool = False, if_empty: bool = False, no_wait: bool = False) -> None:
        self.queue = queue
        self.if_unused = if_unused
        self.if_empty = if_empty
        self.no_wait = no_wait


class QueueDeleteOk(Method):
    __slots__ = ("message_count",)

    index = 0x0032_0029
    name = "queue.delete-ok"
    sender = "server"
    fields = (("message_count", "long"),)

    def __init__(self, message_count: int = 0) -> None:
        self.message_count = message_count


class QueueUnbind(Method):
    __slots__ = ("queue", "exchange", "routing_key", "arguments")

    index = 0x0032_0032
    name = "queue.unbind"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("queue", "shortstr"),
        ("exchange", "shortstr"),
        ("routing_key", "shortstr"),
        ("arguments", "table"),
    )

    def __init__(
        self, queue: str = "", exchange: str = "", routing_key: str = "", arguments: Table | None = None
    ) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.arguments = {} if arguments is None else arguments


class QueueUnbindOk(Method):
    __slots__ = ()

    index = 0x0032_0033
    name = "queue.unbind-ok"
    sender = "server"


class BasicQos(Method):
    __slots__ = ("prefetch_size", "prefetch_count", "global_")

    index = 0x003C_000A
    name = "basic.qos"
    sender = "client"
    is_synchronous = True
    fields = (("prefetch_size", "long"), ("prefetch_count", "short"), ("global_", "bit"))

    def __init__(self, prefetch_size: int = 0, prefetch_count: int = 0, global_: bool = False) -> None:
        self.prefetch_size = prefetch_size
        self.prefetch_count = prefetch_count
        self.global_ = global_


class BasicQosOk(Method):
    __slots__ = ()

    index = 0x003C_000B
    name = "basic.qos-ok"
    sender = "server"


class BasicConsume(Method):
    __slots__ = ("queue", "consumer_tag", "no_local", "no_ack", "exclusive", "no_wait", "arguments")

    index = 0x003C_0014
    name = "basic.consume"
    sender = "client"
    is_synchronous = True
    fields = (
        ("reserved_1", "short"),
        ("queue", "shortstr"),
        ("consumer_tag", "shortstr"),
        ("no_local", "bit"),
        ("no_ack", "bit"),
        ("exclusive", "bit"),
        ("no_wait", "bit"),
        ("arguments", "table"),
    )

    def __init__(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        no_wait: bool = False,
        arguments: Table | None = None,
    ) -> None:
        self.queue = queue
        self.consumer_tag = consumer_tag
        self.no_local = no_local
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.no_wait = no_wait
        self.arguments = {} if arguments is None else arguments


class BasicConsumeOk(Method):
    __slots__ = ("consumer_tag",)

    index = 0x003C_0015
    name = "basic.consume-ok"
    sender = "server"
    fields = (("consumer_tag", "shortstr"),)

    def __init__(self, consumer_tag: str = "") -> None:
        self.consumer_tag = consumer_tag


class BasicCancel(Method):
    __slots__ = ("consumer_tag", "no_wait")

    index = 0x003C_001E
    name = "basic.cancel"
    sender = "both"
    is_synchronous = True
    fields = (("consumer_tag", "shortstr"), ("no_wait", "bit"))

    def __init__(self, consumer_tag: str = "", no_wait: bool = False) -> None:
        self.consumer_tag = consumer_tag
        self.no_wait = no_wait


class BasicCancelOk(Method):
    __slots__ = ("consumer_tag",)

    index = 0x003C_001F
    name = "basic.cancel-ok"
    sender = "both"
    fields = (("consumer_tag", "shortstr"),)

    def __init__(self, consumer_tag: str = "") -> None:
        self.consumer_tag = consumer_tag


class BasicPublish(Method):
    __slots__ = ("exchange", "routing_key", "mandatory", "immediate")

    index = 0x003C_0028
    name = "basic.publish"
    sender = "client"
    has_content = True
    fields = (
        ("reserved_1", "short"),
        ("exchange", "shortstr"),
        ("routing_key", "shortstr"),
        ("mandatory", "bit"),
        ("immediate", "bit"),
    )

    def __init__(
        self, exchange: str = "", routing_key: str = "", mandatory: bool = False, immediate: bool = False
    ) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.mandatory = mandatory
        self.immediate = immediate


class BasicReturn(Method):
    __slots__ = ("reply_code", "reply_text", "exchange", "routing_key")

    index = 0x003C_0032
    name = "basic.return"
    sender = "server"
    has_content = True
    fields = (
        ("reply_code", "short"),
        ("reply_text", "shortstr"),
        ("exchange", "shortstr"),
        ("routing_key", "shortstr"),
    )

    def __init__(self, reply_code: int = 0, reply_text: str = "", exchange: str = "", routing_key: str = "") -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key


class BasicDeliver(Method):
    __slots__ = ("consumer_tag", "delivery_tag", "redelivered", "exchange", "routing_key")

    index = 0x003C_003C
    name = "basic.deliver"
    sender = "server"
    has_content = True
    fields = (
        ("consumer_tag", "shortstr"),
        ("delivery_tag", "longlong"),
        ("redelivered", "bit"),
        ("exchange", "shortstr"),
        ("routing_key", "shortstr"),
    )

    def __init__(
        self,
        consumer_tag: str = "",
        delivery_tag: int = 0,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str = "",
    ) -> None:
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key


class BasicGet(Method):
    __slots__ = ("queue", "no_ack")

    index = 0x003C_0046
    name = "basic.get"
    sender = "client"
    is_synchronous = True
    fields = (("reserved_1", "short"), ("queue", "shortstr"), ("no_ack", "bit"))

    def __init__(self, queue: str = "", no_ack: bool = False) -> None:
        self.queue = queue
        self.no_ack = no_ack


class BasicGetOk(Method):
    __slots__ = ("delivery_tag", "redelivered", "exchange", "routing_key", "message_count")

    index = 0x003C_0047
    name = "basic.get-ok"
    sender = "server"
    has_content = True
    fields = (
        ("delivery_tag", "longlong"),
        ("redelivered", "bit"),
        ("exchange", "shortstr"),
        ("routing_key", "shortstr"),
        ("message_count", "long"),
    )

    def __init__(
        self,
        delivery_tag: int = 0,
        redelivered: bool = False,
        exchange: str = "",
        routing_key: str = "",
        message_count: int = 0,
    ) -> None:
        self.delivery_tag = delivery_tag
        self.redelivered = redelivered
        self.exchange = exchange
        self.routing_key = routing_key
        self.message_count = message_count


class BasicGetEmpty(Method):
    __slots__ = ()

    index = 0x003C_0048
    name = "basic.get-empty"
    sender = "server"
    fields = (("reserved_1", "shortstr"),)


class BasicAck(Method):
    __slots__ = ("delivery_tag", "multiple")

    index = 0x003C_0050
    name = "basic.ack"
    sender = "both"
    fields = (("delivery_tag", "longlong"), ("multiple", "bit"))

    def __init__(self, delivery_tag: int = 0, multiple: bool = False) -> None:
        self.delivery_tag = delivery_tag
        self.multiple = multiple


class BasicReject(Method):
    __slots__ = ("delivery_tag", "requeue")

    index = 0x003C_005A
    name = "basic.reject"
    sender = "client"
    fields = (("delivery_tag", "longlong"), ("requeue", "bit"))

    def __init__(self, delivery_tag: int = 0, requeue: bool = True) -> None:
        self.delivery_tag = delivery_tag
        self.requeue = requeue


class BasicRecoverAsync(Method):
    __slots__ = ("requeue",)

    index = 0x003C_0064
    name = "basic.recover-async"
    sender = "client"
    fields = (("requeue", "bit"),)

    def __init__(self, requeue: bool = False) -> None:
        self.requeue = requeue


class BasicRecover(Method):
    __slots__ = ("requeue",)

    index = 0x003C_006E
    name = "basic.recover"
    sender = "client"
    is_synchronous = True
    fields = (("requeue", "bit"),)

    def __init__(self, requeue: bool = False) -> None:
        self.requeue = requeue


class BasicRecoverOk(Method):
    __slots__ = ()

    index = 0x003C_006F
    name = "basic.recover-ok"
    sender = "server"


class BasicNack(Method):
    __slots__ = ("delivery_tag", "multiple", "requeue")

    index = 0x003C_0078
    name = "basic.nack"
    sender = "both"
    fields = (("delivery_tag", "longlong"), ("multiple", "bit"), ("requeue", "bit"))

    def __init__(self, delivery_tag: int = 0, multiple: bool = False, requeue: bool = True) -> None:
        self.delivery_tag = delivery_tag
        self.multiple = multiple
        self.requeue = requeue


class ConfirmSelect(Method):
    __slots__ = ("no_wait",)

    index = 0x0055_000A
    name = "confirm.select"
    sender = "client"
    is_synchronous = True
    fields = (("no_wait", "bit"),)

    def __init__(self, no_wait: bool = False) -> None:
        self.no_wait = no_wait


class ConfirmSelectOk(Method):
    __slots__ = ()

    index = 0x0055_000B
    name = "confirm.select-ok"
    sender = "server"


class TxSelect(Method):
    __slots__ = ()

    index = 0x005A_000A
    name = "tx.select"
    sender = "client"
    is_synchronous = True


class TxSelectOk(Method):
    __slots__ = ()

    index = 0x005A_000B
    name = "tx.select-ok"
    sender = "server"


class TxCommit(Method):
    __slots__ = ()

    index = 0x005A_0014
    name = "tx.commit"
    sender = "client"
    is_synchronous = True


class TxCommitOk(Method):
    __slots__ = ()

    index = 0x005A_0015
    name = "tx.commit-ok"
    sender = "server"


class TxRollback(Method):
    __slots__ = ()

    index = 0x005A_001E
    name = "tx.rollback"
    sender = "client"
    is_synchronous = True


class TxRollbackOk(Method):
    __slots__ = ()

    index = 0x005A_001F
    name = "tx.rollback-ok"
    sender = "server"


METHODS: dict[int, type[Method]] = {
    method.index: method
    for method in (
        ConnectionStart,
        ConnectionStartOk,
        ConnectionSecure,
        ConnectionSecureOk,
        ConnectionTune,
        ConnectionTuneOk,
        ConnectionOpen,
        ConnectionOpenOk,
        ConnectionClose,
        ConnectionCloseOk,
        ConnectionBlocked,
        ConnectionUnblocked,
        ConnectionUpdateSecret,
        ConnectionUpdateSecretOk,
        ChannelOpen,
        ChannelOpenOk,
        ChannelFlow,
        ChannelFlowOk,
        ChannelClose,
        ChannelCloseOk,
        AccessRequest,
        AccessRequestOk,
        ExchangeDeclare,
        ExchangeDeclareOk,
        ExchangeDelete,
        ExchangeDeleteOk,
        ExchangeBind,
        ExchangeBindOk,
        ExchangeUnbind,
        ExchangeUnbindOk,
        QueueDeclare,
        QueueDeclareOk,
        QueueBind,
        QueueBindOk,
        QueuePurge,
        QueuePurgeOk,
        QueueDelete,
        QueueDeleteOk,
        QueueUnbind,
        QueueUnbindOk,
        BasicQos,
        BasicQosOk,
        BasicConsume,
        BasicConsumeOk,
        BasicCancel,
        BasicCancelOk,
        BasicPublish,
        BasicReturn,
        BasicDeliver,
        BasicGet,
        BasicGetOk,
        BasicGetEmpty,
        BasicAck,
        BasicReject,
        BasicRecoverAsync,
        BasicRecover,
        BasicRecoverOk,
        BasicNack,
        ConfirmSelect,
        ConfirmSelectOk,
        TxSelect,
        TxSelectOk,
        TxCommit,
        TxCommitOk,
        TxRollback,
        TxRollbackOk,
    )
}
