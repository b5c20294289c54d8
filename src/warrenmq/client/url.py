"""amqp:// and amqps:// URLs to settings, and back.

`amqp://user:password@host:port/vhost?option=value&...`, after RabbitMQ's URI specification and its query parameters:

- every part may be left out; user, password, virtual host and option values are percent-decoded;
- an IPv6 address stands in brackets: `amqp://[::1]:5672`;
- no path and a lone slash both mean the virtual host `/`. The specification reads a lone slash as the virtual host with
  the empty name, and RabbitMQ's Java client does so; nobody has such a virtual host, everybody has URLs that end with
  a slash, and pika and aio-pika take them as meant. An empty name can be given as `virtual_host=""`;
- the options are those of OPTIONS; others are refused, as a misspelt `heartbeat` would never be noticed;
- a server's certificate is checked unless `verify=verify_none` (RabbitMQ's Erlang client once left it unchecked).

No text made here holds a password. Pure, but for reading the certificate files that a URL names when a context is made.
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
    """TLS told by the files of certificates: what the options of a URL can say.

    `server_name`: the name that the certificate must bear if not the address's host; "disable" asks for none.
    """

    cacertfile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    server_name: str | None = None

    def context(self) -> ssl.SSLContext:
        """Read the files; raises Misuse naming the one that cannot be used."""
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


# -- one URL to settings -----------------------------------------------------------------------------------------------


def parse_url(url: str) -> dict[str, Any]:
    """The settings that this URL names, by the names of ConnectionFactory; what it leaves out is left out.

    A port that is not named is None: which one it is depends on TLS, which may be asked for elsewhere.

    >>> parse_url("amqp://anna:s%40crt@broker/orders?heartbeat=30")["virtual_host"]
    'orders'
    """
    parts = _split(url)
    is_tls = parts.scheme == "amqps"
    settings: dict[str, Any] = {"addresses": (_address(parts),)}
    if parts.username is not None:
        settings["username"] = _decoded(parts.username, "user name")
    if parts.password is not None:
        settings["password"] = _decoded(parts.password, "password")
    if parts.path not in ("", "/"):
        settings["virtual_host"] = _virtual_host(parts.path)
    tls = _read_options(parts.query, settings)
    if is_tls:
        settings["tls"] = TlsFiles(**tls) if tls else True
    elif tls:
        raise Misuse(f"the URL's TLS options ({', '.join(sorted(tls))}) need amqps://")
    return settings


def _split(url: str) -> SplitResult:
    """Cut the URL; what is wrong with it is told without quoting it, as it may hold a password anywhere."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.hostname
    except ValueError:
        raise Misuse("the URL cannot be read: are the brackets of an IPv6 address closed?") from None
    if parts.scheme not in ("amqp", "amqps") or "://" not in url:
        raise Misuse("an AMQP URL begins with amqp:// or amqps://")
    if parts.fragment:
        raise Misuse("the URL has a '#': in a password or virtual host it is written %23")
    return parts


def _address(parts: SplitResult) -> tuple[str, int | None]:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        hint = "in a user name or password '/', '?', '#', '@' and ':' are written %2F, %3F, %23, %40 and %3A"
        raise Misuse(f"the URL's port is not a number from 1 to 65535 ({hint})")
    return unquote(parts.hostname or "") or "localhost", port


def _virtual_host(path: str) -> str:
    if "/" in path[1:]:
        raise Misuse("the URL's path has a second '/': in the name of a virtual host it is written %2F")
    return _decoded(path[1:], "virtual host")


def _decoded(text: str, what: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Misuse(f"the {what} in the URL is not UTF-8") from None


# -- options -----------------------------------------------------------------------------------------------------------


def _read_options(query: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Put the options into the settings; gives those of TLS, which come together as one setting."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise Misuse("the URL's options are not UTF-8") from None
    tls: dict[str, Any] = {}
    seen: set[str] = set()
    for name, text in pairs:
        if name not in OPTIONS:
            raise Misuse(f"the URL's option {name!r} is not known; known are {', '.join(OPTIONS)}")
        if name in seen:
            raise Misuse(f"the URL's option {name} comes twice")
        seen.add(name)
        setting, read = OPTIONS[name]
        kept = tls if setting in TlsFiles.__dataclass_fields__ else settings
        try:
            kept[setting] = read(text)
        except ValueError as error:
            raise Misuse(f"the URL's option {name} is {error}, not {text!r}") from None
    return tls


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
            raise ValueError(f"a number from {least} to {most}")
        return int(text)

    return read


def _milliseconds(text: str) -> float:
    return _number(1, 2**31 - 1)(text) / 1000


def _text(text: str) -> str:
    if not text:
        raise ValueError("a text")
    return text


def _verify(text: str) -> bool:
    if text not in ("verify_peer", "verify_none"):
        raise ValueError("verify_peer or verify_none")
    return text == "verify_peer"


def _mechanism(text: str) -> str:
    if text.upper() not in MECHANISMS:  # RabbitMQ writes them in small letters here
        raise ValueError(f"one of {', '.join(MECHANISMS).lower()}")
    return text.upper()


# What may stand behind the '?': the setting it becomes, and how its text is read.
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


# -- and back ----------------------------------------------------------------------------------------------------------


def format_url(factory: ConnectionFactory, address: Address | None = None, *, with_password: bool = False) -> str:
    """The URL that says what this factory says, as far as URLs can; without the password unless asked for."""
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
    """The options whose settings are not at their defaults."""
    options: dict[str, str] = {}
    defaults = type(factory)()
    for option, (setting, _) in OPTIONS.items():
        if setting in TlsFiles.__dataclass_fields__:
            continue
        value = getattr(factory, setting)
        if value != getattr(defaults, setting):
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
