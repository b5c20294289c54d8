"""How to connect: every setting of a connection in one frozen value, shared by both faces.

A factory is made once, may be shared by any threads, and connects as often as asked. What a URL says is overridden by
what is given by name.
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

# What went wrong where ("callback of consumer c1"), the exception, and the connection, channel or consumer it concerns.
ExceptionHandler = Callable[[str, BaseException, object], None]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What happens when the connection is lost: by default it comes back, with all that was declared on it.

    `attempts` None is for ever. The delays are those of Backoff; `topology` False brings back the connection and its
    channels without exchanges, queues, bindings and consumers.
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
            raise Misuse("recovery takes initial and longest from 0, factor from 1, and jitter from 0 to 1")
        if self.attempts is not None and self.attempts < 1:
            raise Misuse("recovery takes attempts from 1, or None for ever; switch it off by enabled=False")

    def backoff(self) -> Backoff:
        return Backoff(self.initial, self.factor, self.longest, self.jitter)


class ConnectionOptions(TypedDict, total=False):
    """What may be given by name to ConnectionFactory, its `with_` and both `connect`."""

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


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ConnectionFactory:
    """The settings of connections, and the way to open them.

    >>> factory = ConnectionFactory("amqp://anna:secret@broker.example/orders?heartbeat=30", name="billing")
    >>> factory.host, factory.port, factory.virtual_host, factory.heartbeat
    ('broker.example', 5672, 'orders', 30)
    >>> factory
    <ConnectionFactory amqp://anna@broker.example:5672/orders?heartbeat=30&name=billing>
    >>> factory.with_(virtual_host="/").virtual_host
    '/'

    `url` may also be several URLs that differ in host and port only: addresses, tried in the order given.

    - `host`, `port`, or `addresses` ("host", "host:port" or (host, port) each); `tls` True, a context, or TlsFiles;
    - `virtual_host`, `username`, `password`, `mechanism` (PLAIN, AMQPLAIN, EXTERNAL);
    - `heartbeat` seconds (0: none), `channel_max` (0: no limit of ours), `frame_max`: the lower of both sides' holds;
    - `name` and `client_properties`: what the server shows of this connection;
    - `attempts`: how often `connect` tries (None: until it works), with pauses of `wait` seconds (None: those of
      `recovery`); a login or virtual host that the server refuses is not tried again;
    - `connect_timeout`: TCP, TLS and handshake together, per address; `call_timeout`: every call that waits for the
      server, unless it is given its own; `close_timeout`: how long a close waits for the server's word;
    - `recovery`: a Recovery, or False; `unconfirmed`: whether publishes without the broker's word at the loss of a
      connection "fail", or are sent again ("resend");
    - `output_limit`: bytes not yet written, above which publishing waits; `work_limit`: deliveries not yet worked on,
      above which reading waits; `max_body_size`: the largest body that is taken from the server;
    - `exception_handler(context, error, source)`: told what callbacks raise (default: logged); `metrics`: a collector;
      `tracing`: True or a Tracing, for OpenTelemetry (the extra `warrenmq[otel]`).
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

    def __init__(self, url: str | Iterable[str] | None = None, **settings: Unpack[ConnectionOptions]) -> None:
        values = _defaults()
        values.update(_from_urls(url))
        values.update(_settled(settings, values))
        for name, value in values.items():
            object.__setattr__(self, name, value)
        _check(self)

    # -- opening -----------------------------------------------------------------------------------------------------

    def connect(self, timeout: float | None = None) -> Connection:
        """Open a connection that any thread may use; raises ConnectionFailed when no address answers as it should.

        `timeout` bounds all attempts together.
        """
        from warrenmq.client.blocking.connection import Connection  # here: a program of one face never loads the other

        connection = Connection(self)
        connection._open(timeout)
        return connection

    async def connect_async(self, timeout: float | None = None) -> AsyncConnection:
        """Open a connection on the running event loop; as `connect`."""
        from warrenmq.client.aio.connection import Connection

        connection = Connection(self)
        await connection._engine.connect(timeout)
        return connection

    def with_(self, **changes: Unpack[ConnectionOptions]) -> ConnectionFactory:
        """A factory that differs in these settings. Ports stay as they are, also where TLS is switched on or off."""
        kept: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        if "host" in changes or "port" in changes:
            kept["addresses"] = (
                (changes.pop("host", self.host), changes.pop("port", self.port)),
                *self.addresses[1:],
            )
        return type(self)(**(kept | changes))  # type: ignore[arg-type]

    # -- what the engine asks ----------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The first address's."""
        return self.addresses[0][0]

    @property
    def port(self) -> int:
        """The first address's."""
        return self.addresses[0][1]

    def connect_pauses(self) -> Backoff:
        """The pauses between the first attempts to connect."""
        return self.recovery.backoff() if self.wait is None else Backoff(self.wait, 1.0, self.wait, 0.0)

    def url(self, address: Address | None = None) -> str:
        """The URL of an address (the first), for people and logs: without the password."""
        return format_url(self, address)

    def tls_context(self) -> ssl.SSLContext | None:
        """The context to connect with, None for plain TCP. Reads certificate files: once per connection is enough."""
        if isinstance(self.tls, TlsFiles):
            return self.tls.context()
        if self.tls is True:
            return ssl.create_default_context()
        return self.tls or None

    def tls_name(self, host: str) -> str | None:
        """The name that the server's certificate must bear; None for plain TCP, "" where no name is asked for."""
        if not self.tls:
            return None
        name = self.tls.server_name if isinstance(self.tls, TlsFiles) else None
        return "" if name == "disable" else name or host

    def sasl_response(self) -> bytes:
        """What proves to the server who we are."""
        if self.mechanism == "EXTERNAL":
            return b""
        if self.mechanism == "AMQPLAIN":
            return encode_table({"LOGIN": self.username, "PASSWORD": self.password})[4:]  # a table without its length
        return f"\0{self.username}\0{self.password}".encode()

    def wanted_tuning(self) -> Tuning:
        return Tuning(self.channel_max, self.frame_max, self.heartbeat)

    def told_properties(self) -> dict[str, Any]:
        """The client properties as the server hears them, but for the capabilities, which the protocol adds."""
        told: dict[str, Any] = {
            "product": "WarrenMQ client",
            "platform": f"Python {platform.python_version()}",
            "information": "warrenmq.client",
        }
        if self.name is not None:
            told["connection_name"] = self.name
        return told | dict(self.client_properties)

    def __repr__(self) -> str:
        more = f" and {len(self.addresses) - 1} more" if len(self.addresses) > 1 else ""
        return f"<ConnectionFactory {self.url()}{more}>"


def as_factory(url: str | Iterable[str] | ConnectionFactory | None, settings: ConnectionOptions) -> ConnectionFactory:
    """What `connect` was given, as a factory."""
    if isinstance(url, ConnectionFactory):
        return url.with_(**settings) if settings else url
    return ConnectionFactory(url, **settings)


def waiting_factory(where: str | ConnectionFactory, attempts: int | None, wait: float | None) -> ConnectionFactory:
    """The factory with these settings, its own `wait` where none is given."""
    factory = ConnectionFactory(where) if isinstance(where, str) else where
    return factory.with_(attempts=attempts, wait=factory.wait if wait is None else wait)


# -- from what was given to what holds ---------------------------------------------------------------------------------


def _defaults() -> dict[str, Any]:
    """The values of the fields that were not given."""
    defaults = {each.name: each.default for each in fields(ConnectionFactory)}
    return defaults | {"addresses": (("localhost", None),), "client_properties": {}}


def _from_urls(url: str | Iterable[str] | None) -> dict[str, Any]:
    """The settings of one URL; of several, whose addresses are tried in turn and which agree in all else."""
    urls = [] if url is None else [url] if isinstance(url, str) else list(url)
    if url is not None and not urls:
        raise Misuse("no URL is in the list of URLs")
    parsed = [parse_url(each) for each in urls]
    addresses = tuple(each.pop("addresses")[0] for each in parsed)
    if any(other != parsed[0] for other in parsed[1:]):
        raise Misuse(
            "the URLs differ in more than host and port, but a connection has one user, virtual host and options"
        )
    return {"addresses": addresses, **parsed[0]} if parsed else {}


def _settled(given: ConnectionOptions, before: Mapping[str, Any]) -> dict[str, Any]:
    """The settings given by name, in the form in which they are kept."""
    settings: dict[str, Any] = dict(given)
    unknown = settings.keys() - ConnectionOptions.__annotations__.keys()
    if unknown:
        raise Misuse(
            f"no such setting: {', '.join(sorted(unknown))}; there are {', '.join(ConnectionOptions.__annotations__)}"
        )
    settings["addresses"] = _settled_addresses(settings, before)
    settings.pop("host", None)
    settings.pop("port", None)
    if isinstance(settings.get("recovery"), bool):
        settings["recovery"] = Recovery(enabled=settings["recovery"])
    if isinstance(settings.get("tracing"), bool):
        settings["tracing"] = _make_tracing() if settings["tracing"] else None
    settings["client_properties"] = dict(settings.get("client_properties") or before["client_properties"])
    return settings


def _make_tracing() -> Tracing:
    from warrenmq.client.telemetry import Tracing  # here: OpenTelemetry is an extra

    return Tracing()


def _settled_addresses(settings: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[Address, ...]:
    """Those given, or those of the URLs, of which host and port given by name replace the first."""
    if "addresses" in settings:
        if "host" in settings or "port" in settings:
            raise Misuse("give host and port, or addresses, not both")
        addresses = [_as_address(each) for each in settings["addresses"]]
    else:
        (host, port), *others = before["addresses"]
        addresses = [(settings.get("host", host), settings.get("port", port)), *others]
    default_port = TLS_PORT if settings.get("tls", before["tls"]) else PORT
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
    """Refuse what could not work, before anything is tried."""
    _check_addresses(factory.addresses)
    for name in ("virtual_host", "username", "password"):
        _check_text(name, getattr(factory, name), 255 if name == "virtual_host" else None)
    if factory.name is not None:
        _check_text("name", factory.name, None)
    _check_choices(factory)
    _check_numbers(factory)
    try:
        encode_table(factory.told_properties())
    except (LocalMisuse, UnicodeError) as error:
        raise Misuse(f"the client properties cannot be sent: {error}") from None


def _check_addresses(addresses: tuple[Address, ...]) -> None:
    if not addresses:
        raise Misuse("there is no address to connect to")
    for host, port in addresses:
        if not isinstance(host, str) or not host or not isinstance(port, int) or not 0 < port < 65536:
            raise Misuse(f"the address {host!r}, {port!r} is not a host and a port from 1 to 65535")


def _check_text(name: str, text: object, most: int | None) -> None:
    """Without showing it: it may be the password."""
    if not isinstance(text, str):
        raise Misuse(f"{name} is a str, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Misuse(f"{name} has characters that UTF-8 cannot say") from None
    if most is not None and size > most:
        raise Misuse(f"{name} takes {size} bytes, {most} at most can be sent")


def _check_choices(factory: ConnectionFactory) -> None:
    if factory.mechanism not in MECHANISMS:
        raise Misuse(f"mechanism is one of {', '.join(MECHANISMS)}, not {factory.mechanism!r}")
    if factory.unconfirmed not in ("fail", "resend"):
        raise Misuse(f"unconfirmed is 'fail' or 'resend', not {factory.unconfirmed!r}")
    if not isinstance(factory.recovery, Recovery):
        raise Misuse("recovery is a Recovery, True or False")
    if not isinstance(factory.tls, (ssl.SSLContext, TlsFiles, bool, type(None))):
        raise Misuse(f"tls is True, False, an ssl.SSLContext or a TlsFiles, not {factory.tls!r}")
    if factory.exception_handler is not None and not callable(factory.exception_handler):
        raise Misuse("exception_handler is a function of (context, error, source)")


def _check_numbers(factory: ConnectionFactory) -> None:
    for name, most in (("heartbeat", 65535), ("channel_max", 65535), ("frame_max", 2**32 - 1)):
        value = getattr(factory, name)
        if type(value) is not int or not 0 <= value <= most:
            raise Misuse(f"{name} is a whole number from 0 to {most}, not {value!r}")
    if 0 < factory.frame_max < spec.FRAME_MIN_SIZE:
        raise Misuse(f"frame_max is 0 or {spec.FRAME_MIN_SIZE} at least, not {factory.frame_max}")
    if factory.attempts is not None and (type(factory.attempts) is not int or factory.attempts < 1):
        raise Misuse(f"attempts is a whole number from 1, or None for no end, not {factory.attempts!r}")
    if factory.wait is not None and not (isinstance(factory.wait, (int, float)) and 0 <= factory.wait < float("inf")):
        raise Misuse(f"wait is a number of seconds from 0, or None, not {factory.wait!r}")
    for name in ("connect_timeout", "call_timeout", "close_timeout", "output_limit", "work_limit", "max_body_size"):
        value = getattr(factory, name)
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise Misuse(f"{name} is a number above 0 with an end, not {value!r}")
