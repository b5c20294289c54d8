"""Configuration: a TOML file, `WARREN_*` variables and command-line flags become one frozen `Settings`.

Flags override the environment, which overrides the file, which overrides the defaults. Unknown keys and invalid values
are refused; the error names the closest key or the expected form. No other module reads the environment or a
configuration file: each package declares its options and receives them.

To add a key, add a line to `Settings` and a row to docs/configuration.md.
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
# For building and testing WarrenMQ; a broker may inherit them.
IGNORED_VARIABLES = ("WARREN_PURE", "WARREN_REQUIRE_COMPILED", "WARREN_TEST_", "WARREN_BENCH_")
MIB = 1024 * 1024
MAX_SHOWN_VALUE = 60  # characters of a value in an error


class ConfigError(Exception):
    """The configuration is invalid; the text is one line for its author."""


class InvalidValue(Exception):
    """A value is invalid for its key; the text is the expected form."""


# --- readers: one value as given (TOML value, or text of a variable or flag) -> the value as used ---


def text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidValue("a non-empty text")
    return value


def whole_number(low: int, high: int, meaning: str = "a whole number") -> Callable[[object], int]:
    def read(value: object) -> int:
        number = _integer(value)
        if number is None or not low <= number <= high:
            raise InvalidValue(f"{meaning} from {low} to {high}")
        return number

    return read


number_or_none = whole_number(0, 2**31, "a whole number (0 = no limit)")


def number_or_auto(value: object) -> int | None:
    """At least 1; "auto" is None."""
    if value == "auto":
        return None
    number = _integer(value)
    if number is None or number < 1:
        raise InvalidValue('a whole number from 1, or "auto"')
    return number


port_number = whole_number(0, 65535, "a port number (0 = any free port)")


def port_or_off(value: object) -> int | None:
    if value is False or value in ("off", "none"):
        return None
    try:
        return port_number(value)
    except InvalidValue as error:
        raise InvalidValue(f'{error}, or "off"') from None


def folder_or_none(value: object) -> Path | None:
    if value == "none":
        return None
    if isinstance(value, Path):
        return value.expanduser()
    if not isinstance(value, str) or not value:
        raise InvalidValue('the path of a folder, or "none"')
    return Path(value).expanduser()


def one_of(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in known:
            raise InvalidValue("one of " + ", ".join(known))
        return value.lower()

    return read


def yes_or_no(value: object) -> bool:
    answer = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(answer, bool):
        raise InvalidValue("true or false")
    return answer


def seconds(value: object) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError
        number = float(value)
        if not 0 < number < float("inf"):
            raise ValueError
    except ValueError:
        raise InvalidValue("a number of seconds greater than 0") from None
    return number


def size(value: object) -> int:
    number = _size(value)
    if number is None or number < 1:
        raise InvalidValue('a size in bytes, or as text such as "64MiB" or "2GiB"')
    return number


def size_or_none(value: object) -> int:
    """A size; 0 is no limit."""
    number = _size(value)
    if number is None or number < 0:
        raise InvalidValue('a size in bytes (0 = no limit), or as text such as "50MB" or "2GiB"')
    return number


def size_from(minimum: int, shown: str) -> Callable[[object], int]:
    def read(value: object) -> int:
        number = _size(value)
        if number is None or number < minimum:
            raise InvalidValue(f'a size of at least {shown}, in bytes or as text such as "128MiB"')
        return number

    return read


def durability(value: object) -> str:
    try:
        if isinstance(value, str):
            parse_durability(value)
            return value
    except ValueError:
        pass
    raise InvalidValue(DURABILITIES)


def memory(value: object) -> int:
    """Read a size, or a percentage of the machine's memory; 0 means no limit."""
    if isinstance(value, str) and (share := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)):
        percent = float(share[1])
        if 0 < percent <= 100:
            return int(machine_memory() * percent / 100)
    elif (number := _size(value)) is not None and number >= 0:
        return number
    raise InvalidValue(
        'a size in bytes (0 = no limit), as text such as "2GiB", or a percentage of the memory such as "60%"'
    )


def names(value: object) -> frozenset[str]:
    """Read a list of names; in a variable, separated by commas."""
    if isinstance(value, str):
        return frozenset(name.strip() for name in value.split(",") if name.strip())
    if isinstance(value, (list, tuple, set, frozenset)) and all(isinstance(name, str) and name for name in value):
        return frozenset(value)
    raise InvalidValue("a list of names")


def networks(value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read a list of addresses and networks; in a variable, separated by commas."""
    try:
        return tuple(ip_network(each, strict=False) for each in sorted(names(value)))
    except (InvalidValue, ValueError):
        raise InvalidValue('a list of addresses or networks, such as "10.0.0.7" or "10.0.0.0/8"') from None


def trace(value: object) -> str:
    """Read "off", "all", or a share of the messages."""
    text = {False: "off", True: "all"}.get(value, str(value)) if isinstance(value, bool) else str(value)
    try:
        rules_of_flag(text)
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    return text


def age(value: object) -> str:
    """Read an age, as in a stream's x-max-age; empty means no limit."""
    if value == "" or (isinstance(value, str) and parse_age(value) is not None):
        return str(value)
    raise InvalidValue('a number and a unit of Y, M, D, h, m, s, such as "7D", or "" for no limit')


def trace_rules(value: object) -> tuple[TraceRule, ...]:
    """Read a table of rules by name; in a variable, as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict) or not all(isinstance(rule, dict) for rule in value.values()):
        raise InvalidValue("a table of rules, each a table under its name")
    try:
        return tuple(parse_rule(name, rule, is_fixed=True) for name, rule in value.items())
    except ValueError as error:
        raise InvalidValue(f"valid trace rules; {error}") from None


def policy_list(is_operator: bool) -> Callable[[object], tuple[Policy, ...]]:
    """Read an array of policies as in RabbitMQ's definitions files; in a variable, as JSON."""

    def read(value: object) -> tuple[Policy, ...]:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                value = None
        if not isinstance(value, (list, tuple)):
            raise InvalidValue("a list of tables, one for each policy")
        return tuple(_policy(each, is_operator) for each in value)

    return read


def _policy(value: object, is_operator: bool) -> Policy:
    needed, known = (
        ("name", "pattern", "definition"),
        ("vhost", "name", "pattern", "definition", "priority", "apply-to"),
    )
    if not isinstance(value, dict) or any(key not in value for key in needed):
        raise InvalidValue("each policy to be a table with name, pattern and definition")
    if unknown := sorted(set(value) - set(known)):
        raise InvalidValue(f"policies without the key {unknown[0]!r}; known: {', '.join(known)}")
    vhost, name = value.get("vhost", "/"), value["name"]
    if not isinstance(vhost, str) or not isinstance(name, str):
        raise InvalidValue("policies with a text as vhost and name")
    priority, apply_to = value.get("priority", 0), value.get("apply-to", DEFAULT_APPLY_TO)
    try:
        return parse_policy(vhost, name, value["pattern"], value["definition"], priority, apply_to, is_operator)
    except InvalidPolicy as error:
        faults = "; ".join(line for line in str(error).splitlines()[1:] if line)
        raise InvalidValue(f"valid policies; policy {name!r}: {faults}") from None


def collector(value: object) -> str:
    """Read the URL of a collector; empty means none."""
    if value == "":
        return ""
    try:
        if isinstance(value, str):
            OtlpOptions(value)
            return value
    except ValueError:
        pass
    raise InvalidValue('the URL of a collector, such as "http://localhost:4318", or "" for none')


def http_headers(value: object) -> tuple[tuple[str, str], ...]:
    """Read a table of texts; in a variable, as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if isinstance(value, dict) and all(isinstance(text, str) for pair in value.items() for text in pair):
        return tuple(value.items())
    raise InvalidValue("a table of header names and values")


def setting(default: object, read: Callable[[object], object], *, is_secret: bool = False) -> Any:
    """Declare a key: its default, as written in the file, and the reader of its values."""
    return field(default_factory=lambda: read(default), metadata={"read": read, "is_secret": is_secret})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All keys of the configuration, validated. docs/configuration.md describes them."""

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
    max_pause_us: int = setting(400, whole_number(0, 1000, "a number of microseconds (0 = never)"))
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
    """Read and validate all sources; a flag that is None was not given. Raises ConfigError."""
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
    """Return the options of the AMQP server: the keys that both classes have."""
    shared = {entry.name for entry in fields(ServerOptions)} & KEYS.keys()
    return ServerOptions(**{name: getattr(settings, name) for name in shared})


def limits(settings: Settings) -> Limits:
    """Return the limits of what clients declare."""
    return Limits(**{entry.name: getattr(settings, entry.name) for entry in fields(Limits)})


def http_options(settings: Settings) -> HttpOptions:
    return HttpOptions(trusted_proxies=settings.trusted_proxies, allowed_hosts=settings.allowed_hosts)


def storage_options(settings: Settings) -> StorageOptions:
    """Return the options of the storage. The log has at least four files, which are dropped one by one.

    The memory budget is below the memory alarm: queues are paged out before publishers are paused.
    """
    budget = settings.memory_limit * 3 // 4 if settings.memory_limit else MEMORY_BUDGET
    return StorageOptions(
        durability=parse_durability(settings.durability),
        log_limit=settings.log_limit,
        log_file_size=min(LOG_FILE_SIZE, settings.log_limit // 4),
        memory_budget=min(MEMORY_BUDGET, budget),
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
    """Return the default data folder of the user (XDG Base Directory)."""
    base = environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "warrenmq"
    return Path(environ.get("HOME") or Path.home()) / ".local" / "share" / "warrenmq"


def machine_memory() -> int:
    """Return the memory of the machine, or the limit of its container if lower."""
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
    except InvalidValue as error:
        shown = "(secret)" if is_secret else _shortened(repr(value))
        raise ConfigError(f"{source} = {shown}: expected {error}") from None


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_VALUE else text[: MAX_SHOWN_VALUE - 1] + "…"


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the WARREN_ variables that set a key; an empty one is ignored."""
    known = {VARIABLE_PREFIX + key.upper() for key in KEYS}
    found = {}
    for variable, value in environ.items():
        if not variable.startswith(VARIABLE_PREFIX) or variable.startswith(IGNORED_VARIABLES):
            continue
        if variable == CONFIG_VARIABLE:
            continue
        _require_known(variable, known | {CONFIG_VARIABLE}, "unknown variable")
        if value:
            found[variable] = value
    return found


def _require_known(name: str, known: Iterable[str], problem: str) -> None:
    known = sorted(known)
    if name in known:
        return
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]}?" if nearest else "known: " + ", ".join(known)
    raise ConfigError(f"{problem} {name!r}; {hint}")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as source:
            return tomllib.load(source)
    except OSError as failure:
        raise ConfigError(f"{path}: cannot read the configuration: {failure.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failure:
        raise ConfigError(f"{path}: not valid TOML: {failure}") from None


def _flattened(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the table `[tracing]`: its `max_age` is the key `tracing_max_age`."""
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
