"""Connection options: one frozen value with all of them, shared by both faces.

Threads may share a factory; it connects any number of times. Options given by name override those in a URL.
"""

from __future__ import annotations

import platform
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from warrenmq.client.backoff import Backoff
from warrenmq.client.errors import Misuse
from warrenmq.client.url import MECHANISMS, Address, TlsFiles, format_url, parse_url
from warrenmq.protocol import spec
from warrenmq.protocol.errors import LocalMisuse
from warrenmq.protocol.handshake import Tuning
from warrenmq.protocol.values import encode_table

if TYPE_CHECKING:
    from warrenmq.client.aio.connection import Connection as AsyncConnection
    from warrenmq.client.blocking.connection import Connection
    from warrenmq.client.metrics import MetricsCollector
    from warrenmq.client.telemetry import Tracing

PORT = 5672
TLS_PORT = 5671
MIB = 1024 * 1024

# The context ("consumer callback"), the exception, and the connection, channel or consumer it concerns.
ExceptionHandler = Callable[[str, BaseException, object], None]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What to do when the connection is lost: by default reconnect, and redeclare what was declared on it.

    `attempts` None means no limit. The delays are those of Backoff. `topology=False` recovers the connection and its
    channels, but no exchanges, queues, bindings and consumers.
    """

    enabled: bool = True
    initial: float = 0.2
    factor: float = 2.0
    longest: float = 30.0
    jitter: float = 0.5
    attempts: int | None = None
    topology: bool = True

    def __post_init__(self) -> None:
        if not (self.initial >= 0 and self.longest >= 0 and self.factor >= 1 and 0 <= self.jitter <= 1):
            raise Misuse("recovery: initial and longest must be >= 0, factor >= 1, and jitter from 0 to 1")
        if self.attempts is not None and self.attempts < 1:
            raise Misuse("recovery: attempts must be >= 1, or None for no limit; use enabled=False to switch it off")

    def backoff(self) -> Backoff:
        return Backoff(self.initial, self.factor, self.longest, self.jitter)


class ConnectionOptions(TypedDict, total=False):
    """The keyword arguments of ConnectionFactory, its `with_`, and `connect` of both faces."""

    host: str
    port: int
    addresses: Sequence[Address | str]
    virtual_host: str
    username: str
    password: str
    mechanism: str
    tls: ssl.SSLContext | TlsFiles | bool | None
    heartbeat: int
    name: str | None
    client_properties: Mapping[str, Any] | None
    channel_max: int
    frame_max: int
    connect_timeout: float
    attempts: int | None
    wait: float | None
    call_timeout: float
    close_timeout: float
    recovery: Recovery | bool
    unconfirmed: Literal["fail", "resend"]
    output_limit: int
    work_limit: int
    max_body_size: int
    exception_handler: ExceptionHandler | None
    metrics: MetricsCollector | None
    tracing: Tracing | bool | None
    strict_keys: bool


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ConnectionFactory:
    """Connection options; opens connections.

    >>> factory = ConnectionFactory("amqp://anna:secret@broker.example/orders?heartbeat=30", name="billing")
    >>> factory.host, factory.port, factory.virtual_host, factory.heartbeat
    ('broker.example', 5672, 'orders', 30)
    >>> factory
    <ConnectionFactory amqp://anna@broker.example:5672/orders?heartbeat=30&name=billing>
    >>> factory.with_(virtual_host="/").virtual_host
    '/'

    `url` may also be several URLs that differ only in host and port: addresses to try in this order.

    - `host`, `port`, or `addresses` ("host", "host:port" or (host, port) each); `tls` True, a context, or TlsFiles;
    - `virtual_host`, `username`, `password`, `mechanism` (PLAIN, AMQPLAIN, EXTERNAL);
    - `heartbeat` seconds (0: none), `channel_max` (0: no limit), `frame_max`: the lower value of both sides applies;
    - `name` and `client_properties`: what the server displays for this connection;
    - `attempts`: how often `connect` tries (None: until it succeeds), with pauses of `wait` seconds (None: those of
      `recovery`); a refused login or virtual host is not retried;
    - `connect_timeout`: for TCP, TLS and handshake together, per address; `call_timeout`: for every call that waits for
      the server, unless it has its own; `close_timeout`: how long a close waits for the server;
    - `recovery`: a Recovery, or False; `unconfirmed`: whether publishes that are unconfirmed when the connection is
      lost "fail" or are sent again ("resend");
    - `output_limit`: publishing waits while more bytes than this are unwritten; `work_limit`: reading waits while more
      deliveries than this are unhandled; `max_body_size`: the largest body accepted from the server;
    - `exception_handler(context, error, source)`: called with what callbacks raise (default: log it); `metrics`: a
      MetricsCollector; `tracing`: True or a Tracing, for OpenTelemetry (the extra `warrenmq[otel]`);
    - `strict_keys`: refuse routing and binding keys with other characters than letters, digits, `_` and `.`, and
      wildcards inside words or beside `#`. AMQP allows any key.
    """

    addresses: tuple[Address, ...] = (("localhost", PORT),)
    virtual_host: str = "/"
    username: str = "guest"
    password: str = "guest"
    mechanism: str = "PLAIN"
    tls: ssl.SSLContext | TlsFiles | bool | None = None
    heartbeat: int = 60
    name: str | None = None
    client_properties: Mapping[str, Any] = field(default_factory=dict, hash=False)
    channel_max: int = 0
    frame_max: int = 131072
    connect_timeout: float = 10.0
    attempts: int | None = 1
    wait: float | None = None
    call_timeout: float = 30.0
    close_timeout: float = 5.0
    recovery: Recovery = Recovery()
    unconfirmed: Literal["fail", "resend"] = "fail"
    output_limit: int = 4 * MIB
    work_limit: int = 10_000
    max_body_size: int = 128 * MIB
    exception_handler: ExceptionHandler | None = None
    metrics: MetricsCollector | None = None
    tracing: Tracing | None = None
    strict_keys: bool = False

    def __init__(self, url: str | Iterable[str] | None = None, **options: Unpack[ConnectionOptions]) -> None:
        values = _defaults()
        values.update(_from_urls(url))
        values.update(_normalized(options, values))
        for name, value in values.items():
            object.__setattr__(self, name, value)
        _check(self)

    # -- opening -----------------------------------------------------------------------------------------------------

    def connect(self, timeout: float | None = None) -> Connection:
        """Open a connection that any thread may use; raise ConnectionFailed if no address can be connected to.

        `timeout` bounds all attempts together.
        """
        from warrenmq.client.blocking.connection import Connection  # here: a program loads only the face that it uses

        connection = Connection(self)
        connection._open(timeout)
        return connection

    async def connect_async(self, timeout: float | None = None) -> AsyncConnection:
        """Like `connect`, on the running event loop."""
        from warrenmq.client.aio.connection import Connection

        connection = Connection(self)
        await connection._engine.connect(timeout)
        return connection

    def with_(self, **changes: Unpack[ConnectionOptions]) -> ConnectionFactory:
        """Return a factory with these options changed. Switching TLS on or off does not change the ports."""
        kept: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        if "host" in changes or "port" in changes:
            kept["addresses"] = (
                (changes.pop("host", self.host), changes.pop("port", self.port)),
                *self.addresses[1:],
            )
        return type(self)(**(kept | changes))  # type: ignore[arg-type]

    # -- used by the engine ------------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """That of the first address."""
        return self.addresses[0][0]

    @property
    def port(self) -> int:
        """That of the first address."""
        return self.addresses[0][1]

    def connect_pauses(self) -> Backoff:
        """Return the pauses between attempts to open the connection."""
        return self.recovery.backoff() if self.wait is None else Backoff(self.wait, 1.0, self.wait, 0.0)

    def url(self, address: Address | None = None) -> str:
        """Return the URL of an address (None: the first) without the password, for logs."""
        return format_url(self, address)

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context, or None for plain TCP. Reads certificate files: call it once per connection."""
        if isinstance(self.tls, TlsFiles):
            return self.tls.context()
        if self.tls is True:
            return ssl.create_default_context()
        return self.tls or None

    def tls_name(self, host: str) -> str | None:
        """Return the name required in the server's certificate; None for plain TCP, "" if no name is required."""
        if not self.tls:
            return None
        name = self.tls.server_name if isinstance(self.tls, TlsFiles) else None
        return "" if name == "disable" else name or host

    def sasl_response(self) -> bytes:
        """Return the response of the SASL mechanism: the credentials."""
        if self.mechanism == "EXTERNAL":
            return b""
        if self.mechanism == "AMQPLAIN":
            return encode_table({"LOGIN": self.username, "PASSWORD": self.password})[4:]  # a table without its length
        return f"\0{self.username}\0{self.password}".encode()

    def requested_tuning(self) -> Tuning:
        return Tuning(self.channel_max, self.frame_max, self.heartbeat)

    def all_client_properties(self) -> dict[str, Any]:
        """Return the client properties to send, without the capabilities, which the protocol adds."""
        properties: dict[str, Any] = {
            "product": "WarrenMQ client",
            "platform": f"Python {platform.python_version()}",
            "information": "warrenmq.client",
        }
        if self.name is not None:
            properties["connection_name"] = self.name
        return properties | dict(self.client_properties)

    def __repr__(self) -> str:
        more = f" and {len(self.addresses) - 1} more" if len(self.addresses) > 1 else ""
        return f"<ConnectionFactory {self.url()}{more}>"


def as_factory(url: str | Iterable[str] | ConnectionFactory | None, options: ConnectionOptions) -> ConnectionFactory:
    """Return the factory for the arguments of `connect`."""
    if isinstance(url, ConnectionFactory):
        return url.with_(**options) if options else url
    return ConnectionFactory(url, **options)


def waiting_factory(where: str | ConnectionFactory, attempts: int | None, wait: float | None) -> ConnectionFactory:
    """Return the factory with this number of attempts, and this `wait` if given."""
    factory = ConnectionFactory(where) if isinstance(where, str) else where
    return factory.with_(attempts=attempts, wait=factory.wait if wait is None else wait)


# -- arguments to fields -----------------------------------------------------------------------------------------------


def _defaults() -> dict[str, Any]:
    """Return the default of every field."""
    defaults = {each.name: each.default for each in fields(ConnectionFactory)}
    return defaults | {"addresses": (("localhost", None),), "client_properties": {}}


def _from_urls(url: str | Iterable[str] | None) -> dict[str, Any]:
    """Return the options in one URL, or in several that differ only in their addresses."""
    urls = [] if url is None else [url] if isinstance(url, str) else list(url)
    if url is not None and not urls:
        raise Misuse("the list of URLs is empty")
    parsed = [parse_url(each) for each in urls]
    addresses = tuple(each.pop("addresses")[0] for each in parsed)
    if any(other != parsed[0] for other in parsed[1:]):
        raise Misuse(
            "the URLs may differ only in host and port: a connection has one user, virtual host and set of options"
        )
    return {"addresses": addresses, **parsed[0]} if parsed else {}


def _normalized(given: ConnectionOptions, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options given by name in the form of the fields."""
    options: dict[str, Any] = dict(given)
    unknown = options.keys() - ConnectionOptions.__annotations__.keys()
    if unknown:
        raise Misuse(
            f"unknown option: {', '.join(sorted(unknown))}; known are {', '.join(ConnectionOptions.__annotations__)}"
        )
    options["addresses"] = _normalized_addresses(options, before)
    options.pop("host", None)
    options.pop("port", None)
    if isinstance(options.get("recovery"), bool):
        options["recovery"] = Recovery(enabled=options["recovery"])
    if isinstance(options.get("tracing"), bool):
        options["tracing"] = _make_tracing() if options["tracing"] else None
    options["client_properties"] = dict(options.get("client_properties") or before["client_properties"])
    return options


def _make_tracing() -> Tracing:
    from warrenmq.client.telemetry import Tracing  # imported here: OpenTelemetry is an extra

    return Tracing()


def _normalized_addresses(options: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the addresses given, or those of the URLs with host and port given by name in place of the first."""
    if "addresses" in options:
        if "host" in options or "port" in options:
            raise Misuse("give host and port, or addresses, not both")
        addresses = [_as_address(each) for each in options["addresses"]]
    else:
        (host, port), *others = before["addresses"]
        addresses = [(options.get("host", host), options.get("port", port)), *others]
    default_port = TLS_PORT if options.get("tls", before["tls"]) else PORT
    return tuple((host, default_port if port is None else port) for host, port in addresses)


def _as_address(address: Address | str) -> tuple[str, int | None]:
    """ "host", "host:port", "[v6]:port" or a pair."""
    if not isinstance(address, str):
        host, port = address
        return host, port
    host, colon, port_text = address.rpartition(":")
    if not colon or address.endswith("]") or (":" in host and not host.endswith("]")):
        return address.strip("[]"), None
    if not port_text.isdigit():
        raise Misuse(f"the address {address!r} is not host:port")
    return host.strip("[]"), int(port_text)


def _check(factory: ConnectionFactory) -> None:
    """Raise Misuse for invalid options."""
    _check_addresses(factory.addresses)
    for name in ("virtual_host", "username", "password"):
        _check_text(name, getattr(factory, name), 255 if name == "virtual_host" else None)
    if factory.name is not None:
        _check_text("name", factory.name, None)
    _check_choices(factory)
    _check_numbers(factory)
    try:
        encode_table(factory.all_client_properties())
    except (LocalMisuse, UnicodeError) as error:
        raise Misuse(f"the client properties cannot be sent: {error}") from None


def _check_addresses(addresses: tuple[Address, ...]) -> None:
    if not addresses:
        raise Misuse("there is no address to connect to")
    for host, port in addresses:
        if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 65536:
            raise Misuse(f"the address {host!r}, {port!r} is not a host and a port from 1 to 65535")


def _check_text(name: str, text: object, max_size: int | None) -> None:
    """The error does not show the text: it may be the password."""
    if not isinstance(text, str):
        raise Misuse(f"{name} must be a str, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Misuse(f"{name} has characters that cannot be encoded as UTF-8") from None
    if max_size is not None and size > max_size:
        raise Misuse(f"{name} has {size} bytes, the maximum is {max_size}")


def _check_choices(factory: ConnectionFactory) -> None:
    if factory.mechanism not in MECHANISMS:
        raise Misuse(f"mechanism must be one of {', '.join(MECHANISMS)}, not {factory.mechanism!r}")
    if factory.unconfirmed not in ("fail", "resend"):
        raise Misuse(f"unconfirmed must be 'fail' or 'resend', not {factory.unconfirmed!r}")
    if not isinstance(factory.strict_keys, bool):
        raise Misuse(f"strict_keys must be True or False, not {factory.strict_keys!r}")
    if not isinstance(factory.recovery, Recovery):
        raise Misuse("recovery must be a Recovery, True or False")
    if not isinstance(factory.tls, (ssl.SSLContext, TlsFiles, bool, type(None))):
        raise Misuse(f"tls must be True, False, an ssl.SSLContext or a TlsFiles, not {factory.tls!r}")
    if factory.exception_handler is not None and not callable(factory.exception_handler):
        raise Misuse("exception_handler must be a function of (context, error, source)")


def _check_numbers(factory: ConnectionFactory) -> None:
    for name, maximum in (("heartbeat", 65535), ("channel_max", 65535), ("frame_max", 2**32 - 1)):
        value = getattr(factory, name)
        if type(value) is not int or not 0 <= value <= maximum:
            raise Misuse(f"{name} must be an integer from 0 to {maximum}, not {value!r}")
    if 0 < factory.frame_max < spec.FRAME_MIN_SIZE:
        raise Misuse(f"frame_max must be 0 or at least {spec.FRAME_MIN_SIZE}, not {factory.frame_max}")
    if factory.attempts is not None and (type(factory.attempts) is not int or factory.attempts < 1):
        raise Misuse(f"attempts must be an integer >= 1, or None for no limit, not {factory.attempts!r}")
    if factory.wait is not None and not (isinstance(factory.wait, (int, float)) and 0 <= factory.wait < float("inf")):
        raise Misuse(f"wait must be a number of seconds >= 0, or None, not {factory.wait!r}")
    for name in ("connect_timeout", "call_timeout", "close_timeout", "output_limit", "work_limit", "max_body_size"):
        value = getattr(factory, name)
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise Misuse(f"{name} must be a finite number > 0, not {value!r}")
