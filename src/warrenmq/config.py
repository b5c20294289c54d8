"""Configuration: a TOML file, `WARREN_*` variables and command-line flags become one frozen `Settings`.

A flag wins over the environment, that over the file, that over the default. A key that does not exist is refused
with the nearest one that does; a value that does not fit is refused with what would. Nothing below this module
reads the environment or a file: each package declares the options it takes, and is given them.

To add a key, add its line to `Settings` and its row to docs/configuration.md.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

from warrenmq import __version__
from warrenmq.core.arguments import MAX_DURATION_MS, parse_age
from warrenmq.core.durability import EXPECTED as DURABILITIES
from warrenmq.core.durability import parse_durability
from warrenmq.core.limits import Limits
from warrenmq.core.policies import DEFAULT_APPLY_TO, InvalidPolicy, Policy, parse_policy
from warrenmq.management.options import HttpOptions
from warrenmq.server.options import ServerOptions
from warrenmq.storage.options import LOG_FILE_SIZE, MEMORY_BUDGET, StorageOptions
from warrenmq.tracing.export_otlp import OtlpOptions
from warrenmq.tracing.log import EventLogOptions
from warrenmq.tracing.rules import TraceRule, parse_rule, rules_of_flag
from warrenmq.tracing.service import TracingOptions

VARIABLE_PREFIX = "WARREN_"
CONFIG_VARIABLE = "WARREN_CONFIG"
# These belong to building and testing WarrenMQ; a broker that inherits them is not misconfigured.
FOREIGN_VARIABLES = ("WARREN_PURE", "WARREN_REQUIRE_COMPILED", "WARREN_TEST_", "WARREN_BENCH_")
MIB = 1024 * 1024


class ConfigError(Exception):
    """The configuration cannot be used; the text is one line for the person who wrote it."""


class Unfit(Exception):
    """A value does not fit its key; the text says what would."""


# --- readers: one value as it came (TOML value, or text from a variable or flag) -> the value as it is used ---


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise Unfit("a text that is not empty")
    return value


def whole_number(low: int, high: int, meaning: str = "a whole number") -> Callable[[object], int]:
    def read(value: object) -> int:
        number = _integer(value)
        if number is None or not low <= number <= high:
            raise Unfit(f"{meaning} from {low} to {high}")
        return number

    return read


number_or_none = whole_number(0, 2**31, "a whole number (0 = no limit)")


def number_or_auto(value: object) -> int | None:
    """At least 1; "auto" is None."""
    if value == "auto":
        return None
    number = _integer(value)
    if number is None or number < 1:
        raise Unfit('a whole number from 1, or "auto"')
    return number


port_number = whole_number(0, 65535, "a port number (0 = any free one)")


def port_or_off(value: object) -> int | None:
    if value is False or value in ("off", "none"):
        return None
    try:
        return port_number(value)
    except Unfit as unfit:
        raise Unfit(f'{unfit}, or "off"') from None


def folder_or_none(value: object) -> Path | None:
    if value == "none":
        return None
    if isinstance(value, Path):
        return value.expanduser()
    if not isinstance(value, str) or not value:
        raise Unfit('the path of a folder, or "none"')
    return Path(value).expanduser()


def one_of(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in known:
            raise Unfit("one of " + ", ".join(known))
        return value.lower()

    return read


def yes_or_no(value: object) -> bool:
    answer = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(answer, bool):
        raise Unfit("true or false")
    return answer


def seconds(value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not 0 < number < float("inf"):
            raise ValueError
    except ValueError:
        raise Unfit("a number of seconds greater than 0") from None
    return number


def size(value: object) -> int:
    number = _size(value)
    if number is None or number < 1:
        raise Unfit('a size in bytes, or as text such as "64MiB" or "2GiB"')
    return number


def size_or_none(value: object) -> int:
    """A size; 0 is no limit."""
    number = _size(value)
    if number is None or number < 0:
        raise Unfit('a size in bytes (0 = no limit), or as text such as "50MB" or "2GiB"')
    return number


def size_from(least: int, shown: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        number = _size(value)
        if number is None or number < least:
            raise Unfit(f'a size of at least {shown}, in bytes or as text such as "128MiB"')
        return number

    return read


def durability(value: object) -> str:
    try:
        if isinstance(value, str):
            parse_durability(value)
            return value
    except ValueError:
        pass
    raise Unfit(DURABILITIES)


def memory(value: object) -> int:
    """A size, or a share of this machine's memory; 0 is no limit."""
    if isinstance(value, str) and (share := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)):
        percent = float(share[1])
        if 0 < percent <= 100:
            return int(machine_memory() * percent / 100)
    elif (number := _size(value)) is not None and number >= 0:
        return number
    raise Unfit('a size in bytes (0 = no limit), as text such as "2GiB", or a share of the memory such as "60%"')


def names(value: object) -> frozenset[str]:
    """A list of names; in a variable, names with commas between them."""
    if isinstance(value, str):
        return frozenset(name.strip() for name in value.split(",") if name.strip())
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) and name for name in value):
        return frozenset(value)
    raise Unfit("a list of names")


def networks(value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    """A list of addresses and networks; in a variable, with commas between them."""
    try:
        return tuple(ip_network(each, strict=False) for each in sorted(names(value)))
    except (Unfit, ValueError):
        raise Unfit('a list of addresses or networks, such as "10.0.0.7" or "10.0.0.0/8"') from None


def trace(value: object) -> str:
    """off, all, or a share of the messages."""
    text = {False: "off", True: "all"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    try:
        rules_of_flag(text)
    except ValueError as error:
        raise Unfit(str(error)) from None
    return text


def age(value: object) -> str:
    """As a stream's x-max-age; empty is no limit."""
    if value == "" or (isinstance(value, str) and parse_age(value) is not None):
        return str(value)
    raise Unfit('a number and a unit of Y, M, D, h, m, s, such as "7D", or "" for no limit')


def trace_rules(value: object) -> tuple[TraceRule, ...]:
    """Tables by the names of the rules; in a variable, the same as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict) or not all(isinstance(rule, dict) for rule in value.values()):
        raise Unfit("a table for each rule, by its name")
    try:
        return tuple(parse_rule(name, rule, is_fixed=True) for name, rule in value.items())
    except ValueError as error:
        raise Unfit(f"rules of which each is right: {error}") from None


def policy_list(is_operator: bool) -> Callable[[object], tuple[Policy, ...]]:
    """An array of tables, each a policy as in RabbitMQ's definitions files; in a variable, the same as JSON."""

    def read(value: object) -> tuple[Policy, ...]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, (list, tuple)):
            raise Unfit("a list of tables, one for each policy")
        return tuple(_policy(each, is_operator) for each in value)

    return read


def _policy(value: object, is_operator: bool) -> Policy:
    needed, known = (
        ("name", "pattern", "definition"),
        ("vhost", "name", "pattern", "definition", "priority", "apply-to"),
    )
    if not isinstance(value, dict) or any(key not in value for key in needed):
        raise Unfit("for each policy a table with name, pattern and definition")
    if unknown := sorted(set(value) - set(known)):
        raise Unfit(f"policies without {unknown[0]!r}; a policy has {', '.join(known)}")
    vhost, name = value.get("vhost", "/"), value["name"]
    if not isinstance(vhost, str) or not isinstance(name, str):
        raise Unfit("policies whose vhost and name are texts")
    priority, apply_to = value.get("priority", 0), value.get("apply-to", DEFAULT_APPLY_TO)
    try:
        return parse_policy(vhost, name, value["pattern"], value["definition"], priority, apply_to, is_operator)
    except InvalidPolicy as error:
        faults = "; ".join(line for line in str(error).splitlines()[1:] if line)
        raise Unfit(f"policies of which each is right; of {name!r}: {faults}") from None


def collector(value: object) -> str:
    """Where spans are sent; empty is nowhere."""
    if value == "":
        return ""
    try:
        if isinstance(value, str):
            OtlpOptions(value)
            return value
    except ValueError:
        pass
    raise Unfit('the URL of a collector, such as "http://localhost:4318", or "" for none')


def http_headers(value: object) -> tuple[tuple[str, str], ...]:
    """A table of texts; in a variable, the same as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return tuple(value.items())
    raise Unfit("a table of names and values")


def setting(default: object, read: Callable[[object], object], *, is_secret: bool = False) -> Any:
    """Declare one key: its default as a person would write it, and the reader of its values."""
    return field(default_factory=lambda: read(default), metadata={"read": read, "is_secret": is_secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every key of the configuration, checked. docs/configuration.md says what each means."""

    host: str = setting("127.0.0.1", text)
    port: int = setting(5672, port_number)
    http_port: int | None = setting(15672, port_or_off)
    data_dir: Path | None = field(
        default_factory=lambda: default_data_dir(os.environ), metadata={"read": folder_or_none, "is_secret": False}
    )
    strict: bool = setting(False, yes_or_no)
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"))
    log_format: str = setting("text", one_of("text", "json"))
    heartbeat: int = setting(60, whole_number(0, 65535, "a number of seconds (0 = none)"))
    frame_max: int = setting(131072, whole_number(4096, 16 * MIB, "a number of bytes"))
    channel_max: int = setting(2047, whole_number(1, 65535))
    handshake_timeout: float = setting(10.0, seconds)
    max_connections: int | None = setting("auto", number_or_auto)
    max_http_connections: int | None = setting("auto", number_or_auto)
    max_message_size: int = setting(128 * MIB, size)
    max_queues: int = setting(200_000, number_or_none)
    max_exchanges: int = setting(100_000, number_or_none)
    max_bindings: int = setting(1_000_000, number_or_none)
    consumer_max_per_channel: int = setting(10_000, number_or_none)
    consumer_timeout: int = setting(0, whole_number(0, MAX_DURATION_MS, "a number of milliseconds (0 = none)"))
    memory_limit: int = setting("60%", memory)
    disk_free_limit: int = setting("50MB", size_or_none)
    durability: str = setting("fsync", durability)
    log_limit: int = setting("128MiB", size_from(MIB, "1MiB"))
    busy_poll_us: int = setting(50, whole_number(0, 1000, "a number of microseconds (0 = never)"))
    default_user: str = setting("guest", text)
    default_pass: str = setting("guest", text, is_secret=True)
    loopback_users: frozenset[str] = setting(["guest"], names)
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = setting([], networks)
    allowed_hosts: frozenset[str] = setting([], names)
    policies: tuple[Policy, ...] = setting([], policy_list(is_operator=False))
    operator_policies: tuple[Policy, ...] = setting([], policy_list(is_operator=True))
    trace: str = setting("off", trace)
    tracing_max_bytes: int = setting("10GiB", size_or_none)
    tracing_max_age: str = setting("7D", age)
    tracing_rules: tuple[TraceRule, ...] = setting({}, trace_rules)
    tracing_otlp_endpoint: str = setting("", collector)
    tracing_otlp_headers: tuple[tuple[str, str], ...] = setting({}, http_headers, is_secret=True)


KEYS: Mapping[str, Mapping[str, Any]] = {entry.name: entry.metadata for entry in fields(Settings)}


def load(flags: Mapping[str, object], environ: Mapping[str, str], config_file: Path | None) -> Settings:
    """Read and check everything; a flag that is None was not given. Raises ConfigError."""
    if config_file is None and environ.get(CONFIG_VARIABLE):
        config_file = Path(environ[CONFIG_VARIABLE]).expanduser()
    chosen: dict[str, Any] = {"data_dir": default_data_dir(environ)}
    if config_file is not None:
        for key, value in _flattened(_read_file(config_file)).items():
            _require_known(key, KEYS, f"{config_file}: unknown key")
            chosen[key] = _checked(key, value, f"{config_file}: {key}")
    for variable, value in _variables(environ).items():
        key = variable.removeprefix(VARIABLE_PREFIX).lower()
        chosen[key] = _checked(key, value, variable)
    for key, value in flags.items():
        if value is not None:
            chosen[key] = _checked(key, value, "--" + key.replace("_", "-"))
    return Settings(**chosen)


def server_options(settings: Settings) -> ServerOptions:
    """The part of the settings that the AMQP server takes: the keys that both name."""
    shared = {entry.name for entry in fields(ServerOptions)} & KEYS.keys()
    return ServerOptions(**{name: getattr(settings, name) for name in shared})


def limits(settings: Settings) -> Limits:
    """The part of the settings that bounds what clients declare."""
    return Limits(**{entry.name: getattr(settings, entry.name) for entry in fields(Limits)})


def http_options(settings: Settings) -> HttpOptions:
    return HttpOptions(trusted_proxies=settings.trusted_proxies, allowed_hosts=settings.allowed_hosts)


def storage_options(settings: Settings) -> StorageOptions:
    """The part of the settings that the storage takes. The log has at least four files, to be let go one by one.

    Lines are paged out before publishers are paused: a backlog alone is no reason for that.
    """
    may_hold = settings.memory_limit * 3 // 4 if settings.memory_limit else MEMORY_BUDGET
    return StorageOptions(
        durability=parse_durability(settings.durability),
        log_limit=settings.log_limit,
        log_file_size=min(LOG_FILE_SIZE, settings.log_limit // 4),
        memory_budget=min(MEMORY_BUDGET, may_hold),
    )


def tracing_options(settings: Settings) -> TracingOptions:
    return TracingOptions(
        (*rules_of_flag(settings.trace), *settings.tracing_rules),
        EventLogOptions(settings.tracing_max_bytes, settings.tracing_max_age),
        otlp=_otlp_options(settings),
    )


def _otlp_options(settings: Settings) -> OtlpOptions | None:
    if not settings.tracing_otlp_endpoint:
        return None
    return OtlpOptions(settings.tracing_otlp_endpoint, dict(settings.tracing_otlp_headers), version=__version__)


def default_data_dir(environ: Mapping[str, str]) -> Path:
    """Where a user's programs keep their data by convention (XDG Base Directory)."""
    base = environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "warrenmq"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "share" / "warrenmq"


def machine_memory() -> int:
    """The bytes of memory this process may count on: the machine's, or its container's where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _checked(key: str, value: object, source: str) -> object:
    read, is_secret = KEYS[key]["read"], KEYS[key]["is_secret"]
    try:
        return read(value)
    except Unfit as unfit:
        shown = "(not shown)" if is_secret else repr(value)
        raise ConfigError(f"{source} = {shown}: expected {unfit}") from None


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The WARREN_ variables that set a key; an empty one counts as not set."""
    known = {VARIABLE_PREFIX + key.upper() for key in KEYS}
    found = {}
    for variable, value in environ.items():
        if not variable.startswith(VARIABLE_PREFIX) or variable.startswith(FOREIGN_VARIABLES):
            continue
        if variable == CONFIG_VARIABLE:
            continue
        _require_known(variable, known | {CONFIG_VARIABLE}, "unknown variable")
        if value:
            found[variable] = value
    return found


def _require_known(name: str, known: Iterable[str], complaint: str) -> None:
    known = sorted(known)
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "known: " + ", ".join(known)
    raise ConfigError(f"{complaint} {name!r}; {hint}")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as source:
            return tomllib.load(source)
    except OSError as failure:
        raise ConfigError(f"{path}: cannot read the configuration: {failure.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise ConfigError(f"{path}: not valid TOML: {failure}") from None


def _flattened(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What stands under `[tracing]` as keys of its own: `max_age` there is `tracing_max_age`."""
    flat = dict(keys)
    table = flat.get("tracing")
    if isinstance(table, dict):
        del flat["tracing"]
        flat.update((key if key == "trace" else f"tracing_{key}", value) for key, value in table.items())
    return flat


def _integer(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,20}\s*", value, re.ASCII):
        return int(value)
    return None


def _size(value: object) -> int | None:
    number = _integer(value)
    if number is not None:
        return number
    units = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    if isinstance(value, str) and (parts := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value, re.ASCII)):
        unit = units.get(parts[2].lower())
        return None if unit is None else int(float(parts[1]) * unit)
    return None
