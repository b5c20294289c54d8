"""amqp:// and amqps:// URLs to connection options, and back.

`amqp://user:password@host:port/vhost?option=value&...`, after RabbitMQ's URI specification and its query parameters:

- every part is optional; user, password, virtual host and option values are percent-decoded;
- an IPv6 address stands in brackets: `amqp://[::1]:5672`;
- no path and a single slash both mean the virtual host `/`, as in pika and aio-pika. By the specification, and in
  RabbitMQ's Java client, a single slash means the virtual host with the empty name, which nobody has; it can be given
  as `virtual_host=""`;
- the options are those in OPTIONS; others are refused, so that a misspelt `heartbeat` is noticed;
- the server's certificate is verified unless `verify=verify_none`.

No error text contains a password. Pure, except that making a TLS context reads the certificate files.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from warrenmq.client.errors import Misuse

if TYPE_CHECKING:
    from warrenmq.client.factory import ConnectionFactory

MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS by certificate files, as the options of a URL can describe it.

    `server_name`: the name required in the certificate instead of the host; "disable" requires none.
    """

    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files; raise Misuse if one cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.cacertfile)
            if self.server_name == "disable":
                context.check_hostname = False
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certfile is not None:
                context.load_cert_chain(self.certfile, self.keyfile)
        except OSError as error:
            files = ", ".join(name for name in (self.cacertfile, self.certfile, self.keyfile) if name)
            raise Misuse(f"the TLS files ({files}) cannot be used: {error}") from error
        return context


# -- URL to options ----------------------------------------------------------------------------------------------------


def parse_url(url: str) -> dict[str, Any]:
    """Return the options in this URL, under the names of ConnectionFactory.

    A missing port is None: the default depends on TLS, which may be set elsewhere.

    >>> parse_url("amqp://anna:s%40crt@broker/orders?heartbeat=30")["virtual_host"]
    'orders'
    """
    parts = _split(url)
    is_tls = parts.scheme == "amqps"
    options: dict[str, Any] = {"addresses": (_address(parts),)}
    if parts.username is not None:
        options["username"] = _decoded(parts.username, "user name")
    if parts.password is not None:
        options["password"] = _decoded(parts.password, "password")
    if parts.path not in ("", "/"):
        options["virtual_host"] = _virtual_host(parts.path)
    tls = _read_options(parts.query, options)
    if is_tls:
        options["tls"] = TlsFiles(**tls) if tls else True
    elif tls:
        raise Misuse(f"the TLS options in the URL ({', '.join(sorted(tls))}) need amqps://")
    return options


def _split(url: str) -> SplitResult:
    """Split the URL. Errors do not quote it: it may contain a password anywhere."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.hostname
    except ValueError:
        raise Misuse("invalid URL: are the brackets of an IPv6 address closed?") from None
    if parts.scheme not in ("amqp", "amqps") or "://" not in url:
        raise Misuse("an AMQP URL must start with amqp:// or amqps://")
    if parts.fragment:
        raise Misuse("the URL contains '#': in a password or virtual host write %23")
    return parts


def _address(parts: SplitResult) -> tuple[str, int | None]:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        hint = "in a user name or password write '/', '?', '#', '@' and ':' as %2F, %3F, %23, %40 and %3A"
        raise Misuse(f"the port in the URL must be a number from 1 to 65535 ({hint})")
    return unquote(parts.hostname or "") or "localhost", port


def _virtual_host(path: str) -> str:
    if "/" in path[1:]:
        raise Misuse("the path of the URL contains a second '/': in the name of a virtual host write %2F")
    return _decoded(path[1:], "virtual host")


def _decoded(text: str, what: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Misuse(f"the {what} in the URL is not UTF-8") from None


# -- options -----------------------------------------------------------------------------------------------------------


def _read_options(query: str, options: dict[str, Any]) -> dict[str, Any]:
    """Add the query options to `options`; return those of TLS, which become one TlsFiles."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise Misuse("the options in the URL are not UTF-8") from None
    tls: dict[str, Any] = {}
    seen: set[str] = set()
    for name, text in pairs:
        if name not in OPTIONS:
            raise Misuse(f"unknown option {name!r} in the URL; known are {', '.join(OPTIONS)}")
        if name in seen:
            raise Misuse(f"the option {name} is in the URL twice")
        seen.add(name)
        field, parse = OPTIONS[name]
        target = tls if field in TlsFiles.__dataclass_fields__ else options
        try:
            target[field] = parse(text)
        except ValueError as error:
            raise Misuse(f"the option {name} in the URL must be {error}, not {text!r}") from None
    return tls


def _number(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and minimum <= int(text) <= maximum):
            raise ValueError(f"a number from {minimum} to {maximum}")
        return int(text)

    return parse


def _milliseconds(text: str) -> float:
    return _number(1, 2**31 - 1)(text) / 1000


def _text(text: str) -> str:
    if not text:
        raise ValueError("non-empty")
    return text


def _verify(text: str) -> bool:
    if text not in ("verify_peer", "verify_none"):
        raise ValueError("verify_peer or verify_none")
    return text == "verify_peer"


def _mechanism(text: str) -> str:
    if text.upper() not in MECHANISMS:  # RabbitMQ's URLs have them in lower case
        raise ValueError(f"one of {', '.join(MECHANISMS).lower()}")
    return text.upper()


# The query options: the connection option that each becomes, and its parser.
OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "heartbeat": ("heartbeat", _number(0, 65535)),
    "name": ("name", _text),
    "connection_timeout": ("connect_timeout", _milliseconds),
    "channel_max": ("channel_max", _number(0, 65535)),
    "frame_max": ("frame_max", _number(0, 2**32 - 1)),
    "auth_mechanism": ("mechanism", _mechanism),
    "cacertfile": ("cacertfile", _text),
    "certfile": ("certfile", _text),
    "keyfile": ("keyfile", _text),
    "verify": ("verify", _verify),
    "server_name_indication": ("server_name", _text),
}


# -- options to URL ----------------------------------------------------------------------------------------------------


def format_url(factory: ConnectionFactory, address: Address | None = None, *, with_password: bool = False) -> str:
    """Return the URL with the options that a URL can hold; without the password unless asked for."""
    host, port = address or factory.addresses[0]
    is_tls = bool(factory.tls)
    user = quote(factory.username, safe="")
    if with_password:
        user += ":" + quote(factory.password, safe="")
    shown_host = f"[{quote(host, safe=':')}]" if ":" in host else quote(host, safe="")
    scheme = "amqps" if is_tls else "amqp"
    path = quote(factory.virtual_host, safe="")
    options = urlencode(_options_of(factory), quote_via=quote)
    return f"{scheme}://{user}@{shown_host}:{port}/{path}" + (f"?{options}" if options else "")


def _options_of(factory: ConnectionFactory) -> dict[str, str]:
    """Return the options that do not have their default."""
    options: dict[str, str] = {}
    defaults = type(factory)()
    for option, (field, _) in OPTIONS.items():
        if field in TlsFiles.__dataclass_fields__:
            continue
        value = getattr(factory, field)
        if value != getattr(defaults, field):
            options[option] = f"{value * 1000:.0f}" if option == "connection_timeout" else str(value)
    if isinstance(factory.tls, TlsFiles):
        options |= _tls_options(factory.tls)
    return options


def _tls_options(tls: TlsFiles) -> dict[str, str]:
    options = {
        "cacertfile": tls.cacertfile,
        "certfile": tls.certfile,
        "keyfile": tls.keyfile,
        "verify": None if tls.verify else "verify_none",
        "server_name_indication": tls.server_name,
    }
    return {name: value for name, value in options.items() if value is not None}
